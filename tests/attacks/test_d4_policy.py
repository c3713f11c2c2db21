"""D4: policies that are missing, weak, contradictory or misspelt let nobody in; a machine's secret is good for one."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import timedelta
from typing import Any, Final

import pytest
from builders import CREATED, decide, make_member, make_request
from catalogue import Row, attacks, evaluated
from cryptography.hazmat.primitives.asymmetric import ec
from worlds import FACTS, OLD_PIN, PIN, SECRET, SERVING_CSR, answering, csr_of, filed

from nodeattest_controller.controllers.csr.machine_checks import attestor_authorized
from nodeattest_controller.model.attestation import Attestation, new_attestation, record_certificate
from nodeattest_controller.model.attestation_object import parse_attestation, render_attestation, reset
from nodeattest_controller.model.certificate_authority import SignedCertificate
from nodeattest_controller.model.policy import parse_attestation_policy, policy_for
from nodeattest_parsing.values import JsonObject
from nodeattest_parsing.values import JsonValue as RawValue
from nodeattest_providers.canonical_json import b64encode
from nodeattest_providers.challenge.protocol import Challenge, fingerprint, proof
from nodeattest_providers.challenge.verifier import ChallengeSigner
from nodeattest_providers.errors import ChallengeRequired, Check
from nodeattest_providers.identifiers import ClusterPin, ProviderName, Purpose
from nodeattest_providers.insecure.verifier import InsecureSigner
from nodeattest_providers.node_interface import Evidence, JsonValue, SecretBytes
from nodeattest_providers.tpm.config import parse_policy
from nodeattest_providers.verifier_interface import AttestedNode, Facts, LedgerFacts, NodeRequest

Case = Callable[[], object]


# Policies


def policy(**spec: RawValue) -> JsonObject:
    body: JsonObject = {"authorizedAttestors": ["tpm"], **spec}
    return {"metadata": {"name": "p", "namespace": "fleet"}, "spec": body}


def cluster(**spec: RawValue) -> JsonObject:
    return {"metadata": {"name": "c", "namespace": "fleet", "labels": {"env": "prod"}}, "spec": dict(spec)}


def asking(found: JsonObject, provider: str = "tpm", **cluster_spec: RawValue) -> Case:
    return lambda: decide(
        attestor_authorized, make_request(provider=provider), policy=policy_for(cluster(**cluster_spec), [found])
    )


def wrong(**spec: RawValue) -> Case:
    return lambda: parse_attestation_policy(policy(**spec))


def security(*attestors: RawValue) -> RawValue:
    return {"kubeletAuthentication": True, "authorizedAttestors": list(attestors)}


def tpm(**settings: JsonValue) -> Case:
    return lambda: parse_policy(settings)


SELECTOR: Final[RawValue] = {"matchExpressions": [{"key": "env", "operator": "Sometimes"}]}
REGISTERED: Final[JsonValue] = [{"providerID": "metal://1", "sha256": "SHA256:" + "A" * 64}]
NO_CA: Final = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"

# The challenge provider

CHALLENGE: Final = ProviderName("challenge")
FIRST: Final = filed(Evidence(CHALLENGE, 1, {"phase": 1}))
SIGNER: Final = ChallengeSigner()


def verified(request: NodeRequest, facts: Facts) -> object:
    verify = SIGNER.verify_client_attestation_data
    if request.purpose is Purpose.SERVING:
        verify = SIGNER.verify_serving_attestation_data
    return asyncio.run(verify(request, facts))


def answer(*, secret: bytes = SECRET, pin: ClusterPin = PIN) -> Evidence:
    """The right answer to the first request's challenge, but for these."""
    with pytest.raises(ChallengeRequired) as required:
        verified(FIRST, FACTS)
    nonce = Challenge.parse(required.value.challenge).nonce
    mac = proof(SecretBytes(secret), nonce, FIRST.uid, FIRST.binding(pin).digest)
    return Evidence(CHALLENGE, 1, {"phase": 2, "first": {"name": FIRST.name, "uid": FIRST.uid}, "mac": b64encode(mac)})


def answered(evidence: Callable[[], Evidence] = answer, first: NodeRequest = FIRST, **facts: object) -> Case:
    return lambda: verified(answering(first, evidence()), replace(FACTS, first_request=first, **facts))


def with_secret(secret: bytes | None) -> Case:
    value = None if secret is None else SecretBytes(secret)
    return answered(machine=replace(FACTS.machine, attestation_secret=value))


# A machine that joined by its secret, was reset by an operator, and joined again by a new one

NEW_SECRET: Final = b"n" * 32


def recorded(before: Attestation, secret: bytes) -> Attestation:
    """Return the ledger after a join with another key than the attacker's."""
    proved = AttestedNode(
        provider=CHALLENGE,
        provider_id=FACTS.machine.provider_id,
        fingerprints={"secret": fingerprint(SecretBytes(secret))},
        checks=(Check("c", "s", "e", "g", passed=True),),
    )
    return record_certificate(before, make_request(), proved, ISSUED, CREATED)


ISSUED: Final = SignedCertificate(pem="", serial="1", not_before=CREATED, not_after=CREATED + timedelta(days=14))
JOINED: Final = recorded(new_attestation(make_member()), SECRET)
WAS_RESET: Final = parse_attestation(
    reset(render_attestation(JOINED, make_member(), "signer"), by="operator", reason="r", now=CREATED)
)


def with_new_secret(ledger: Attestation, known: bytes = NEW_SECRET) -> Case:
    """Answer by what the attacker knows, where an operator has given the machine a new secret."""
    machine = replace(FACTS.machine, attestation_secret=SecretBytes(NEW_SECRET))
    return answered(lambda: answer(secret=known), machine=machine, ledger=ledger.facts(FIRST))


