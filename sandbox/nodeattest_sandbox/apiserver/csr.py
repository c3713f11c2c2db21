"""CertificateSigningRequests: what the API server sets, keeps and refuses.

Promises: the rules of certificates.k8s.io/v1 on create, on the main resource, on /approval and on /status, with the
field that each refusal names. Leaves the verbs ``approve`` and ``sign`` to admission.py.
Source: pkg/registry/certificates/certificates/strategy.go, pkg/apis/certificates/validation/validation.go.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
from collections.abc import Iterable, Iterator
from typing import Final

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm

from nodeattest_sandbox.apiserver.gocsr import problem_of
from nodeattest_sandbox.apiserver.gopem import decode_pem
from nodeattest_sandbox.apiserver.jsonvalue import (
    JsonMap,
    JsonValue,
    child,
    items_at,
    maps_at,
    text_at,
    texts_at,
    value_at,
)
from nodeattest_sandbox.apiserver.status_errors import (
    Cause,
    duplicate,
    forbidden_field,
    invalid_field,
    required,
    unsupported_value,
)
from nodeattest_sandbox.apiserver.users import User

__all__ = ["prepare_create", "prepare_update", "validate", "validate_update"]

_USAGES: Final = frozenset({
    "signing", "digital signature", "content commitment", "key encipherment", "key agreement", "data encipherment",
    "cert sign", "crl sign", "encipher only", "decipher only", "any", "server auth", "client auth", "code signing",
    "email protection", "s/mime", "ipsec end system", "ipsec tunnel", "ipsec user", "timestamping", "ocsp signing",
    "microsoft sgc", "netscape sgc",
})  # fmt: skip
_FINAL: Final = ("Approved", "Denied", "Failed")
_DECISIONS: Final = ("Approved", "Denied")
_LEGACY_SIGNER: Final = "kubernetes.io/legacy-unknown"
_LABEL: Final = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
_SUBDOMAIN: Final = re.compile(r"(?=.{1,253}\Z)[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
_MAX_DOMAIN: Final = 253
_MAX_SIGNER_NAME: Final = 571
_MIN_EXPIRATION: Final = 600  # seconds
_CONDITIONS: Final = "status.conditions"
_UNREADABLE: Final = (ValueError, TypeError, x509.InvalidVersion, UnsupportedAlgorithm)
"""What cryptography raises at DER that it does not take for a certificate."""


def prepare_create(value: JsonMap, user: User) -> None:
    """Put the requester in place of what the client wrote about itself, and empty the status."""
    spec = child(value, "spec")
    for key in ("username", "uid", "groups", "extra"):
        spec.pop(key, None)
    spec["username"] = user.name
    if user.uid:
        spec["uid"] = user.uid
    spec["groups"] = list(user.groups)
    if user.extra:
        spec["extra"] = {key: list(values) for key, values in user.extra.items()}
    value["status"] = {}


def prepare_update(value: JsonMap, before: JsonMap, subresource: str, now: str) -> None:
    """Restore what this door does not open."""
    value["spec"] = before["spec"]
    if not subresource:
        value["status"] = before.get("status", {})
        return
    status = child(value, "status")
    if subresource == "status":
        for kind in _DECISIONS:
            _preserve(status, before, kind)
    _populate_times(status, before, now)
    if subresource == "approval":
        conditions = items_at(status, "conditions")
        value["status"] = {**_status(before), **({"conditions": conditions} if conditions else {})}
        if not conditions:
            child(value, "status").pop("conditions", None)


def validate(value: JsonMap) -> list[Cause]:
    """Return what is wrong with a new request."""
    return [*_request_causes(value), *_usage_causes(value), *_signer_causes(value), *_expiration_causes(value),
            *_condition_causes(value), *_certificate_causes(value)]  # fmt: skip


def validate_update(value: JsonMap, before: JsonMap, subresource: str) -> list[Cause]:
    """Return what is wrong with a change; the spec is the old one and was valid."""
    causes = [*_condition_causes(value), *_certificate_causes(value)]
    causes += [
        forbidden_field(_CONDITIONS, f'updates may not remove a condition of type "{kind}"')
        for kind in _FINAL
        if len(_of_type(value, kind)) < len(_of_type(before, kind))
    ]
    if subresource != "approval":
        causes.extend(_decision_causes(value, before))
    new, old = text_at(value, "status", "certificate"), text_at(before, "status", "certificate")
    if new != old and subresource != "status":
        causes.append(forbidden_field("status.certificate", "updates may not set certificate content"))
    elif new != old and old:
        causes.append(forbidden_field("status.certificate", "updates may not modify existing certificate content"))
    return causes


def _decision_causes(value: JsonMap, before: JsonMap) -> Iterator[Cause]:
    for kind in _DECISIONS:
        new, old = _of_type(value, kind), _of_type(before, kind)
        if len(new) > len(old):
            yield forbidden_field(_CONDITIONS, f'updates may not add a condition of type "{kind}"')
        elif len(new) == len(old) and new != old:
            yield forbidden_field(_CONDITIONS, f'updates may not modify a condition of type "{kind}"')


def _request_causes(value: JsonMap) -> Iterator[Cause]:
    try:
        request = base64.b64decode(text_at(value, "spec", "request"), validate=True)
    except binascii.Error:
        yield invalid_field("spec.request", "<request>", "illegal base64 data")
        return
    if why := _request_problem(request):
        yield invalid_field("spec.request", "<request>", why)


def _request_problem(request: bytes) -> str:
    block = next(decode_pem(request), None)
    if block is None or block.label != "CERTIFICATE REQUEST":
        return "PEM block type must be CERTIFICATE REQUEST"
    return problem_of(block.body)


def _usage_causes(value: JsonMap) -> Iterator[Cause]:
    usages = texts_at(value, "spec", "usages")
    if not usages:
        yield required("spec.usages", "usages must be provided")
    for number, usage in enumerate(usages):
        if usage not in _USAGES:
            yield unsupported_value(f"spec.usages[{number}]", usage, sorted(_USAGES))
        if usage in usages[:number]:
            yield duplicate(f"spec.usages[{number}]", usage)


def _signer_causes(value: JsonMap) -> Iterator[Cause]:
    name, field = text_at(value, "spec", "signerName"), "spec.signerName"
    if not name:
        yield required(field, "signerName must be provided")
        return
    if name == _LEGACY_SIGNER:
        yield invalid_field(field, f'"{name}"', "the legacy signerName is not allowed via this API version")
        return
    domain, slash, path = name.partition("/")
    if not slash or "/" in path:
        why = "must be a fully qualified domain and path of the form 'example.com/signer-name'"
        yield invalid_field(field, f'"{name}"', why)
        return
    labels = domain.split(".")
    if len(domain) > _MAX_DOMAIN or len(name) > _MAX_SIGNER_NAME:
        yield Cause("FieldValueTooLong", f"Too long: must have at most {_MAX_SIGNER_NAME} bytes", field)
    if not all(_LABEL.fullmatch(label) for label in labels):
        yield invalid_field(field, f'"{domain}"', "validating label: a lowercase RFC 1123 label")
    if len(labels) < 2:  # noqa: PLR2004 - the rule says two
        yield invalid_field(field, f'"{domain}"', "should be a domain with at least two segments separated by dots")
    if not all(_SUBDOMAIN.fullmatch(label) for label in path.split(".")):
        yield invalid_field(field, f'"{path}"', "validating label: a lowercase RFC 1123 subdomain")


def _expiration_causes(value: JsonMap) -> Iterator[Cause]:
    seconds = value_at(value, "spec", "expirationSeconds")
    if isinstance(seconds, int) and seconds < _MIN_EXPIRATION:
        yield invalid_field(
            "spec.expirationSeconds", str(seconds), "may not specify a duration less than 600 seconds (10 minutes)"
        )


def _condition_causes(value: JsonMap) -> Iterator[Cause]:
    seen: set[str] = set()
    for number, condition in enumerate(maps_at(value, "status", "conditions")):
        field, kind, status = f"{_CONDITIONS}[{number}]", text_at(condition, "type"), text_at(condition, "status")
        allowed = ("True",) if kind in _FINAL else ("True", "False", "Unknown")
        if not kind:
            yield required(f"{field}.type")
        if not status:
            yield required(f"{field}.status")
        elif status not in allowed:
            yield unsupported_value(f"{field}.status", status, allowed)
        if kind in _DECISIONS and seen & (set(_DECISIONS) - {kind}):
            yield invalid_field(f"{field}.type", f'"{kind}"', "Approved and Denied conditions are mutually exclusive")
        if kind in seen:
            yield duplicate(f"{field}.type", kind)
        seen.add(kind)


def _certificate_causes(value: JsonMap) -> Iterable[Cause]:
    text = text_at(value, "status", "certificate")
    if not text:
        return ()
    why = _certificate_problem(text)
    return (invalid_field("status.certificate", '"<certificate data>"', why),) if why else ()


def _certificate_problem(text: str) -> str:
    try:
        blocks = list(decode_pem(base64.b64decode(text, validate=True)))
        for block in blocks:
            if block.label != "CERTIFICATE":
                return f"only CERTIFICATE PEM blocks are allowed, found {json.dumps(block.label)}"
            if block.headers:
                return "no PEM block headers are permitted"
            x509.load_der_x509_certificate(block.body)
    except _UNREADABLE:
        return "x509: malformed certificate"
    return "" if blocks else "must contain at least one CERTIFICATE PEM block"


def _status(value: JsonMap) -> JsonMap:
    status = value.get("status")
    return status if isinstance(status, dict) else {}


def _of_type(value: JsonMap, kind: str) -> list[JsonMap]:
    return [condition for condition in maps_at(value, "status", "conditions") if condition.get("type") == kind]


def _preserve(status: JsonMap, before: JsonMap, kind: str) -> None:
    """Put the old instances of a condition in place of the new ones where their number is the same."""
    conditions = items_at(status, "conditions")
    places = [place for place, item in enumerate(conditions) if text_at(item, "type") == kind]
    old = _of_type(before, kind)
    if len(places) == len(old):
        for place, condition in zip(places, old, strict=True):
            conditions[place] = condition


def _populate_times(status: JsonMap, before: JsonMap, now: str) -> None:
    conditions: list[JsonValue] = []
    for condition in maps_at(status, "conditions"):
        same = [
            old for old in _of_type(before, text_at(condition, "type")) if old.get("status") == condition.get("status")
        ]
        since = next((text_at(old, "lastTransitionTime") for old in same if text_at(old, "lastTransitionTime")), now)
        filled: JsonMap = {**condition}
        filled["lastUpdateTime"] = text_at(condition, "lastUpdateTime") or now
        filled["lastTransitionTime"] = text_at(condition, "lastTransitionTime") or since
        conditions.append(filled)
    if conditions:
        status["conditions"] = conditions
