"""The declared mutants of the ProVerif models: each check left out, and what happens then.

The name of a check is its name in the code: those of ``tpm.protocol_verifier`` and ``challenge_response`` are what
``checks.require`` calls them, those of ``controllers.csr.checks`` are the names in ``CHECKS``. Fields of a formula and
checks of other providers have names of their own.
"""

from __future__ import annotations

from typing import Final

from tools.prove.declared import Edit, Mutant, Verdict

__all__ = ["MUTANTS", "NOT_MODELLED"]

_TRUST: Final = "  get trusted(=provider, =machine_uid, =ek) in"
_MAC: Final = "  if mac = tpm_proof(s, uid, h(p1), bound) then\n"
_EXTRA: Final = "  if extra = qualifying_data(n, uid, bound) then\n"
_BINDING: Final = "for_binding), block(provider, ver), pin, signer, csr_sha256)"
_CONTEXT: Final = "(cluster_uid, uid, h(request), user, ak_name, ek_sha256, machine_uid, created)"
_QUOTE: Final = "(label(nodeattest, v1, for_quote), nonce, uid, bound)"


_ONLY_S: Final = Edit("  | (!in(tls_keys, t: bitstring); out(c, t))\n")
"""With this, TLS keys do not leak: an attacker who gets less is enough, and ProVerif then reconstructs his trace."""


def _context(without: str) -> tuple[Edit, ...]:
    """Leave fields out of the TPM's challenge context."""
    return (Edit(_CONTEXT, without),)


_VERIFIER: Final = (
    Mutant(
        check="endorsement key template",
        scenario="first_use.pv",
        edits=(Edit("  if is_template(ek) then", times=2),),
        expected=Verdict.TRUE,
        sentence="Trust names the key itself. The check stays because trust is by the SubjectPublicKeyInfo, and the "
        "rest "
        "of the public area comes from the requester.",
    ),
    Mutant(
        check="attestation key attributes",
        scenario="boot.pv",
        query="boot state",
        edits=(Edit("  if attributes = exact then\n", times=2),),
        sentence="Root makes a key in the TPM that is not restricted, which signs a quote that he wrote, with good "
        "PCRs.",
    ),
    Mutant(
        check="attestation key authPolicy",
        scenario="co_resident.pv",
        query="agreement",
        edits=(Edit("  if authorization = mark then", times=2),),
        sentence="The attacker shows the co-resident agent's key, without mark, as the attestation key.",
    ),
    Mutant(
        check="whose the endorsement key is",
        scenario="leaks.pv",
        query="agreement, all leaks",
        edits=(Edit(_TRUST, times=2),),
        sentence="The attacker answers with a genuine TPM of his own for the provider ID of the honest machine.",
    ),
    Mutant(
        check="activated secret",
        scenario="join.pv",
        query="agreement",
        edits=(Edit(_MAC),),
        sentence="The attacker shows the honest endorsement key beside an attestation key in another TPM, which "
        "quotes, "
        "and activates nothing.",
    ),
    Mutant(
        check="quote binding",
        scenario="leaks.pv",
        query="agreement, all leaks",
        edits=(Edit(_EXTRA),),
        sentence="The attacker sends a quote of the honest TPM from another request beside a request of his own; S "
        "leaked.",
    ),
    Mutant(
        check="quote signature",
        scenario="leaks.pv",
        query="agreement, all leaks",
        edits=(Edit("verify(key, signed_quote)", "message(signed_quote)"),),
        sentence="The attacker writes the quote himself and signs it with any key; S leaked.",
    ),
    Mutant(
        check="quote structure",
        scenario="boot.pv",
        query="boot state",
        edits=(Edit("  if kind = quote then\n"),),
        sentence="Root has the TPM certify an object, so that what the verifier reads as PCRs is what he chose.",
    ),
    Mutant(
        check="qualified signer",
        scenario="co_resident.pv",
        query="agreement",
        edits=(Edit("  if quote_signer = qualified_name(endorsement, h(ak)) then\n"),),
        sentence="The attacker uses a key of the same shape in another hierarchy, which answers strangers.",
    ),
    Mutant(
        check="boot state",
        scenario="boot.pv",
        query="boot state",
        edits=(Edit("  if pcrs = good then"),),
        sentence="Root quotes the PCRs of the boot that he controls.",
    ),
    Mutant(
        check="same PKCS#10 bytes",
        scenario="honest_api.pv",
        query="one key for one challenge",
        edits=(Edit("  if p1 = p then\n"),),
        sentence="A machine of the attacker answers one challenge with two requests that have different keys.",
    ),
    Mutant(
        check="own challenge only (node)",
        scenario="join.pv",
        edits=(
            Edit(
                "     if spki = h(k) then                                                    (* 7: its own "
                "challenge only *)\n"
            ),
        ),
        expected=Verdict.TRUE,
        sentence="Name, binding and context make a foreign challenge useless. The check stays because a node should "
        "decrypt for nobody else, whatever the formulas of a later version.",
    ),
)

