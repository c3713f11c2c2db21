"""The declared ProVerif runs of docs/proof: scenarios, and their queries."""

from __future__ import annotations

from typing import Final

from tools.prove.declared import Query, Scenario, Verdict

__all__ = ["SCENARIOS"]

_REACHABLE: Final = Verdict.FALSE
"""A query that says that something never happens, and is false: so the others do not hold for want of any run."""


def _reachable(name: str, what: str) -> Query:
    return Query(name, f"Never: {what}. It happens, so the model can run to its end.", _REACHABLE)


SCENARIOS: Final[tuple[Scenario, ...]] = (
    Scenario(
        file="join.pv",
        title="First join, renewal, tpm and gcp, versions",
        libraries=("wire_format.pvl", "join.pvl"),
        queries=(
            Query(
                "agreement",
                "A certificate for an honest machine's provider ID is for a key that this machine made, and for the "
                "node name, cluster pin, signer, version, first request and nonce for which it answered.",
            ),
            Query("secret", "Nobody but the TPM learns the secret S of a challenge for an honest machine."),
            Query("acceptance", "A node stores only certificates that the controller issued for its key and name."),
            Query(
                "node name", "A certificate has the name of the Machine with its provider ID, of the attacker's, too."
            ),
            Query(
                "provider ID",
                "A key that a node made is certified for the provider ID of its own Machine only, whatever ID an API "
                "server told the node.",
            ),
            Query("no provider ID", "No certificate is issued for a request without provider ID."),
            Query("attestor", "A certificate is issued by evidence of a provider that the cluster's policy names."),
            Query(
                "known version",
                "A version of the evidence that the controller does not know gets no certificate.",
            ),
            _reachable("reachable certificate", "a certificate by version 1"),
            _reachable("reachable without ID", "a node that was told its ID stores a certificate of an honest cluster"),
            _reachable("reachable acceptance", "a node stores a certificate of an honest cluster"),
        ),
    ),
    Scenario(
        file="leaks.pv",
        title="All TLS keys and all secrets S leak",
        libraries=("wire_format.pvl", "join.pvl"),
        queries=(
            Query("agreement, all leaks", "Agreement needs neither the TLS keys nor S: the quote is enough."),
            Query(
                "renewal, all leaks",
                "With stolen certificates the attacker renews for no key of his own: the TPM proves each key.",
            ),
        ),
    ),
    Scenario(
        file="once.pv",
        title="With the ledger",
        libraries=("wire_format.pvl", "join.pvl", "ledger.pvl"),
        queries=(
            Query("injective agreement", "Each certificate belongs to a request of the node of its own: no replay."),
            Query(
                "one key for one challenge", "A challenge is answered for one key only, whatever the API server says."
            ),
        ),
    ),
    Scenario(
        file="honest_api.pv",
        title="With an honest API server, without the ledger",
        libraries=("wire_format.pvl", "join.pvl"),
        queries=(
            Query("one key for one challenge", "A challenge is answered for one key only."),
            Query(
                "one Machine for one challenge",
                "A challenge is good for one Machine object only.",
            ),
        ),
    ),
    Scenario(
        file="first_use.pv",
        title="Trust on first use",
        libraries=("wire_format.pvl", "join.pvl", "ledger.pvl"),
        queries=(
            Query(
                "pins hold",
                "Once an honest TPM is pinned for a Machine, each certificate is for what this TPM quoted, although "
                "any genuine TPM may come first, and a co-resident agent has a key of the same shape.",
            ),
            Query("provider ID", "As in join.pv: no other Machine is bound to the TPM of a node that was told its ID."),
            _reachable("reachable", "a certificate on first use"),
        ),
    ),
    Scenario(
        file="co_resident.pv",
        title="Another agent on the machine answers strangers",
        libraries=("wire_format.pvl", "join.pvl"),
        queries=(Query("agreement", "Agreement holds: no key of another agent has our mark."),),
    ),
    Scenario(
        file="boot.pv",
        title="Root on the machine, in a boot that the policy does not allow",
        libraries=("wire_format.pvl", "join.pvl"),
        queries=(Query("boot state", "The machine gets no certificate, whatever root on it has the TPM do."),),
    ),
    Scenario(
        file="left.pv",
        title="An intruder who left",
        libraries=("wire_format.pvl", "join.pvl"),
        queries=(
            Query(
                "intruder left",
                "What he had the TPM quote and decrypt while he was root is worth nothing for a first request that is "
                "filed later: such a certificate is for a key that the honest node made.",
            ),
        ),
    ),
    Scenario(
        file="challenge.pv",
        title="challenge/v1",
        libraries=("wire_format.pvl",),
        queries=(
            Query("agreement", "As in join.pv, by the Machine's secret in the place of the TPM."),
            Query("injective agreement", "Each certificate belongs to a request of the node of its own."),
            Query("secret", "The secret is never learnt from the messages."),
            Query("one key for a secret", "One key joins with a secret."),
            _reachable("reachable", "a certificate for an honest machine"),
        ),
    ),
    Scenario(
        file="composite.pv",
        title="composite (allOf) of tpm and challenge, one part broken",
        libraries=("wire_format.pvl", "join.pvl"),
        queries=(
            Query("agreement", "With the secret leaked, or the TPM the attacker's, the other part still suffices."),
            Query("agreement, tpm alone", "A proof that was made for a composite is none for tpm alone."),
            _reachable("reachable", "a certificate for an honest machine"),
        ),
    ),
    Scenario(
        file="cloud.pv",
        title="aws and azure: documents that the platform signs",
        libraries=("wire_format.pvl",),
        queries=(
            Query(
                "agreement, azure",
                "A certificate for an honest instance is for a key, pin and signer of its own.",
            ),
            Query("agreement, aws", "The same, although whoever owns another account signs as any session name there."),
            Query("injective agreement", "Each certificate belongs to a request of the node of its own."),
            _reachable("reachable, azure", "a certificate by azure"),
            _reachable("reachable, aws", "a certificate by aws"),
        ),
    ),
    Scenario(
        file="requesters.pv",
        title="Bootstrap tokens, adoption and serving certificates, with worthless evidence",
        libraries=("wire_format.pvl",),
        queries=(
            Query("own token", "A fresh machine joins by its own token only, or by one that is bound to it."),
            Query("no takeover", "No token joins as a machine that has a Node which was never attested."),
            Query("adoption is opened", "Such a machine is adopted only after an operator opened it."),
            Query("adoption by the node", "And only for a key that the node with its certificate made."),
            Query("serving", "A serving certificate is for a key that the node itself made for that purpose."),
            Query("serving after client", "Only a machine with a client certificate on record gets one."),
            Query("a key for one purpose", "No key has certificates for both purposes."),
            Query(
                "provider ID",
                "A key that a node made is certified for its own Machine's provider ID only, whatever it was told.",
            ),
            Query("no provider ID", "No certificate is issued for a request without provider ID."),
            Query("told by its token", "The controller tells an honest machine's ID to the holder of its token only."),
            _reachable("reachable without ID", "a certificate for a node that was told its ID"),
            _reachable("reachable token", "a certificate by a token"),
            _reachable("reachable adoption", "an adoption"),
            _reachable("reachable serving", "a serving certificate"),
        ),
    ),
)
