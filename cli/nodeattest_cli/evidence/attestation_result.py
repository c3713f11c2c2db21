"""EAT Attestation Results (EAR): what a machine's record says, signed by an operator, with its evidence inside. Pure.

Promises: a result says no more than the record: ``affirming`` while a certificate that a secure provider's proof gave
is valid and no later renewal was refused, ``contraindicated`` where a renewal was refused for what the machine is or
booted, ``none`` for everything else. ``ear_raw_evidence`` is the evidence bundle, of which the same claims follow
again. Any bytes give a verified result or ``Denied``, whose message quotes no claim.
Leaves to others: reading clusters and files, evaluating the bundle's request again (``explain``), which key to trust.
Source: draft-ietf-rats-ear-04 (claims, profile), draft-ietf-rats-ar4si (tiers and values of the trustworthiness
vector), RFC 9711 §4 (EAT claims), RFC 9782 §3 (type of a JWS), RFC 9334 (terms).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from typing import Final

from nodeattest_cli.documents import MAX_FILE, read_objects
from nodeattest_cli.errors import UserError
from nodeattest_cli.explain.bundle import read_bundle
from nodeattest_cli.explain.collect import Collected
from nodeattest_cli.machines.row import MachineRow
from nodeattest_controller.controllers.node_attested.conditions import is_refused, newest_certificate
from nodeattest_controller.controllers.node_attested.severity import DENIAL_SEVERITIES, DenialSeverity
from nodeattest_controller.model.attestation import Attestation, IssuedCertificate
from nodeattest_controller.model.last_decision import LastDecision
from nodeattest_controller.model.objects import rfc3339
from nodeattest_identity.issuer.keys import VerifyingKey
from nodeattest_identity.tokens.jwt import is_signed_by
from nodeattest_kube.jsontypes import JsonObject, JsonValue
from nodeattest_parsing import compact_jws
from nodeattest_parsing.errors import ParseError
from nodeattest_parsing.strict_base64 import decode_base64url, encode_base64url
from nodeattest_providers.errors import Denied, Reason
from nodeattest_providers.registry import INSECURE

__all__ = ["MAX_RESULT", "RECORD", "TYPE", "AttestationResult", "Tier", "make_claims", "verify_result"]

PROFILE: Final = "tag:ietf.org,2026:rats/ear#03"
TYPE: Final = "eat+jwt"
"""``typ`` of the JWS, so that no result is taken for another kind of token, nor the other way round."""
RECORD: Final = "attestation.cluster.x-k8s.io/record"
"""Extension of the appraisal: what of the MachineAttestation it was made of."""
DEVELOPER: Final = "nodeattest"
MAX_RESULT: Final = 2 * MAX_FILE
"""Bytes of a result: a bundle of ``MAX_FILE``, twice in base64."""
_HEADER: Final = frozenset({"alg", "kid", "typ"})
_CLAIMS: Final = frozenset({"eat_profile", "iat", "ear_status", "ear_verifier_id", "ear_raw_evidence", "submods"})
_FUTURE: Final = 300
"""Seconds that the signer's clock may be ahead."""
_REMEDY: Final = "take the result from whoever signed it, and their public key from a place that you trust"

# AR4SI, "Trustworthiness Claims"
_NO_CLAIM: Final = 0
_RECOGNIZED: Final = 2
"""instance-identity: the instance is recognized, and not known to be compromised."""
_NOT_RECOGNIZED: Final = 97
"""instance-identity: the instance should be recognized, and is not."""
_CONTRAINDICATED: Final = 96
"""executables: what was loaded at boot is not allowed."""
_BOOT: Final = frozenset({Reason.PCR_VALUE_NOT_ALLOWED, Reason.EVENT_LOG_MISMATCH})


class Tier(StrEnum):
    """The trustworthiness tiers of AR4SI that a record gives."""

    NONE = "none"
    AFFIRMING = "affirming"
    CONTRAINDICATED = "contraindicated"