THIEF: Final[dict[str, Any]] = {"username": "system:bootstrap:thief0"}


def to_a_copy() -> object:
    """Link the answer to a copy of the first request, which the thief has filed."""
    copy, observed = replace(FIRST, name="copy", uid="u-copy", **THIEF), answer()
    linked = replace(observed, data={**observed.data, "first": {"name": "copy", "uid": "u-copy"}})
    return verified(answering(copy, linked), replace(FACTS, first_request=copy))


def renewing_insecurely() -> object:
    request = replace(filed(Evidence(ProviderName("insecure"), 1, {})), username="system:node:n-0")
    return asyncio.run(InsecureSigner().verify_client_attestation_data(request, FACTS))


SECOND_PHASE: Final[dict[str, JsonValue]] = {
    "phase": 2,
    "first": {"name": "csr-u-0", "uid": "u-0"},
    "mac": b64encode(bytes(32)),
}
ANOTHER_KEY: Final = filed(FIRST.evidence, csr=csr_of(ec.generate_private_key(ec.SECP256R1())))
AT_SERVING: Final = filed(FIRST.evidence, csr=SERVING_CSR, purpose=Purpose.SERVING)

CASES: Final[Mapping[str, Case]] = {
    "D4-33": lambda: policy_for(cluster(), []),
    "D4-34": lambda: policy_for(cluster(), [policy(), policy()]),
    "D4-35": asking(policy(authorizedAttestors=[])),
    "D4-36": asking(policy(), "insecure"),
    "D4-37": wrong(authorizedAttestors=["tpm", "insecure"]),
    "D4-38": wrong(authorizedAttestors=["tpm", "null"]),
    "D4-39": asking(policy(), "tpm", security=security("challenge")),
    "D4-40": asking(policy(), "insecure", security=security("insecure", "tpm")),
    "D4-41": wrong(authorisedAttestors=["tpm"]),
    "D4-42": wrong(enforcement="Sometimes"),
    "D4-43": wrong(certificateLifetime="1s"),
    "D4-44": wrong(certificateLifetime="87600h"),
    "D4-45": wrong(certificateLifetime="1.5h"),
    "D4-46": lambda: policy_for(cluster(), [policy(clusterSelector=SELECTOR)]),
    "D4-47": tpm(pcrs={"bank": "sha1"}),
    "D4-48": tpm(pcrs={"selection": []}),
    "D4-49": tpm(pcrs={"selection": [0], "values": {"7": ["00" * 32]}}),
    "D4-50": tpm(endorsementKeys=REGISTERED),
    "D4-51": tpm(endorsementCAs=NO_CA),
    "D4-52": tpm(trustOnSecondUse=True),
    "D4-53": renewing_insecurely,
    "D4-54": answered(ledger=LedgerFacts(fingerprints={"secret": "sha256:of another secret"})),
    "D4-55": answered(ledger=LedgerFacts(bound_spkis=frozenset({"sha256:another key"}))),
    "D4-56": with_secret(None),
    "D4-57": with_secret(bytes(31)),
    "D4-58": answered(lambda: answer(secret=bytes(32))),
    "D4-59": answered(lambda: answer(pin=ClusterPin("sha256:" + "c3" * 32))),
    "D4-60": answered(first=ANOTHER_KEY),
    "D4-61": answered(first=AT_SERVING),
    "D4-62": lambda: verified(filed(Evidence(CHALLENGE, 2, {"phase": 1})), FACTS),
    "D4-64": asking(policy(authorizedAttestors=["challenge", "tpm"]), "insecure"),
    "D4-65": lambda: verified(filed(Evidence(CHALLENGE, 1, {})), FACTS),
    "D4-66": answered(lambda: answer(secret=b"hunter2-" * 5)),
    "D4-67": with_secret(b"of the victim's machine, no other"),
    "D4-69": lambda: verified(replace(answering(FIRST, answer()), **THIEF), replace(FACTS, first_request=FIRST)),
    "D4-70": lambda: verified(answering(ANOTHER_KEY, answer()), replace(FACTS, first_request=FIRST)),
    "D4-71": to_a_copy,
    "D4-72": lambda: verified(answering(FIRST, answer()), FACTS),
    "D4-73": answered(first=replace(FIRST, evidence=Evidence(CHALLENGE, 1, SECOND_PHASE), **THIEF)),
    "D4-76": answered(ledger=LedgerFacts(bound_spkis=frozenset({"sha256:of the machine"}))),
    "D4-84": answered(machine=replace(FACTS.machine, uid="of the Machine that was made anew")),
    "D4-161": answered(first=replace(FIRST, evidence=Evidence(CHALLENGE, 1, SECOND_PHASE))),
    "D4-97": with_new_secret(JOINED),
    "D4-99": with_new_secret(WAS_RESET, known=SECRET),
    "D4-100": with_new_secret(recorded(WAS_RESET, NEW_SECRET)),
    "D4-101": with_new_secret(WAS_RESET),
    "D8-100": lambda: verified(answering(AT_SERVING, answer()), replace(FACTS, first_request=FIRST)),
}


def test_the_policy_and_the_answer_that_the_attacks_spoil_are_good() -> None:
    asking(policy())()
    assert parse_policy({}).selection.pcrs == (0, 7)
    for pin in (PIN, OLD_PIN):
        assert answered(lambda pin=pin: answer(pin=pin))()


@pytest.mark.parametrize(("row", "case"), attacks(CASES))
def test_a_weak_policy_and_a_weak_proof_let_nobody_in(row: Row, case: Case) -> None:
    assert evaluated(case, row) == row.expected
