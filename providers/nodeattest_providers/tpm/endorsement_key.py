"""Endorsement keys: of a TCG template, bound to this Machine, and certified where the policy relies on certificates.

The first source of trust that says something about the Machine or the key decides.
Source: docs/wire-format.md §3 (step 4), "The keys"; TCG EK Credential Profile 2.5, §3.2, Annex B; RFC 5280 §6.1.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from nodeattest_providers.certificate_chain import (
    X509_ERRORS,
    chain_problem,
    check_readable,
    extension,
    unknown_extensions,
)
from nodeattest_providers.checks import Checks, Rules, one_of
from nodeattest_providers.errors import Denied, Reason
from nodeattest_providers.identifiers import ANNOTATION_TPM_ENDORSEMENT_KEY
from nodeattest_providers.tpm.config import TpmPolicy
from nodeattest_providers.tpm.key_templates import EK_TEMPLATES
from nodeattest_providers.tpm.protocol import FirstEvidence
from nodeattest_providers.tpm.structures import PublicArea, Reader, parse_public
from nodeattest_providers.verifier_interface import Facts

EK_USAGE: Final = x509.ObjectIdentifier("2.23.133.8.1")
"""tcg-kp-EKCertificate."""
_REMEDY: Final = (
    "use a TPM whose endorsement certificate is sound, or register its endorsement key (spec.tpm.endorsementKeys)"
)
_TPM_ATTRIBUTES: Final = frozenset(x509.ObjectIdentifier(f"2.23.133.2.{number}") for number in (1, 2, 3))
"""tcg-at-tpmManufacturer, tcg-at-tpmModel and tcg-at-tpmVersion."""


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
    rules = Rules(
        checks, "TCG EK Credential Profile §3.2", Reason.ENDORSEMENT_CERTIFICATE_INVALID, _REMEDY, _CERTIFICATE
    )
    # 1
    leaf, spki = rules.parsed(f"{_CERTIFICATE}structure", lambda: _read(certificate))
    rules.require(spki == ek.spki, "certified key", "the endorsement key", "another key")
    # 2
    constraints = extension(leaf, x509.BasicConstraints)
    rules.require(constraints is None or not constraints.ca, "no CA", "an end-entity certificate", "a CA")
    # 3
    purposes = extension(leaf, x509.ExtendedKeyUsage)
    is_ek = _is_tpm(leaf) if purposes is None else EK_USAGE in purposes
    expected = f"tcg-kp-EKCertificate {EK_USAGE.dotted_string}"
    rules.require(is_ek, "extended key usage", expected, "another or none")
    # 4
    usage = extension(leaf, x509.KeyUsage)
    if isinstance(ek.key, rsa.RSAPublicKey):
        expected, fits = "keyEncipherment", usage is not None and usage.key_encipherment
    else:
        expected, fits = "keyAgreement", usage is not None and usage.key_agreement
    rules.require(fits, "key usage", expected, "another or none")
    # 5
    unknown = unknown_extensions(leaf)
    rules.require(not unknown, "critical extensions", "none unknown", ", ".join(unknown))
    # 6
    broken = chain_problem(leaf, chain, anchors, now, EK_USAGE)
    rules.require(broken is None, "certificate chain", "a chain to a configured authority", broken or "")


def _read(certificate: bytes) -> tuple[x509.Certificate, bytes]:
    """Read a certificate and its SubjectPublicKeyInfo; raises Denied for one that cannot be read as a whole."""
    try:
        leaf = x509.load_der_x509_certificate(certificate)
        check_readable(leaf)
        return leaf, leaf.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    except X509_ERRORS as error:
        raise Denied(
            Reason.ENDORSEMENT_CERTIFICATE_INVALID,
            expected="an X.509 certificate in DER that can be read",
            got=f"{len(certificate)} bytes that cannot be read ({type(error).__name__})",
            remedy=_REMEDY,
        ) from None


def _is_tpm(leaf: x509.Certificate) -> bool:
    """Whether the alternative names tell a TPM's maker, model and version (TCG EK Credential Profile §3.1.2)."""
    names = extension(leaf, x509.SubjectAlternativeName)
    directory = names.get_values_for_type(x509.DirectoryName) if names is not None else []
    return {attribute.oid for name in directory for attribute in name} >= _TPM_ATTRIBUTES


MACHINE_ANNOTATION: Final = "attestation.cluster.x-k8s.io/tpm-endorsement-key"
"""On the Machine, in the management cluster: ``sha256:<hex>`` of the endorsement key that its certificate must have."""

_KEY: Final = "endorsement key: "
_CERTIFICATE: Final = "endorsement certificate: "
_NITRO: Final = (
    "attest with the NitroTPM of the instance that the Machine's provider ID names; the agent's endorsementKey is "
    "rsa2048 or ecc-p384"
)
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
    if not _check_binding(checks, ek.fingerprint, facts, policy, is_renewal=is_renewal, ec2_key=ec2_key):
        return
    rules, certificate = _rules(checks), evidence.ek_certificate
    anchors = rules.present(policy.anchors, "authorities configured", "spec.tpm.endorsementCAs")
    certificate = rules.present(certificate, "certificate sent", "an endorsement certificate")
    check_certificate(checks, ek, certificate, evidence.ek_chain, anchors=anchors, now=facts.verified_at)


