"""The Compute API: instances and their endorsement keys, for many requests at once.

Whatever goes wrong is ``Unavailable``, and holds no token. No metadata is asked for: it holds the bootstrap data.
Source: Compute Engine API v1, ``Instance``, ``instances.list`` (filter: AIP-160),
``instances.getShieldedInstanceIdentity``; Google, "API rate limits", "Internal DNS names".
"""

from __future__ import annotations

import ipaddress
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from http import HTTPStatus
from math import inf
from typing import Final, TypeVar, cast
from urllib.parse import quote

from cryptography.hazmat.primitives.serialization import load_pem_public_key

from nodeattest_parsing import strict_json
from nodeattest_parsing.values import ParseError
from nodeattest_providers.certificate_chain import X509_ERRORS
from nodeattest_providers.cloud_http import (
    CloudHttp,
    CloudResponse,
    ExchangeError,
    Lookup,
    retry_after_seconds,
)
from nodeattest_providers.errors import Denied, Reason, Unavailable, platform_unavailable
from nodeattest_providers.gcp.api.tokens import Tokens, trust
from nodeattest_providers.gcp.config import GcpPlatform
from nodeattest_providers.gcp.provider_id import InstanceRef
from nodeattest_providers.identifiers import is_dns_name
from nodeattest_providers.keys import check_key_type, endorsement_fingerprint
from nodeattest_providers.node_interface import JsonObject, JsonValue
from nodeattest_providers.platform import CallOutcome, ObserveCall

_INSTANCE_FIELDS: Final = (
    "id,name,zone,status,hostname,labels,serviceAccounts/email,shieldedInstanceConfig,"
    "networkInterfaces(networkIP,ipv6Address,ipv6AccessType,accessConfigs/natIP,ipv6AccessConfigs/externalIpv6)"
)
FIELDS: Final = f"items({_INSTANCE_FIELDS}),nextPageToken"
"""The partial response that is asked for (Google, "Improve performance": the ``fields`` parameter)."""
_ID: Final = re.compile(r"[0-9]{1,20}")
"""An unsigned 64-bit number; JSON has it as a string."""
_ENDORSEMENT_KEYS: Final = ("encryptionKey", "eccP256EncryptionKey")
"""RSA-2048 and P-256; ``signingKey`` and its kin are attestation keys of Google's own template."""
_MAX_VALUES: Final = 50_000
"""Of an answer; a page of sixty instances has some 10,000."""
_MAX_LABEL: Final = 64
"""Characters of a key that a message shows (RFC 1035 §2.3.4)."""
_MAX_TOKEN: Final = 2048
RUNNING: Final = "RUNNING"


@dataclass(frozen=True, slots=True, kw_only=True)
class ComputeInstance:
    """One instance, as the platform knows it now."""

    place: InstanceRef
    number: str
    """Its numeric ID: a VM of the same name that is recreated has another."""
    status: str
    labels: Mapping[str, str] = field(repr=False)
    service_accounts: frozenset[str]
    has_vtpm: bool
    has_secure_boot: bool
    has_integrity_monitoring: bool
    addresses: tuple[tuple[str, str], ...]
    """(type, address) pairs as in ``Machine.status.addresses``."""


@dataclass(frozen=True, slots=True)
class Page:
    """A page of a list; each item is read on its own, so that one that nobody can read hides no other."""

    items: tuple[JsonObject, ...] = field(repr=False)
    next_token: str | None = field(repr=False)


def parse_page(data: bytes) -> Page:
    answer = _object(data)
    items = answer.get("items", [])
    token = answer.get("nextPageToken")
    if not isinstance(items, list) or not all(isinstance(item, dict) for item in items):
        raise _malformed("items")
    if token is not None and not (isinstance(token, str) and 0 < len(token) <= _MAX_TOKEN):
        raise _malformed("nextPageToken")
    return Page(tuple(cast("list[JsonObject]", items)), token)


def parse_instance(item: JsonObject, place: InstanceRef) -> ComputeInstance:
    number, status = item.get("id"), item.get("status")
    if not isinstance(number, str) or not _ID.fullmatch(number):
        raise _malformed("id")
    if not isinstance(status, str) or not status.isascii() or not status.isupper():
        raise _malformed("status")
    if item.get("name") != place.name or _text(item, "zone").rpartition("/")[2] != place.zone:
        raise _malformed("name or zone")
    shielded = _mapping(item, "shieldedInstanceConfig")
    return ComputeInstance(
        place=place,
        number=number,
        status=status,
        labels={key: _text(labels, key) for labels in [_mapping(item, "labels")] for key in labels},
        service_accounts=frozenset(_text(account, "email") for account in _list(item, "serviceAccounts")),
        has_vtpm=shielded.get("enableVtpm") is True,
        has_secure_boot=shielded.get("enableSecureBoot") is True,
        has_integrity_monitoring=shielded.get("enableIntegrityMonitoring") is True,
        addresses=tuple(dict.fromkeys(_addresses(item, place))),
    )