@dataclass(frozen=True, slots=True, kw_only=True)
class AttestationResult:
    """A result whose signature and claims are verified."""

    machine: str
    """Label of the appraisal: ``<namespace>/<cluster>/<machine>``."""
    tier: Tier
    made: datetime
    build: str
    key_id: str
    appraisal: JsonObject
    evidence: Collected
    """The bundle that it holds."""


def make_claims(bundle: bytes, now: datetime, *, build: str) -> JsonObject:
    """Appraise the machine of a bundle as its record stood at ``now``; raises Denied where it has none."""
    label, appraisal = _appraise(_bundle(bundle), now)
    return _claims(label, appraisal, bundle, now, build=build)


def verify_result(token: bytes, keys: Sequence[VerifyingKey], now: datetime) -> AttestationResult:
    """Verify a signed result; raises Denied.

    1. It is a JWS whose header is exactly alg, kid and typ ``eat+jwt`` (RFC 7515 §5.2; RFC 8725 §3.11).
    2. ``kid`` names one of the keys, ``alg`` is that key's own, and the key signed it.
    3. Its claims are an EAR of this profile, made in the past, without any that is not known here.
    4. Its evidence is a bundle, and gives the very same appraisal again.
    """
    # 1
    try:
        found = compact_jws.split(token, max_size=MAX_RESULT)
    except ParseError as error:
        raise _malformed(f"a signed attestation result: {error.expected}", error.found) from None
    if found.header.keys() != _HEADER or found.header["typ"] != TYPE:
        raise _malformed(f"a header of alg, kid and typ {TYPE}", "another header")
    # 2
    key = next((one for one in keys if one.kid == found.header["kid"]), None)
    if key is None:
        raise _denied(Reason.JWT_KEY_UNKNOWN, f"a kid of one of the {len(keys)} keys that were given", "another kid")
    if key.alg != found.header["alg"]:
        raise _denied(Reason.JWT_ALGORITHM_NOT_ALLOWED, f"the key's own alg {key.alg}", "another")
    if not is_signed_by(token, found.payload, key):
        raise _denied(Reason.JWT_SIGNATURE_INVALID, "a signature by the key that kid names", "another")
    # 3
    claims, made, build = _read_claims(found.payload)
    if made.timestamp() > now.timestamp() + _FUTURE:
        raise _denied(Reason.JWT_NOT_YET_VALID, "iat in the past", f"{made - now} ahead")
    # 4
    try:
        bundle = decode_base64url(str(claims["ear_raw_evidence"]).encode())
    except ParseError as error:
        raise _malformed("ear_raw_evidence in base64url", error.found) from None
    evidence = _bundle(bundle)
    label, appraisal = _appraise(evidence, made)
    if _claims(label, appraisal, bundle, made, build=build) != claims:
        raise _denied(Reason.EVIDENCE_MALFORMED, "the appraisal that follows from the evidence", "another appraisal")
    return AttestationResult(
        machine=label,
        tier=Tier(str(appraisal["ear_status"])),
        made=made,
        build=build,
        key_id=key.kid,
        appraisal=appraisal,
        evidence=evidence,
    )


def _claims(label: str, appraisal: JsonObject, bundle: bytes, now: datetime, *, build: str) -> JsonObject:
    return {
        "eat_profile": PROFILE,
        "iat": int(now.timestamp()),
        "ear_status": appraisal["ear_status"],
        "ear_verifier_id": {"developer": DEVELOPER, "build": build},
        "ear_raw_evidence": encode_base64url(bundle),
        "submods": {label: appraisal},
    }


def _read_claims(payload: bytes) -> tuple[JsonObject, datetime, str]:
    try:
        claims = compact_jws.parse_claims(payload)
    except ParseError as error:
        raise _malformed(error.expected, error.found) from None
    verifier = claims.get("ear_verifier_id")
    build = verifier.get("build") if isinstance(verifier, dict) else None
    made = claims.get("iat")
    if claims.keys() != _CLAIMS or claims["eat_profile"] != PROFILE:
        raise _malformed(f"the claims of an EAR of {DEVELOPER}, profile {PROFILE}", "other claims or another profile")
    if not isinstance(build, str) or type(made) is not int:
        raise _malformed("ear_verifier_id with a build, and iat in whole seconds", "something else")
    try:
        return claims, datetime.fromtimestamp(made, UTC), build
    except (ValueError, OverflowError, OSError):
        raise _malformed("iat in seconds since 1970", "no time") from None


