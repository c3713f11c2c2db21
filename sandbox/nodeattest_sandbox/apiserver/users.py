"""Who asks: client certificates, bootstrap tokens, and nobody.

Promises: the users and groups that kube-apiserver derives from the same credentials. A bootstrap token's secret is
compared in constant time, and before anything else is looked at.
Out of scope: the chain of a client certificate. TLS refuses a foreign one in the handshake; kube-apiserver answers 401.
Source: k8s.io/apiserver/pkg/authentication/request/{x509,bearertoken}; plugin/pkg/auth/authenticator/token/bootstrap;
k8s.io/cluster-bootstrap util/secrets.
"""

from __future__ import annotations

import base64
import binascii
import hmac
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Final

from cryptography import x509
from cryptography.x509.oid import NameOID

from nodeattest_sandbox.apiserver.jsonvalue import JsonMap, text_at, value_at
from nodeattest_sandbox.apiserver.status_errors import unauthorized
from nodeattest_sandbox.apiserver.store import Key, Store

_AUTHENTICATED: Final = "system:authenticated"


@dataclass(frozen=True, slots=True)
class User:
    """An authenticated (or anonymous) user."""

    name: str
    groups: tuple[str, ...]
    uid: str = ""
    extra: Mapping[str, tuple[str, ...]] = field(default_factory=dict[str, tuple[str, ...]])


ANONYMOUS: Final = User("system:anonymous", ("system:unauthenticated",))


@dataclass(frozen=True, slots=True)
class Authenticator:
    """Reads credentials; ``now`` is the server's clock."""

    store: Store
    now: Callable[[], datetime]

    def authenticate(self, certificate: bytes | None, authorization: str | None) -> User:
        """Return who asks; a certificate wins over a token; raises 401 for credentials that do not hold."""
        if certificate is not None:
            return self._by_certificate(certificate)
        token = _bearer(authorization or "")
        if not token:
            return ANONYMOUS
        user = self.by_token(token)
        if user is None:
            raise unauthorized()
        return user

    def by_token(self, token: str) -> User | None:
        """Return the user of a bootstrap token, or None."""
        found = bootstrap_user(self.store, token, self.now())
        return User(found[0], (*found[1], _AUTHENTICATED)) if found else None

    def _by_certificate(self, der: bytes) -> User:
        user, not_after = _read_certificate(der)
        if self.now() > not_after:
            raise unauthorized()
        return user


def _bearer(authorization: str) -> str:
    """Return the word after ``Bearer``, as k8s.io/apiserver's bearertoken cuts it: at each single blank."""
    words = authorization.strip().split(" ")
    return words[1] if words[0].lower() == "bearer" and len(words) > 1 else ""


@lru_cache(maxsize=4096)
def _read_certificate(der: bytes) -> tuple[User, datetime]:
    certificate = x509.load_der_x509_certificate(der)
    names = [str(a.value) for a in certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)]
    groups = [str(a.value) for a in certificate.subject.get_attributes_for_oid(NameOID.ORGANIZATION_NAME)]
    if not names:
        raise unauthorized()
    # Go keeps the last of several common names (crypto/x509).
    return User(names[-1], (*groups, _AUTHENTICATED)), certificate.not_valid_after_utc.astimezone(UTC)


_TOKEN: Final = re.compile(r"([a-z0-9]{6})\.([a-z0-9]{16})")
_EXTRA_GROUP: Final = re.compile(r"system:bootstrappers:[a-z0-9:-]{0,255}[a-z0-9]")
_TYPE: Final = "bootstrap.kubernetes.io/token"


def bootstrap_user(store: Store, token: str, now: datetime) -> tuple[str, tuple[str, ...]] | None:
    """Return the name and the groups of the token's holder, or None."""
    found = _TOKEN.fullmatch(token)
    stored = store.get("/secrets", Key("kube-system", f"bootstrap-token-{found[1]}")) if found else None
    if found is None or stored is None or not _holds(stored.value, found[1], found[2].encode(), now):
        return None
    groups = _groups(_data(stored.value, "auth-extra-groups").decode("utf-8", "replace"))
    return None if groups is None else (f"system:bootstrap:{token[:6]}", groups)


def _holds(secret: JsonMap, token_id: str, token_secret: bytes, now: datetime) -> bool:
    return (
        value_at(secret, "metadata", "deletionTimestamp") is None
        and text_at(secret, "type") == _TYPE
        and hmac.compare_digest(_data(secret, "token-secret"), token_secret)
        and _data(secret, "token-id") == token_id.encode()
        and not _expired(_data(secret, "expiration").decode("utf-8", "replace"), now)
        and _data(secret, "usage-bootstrap-authentication") == b"true"
    )


def _groups(extra: str) -> tuple[str, ...] | None:
    """Return the groups, sorted; one that is not well-formed costs them all."""
    names = extra.split(",") if extra else []
    if not all(_EXTRA_GROUP.fullmatch(name) for name in names):
        return None
    return tuple(sorted({"system:bootstrappers", *names}))


def _data(secret: JsonMap, key: str) -> bytes:
    try:
        return base64.b64decode(text_at(secret, "data", key), validate=True)
    except (binascii.Error, ValueError):
        return b""


_TIME: Final = re.compile(
    r"(\d{4}-\d\d-\d\d)T(\d{1,2}):(\d\d:\d\d)(?:[.,](\d+))?(?:Z|([+-])([01]\d|2[0-4]):([0-5]\d|60))", re.ASCII
)
"""What Go's ``time.Parse(time.RFC3339, …)`` takes: an hour of one digit, a comma, offsets up to ±24:60."""


def _expired(text: str, now: datetime) -> bool:
    """Return whether the time is over, which a text that is no time always is; no text is no end."""
    found = _TIME.fullmatch(text)
    if not text or found is None:
        return bool(text)
    day, hour, rest, fraction, sign, hours, minutes = found.groups()
    offset = timedelta(hours=int(hours or 0), minutes=int(minutes or 0))
    try:
        local = datetime.strptime(f"{day} {hour}:{rest} {(fraction or '0')[:6]}+0000", "%Y-%m-%d %H:%M:%S %f%z")
        return local + (offset if sign == "-" else -offset) <= now
    except ValueError:  # a time that no calendar has, or the year 0
        return True
    except OverflowError:  # beyond Python's years
        return sign != "-"
