"""Endorsement keys: of a TCG template, bound to this Machine, and certified where the policy relies on certificates.

The first source of trust that says something about the Machine or the key decides. A key that an operator writes down
as a certificate has no chain to check: who writes it down vouches for it.
Source: docs/wire-format.md §3 (step 4), §4.10; TCG EK Credential Profile 2.5, §3.2, Annex B; RFC 5280 §4.2.1, §6.1;
RFC 7468 §5, §13; TPM 2.0 Library, Part 2 §12.2.4 TPMT_PUBLIC, §12.2.5 TPM2B_PUBLIC.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import datetime
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_der_public_key

from nodeattest_parsing.strict_base64 import decode_base64
from nodeattest_parsing.values import ParseError
from nodeattest_providers.certificate_chain import X509_ERRORS, chain_problem, check_readable, extension
from nodeattest_providers.checks import Checks, Rules, one_of
from nodeattest_providers.errors import Denied, Reason
from nodeattest_providers.identifiers import ANNOTATION_TPM_ENDORSEMENT_KEY
from nodeattest_providers.keys import ENDORSEMENT_FINGERPRINT, FINGERPRINT_FORM, check_key_type, endorsement_fingerprint
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
    unknown = [
        each.oid.dotted_string for each in leaf.extensions if each.critical and not isinstance(each.value, _UNDERSTOOD)
    ]
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
"""What names of checks begin with."""
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
       configured authority. Who asks by a node's certificate has been before: it is no first use, unless an operator
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


MAX_KEY_TEXT: Final = 16 << 10
"""Characters; a certificate in PEM has 2000."""
_PEM: Final = re.compile(r"-----BEGIN (CERTIFICATE|PUBLIC KEY)-----([^-]*)-----END \1-----", re.ASCII)
_SEQUENCE: Final = b"\x30"
"""How DER begins. A TPMT_PUBLIC begins with its type, a TPM2B_PUBLIC with a size of some hundred bytes."""
_SIZE: Final = 2
"""Bytes of a TPM2B's size."""
_FORMS: Final = (
    f"{FINGERPRINT_FORM}; or a certificate or public key in PEM; or base64 of a certificate (DER), public key (DER), "
    "TPMT_PUBLIC or TPM2B_PUBLIC"
)


def read_registered_key(text: str) -> str:
    """Return the key's fingerprint; ``Denied`` for anything that is not one endorsement key."""
    text = text.strip()
    if len(text) > MAX_KEY_TEXT:
        raise _malformed(f"at most {MAX_KEY_TEXT} characters", str(len(text)))
    if text.startswith("sha256:"):
        if not ENDORSEMENT_FINGERPRINT.fullmatch(text):
            raise _malformed(FINGERPRINT_FORM, "another spelling, or an example's zeros")
        return text
    block = _PEM.fullmatch(text)
    if text.startswith("-") and block is None:
        raise _malformed("one PEM block CERTIFICATE or PUBLIC KEY", "other PEM, or several blocks")
    if not text:
        raise _malformed(_FORMS, "nothing")
    content = _base64(block[2] if block else text)
    if not block and content[:1] != _SEQUENCE:
        return _of_public_area(content)
    label = block[1] if block else ""
    try:
        key = _load(content, label)
    except X509_ERRORS as error:
        what = f"a {label.lower() or 'certificate or public key'} that can be read"
        raise _malformed(what, f"one that cannot ({type(error).__name__})") from None
    try:
        return endorsement_fingerprint(check_key_type(key))
    except ValueError as error:
        raise _malformed("a key of an endorsement key template", str(error)) from None


def _load(content: bytes, label: str) -> object:
    """Load the public key out of DER; without a label it may be a certificate or a public key."""
    if label != "CERTIFICATE":
        try:
            return _load_spki(content)
        except X509_ERRORS:
            if label:
                raise
    return x509.load_der_x509_certificate(content).public_key()


def _load_spki(content: bytes) -> object:
    """Load a SubjectPublicKeyInfo; no other structure of a key, and no compressed point."""
    key = load_der_public_key(content)
    if key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo) != content:
        raise ValueError("not in its one spelling")
    return key


def _of_public_area(content: bytes) -> str:
    has_size = int.from_bytes(content[:_SIZE], "big") == len(content) - _SIZE
    try:
        return parse_endorsement_key(content[_SIZE:] if has_size else content).fingerprint
    except Denied as denied:
        raise _malformed(denied.expected, denied.got) from None


def _base64(text: str) -> bytes:
    try:
        return decode_base64("".join(text.split()))
    except ParseError:
        raise _malformed(_FORMS, "other text") from None


def _malformed(expected: str, got: str) -> Denied:
    return Denied(
        Reason.ENDORSEMENT_KEY_MALFORMED,
        expected=expected,
        got=got,
        remedy="write the endorsementFingerprint that kubelet-authenticator evidence --provider tpm prints there",
    )
