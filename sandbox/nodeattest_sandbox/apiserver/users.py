"""Who asks: client certificates, bootstrap tokens, and nobody.

Promises: the users and groups that kube-apiserver derives from the same credentials. Leaves bootstrap tokens to
``tokens``, and the chain of a client certificate to TLS, which refuses a foreign one in the handshake; kube-apiserver
answers 401.
Source: k8s.io/apiserver/pkg/authentication/request/{x509,bearertoken}.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import lru_cache
from typing import Final

from cryptography import x509
from cryptography.x509.oid import NameOID

from nodeattest_sandbox.apiserver.status_errors import unauthorized
from nodeattest_sandbox.apiserver.store import Store
from nodeattest_sandbox.apiserver.tokens import bootstrap_user

__all__ = ["ANONYMOUS", "Authenticator", "User"]

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
