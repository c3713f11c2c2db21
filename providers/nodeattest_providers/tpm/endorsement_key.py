"""Endorsement keys: of a TCG template, bound to this Machine, and certified where the policy relies on certificates.

The first source of trust that says something about the Machine or the key decides.
Source: docs/wire-format.md §3 (step 4), §4.10; TCG EK Credential Profile 2.5, §3.2, Annex B; RFC 5280 §4.2.1, §6.1.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from nodeattest_providers.certificate_chain import X509_ERRORS, chain_problem, check_readable, extension
from nodeattest_providers.checks import Checks, one_of
from nodeattest_providers.errors import Reason
from nodeattest_providers.identifiers import ANNOTATION_TPM_ENDORSEMENT_KEY
from nodeattest_providers.tpm.config import TpmPolicy
from nodeattest_providers.tpm.key_templates import EK_TEMPLATES
from nodeattest_providers.tpm.protocol import FirstEvidence
from nodeattest_providers.tpm.structures import PublicArea, Reader, parse_public
from nodeattest_providers.verifier_interface import Facts

EK_USAGE: Final = x509.ObjectIdentifier("2.23.133.8.1")
"""tcg-kp-EKCertificate."""
_PROFILE_SECTION: Final = "TCG EK Credential Profile §3.2"
_REMEDY: Final = (
    "use a TPM whose endorsement certificate is sound, or register its endorsement key (spec.tpm.endorsementKeys)"
)
_TPM_ATTRIBUTES: Final = frozenset(x509.ObjectIdentifier(f"2.23.133.2.{number}") for number in (1, 2, 3))
"""tcg-at-tpmManufacturer, tcg-at-tpmModel and tcg-at-tpmVersion."""
_UNDERSTOOD: Final = (
    x509.BasicConstraints,
    x509.KeyUsage,
    x509.ExtendedKeyUsage,
    x509.SubjectAlternativeName,
    x509.CertificatePolicies,
)
"""Extensions that may be critical: three are checked, directory names identify a TPM model, any policy is accepted."""


def check_certificate(
    checks: Checks,
    ek: PublicArea,
    certificate: bytes,
    chain: tuple[bytes, ...],
    *,
    anchors: Sequence[x509.Certificate],
    now: datetime,
) -> None:
    """Check an endorsement certificate (DER) with its intermediates.

    1. It can be read, and certifies exactly this key.
    2. It is no CA certificate (RFC 5280 §4.2.1.9).
    3. Its extended key usage holds tcg-kp-EKCertificate, or it has none and names a TPM: other leaves of that CA are
       no TPMs.
    4. Its key usage is keyEncipherment (RSA) or keyAgreement (elliptic curve).
    5. It has no critical extension that is not understood here (RFC 5280 §4.2).
    6. It chains to a configured authority now: signatures without SHA-1, validity, CA rules (RFC 5280 §6.1).
    """
    # 1
    read = _read(certificate)
    unread = read if isinstance(read, str) else ""
    _require_profile(checks, not unread, "structure", "an X.509 certificate in DER that can be read", unread)
    if isinstance(read, str):
        raise AssertionError("a failed check raises Denied")
    leaf, extensions, spki = read
    _require_profile(checks, spki == ek.spki, "certified key", "the endorsement key", "another key")
    # 2
    constraints = extension(leaf, x509.BasicConstraints)
    _require_profile(checks, constraints is None or not constraints.ca, "no CA", "an end-entity certificate", "a CA")
    # 3
    purposes = extension(leaf, x509.ExtendedKeyUsage)
    is_ek = _is_tpm(leaf) if purposes is None else EK_USAGE in purposes
    _require_profile(
        checks, is_ek, "extended key usage", f"tcg-kp-EKCertificate {EK_USAGE.dotted_string}", _describe(is_ek)
    )
    # 4
    usage = extension(leaf, x509.KeyUsage)
    if isinstance(ek.key, rsa.RSAPublicKey):
        expected, fits = "keyEncipherment", usage is not None and usage.key_encipherment
    else:
        expected, fits = "keyAgreement", usage is not None and usage.key_agreement
    _require_profile(checks, fits, "key usage", expected, _describe(fits))
    # 5
    unknown = [found.oid.dotted_string for found in extensions if found.critical and not _is_understood(found)]
    _require_profile(checks, not unknown, "critical extensions", "none unknown", ", ".join(unknown) or "none unknown")
    # 6
    problem = chain_problem(leaf, chain, anchors, now, EK_USAGE)
    _require_profile(
        checks, problem is None, "certificate chain", "a chain to a configured authority", problem or "a chain"
    )


def _read(certificate: bytes) -> tuple[x509.Certificate, x509.Extensions, bytes] | str:
    """Read certificate, extensions and SubjectPublicKeyInfo; what it is instead when there is no reading them."""
    try:
        leaf = x509.load_der_x509_certificate(certificate)
        spki = leaf.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
        extensions = leaf.extensions
        check_readable(leaf)
    except X509_ERRORS as error:
        return f"{len(certificate)} bytes that cannot be read ({type(error).__name__})"
    return leaf, extensions, spki


def _is_tpm(leaf: x509.Certificate) -> bool:
    """Whether the alternative names tell a TPM's maker, model and version (TCG EK Credential Profile §3.1.2)."""
    names = extension(leaf, x509.SubjectAlternativeName)
    directory = names.get_values_for_type(x509.DirectoryName) if names is not None else []
    return {attribute.oid for name in directory for attribute in name} >= _TPM_ATTRIBUTES


def _is_understood(extension: x509.Extension[x509.ExtensionType]) -> bool:
    return isinstance(extension.value, _UNDERSTOOD)


def _describe(fits: bool) -> str:
    return "it" if fits else "another or none"


def _require_profile(checks: Checks, passed: bool, name: str, expected: str, got: str) -> None:
    checks.require(
        passed,
        f"endorsement certificate: {name}",
        section=_PROFILE_SECTION,
        reason=Reason.ENDORSEMENT_CERTIFICATE_INVALID,
        expected=expected,
        got=expected if passed else got,
        remedy=_REMEDY,
    )


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