def check_recorded_key(fingerprint: str, facts: Facts, policy: TpmPolicy) -> None:
    """Check that a renewal with the key on record would be one with this Machine's key.

    Raises Denied, or Unavailable where that takes EC2 or the key's certificate, which is on no record.
    """
    checks = Checks()
    if not _check_binding(checks, fingerprint, facts, policy, is_renewal=True, ec2_key=""):
        return
    _rules(checks).present(policy.anchors, "authorities configured", "spec.tpm.endorsementCAs")
    raise checks.unavailable(
        Reason.ENDORSEMENT_KEY_UNTRUSTED,
        "the endorsement key's certificate is not on record: its chain to endorsementCAs is not checked",
        remedy="let the machine attest",
    )


def _check_binding(
    checks: Checks, got: str, facts: Facts, policy: TpmPolicy, *, is_renewal: bool, ec2_key: str
) -> bool:
    """Check that a key, by its fingerprint, is this Machine's; returns whether its certificate must chain to a CA, too.

    1. The platform decides before all others: annotations on infrastructure machine and host object, and EC2 for its
       instances where the policy asks it. They must agree with each other and with the policy's allow-list.
    2. The policy's allow-list: an entry of this machine decides; a key listed for another machine only is refused.
    3. An annotation on the Machine names the key, and the key's certificate chains to a configured authority.
    4. Trust on first use, where the policy says so: the ledger pins the key already, or its certificate chains to a
       configured authority. A requester with a node's certificate has joined before: no first use, unless an operator
       has opened the machine on record. Else a thief of that certificate would choose the machine's TPM.
    5. A certificate chain alone is refused: it proves a genuine TPM, not whose.
    """
    rules = _rules(checks)
    if _is_named(rules, got, facts, policy, ec2_key=ec2_key):  # 1, 2
        return False
    # 3
    bound = facts.machine.annotations.get(MACHINE_ANNOTATION)
    if bound is not None:
        rules.equal("named by the Machine's annotation", bound, got)
        return True
    # 4, 5
    first_use = policy.trust_on_first_use
    rules.require(first_use, "bound to the Machine", "a key that something binds to this Machine", got)
    if facts.ledger.fingerprints.get("ek") == got:
        rules.equal("pinned by the ledger", got, got)
        return False
    rules.require(
        not is_renewal or facts.ledger.was_reset,
        "first use",
        "a bootstrap token, or a key that something binds to this Machine",
        "a node's certificate and a key that nothing binds to its Machine",
        remedy=f"{_REGISTER}; or open the Machine on record (nodeattest machines adopt NODE --open, or machines reset)",
    )
    return True


def _is_named(rules: Rules, got: str, facts: Facts, policy: TpmPolicy, *, ec2_key: str) -> bool:
    """Check a key against the platform's word and the policy's allow-list; returns whether one of them names it."""
    machine = facts.machine
    platform, registered = machine.endorsement_keys, policy.registered.get(machine.provider_id)
    named = [f"{key} ({source})" for source, key in platform.items()]
    if platform:
        rules.require(set(platform.values()) == {got}, "named by the platform", " and ".join(named), got)
    asks_ec2 = policy.asks_ec2(machine.provider_id)
    if asks_ec2:
        _check_ec2(rules.checks, ec2_key, got)
    if registered is not None:
        expected = one_of(registered, "registered keys")
        rules.require(got in registered, "on the allow-list", expected, " and ".join([got, *named]))
        return True
    expected = "a key of this machine"
    rules.require(got not in policy.listed, "on no other machine's entry", expected, "a key of another machine")
    prefix = machine.provider_id_prefix
    if prefix:  # the requester chose the rest: refused where the allow-list has the machine by another one
        listed = sorted(each for each in policy.registered if each.startswith(prefix))
        expected = one_of(listed or [machine.provider_id], "registered provider IDs")
        rules.require(not listed, "suffix on the allow-list", expected, machine.provider_id)
    return bool(platform) or asks_ec2


def _check_ec2(checks: Checks, expected: str, got: str) -> None:
    if not expected:
        raise checks.unavailable(
            Reason.PLATFORM_UNAVAILABLE,
            "AWS EC2 is not asked here for the instance's endorsement key",
            remedy="let a running controller verify the request",
        )
    rules = Rules(checks, "EC2, GetInstanceTpmEkPub", Reason.ENDORSEMENT_KEY_UNTRUSTED, _NITRO, _KEY)
    rules.equal("named by EC2", expected, got)


def _rules(checks: Checks) -> Rules:
    return Rules(checks, "TPM protocol §3, step 4", Reason.ENDORSEMENT_KEY_UNTRUSTED, _REGISTER, _KEY)