_FORMULAS: Final = (
    Mutant(
        check="cluster pin in the binding",
        scenario="leaks.pv",
        query="agreement, all leaks",
        edits=(
            Edit(_BINDING, _BINDING.replace("pin, ", "")),
            _ONLY_S,
        ),
        sentence="A node that was told to join the attacker's cluster gets a certificate of an honest one.",
    ),
    Mutant(
        check="signer in the binding",
        scenario="leaks.pv",
        query="agreement, all leaks",
        edits=(
            Edit(_BINDING, _BINDING.replace("signer, ", "")),
            _ONLY_S,
        ),
        sentence="A proof for a client certificate gets a serving one, or one of another provider.",
    ),
    Mutant(
        check="request in the binding",
        scenario="leaks.pv",
        query="agreement, all leaks",
        edits=(Edit(_BINDING, _BINDING.replace(", csr_sha256", "")),),
        sentence="The attacker puts a request with his own key beside a quote of the honest node; S leaked.",
    ),
    Mutant(
        check="evidence block in the binding",
        scenario="join.pv",
        query="agreement",
        edits=(Edit(_BINDING, "for_binding), pin, signer, csr_sha256)"),),
        expected=Verdict.UNKNOWN,
        sentence="A node's answer for another version of the evidence is taken for one of version 1. ProVerif finds no "
        "proof and reconstructs no trace.",
    ),
    Mutant(
        check="request in M",
        scenario="leaks.pv",
        edits=(Edit("for_proof), uid, csr_sha256, bound)", "for_proof), uid, bound)"),),
        expected=Verdict.TRUE,
        sentence="The binding has it, too. It stays because formulas of a version do not change.",
    ),
    Mutant(
        check="request and binding in M",
        scenario="join.pv",
        edits=(Edit("for_proof), uid, csr_sha256, bound)", "for_proof), uid)"),),
        expected=Verdict.TRUE,
        sentence="The quote covers the binding, too. It stays as the proof that does not rest on the attestation key.",
    ),
    Mutant(
        check="nonce in X",
        scenario="leaks.pv",
        query="agreement, all leaks",
        edits=(Edit(_QUOTE, _QUOTE.replace("nonce, ", "")), _ONLY_S),
        sentence="A quote that the node made for another nonce of the same first request is accepted; S leaked.",
    ),
    Mutant(
        check="U1 in X",
        scenario="leaks.pv",
        query="agreement, all leaks",
        edits=(Edit(_QUOTE, _QUOTE.replace("uid, ", "")),),
        sentence="The attacker relays the nonce to the node under another U1, so the two disagree on the first "
        "request.",
    ),
    Mutant(
        check="binding in X",
        scenario="leaks.pv",
        query="agreement, all leaks",
        edits=(Edit(_QUOTE, _QUOTE.replace(", bound", "")),),
        sentence="The attacker has the honest node quote for the nonce of a request of his own; S leaked.",
    ),
    Mutant(
        check="attestation key's Name in the credential",
        scenario="join.pv",
        query="agreement",
        edits=(
            Edit("activate(e, h(ak), blob)", "activate(e, any_name, blob)", times=2),
            Edit("activate(e, name, blob)", "activate(e, any_name, blob)", times=2),
            Edit("make_credential(ek, h(ak), s, r)", "make_credential(ek, any_name, s, r)"),
            Edit("const exact, other: bitstring.", "const exact, other, any_name: bitstring."),
        ),
        sentence="The attacker shows the honest endorsement key beside an attestation key in his own TPM, and the "
        "honest "
        "node activates the credential.",
    ),
    Mutant(
        check="AK Name in the context",
        scenario="join.pv",
        edits=_context("(cluster_uid, uid, h(request), user, ek_sha256, machine_uid, created)"),
        expected=Verdict.TRUE,
        sentence="The hash of the first request covers it. It stays because formulas of a version do not change.",
    ),
    Mutant(
        check="hash of the EK in the context",
        scenario="join.pv",
        edits=_context("(cluster_uid, uid, h(request), user, ak_name, machine_uid, created)"),
        expected=Verdict.TRUE,
        sentence="The hash of the first request covers it. It stays because formulas of a version do not change.",
    ),
    Mutant(
        check="request, AK Name and hash of the EK in the context",
        scenario="join.pv",
        query="agreement",
        edits=_context("(cluster_uid, uid, user, machine_uid, created)"),
        sentence="A hostile API server shows two first requests with one UID; S of a TPM of the attacker is that of "
        "the "
        "honest one.",
    ),
    Mutant(
        check="U1, time and request in the context",
        scenario="join.pv",
        edits=_context("(cluster_uid, user, ak_name, ek_sha256, machine_uid)"),
        expected=Verdict.TRUE,
        sentence="M and X have U1, too. They stay so that each request has a nonce of its own, and its age counts.",
    ),
    Mutant(
        check="Machine UID in the context",
        scenario="honest_api.pv",
        query="one Machine for one challenge",
        edits=_context("(cluster_uid, uid, h(request), user, ak_name, ek_sha256, created)"),
        sentence="A Machine is deleted and made anew, and an answer to a challenge of the old one is accepted.",
    ),
)