def _addresses(item: JsonObject, place: InstanceRef) -> Iterator[tuple[str, str]]:
    """List what reaches the instance: its interfaces' addresses, its name, its zonal DNS name.

    The global DNS name of old projects is left out: another zone's instance may have the same.
    """
    for interface in _list(item, "networkInterfaces"):
        yield from _address("InternalIP", interface, "networkIP")
        is_external = interface.get("ipv6AccessType") == "EXTERNAL"
        yield from _address("ExternalIP" if is_external else "InternalIP", interface, "ipv6Address")
        for access in _list(interface, "accessConfigs"):
            yield from _address("ExternalIP", access, "natIP")
        for access in _list(interface, "ipv6AccessConfigs"):
            yield from _address("ExternalIP", access, "externalIpv6")
    yield "Hostname", place.name
    hostname = _text(item, "hostname") if "hostname" in item else ""
    if is_dns_name(hostname):
        yield "Hostname", hostname
    if ":" not in place.project:
        yield "InternalDNS", f"{place.name}.{place.zone}.c.{place.project}.internal"


def _address(kind: str, holder: JsonObject, key: str) -> Iterator[tuple[str, str]]:
    if key not in holder:
        return
    try:
        yield kind, str(ipaddress.ip_address(_text(holder, key)))
    except ValueError:
        raise _malformed(key) from None


def parse_instance_identity(data: bytes) -> frozenset[str]:
    """Read the endorsement keys' fingerprints (``sha256:<hex>`` of the SubjectPublicKeyInfo); none before there are."""
    answer = _object(data)
    entries = (_mapping(answer, name) for name in _ENDORSEMENT_KEYS)
    return frozenset(_fingerprint(_text(entry, "ekPub")) for entry in entries if entry.get("ekPub"))


def _fingerprint(pem: str) -> str:
    try:
        return endorsement_fingerprint(check_key_type(load_pem_public_key(pem.encode())))
    except X509_ERRORS:
        raise _malformed("ekPub") from None


def _object(data: bytes) -> JsonObject:
    try:
        return strict_json.parse_object(data, max_size=None, max_values=_MAX_VALUES)
    except ParseError:
        raise _malformed("JSON") from None


def _mapping(holder: JsonObject, key: str) -> JsonObject:
    value = holder.get(key, {})
    if not isinstance(value, dict):
        raise _malformed(key)
    return value


def _list(holder: JsonObject, key: str) -> list[JsonObject]:
    value: JsonValue = holder.get(key, [])
    if not isinstance(value, list) or not all(isinstance(item, dict) for item in value):
        raise _malformed(key)
    return cast("list[JsonObject]", value)


def _text(holder: JsonObject, key: str) -> str:
    value = holder.get(key)
    if not isinstance(value, str):
        raise _malformed(key if key.isascii() and len(key) <= _MAX_LABEL else "a label")
    return value


def _malformed(what: str) -> Denied:
    return Denied(
        Reason.PLATFORM_DOCUMENT_MALFORMED,
        expected=f"an answer of the Compute API with a readable {what}",
        got="another",
        remedy="check that platforms.gcp.endpoints.compute is the Compute Engine API",
    )


_THROTTLED_FOR: Final = 15.0
_LONGEST_WAIT: Final = 120.0
_QUOTA: Final = (b"rateLimitExceeded", b"RATE_LIMIT_EXCEEDED", b"quotaExceeded", b"userRateLimitExceeded")
"""Why a 403 of the Compute API is none of permissions."""
_MOST: Final = 60
"""Names in one call: a filter of 5 KB at most, in a URL."""
_PAGES: Final = 10
"""Pages of one answer; sixty instances fit into one, but a page may be empty and have another behind it."""
_REMEMBERED: Final = 10.0
"""Seconds; what a join takes, so that its three reads are one call."""
_V = TypeVar("_V")