def _bundle(bundle: bytes) -> Collected:
    try:
        found = read_bundle(read_objects("the evidence of the result", bundle.decode()))
    except (UserError, UnicodeDecodeError):
        found = None
    if found is None or found.row is None:
        raise _malformed("an evidence bundle of a machine", "something else")
    return found


def _appraise(found: Collected, now: datetime) -> tuple[str, JsonObject]:
    """Return label and appraisal of a bundle's machine."""
    row, attestation = found.row, found.attestation
    if row is None:
        raise _malformed("an evidence bundle of a machine", "one without")
    tier, vector = _trust(attestation, now)
    newest = newest_certificate(attestation)
    appraisal: JsonObject = {
        "ear_status": tier,
        "ear_trustworthiness_vector": vector,
        RECORD: _record(row, attestation, newest),
    }
    if newest is not None and newest.policy:
        appraisal["ear_appraisal_policy_ids"] = [f"{row.namespace}/{newest.policy}"]
    return f"{row.namespace}/{row.cluster}/{row.machine}", appraisal


def _trust(attestation: Attestation | None, now: datetime) -> tuple[Tier, JsonObject]:
    """Return tier and trustworthiness vector.

    A tier is that of the vector's worst value. A category that is left out makes no claim: a record does not say how
    the endorsement key was trusted (hardware), nor which boot states the policy of the day allowed (executables).
    """
    newest = newest_certificate(attestation)
    if attestation is None or newest is None or attestation.provider in INSECURE:
        return Tier.NONE, {"instance-identity": _NO_CLAIM}
    refused = attestation.verdict.reason if attestation.verdict is not None and is_refused(attestation) else ""
    if refused in _BOOT:
        return Tier.CONTRAINDICATED, {"instance-identity": _RECOGNIZED, "executables": _CONTRAINDICATED}
    if refused in set(Reason) and DENIAL_SEVERITIES.get(Reason(refused)) is DenialSeverity.MACHINE:
        return Tier.CONTRAINDICATED, {"instance-identity": _NOT_RECOGNIZED}
    if refused or newest.not_after <= now:
        return Tier.NONE, {"instance-identity": _NO_CLAIM}
    return Tier.AFFIRMING, {"instance-identity": _RECOGNIZED}


def _record(row: MachineRow, attestation: Attestation | None, newest: IssuedCertificate | None) -> JsonObject:
    record: JsonObject = {"providerID": row.provider_id, "state": row.state, "resets": row.resets}
    if attestation is None:
        return record
    record |= {"provider": attestation.provider, "nodeName": attestation.node_name}
    record["fingerprints"] = dict[str, JsonValue](attestation.fingerprints)
    if attestation.boot is not None:
        record["boot"] = {"bank": attestation.boot.bank, "pcrDigest": attestation.boot.pcr_digest}
    if newest is not None:
        certificate: JsonObject = {"serial": newest.serial, "spki": newest.spki}
        times = {"notBefore": newest.not_before, "notAfter": newest.not_after, "issuedAt": newest.issued_at}
        record["certificate"] = {**certificate, **{name: rfc3339(time) for name, time in times.items()}}
    if attestation.verdict is not None:
        record["lastVerdict"] = _verdict(attestation.verdict)
    return record


def _verdict(verdict: LastDecision) -> JsonObject:
    return dict(verdict.render())


def _malformed(expected: str, got: str) -> Denied:
    return Denied(Reason.JWT_MALFORMED, expected=expected, got=got, remedy=_REMEDY)


def _denied(reason: Reason, expected: str, got: str) -> Denied:
    return Denied(reason, expected=expected, got=got, remedy=_REMEDY)