_POLICY_OF: Final = "  get policy(=cl, =provider, =ver) in"
_MACHINE: Final = "  get machine(=cl, =pid, =name, machine_uid) in"
_POSSESSION: Final = "  if verify(k, sig) = (k, name, pid) then\n"
_WRITTEN: Final = "restriction k, w1, w2: bitstring; event(Written(k, w1)) && event(Written(k, w2)) ==> w1 = w2.\n"

_CONTROLLER: Final = (
    Mutant(
        check="attestor authorized",
        scenario="join.pv",
        query="attestor",
        edits=(Edit(_POLICY_OF, "  get policy(=cl, whatever, =ver) in", times=2),),
        sentence="A machine joins by gcp where the policy names tpm only.",
    ),
    Mutant(
        check="attestor authorized, of insecure",
        scenario="join.pv",
        query="attestor",
        edits=(Edit("  get policy(=cl, =insecure, =v1) in\n"),),
        sentence="A request without evidence gets a certificate of a cluster whose policy names tpm.",
    ),
    Mutant(
        check="evidence version and schema",
        scenario="join.pv",
        query="known version",
        edits=(Edit(_POLICY_OF, "  get policy(=cl, =provider, any) in", times=2),),
        sentence="A request by a version that the controller does not know gets a certificate.",
    ),
    Mutant(
        check="the Machine's node name",
        scenario="join.pv",
        query="node name",
        edits=(Edit(_MACHINE, "  get machine(=cl, =pid, any, machine_uid) in", times=3),),
        sentence="A machine of the attacker proves itself and asks for an honest machine's name.",
    ),
    Mutant(
        check="the Machine's node name, of a node that is told its ID",
        scenario="first_use.pv",
        query="provider ID",
        edits=(Edit(_MACHINE, "  get machine(=cl, =pid, any, machine_uid) in", times=3),),
        sentence="The attacker tells a node another machine's provider ID: the other Machine is bound to its TPM.",
    ),
    Mutant(
        check="the Machine's provider ID",
        scenario="join.pv",
        query="no provider ID",
        edits=(
            Edit("  if pid <> no_id then                                      (* ProviderIDRequired *)\n", times=3),
        ),
        sentence="A request without provider ID is certified for a Machine that has none yet.",
    ),
    Mutant(
        check="signature of the PKCS#10",
        scenario="join.pv",
        query="provider ID",
        edits=(Edit(_POSSESSION, times=3),),
        sentence="A machine of the attacker has the key of an honest node certified for itself. He does not hold it.",
    ),
    Mutant(
        check="the certificate's key, name and CA (node)",
        scenario="join.pv",
        query="acceptance",
        edits=(Edit("     if verify(ca, certificate) = (k, name) then                            (* 18 *)\n"),),
        sentence="The node stores what the attacker sends as its certificate.",
    ),
    Mutant(
        check="a key that was never certified",
        scenario="once.pv",
        query="injective agreement",
        edits=(Edit(_WRITTEN),),
        sentence="A copy of the second request gets another certificate for the same key.",
    ),
    Mutant(
        check="one key for one challenge",
        scenario="once.pv",
        query="one key for one challenge",
        edits=(
            Edit(
                "restriction u, k1, k2, w1, w2: bitstring; event(Answered(u, k1, w1)) && event(Answered(u, k2, w2)) "
                "==> "
                "k1 = k2.\n"
            ),
        ),
        sentence="A hostile API server shows two first requests with one UID, and both keys are certified.",
    ),
    Mutant(
        check="fingerprints as pinned",
        scenario="first_use.pv",
        query="pins hold",
        edits=(
            Edit(
                "restriction g, e1, a1, e2, a2: bitstring;\n"
                "  event(Pinned(g, e1, a1)) && event(Pinned(g, e2, a2)) ==> e1 = e2 && a1 = a2.\n"
            ),
        ),
        expected=Verdict.UNKNOWN,
        sentence="Another genuine TPM is certified for the Machine. ProVerif finds no proof and reconstructs no trace; "
        "Spin finds it (below).",
    ),
)