class Compute:
    """One session with the Compute API; it belongs to the event loop that first used it."""

    def __init__(
        self,
        settings: GcpPlatform,
        observe: ObserveCall,
        *,
        monotonic: Callable[[], float] = time.monotonic,
        page_size: int = 500,
    ) -> None:
        self._endpoint = settings.compute
        self._observe = observe
        self._page_size = page_size
        self._tokens = Tokens(settings, observe)
        self._http = CloudHttp(
            trust=lambda: trust(settings),
            proxy=settings.proxy,
            seconds=10.0,  # half of the controller's default verificationTimeout
            answer_bytes=4 * 1024 * 1024,  # fifty instances have some 100 KiB
            connections=64,
        )
        self._instances = Lookup(self._list, seconds=_REMEMBERED, most=_MOST, monotonic=monotonic)
        self._identities = Lookup(self._identity, seconds=inf, monotonic=monotonic)

    async def instance(self, place: InstanceRef, *, fresh: bool = False) -> ComputeInstance | None:
        """Return an instance, or None where there is none; raises Unavailable. A fresh answer is asked for now."""
        item = await self._instances.get((place.project, place.zone), place.name, fresh=fresh)
        if item is None:
            return None
        instance = _readable(lambda: parse_instance(item, place))
        return instance if fresh or instance.status == RUNNING else await self.instance(place, fresh=True)

    async def endorsement_keys(self, instance: ComputeInstance) -> frozenset[str] | None:
        return await self._identities.get((instance.place.project, instance.place.zone, instance.number), "")

    async def aclose(self) -> None:
        await self._instances.cancel()
        await self._identities.cancel()
        await self._tokens.aclose()
        await self._http.aclose()

    async def get(self, path: str, parameters: Mapping[str, str]) -> bytes | None:
        """Get a document; None where there is no such thing; raises Unavailable."""
        token = await self._tokens.token()
        answer = await self._ask(path, parameters, token)
        if answer.status == HTTPStatus.UNAUTHORIZED:  # revoked, or of a clock that is wrong: once more with another
            self._tokens.forget(token)
            answer = await self._ask(path, parameters, await self._tokens.token())
        if answer.status == HTTPStatus.NOT_FOUND:
            return None
        if _outcome(answer) is not CallOutcome.OK:
            raise _refusal(answer)
        return answer.body

    async def _ask(self, path: str, parameters: Mapping[str, str], token: str) -> CloudResponse:
        started, outcome = time.monotonic(), CallOutcome.FAILED
        headers = {"Authorization": f"Bearer {token}"}
        try:
            answer = await self._http.exchange("GET", self._endpoint + path, parameters=parameters, headers=headers)
            outcome = _outcome(answer)
        except ExchangeError as error:
            outcome = error.outcome
            raise platform_unavailable(
                f"the Compute API at {self._endpoint} {error}",
                remedy="wait; if this stays, check platforms.gcp.endpoints, caBundle and proxy of the controller",
            ) from None
        finally:
            self._observe("compute", outcome, time.monotonic() - started)
        return answer

    async def _list(self, zone: tuple[str, str], names: Sequence[str]) -> Mapping[str, JsonObject]:
        words = " OR ".join(f'(name = "{name}")' for name in sorted(names))
        found: dict[str, JsonObject] = {}
        parameters = {"filter": words, "fields": FIELDS, "maxResults": str(self._page_size)}
        for _ in range(_PAGES):
            data = await self.get(_instances_of(*zone), parameters)
            if data is None:
                return found
            page = _readable(lambda data=data: parse_page(data))
            found.update({str(item.get("name")): item for item in page.items})
            if page.next_token is None:
                return found
            parameters["pageToken"] = page.next_token
        raise _unreadable("a list that ends")

    async def _identity(self, instance: tuple[str, str, str], _: Sequence[str]) -> Mapping[str, frozenset[str]]:
        project, zone, number = instance
        data = await self.get(f"{_instances_of(project, zone)}/{number}/getShieldedInstanceIdentity", {})
        if data is None:
            return {}
        keys = _readable(lambda: parse_instance_identity(data))
        if not keys:
            raise platform_unavailable(
                "the Compute API has no endorsement key of the instance yet",
                remedy="wait; if this stays, stop and start the instance, which makes its vTPM",
                retry_after=10.0,
            )
        return {"": keys}


def _instances_of(project: str, zone: str) -> str:
    return f"/compute/v1/projects/{quote(project, safe=':')}/zones/{zone}/instances"


def _outcome(answer: CloudResponse) -> CallOutcome:
    match answer.status:
        case HTTPStatus.OK if answer.body.lstrip().startswith(b"{"):
            return CallOutcome.OK
        case HTTPStatus.TOO_MANY_REQUESTS:
            return CallOutcome.THROTTLED
        case HTTPStatus.FORBIDDEN if any(word in answer.body for word in _QUOTA):
            return CallOutcome.THROTTLED
        case HTTPStatus.UNAUTHORIZED | HTTPStatus.FORBIDDEN | HTTPStatus.NOT_FOUND:
            return CallOutcome.REFUSED
        case _:
            return CallOutcome.FAILED


def _refusal(answer: CloudResponse) -> Unavailable:
    match _outcome(answer):
        case CallOutcome.THROTTLED:
            what, remedy = "throttles", "wait; if this stays, raise the project's Compute read quota"
            wait = retry_after_seconds(answer.retry_after, default=_THROTTLED_FOR, longest=_LONGEST_WAIT)
        case CallOutcome.REFUSED:
            what, wait = "refuses the controller", 30.0
            remedy = (
                "grant the controller's service account compute.instances.list and "
                "compute.instances.getShieldedInstanceIdentity in this project"
            )
        case _:
            what, wait = "failed", 5.0
            remedy = "wait; if this stays, see Google Cloud's status and the controller's log"
    detail = f"the Compute API {what} (HTTP status {answer.status})"
    return platform_unavailable(detail, remedy=remedy, retry_after=wait)


def _readable(read: Callable[[], _V]) -> _V:
    try:
        return read()
    except Denied as denied:
        raise _unreadable(denied.expected) from None


def _unreadable(expected: str) -> Unavailable:
    return platform_unavailable(
        f"the Compute API's answer cannot be read: expected {expected}",
        remedy="check that platforms.gcp.endpoints.compute is the Compute Engine API",
    )
