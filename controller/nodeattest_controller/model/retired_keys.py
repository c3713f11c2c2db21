"""Keys that were certified and left a record's history of certificates, by an operator's reset or by newer ones.

Promises: no key is forgotten, and so none gets another certificate, while a certificate for it is valid; of those that
ended the newest 32 are remembered. With each key goes the first request that it answered, which no other key may
answer. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from types import MappingProxyType
from typing import Final

from nodeattest_controller.model.objects import items, moment, rfc3339, text
from nodeattest_parsing.values import JsonObject
from nodeattest_providers.names import Purpose

__all__ = ["MAX_LIVE", "RetiredKey", "live_keys", "parse_purpose", "parse_retired", "render_retired", "retire"]

KEEP_ENDED: Final = 32
"""Keys remembered after their certificates ended: four times the history of certificates."""
MAX_LIVE: Final = MappingProxyType({Purpose.CLIENT: 512, Purpose.SERVING: 256})
"""Keys of one machine with certificates that live, beside its history, so that serving certificates never bar a client
one; an attestation record stays below 256 KiB. A machine that loses its key at each boot and boots every ten minutes
reaches it after three days."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RetiredKey:
    """A key, and when its certificate ends."""

    spki: str
    """``sha256:<hex>``, as in the ledger's entries."""
    serial: str
    not_after: datetime
    purpose: Purpose = Purpose.CLIENT
    first_request_uid: str = ""
    """Of the first request that it answered; empty for one-step providers, and in records of earlier versions."""


def retire(known: Sequence[RetiredKey], more: Iterable[RetiredKey], now: datetime) -> tuple[RetiredKey, ...]:
    """Add keys, oldest first, and forget the oldest of those whose certificates ended."""
    every = [*known, *more]
    ended = [key for key in every if key.not_after <= now]
    forgotten = {id(key) for key in ended[: max(len(ended) - KEEP_ENDED, 0)]}
    return tuple(key for key in every if id(key) not in forgotten)


def live_keys(known: Sequence[RetiredKey], purpose: Purpose, now: datetime) -> int:
    """Count the keys of a purpose whose certificates still live."""
    return sum(key.not_after > now for key in known if key.purpose is purpose)


def parse_purpose(item: JsonObject) -> Purpose:
    """Read ``purpose``; entries of versions that knew one have none."""
    return Purpose.SERVING if text(item, "purpose") == Purpose.SERVING else Purpose.CLIENT


def parse_retired(spec: JsonObject) -> tuple[RetiredKey, ...]:
    """Read ``spec.retiredKeys``."""
    return tuple(key for item in items(spec, "retiredKeys") if (key := _parse(item)) is not None)


def render_retired(known: Sequence[RetiredKey]) -> list[JsonObject]:
    """Write ``spec.retiredKeys``."""
    return [_render(key) for key in known]


def _parse(item: JsonObject) -> RetiredKey | None:
    spki, not_after = text(item, "spki"), moment(text(item, "notAfter"))
    if not spki or not_after is None:
        return None
    return RetiredKey(
        spki=spki,
        serial=text(item, "serial"),
        not_after=not_after,
        purpose=parse_purpose(item),
        first_request_uid=text(item, "firstRequestUID"),
    )


def _render(key: RetiredKey) -> JsonObject:
    body: JsonObject = {"spki": key.spki, "notAfter": rfc3339(key.not_after)}
    if key.serial:  # optional in the schema, which takes no empty one
        body["serial"] = key.serial
    if key.purpose is Purpose.SERVING:
        body["purpose"] = key.purpose
    if key.first_request_uid:
        body["firstRequestUID"] = key.first_request_uid
    return body