_PROVIDERS: Final = (
    Mutant(
        check="challenge: the MAC",
        scenario="challenge.pv",
        query="agreement",
        edits=(Edit("  if mac = challenge_proof(s, n, uid, binding(challenge, v1, pin, signer, h(p))) then\n"),),
        sentence="Anybody joins as the machine.",
    ),
    Mutant(
        check="challenge: nonce in the MAC",
        scenario="challenge.pv",
        query="agreement",
        edits=(Edit("for_challenge), nonce, uid, bound", "for_challenge), uid, bound"),),
        sentence="An answer to another nonce is accepted.",
    ),
    Mutant(
        check="challenge: U1 in the MAC",
        scenario="challenge.pv",
        query="agreement",
        edits=(Edit("for_challenge), nonce, uid, bound", "for_challenge), nonce, bound"),),
        sentence="The attacker relays the nonce to the node under another U1.",
    ),
    Mutant(
        check="challenge: binding in the MAC",
        scenario="challenge.pv",
        query="agreement",
        edits=(Edit("for_challenge), nonce, uid, bound", "for_challenge), nonce, uid"),),
        sentence="The attacker has the node answer the challenge of a request with his own key.",
    ),
    Mutant(
        check="challenge: same PKCS#10 bytes",
        scenario="challenge.pv",
        edits=(Edit("  if p1 = p then\n"),),
        expected=Verdict.TRUE,
        sentence="The MAC covers the request, and the secret has one key. It is a rule of all providers of two steps.",
    ),
    Mutant(
        check="challenge: own challenge only (node)",
        scenario="challenge.pv",
        edits=(Edit("  if spki = h(k) then                                       (* its own challenge only *)\n"),),
        expected=Verdict.TRUE,
        sentence="The MAC covers the node's own request. It is a rule of all providers of two steps.",
    ),
    Mutant(
        check="challenge: one key for a secret",
        scenario="challenge.pv",
        query="one key for a secret",
        edits=(
            Edit(
                "restriction f, k1, k2, w1, w2: bitstring; event(Pinned(f, k1, w1)) && event(Pinned(f, k2, w2)) ==> "
                "k1 = k2.\n"
            ),
        ),
        sentence="Whoever learns the secret later joins beside the machine.",
    ),
    Mutant(
        check="composite: the part tpm",
        scenario="composite.pv",
        query="agreement",
        edits=(
            Edit("  if mac = tpm_proof(s, uid, h(p1), bound) then\n  let x =", "  let x ="),
            Edit("  if verify(key, signed_quote) = attest(quote, qualified_name(endorsement, h(ak)), x, good) then\n"),
        ),
        sentence="The attacker joins with the leaked secret alone.",
    ),
    Mutant(
        check="composite: the part challenge",
        scenario="composite.pv",
        query="agreement",
        edits=(
            Edit("  if mac2 = challenge_proof(secret_of, n2, uid, binding(challenge, v1, pin, signer, h(p1))) then\n"),
        ),
        sentence="The attacker joins with the TPM that he can use alone.",
    ),
    Mutant(
        check="azure: the nonce",
        scenario="cloud.pv",
        query="agreement, azure",
        edits=(Edit("  if nonce = binding(azure, v1, pin, signer, h(p)) then\n"),),
        sentence="The attacker sends a document that he saw in another request, beside a key of his own.",
    ),
    Mutant(
        check="azure: the vmId",
        scenario="cloud.pv",
        query="agreement, azure",
        edits=(Edit("  if vm_id = pid then\n"),),
        sentence="Another VM of the subscription has a document signed for itself.",
    ),
    Mutant(
        check="azure: the subscription",
        scenario="cloud.pv",
        edits=(Edit("  get allowed(=cl, =subscription) in\n"),),
        expected=Verdict.TRUE,
        sentence="A vmId is Azure's, not its owner's. It stays: the policy says whose machines may join.",
    ),
    Mutant(
        check="aws: the binding in the signed request",
        scenario="cloud.pv",
        query="agreement, aws",
        edits=(
            Edit(
                "  if verify(pk(session), sts) = binding(aws, v1, pin, signer, h(p)) then\n",
                "  let anything = verify(pk(session), sts) in\n",
            ),
        ),
        sentence="The attacker sends a signed request that he saw, beside a key of his own.",
    ),
    Mutant(
        check="aws: the session's name",
        scenario="cloud.pv",
        query="agreement, aws",
        edits=(Edit("  if session_name = id then\n"),),
        sentence="Another instance of the account signs beside the honest one's identity document.",
    ),
    Mutant(
        check="aws: the session's account",
        scenario="cloud.pv",
        query="agreement, aws",
        edits=(Edit("  if sts_account = account then\n"),),
        sentence="In an account of his own the attacker names a session after the honest instance.",
    ),
    Mutant(
        check="aws: the identity document's instance",
        scenario="cloud.pv",
        query="agreement, aws",
        edits=(Edit("  if id = pid then\n"),),
        sentence="Another instance of the account sends its own document and signature.",
    ),
)

