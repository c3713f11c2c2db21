"""Endorsement keys: of a TCG template, and bound to this Machine.

Promises: returns only for a key that a source of trust binds to the Machine. The first source that says something
about the Machine or the key decides; a later one cannot overrule it.
Source: docs/wire-format.md §3 (step 4), §4.10; TCG EK Credential Profile 2.5, Annex B.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from nodeattest_providers.checks import Checks, one_of
from nodeattest_providers.errors import Reason
from nodeattest_providers.names import ANNOTATION_TPM_ENDORSEMENT_KEY
from nodeattest_providers.tpm.config import TpmPolicy
from nodeattest_providers.tpm.endorsement_certificate import check_certificate
from nodeattest_providers.tpm.key_templates import EK_TEMPLATES
from nodeattest_providers.tpm.protocol import FirstEvidence
from nodeattest_providers.tpm.public_area import PublicArea, parse_public
from nodeattest_providers.tpm.structures import Reader
from nodeattest_providers.verifier_interface import Facts

MACHINE_ANNOTATION: Final = "attestation.cluster.x-k8s.io/tpm-endorsement-key"
"""On the Machine, in the management cluster: ``sha256:<hex>`` of the endorsement key that its certificate must have."""

_SECTION: Final = "TPM protocol §3, step 4"
_REGISTER: Final = (
    "register this machine's endorsement key (kubelet-authenticator evidence prints its sha256): in the policy's "
    f"spec.tpm.endorsementKeys, or as annotation {ANNOTATION_TPM_ENDORSEMENT_KEY} on the infrastructure machine, or "
    f"with spec.tpm.endorsementCAs as annotation {MACHINE_ANNOTATION} on the Machine"
)


def parse_endorsement_key(raw: bytes) -> PublicArea:
    """Read a TPMT_PUBLIC that has exactly the shape of one of TCG's templates; anything else is ``Denied``."""
    what, reason = "endorsement key", Reason.ENDORSEMENT_KEY_MALFORMED
    if not any(raw.startswith(template.prefix) for template in EK_TEMPLATES):
        known = ", ".join(template.tcg_name for template in EK_TEMPLATES)
        raise Reader(raw, what=what, reason=reason).wrong(f"a public area of TCG template {known}", "another")
    return parse_public(raw, what=what, reason=reason)


def check_trust(
    checks: Checks,
    ek: PublicArea,
    evidence: FirstEvidence,
    facts: Facts,
    policy: TpmPolicy,
    *,
    is_renewal: bool,
    ec2_key: str,
) -> None:
    """Check that the endorsement key is this Machine's; raises Denied unless it is, Unavailable if EC2 was not asked.

    ``ec2_key`` is the fingerprint that EC2 told; empty where it was not asked.
    """

    def check_chain() -> None:
        _check_chain(checks, ek, evidence, facts, policy)

    _check_binding(
        checks, ek.fingerprint, facts, policy, is_renewal=is_renewal, ec2_key=ec2_key, check_chain=check_chain
    )


def check_recorded_key(fingerprint: str, facts: Facts, policy: TpmPolicy) -> None:
    """Check that a renewal with the key on record would be one with this Machine's key.

    Raises Denied, or Unavailable where that takes EC2 or the key's certificate, which is on no record.
    """
    checks = Checks()

    def check_chain() -> None:
        _require(checks, policy.anchors is not None, "authorities configured", "spec.tpm.endorsementCAs", "none")
        raise checks.unavailable(
            Reason.ENDORSEMENT_KEY_UNTRUSTED,
            "the endorsement key's certificate is not on record: its chain to endorsementCAs is not checked",
            remedy="let the machine attest",
        )

    _check_binding(checks, fingerprint, facts, policy, is_renewal=True, ec2_key="", check_chain=check_chain)


