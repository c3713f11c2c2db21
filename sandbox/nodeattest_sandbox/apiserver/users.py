"""Who asks: client certificates, bootstrap tokens, and nobody.

Promises: the users and groups that kube-apiserver derives from the same credentials; tokens are compared in constant
time. Leaves the chain of a client certificate to TLS, which refuses a foreign one in the handshake; kube-apiserver
answers 401.
Source: k8s.io/apiserver/pkg/authentication/request/x509, plugin/pkg/auth/authenticator/token/bootstrap.
"""

from __future__ import annotations

import base64
import binascii
import hmac
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import lru_cache
from typing import Final

from cryptography import x509
from cryptography.x509.oid import NameOID

from nodeattest_sandbox.apiserver.jsonvalue import JsonMap, text_at
from nodeattest_sandbox.apiserver.problems import unauthorized
from nodeattest_sandbox.apiserver.store import Key, Store

__all__ = ["ANONYMOUS", "Authenticator", "User"]

_TOKEN: Final = re.compile(r"^([a-z0-9]{6})\.([a-z0-9]{16})$")
_EXTRA_GROUP: Final = re.compile(r"\Asystem:bootstrappers:[a-z0-9:-]{0,255}[a-z0-9]\Z")
_TOKEN_TYPE: Final = "bootstrap.kubernetes.io/token"  # noqa: S105 - the type of a Secret, not a secret
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
        scheme, _, token = (authorization or "").partition(" ")
        if scheme.lower() != "bearer" or not token.strip():
            return ANONYMOUS
        user = self.by_token(token.strip())
        if user is None:
            raise unauthorized()
        return user

    def by_token(self, token: str) -> User | None:
        """Return the user of a bootstrap token, or None."""
        found = _TOKEN.fullmatch(token)
        if not found:
            return None
        token_id, secret = found.groups()
        stored = self.store.get("/secrets", Key("kube-system", f"bootstrap-token-{token_id}"))
        if stored is None or not self._token_holds(stored.value, token_id, secret):
            return None
        return _bootstrap_user(stored.value, token_id)

    def _token_holds(self, secret: JsonMap, token_id: str, token_secret: str) -> bool:
        expiration = _data(secret, "expiration")
        return (
            text_at(secret, "type") == _TOKEN_TYPE
            and not text_at(secret, "metadata", "deletionTimestamp")
            and hmac.compare_digest(_data(secret, "token-secret").encode(), token_secret.encode())
            and _data(secret, "token-id") == token_id
            and not (expiration and _expired(expiration, self.now()))
            and _data(secret, "usage-bootstrap-authentication") == "true"
        )

    def _by_certificate(self, der: bytes) -> User:
        user, not_after = _read_certificate(der)
        if self.now() > not_after:
            raise unauthorized()
        return user


def _bootstrap_user(secret: JsonMap, token_id: str) -> User | None:
    extra = [group for group in _data(secret, "auth-extra-groups").split(",") if group]
    if not all(_EXTRA_GROUP.match(group) for group in extra):
        return None
    groups = sorted({"system:bootstrappers", *extra})
    return User(f"system:bootstrap:{token_id}", (*groups, _AUTHENTICATED))


def _data(secret: JsonMap, key: str) -> str:
    try:
        return base64.b64decode(text_at(secret, "data", key), validate=True).decode()
    except (binascii.Error, UnicodeDecodeError):
        return ""


def _expired(expiration: str, now: datetime) -> bool:
    try:
        moment = datetime.fromisoformat(expiration)
    except ValueError:
        return True
    return moment.tzinfo is None or now > moment


@lru_cache(maxsize=4096)
def _read_certificate(der: bytes) -> tuple[User, datetime]:
    certificate = x509.load_der_x509_certificate(der)
    names = [str(a.value) for a in certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)]
    groups = [str(a.value) for a in certificate.subject.get_attributes_for_oid(NameOID.ORGANIZATION_NAME)]
    if not names:
        raise unauthorized()
    # Go keeps the last of several common names (crypto/x509).
    return User(names[-1], (*groups, _AUTHENTICATED)), certificate.not_valid_after_utc.astimezone(UTC)