_NO_LEDGER: Final = Edit(_WRITTEN)
"""ProVerif does not end with the ledger's rule and without the check; no trace here certifies a key twice."""
_ITSELF: Final = "  if user = name then                                       (* the node itself *)\n"
_JOINED: Final = "  get record(=pid, client_key) in                           (* a joined machine *)\n"
_OWN_KEY: Final = "  if k <> client_key then                                   (* a key of its own *)\n"

_REQUESTERS: Final = (
    Mutant(
        check="a token that the machine's bootstrap configuration names",
        scenario="requesters.pv",
        query="own token",
        edits=(Edit("  get names(=pid, =id) in                                   (* rule 4: its own token *)\n"),),
        sentence="The attacker joins as an honest machine with the token of another.",
    ),
    Mutant(
        check="a token of no other machine",
        scenario="requesters.pv",
        query="own token",
        edits=(
            Edit("  if bound = pid then                                       (* rule 4: of no other machine *)\n"),
        ),
        sentence="The attacker joins as an honest machine with a token that is bound to another.",
    ),
    Mutant(
        check="a token that leads to one Machine",
        scenario="requesters.pv",
        query="told by its token",
        edits=(
            Edit(
                "  get names(pid, =id) in                                    (* the Machine",
                "  get names(pid, any) in                                    (* the Machine",
            ),
        ),
        sentence="The holder of any token is told an honest machine's provider ID.",
    ),
    Mutant(
        check="no takeover of a node",
        scenario="requesters.pv",
        query="no takeover",
        edits=(
            Edit("  if state = fresh then                                     (* rule 3: no takeover *)\n"),
            _NO_LEDGER,
        ),
        sentence="The attacker joins with a leaked token as a machine whose node is there already.",
    ),
    Mutant(
        check="no takeover of a node, by a bound token",
        scenario="requesters.pv",
        query="no takeover",
        edits=(Edit("  if state = fresh then\n"), _NO_LEDGER),
        sentence="The same with a token that is bound to the machine.",
    ),
    Mutant(
        check="adoption of the machine's own node",
        scenario="requesters.pv",
        query="adoption is opened",
        edits=(Edit("  get opened(=pid) in                                       (* rule 3: adoption *)\n"),),
        sentence="A node with an old certificate is attested although no operator decided so.",
    ),
    Mutant(
        check="the node itself adopts",
        scenario="requesters.pv",
        query="adoption by the node",
        edits=(
            Edit(
                f"  get machine(=pid, =name, =joined_before) in\n{_ITSELF}",
                "  get machine(=pid, =name, =joined_before) in\n",
            ),
            _NO_LEDGER,
        ),
        sentence="A node of the attacker asks for the name of a machine that was opened.",
    ),
    Mutant(
        check="attested serving request",
        scenario="requesters.pv",
        query="serving",
        edits=(Edit(f"  get machine(=pid, =name, state) in\n{_ITSELF}", "  get machine(=pid, =name, state) in\n"),),
        sentence="A node of the attacker asks for a serving certificate of another name.",
    ),
    Mutant(
        check="a joined machine",
        scenario="requesters.pv",
        query="serving after client",
        edits=(Edit(_JOINED + _OWN_KEY),),
        sentence="A node that was never attested gets a serving certificate.",
    ),
    Mutant(
        check="a joined machine: a key of its own",
        scenario="requesters.pv",
        edits=(Edit(_OWN_KEY),),
        expected=Verdict.TRUE,
        sentence="The ledger has the rule for all keys. It stays because it refuses before a platform is asked.",
    ),
    Mutant(
        check="a key that was never certified, for the other purpose",
        scenario="requesters.pv",
        query="a key for one purpose",
        edits=(Edit(_WRITTEN),),
        sentence="A node asks for a client certificate for the key that it serves with.",
    ),
)