def _check_binding(
    checks: Checks,
    got: str,
    facts: Facts,
    policy: TpmPolicy,
    *,
    is_renewal: bool,
    ec2_key: str,
    check_chain: Callable[[], None],
) -> None:
    """Check that a key, by its fingerprint, is this Machine's.

    1. The platform decides before all others: annotations on infrastructure machine and host object, and EC2 for its
       instances where the policy asks it. They must agree with each other and with the policy's allow-list.
    2. The policy's allow-list: an entry of this machine decides; a key listed for another machine only is refused.
    3. An annotation on the Machine names the key, and the key's certificate chains to a configured authority.
    4. Trust on first use, where the policy says so: the ledger pins the key already, or its certificate chains to a
       configured authority. Who asks by a node's certificate has been before: it is no first use, unless an operator
       has opened the machine on record. Else a thief of that certificate would choose the machine's TPM.
    5. A certificate chain alone is refused: it proves a genuine TPM, not whose.
    """
    if _is_named(checks, got, facts, policy, ec2_key=ec2_key):  # 1, 2
        return
    # 3
    bound = facts.machine.annotations.get(MACHINE_ANNOTATION)
    if bound is not None:
        _require(checks, bound == got, "named by the Machine's annotation", bound, got)
        check_chain()
        return
    # 4, 5
    _require(
        checks, policy.trust_on_first_use, "bound to the Machine", "a key that something binds to this Machine", got
    )
    is_pinned = facts.ledger.fingerprints.get("ek") == got
    if is_pinned:
        _require(checks, is_pinned, "pinned by the ledger", got, got)
        return
    is_first = not is_renewal or facts.ledger.was_reset
    checks.require(
        is_first,
        "endorsement key: first use",
        section=_SECTION,
        reason=Reason.ENDORSEMENT_KEY_UNTRUSTED,
        expected="a bootstrap token, or a key that something binds to this Machine",
        got="a bootstrap token" if is_first else "a node's certificate and a key that nothing binds to its Machine",
        remedy=f"{_REGISTER}; or open the Machine on record (nodeattest machines adopt NODE --open, or machines reset)",
    )
    check_chain()


def _is_named(checks: Checks, got: str, facts: Facts, policy: TpmPolicy, *, ec2_key: str) -> bool:
    """Check a key against the platform's word and the policy's allow-list; returns whether one of them names it."""
    platform, registered = facts.machine.endorsement_keys, policy.registered.get(facts.machine.provider_id)
    named = [f"{key} ({source})" for source, key in platform.items()]
    if platform:
        _require(checks, set(platform.values()) == {got}, "named by the platform", " and ".join(named), got)
    asks_ec2 = policy.asks_ec2(facts.machine.provider_id)
    if asks_ec2:
        _check_ec2(checks, ec2_key, got)
    if registered is not None:
        expected = one_of(registered, "registered keys")
        _require(checks, got in registered, "on the allow-list", expected, " and ".join([got, *named]))
    else:
        is_another = got in policy.listed
        what = "a key of this machine"
        _require(checks, not is_another, "on no other machine's entry", what, "a key of another machine")
        _check_chosen_suffix(checks, facts, policy)
    return bool(platform) or asks_ec2 or registered is not None


def _check_chosen_suffix(checks: Checks, facts: Facts, policy: TpmPolicy) -> None:
    """Refuse a suffix of the requester's choice where the allow-list has the machine by another one."""
    prefix = facts.machine.provider_id_prefix
    listed = sorted(machine for machine in policy.registered if prefix and machine.startswith(prefix))
    if prefix:
        expected = one_of(listed or [facts.machine.provider_id], "registered provider IDs")
        _require(checks, not listed, "suffix on the allow-list", expected, facts.machine.provider_id)


def _check_ec2(checks: Checks, expected: str, got: str) -> None:
    if not expected:
        raise checks.unavailable(
            Reason.PLATFORM_UNAVAILABLE,
            "AWS EC2 is not asked here for the instance's endorsement key",
            remedy="let a running controller verify the request",
        )
    checks.require(
        expected == got,
        "endorsement key: named by EC2",
        section="EC2, GetInstanceTpmEkPub",
        reason=Reason.ENDORSEMENT_KEY_UNTRUSTED,
        expected=expected,
        got=got,
        remedy="attest with the NitroTPM of the instance that the Machine's provider ID names; the agent's "
        "endorsementKey is rsa2048 or ecc-p384",
    )


def _check_chain(checks: Checks, ek: PublicArea, evidence: FirstEvidence, facts: Facts, policy: TpmPolicy) -> None:
    """Check the certificate that the node sent; without one, or without configured authorities, there is no chain."""
    anchors, certificate = policy.anchors, evidence.ek_certificate
    _require(checks, anchors is not None, "authorities configured", "spec.tpm.endorsementCAs", "none")
    _require(checks, certificate is not None, "certificate sent", "an endorsement certificate", "none in the TPM")
    if anchors is not None and certificate is not None:
        check_certificate(checks, ek, certificate, evidence.ek_chain, anchors=anchors, now=facts.verified_at)


def _require(checks: Checks, passed: bool, name: str, expected: str, got: str) -> None:
    checks.require(
        passed,
        f"endorsement key: {name}",
        section=_SECTION,
        reason=Reason.ENDORSEMENT_KEY_UNTRUSTED,
        expected=expected,
        got=expected if passed else got,
        remedy=_REGISTER,
    )
