"""Publishes: reads the store, plans, writes, until nothing is left to write; then compares what the public URL serves.

Outdated public content is distinct from wrong content: caches may hold the older documents for their max-age.
Source: OpenID Connect Discovery 1.0 §4 (issuer equals URL), RFC 9111 §5.2.2 (Cache-Control).
"""

from __future__ import annotations

import asyncio
import random
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from nodeattest_identity.issuer import documents as docs
from nodeattest_identity.issuer.keys import KeysError, read_jwks
from nodeattest_identity.publish import store as stores
from nodeattest_identity.publish.plan import CONFIGURATION, STATE, Current, Desired, Plan, jwks_path, plan
from nodeattest_identity.tokens.jwt import printable
from nodeattest_identity.tokens.relying_party import FetchedDocument, HttpsFetcher
from nodeattest_providers.errors import Denied, Unavailable

_ATTEMPTS: Final = 16
"""Two without conflicts: write, see that nothing is left. A conflict takes one."""
_MAX_AGE: Final = re.compile(
    r"(?:^|,)\s*(?:no-store|no-cache|(?:s-)?max-?age\s*=\s*\"?([0-9]{1,10}))", re.IGNORECASE | re.ASCII
)
"""How long caches may hold a response, each time that it is said; empty: not at all."""


async def dry_run(store: stores.ObjectStore, desired: Desired, *, clock: Callable[[], float]) -> Plan:
    """Read and plan without writing.

    The state is read last. It is written before the documents, so it knows every key of a document that was read
    earlier; otherwise a concurrent run's key would look like a foreign one.
    """
    path = jwks_path(desired.issuer, desired.jwks_uri)
    configuration = await store.read(CONFIGURATION)
    jwks = await store.read(path)
    state = await store.read(STATE)
    return plan(Current(configuration=configuration, jwks=jwks, state=state), desired, int(clock()))


async def publish(store: stores.ObjectStore, desired: Desired, *, clock: Callable[[], float]) -> Plan:
    """Publish the desired documents; ``clock`` returns seconds since the epoch.

    Returns the plan with the writes of this run. Raises ``PublishError``, ``KeysError`` and ``UrlError``.
    """
    written: list[stores.Write] = []
    notes: dict[str, None] = {}
    conflict: stores.WriteConflictError | None = None
    unknown = desired.revoked
    next_plan = await dry_run(store, desired, clock=clock)
    for attempt in range(_ATTEMPTS):
        notes |= dict.fromkeys(next_plan.notes)
        unknown &= next_plan.unknown
        if not next_plan.writes:
            return replace(next_plan, writes=tuple(written), notes=tuple(notes), unknown=unknown)
        try:
            for write in next_plan.writes:
                await store.write(write)
                written.append(write)
        except stores.WriteConflictError as error:
            conflict = error
            await asyncio.sleep(random.uniform(0, min(2.0, 0.1 * 2**attempt)))  # noqa: S311 - spreads publishers
        next_plan = await dry_run(store, desired, clock=clock)
    lost = ", ".join(f"{write.path} {write.why}" for write in next_plan.writes)
    raise conflict or stores.StoreRefusedError(
        f"{store.name}: expected to read what was written, got otherwise each time ({lost}); use a store that keeps "
        "bytes and headers, and stop other programs that write there"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class PublicCheck:
    """How the public documents differ from the published ones."""

    findings: tuple[str, ...] = ()
    until: int | None = None
    """Until when caches may hold an older version, seconds since the epoch; None: an operator must act."""

    @property
    def is_wrong(self) -> bool:
        """Whether an operator must act."""
        return bool(self.findings) and self.until is None


async def check_public(https: HttpsFetcher, published: Plan, *, max_age: int, now: int) -> PublicCheck:
    """Read both documents through the public URL and compare them with the published ones.

    1. Both exist. 2. They are byte for byte the published ones, or older ones of this issuer. 3. The headers let caches
    hold them no longer than ``max_age`` seconds.
    """
    made = published.documents
    url = docs.configuration_url(made.issuer)
    wrong: list[str] = []
    older: list[str] = []
    # 1
    try:
        configuration = await https.get(url, accept=docs.CONFIGURATION_TYPE, limit=stores.MAX_OBJECT)
        jwks = await https.get(
            made.jwks_uri, accept=f"{docs.JWKS_TYPE}, application/json;q=0.9", limit=stores.MAX_OBJECT
        )
    except (Denied, Unavailable) as error:
        return PublicCheck(findings=(str(error),))
    # 2
    try:
        issuer = docs.parse_configuration(configuration.body).issuer
        if issuer != made.issuer:
            wrong.append(f"{url}: expected the issuer {made.issuer}, got {issuer[:200]!a}")
        elif configuration.body != made.configuration:
            older.append(f"{url}: still an older configuration")
    except docs.DocumentError as error:
        wrong.append(f"{url}: {error}")
    try:
        lacking = sorted({key.kid for key in made.keys} - {key.kid for key in read_jwks(jwks.body)})
        if jwks.body != made.jwks:
            what = f"without {', '.join(map(printable, lacking))}" if lacking else "with other keys"
            older.append(f"{made.jwks_uri}: still an older key set, {what}")
    except KeysError as error:
        wrong.append(f"{made.jwks_uri}: {error}")
    # 3
    wrong += _wrong_headers(url, configuration, docs.CONFIGURATION_TYPE, max_age)
    wrong += _wrong_headers(made.jwks_uri, jwks, docs.JWKS_TYPE, max_age)
    until = published.state.updated + max_age
    is_wrong = bool(wrong) or now > until or not older
    return PublicCheck(findings=(*wrong, *older), until=None if is_wrong else until)


def _wrong_headers(url: str, answer: FetchedDocument, content_type: str, max_age: int) -> list[str]:
    wrong: list[str] = []
    if answer.content_type != content_type:
        wrong.append(f"{url}: expected content type {content_type}, got {answer.content_type[:80]!a}")
    ages = [int(each or "0") for each in _MAX_AGE.findall(answer.cache_control)]
    if not ages or max(ages) > max_age:
        wrong.append(
            f"{url}: expected Cache-Control that lets caches hold it for {max_age} s at most, got "
            f"{answer.cache_control[:80]!a}: a new key would sign too soon; give --max-age, or change what the server "
            "sends"
        )
    return wrong


def open_store(location: stores.StoreLocation, access: stores.StoreAccess) -> stores.ObjectStore:
    """Open the store without connecting to it; raises ``StoreRefusedError``. A cloud's library is imported here."""
    if location.kind == "dir":
        return stores.DirectoryStore(Path(location.root), location.prefix)
    try:
        from nodeattest_identity.publish.cloud import CloudStore
    except ImportError:
        raise stores.StoreRefusedError(
            "--to: expected the library obstore, got none; install requirements-cli.txt of the release "
            "(docs/install.md)"
        ) from None
    return CloudStore(location, access)