MUTANTS: Final[tuple[Mutant, ...]] = (*_VERIFIER, *_FORMULAS, *_CONTROLLER, *_PROVIDERS, *_REQUESTERS)

_READ: Final = "what is read: the management cluster is honest, and has one policy and one Machine"
_SPIN: Final = "by takeover.pml and ledger.pml"
_SERVING_NAMES: Final = "addresses and names of serving certificates"
_TIME: Final = "no time"
NOT_MODELLED: Final = {
    "an active cluster": _READ,
    "one policy": _READ,
    "one Machine, alive and ready": _READ,
    "the Machine as it is now": _READ,
    "round of the request": "each request is a first or a second one",
    "the provider's verification": "its own checks are rows",
    "not bound otherwise": "tokens of machines that have joined have ended",
    "names of one machine alone": _SERVING_NAMES,
    "names and addresses on record": _SERVING_NAMES,
    "names of one machine alone, read now": _SERVING_NAMES,
    "names and addresses of the Machine": _SERVING_NAMES,
    "first request not answered": "what it saves is work: the rule of one key for one challenge decides",
    "first request still pending": "the same",
    "one provider ID for one Machine": "a Machine has one provider ID, and no other has it",
    "the Machine as proven": "a Machine has one name",
    "the node name as proven": "a Machine has one name",
    "hardware of no other machine": _SPIN,
    "no other node of this name": _SPIN,
    "approval by this controller": "approvals",
    "time between two keys": f"{_TIME} in ProVerif; by ledger.pml",
    "number of live certificates": _TIME,
}
"""The members of ``CHECKS`` without a mutant, each with the reason."""
