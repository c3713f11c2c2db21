"""A bootstrap token out of what was asked for, and into the cluster.

Promises: a token lasts a day by default, and forever only if that is said; what no API server would take is
refused before one is asked. One write.
Source: kubernetes cmd/kubeadm/app/apis/kubeadm/v1beta4/defaults.go; docs/decisions.md.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from nodeattest_cli.errors import StateError, UserError, user_errors
from nodeattest_discovery.secret import (
    DEFAULT_GROUP,
    NAMESPACE,
    SECRET_TYPE,
    TokenSecret,
    Usage,
    encode,
    secret_name,
)
from nodeattest_discovery.token import BootstrapToken
from nodeattest_kube import paths
from nodeattest_kube.client import AlreadyExists, ApiClient
from nodeattest_kube.jsontypes import JsonObject
from nodeattest_parsing.durations import format_duration, parse_duration
from nodeattest_parsing.errors import ParseError

__all__ = ["DEFAULT_TTL", "TokenSpec", "make", "secret_path", "store", "warning"]

DEFAULT_TTL: Final = "24h0m0s"
_COLLECTION: Final = paths.core_path("secrets", namespace=NAMESPACE)
_DRY_RUN: Final = "?dryRun=All"
_WARNING: Final = (
    "token {id} authenticates: its holder may ask for certificates as a new node{until}; hand it to one machine "
    "only, and delete it afterwards: nodeattest token delete {id}"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenSpec:
    """A token to make; None is the default."""

    token: BootstrapToken | None = None
    usages: Sequence[str] | None = None
    groups: Sequence[str] | None = None
    ttl: str = DEFAULT_TTL
    ttl_option: str = "--ttl"
    """The option that set it."""
    description: str = ""


def make(spec: TokenSpec, now: datetime, generate: Callable[[], BootstrapToken]) -> TokenSecret:
    """Make the token; raises ``UserError`` for what would not be one.

    1. Usages are known, and there is one. 2. The time to live is a duration and not negative.
    3. Groups are well-formed; kubeadm's is the default where the token authenticates.
    """
    # 1
    usages = _usages(spec.usages)
    # 2
    expires = _expires(spec, now)
    # 3
    default = (DEFAULT_GROUP,) if Usage.AUTHENTICATION in usages else ()
    made = TokenSecret(
        token=spec.token or generate(),
        usages=usages,
        groups=default if spec.groups is None else tuple(spec.groups),
        expires=expires,
        description=spec.description,
    )
    with user_errors("the token"):
        encode(made)
    return made


async def store(client: ApiClient, made: TokenSecret, *, dry_run: bool = False) -> None:
    """Create the Secret; with ``dry_run`` the server only checks it. Raises ``UserError`` where the id is taken."""
    body: JsonObject = {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": secret_name(made.token.id), "namespace": NAMESPACE},
        "type": SECRET_TYPE,
        "data": {**encode(made)},
    }
    try:
        await client.create(_COLLECTION + (_DRY_RUN if dry_run else ""), body)
    except AlreadyExists:
        raise StateError(f'a token with id "{made.token.id}" already exists') from None


def secret_path(token_id: str) -> str:
    """Return the path of a token's Secret."""
    return paths.core_path("secrets", secret_name(token_id), namespace=NAMESPACE)


def warning(made: TokenSecret) -> str | None:
    """Say what a token that authenticates is worth; None for one that only signs."""
    if Usage.AUTHENTICATION not in made.usages:
        return None
    return _WARNING.format(id=made.token.id, until="" if made.expires else ", for ever")


def _usages(asked: Sequence[str] | None) -> frozenset[Usage]:
    if asked is None:
        return frozenset(Usage)
    known = [usage.value for usage in Usage]
    for word in asked:
        if word not in known:
            raise UserError(f"--usages: expected {' or '.join(known)}, got {word[:40]!a}")
    if not asked:
        raise UserError(f"--usages: expected {' or '.join(known)}, got none")
    return frozenset(Usage(word) for word in asked)


def _expires(spec: TokenSpec, now: datetime) -> datetime | None:
    option = spec.ttl_option
    try:
        nanoseconds = parse_duration(spec.ttl)
    except ParseError as error:
        raise UserError(f"{option}: {error}") from None
    if nanoseconds < 0:
        raise UserError(
            f"{option}: expected a time to come, or 0 for a token that never expires, "
            f"got {format_duration(nanoseconds)}"
        )
    return now + timedelta(microseconds=nanoseconds // 1000) if nanoseconds else None
