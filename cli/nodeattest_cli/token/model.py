"""A stored bootstrap token as people and scripts read it: the fields of kubeadm's ``BootstrapToken``.

Promises: a Secret gives a token or ``Denied``, by kubeadm's rules; texts are free of characters that are no Unicode.
Source: kubernetes cmd/kubeadm/app/apis/bootstraptoken/v1/utils.go (BootstrapTokenFromSecret) and
apis/output/v1alpha3.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from nodeattest_controller.model.objects import mapping, text
from nodeattest_discovery.secret import TokenSecret, stored_token, text_values
from nodeattest_discovery.token import BootstrapToken, parse
from nodeattest_kube.jsontypes import JsonObject
from nodeattest_parsing.times import format_rfc3339, try_parse_rfc3339
from nodeattest_providers.errors import Denied, Reason

__all__ = ["TokenView", "read", "token_secret_name", "token_view", "warnings"]

_API_VERSION: Final = "output.kubeadm.k8s.io/v1alpha3"
_KIND: Final = "BootstrapToken"
_USAGE_PREFIX: Final = "usage-bootstrap-"
_MISTAKEN: Final = "auth-groups"
"""The key of an early proposal; every reader looks for ``auth-extra-groups``."""

_SHOWN: Final = 253
"""Characters of a name; Kubernetes takes no more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenView:
    """One token, as it is shown."""

    token: BootstrapToken
    description: str
    expires: datetime | None
    usages: tuple[str, ...]
    groups: tuple[str, ...]

    def to_json(self) -> JsonObject:
        """Return the object that ``-o json`` prints; what is empty is left out."""
        fields: JsonObject = {
            "kind": _KIND,
            "apiVersion": _API_VERSION,
            "token": self.token.reveal(),
            "description": self.description,
            "expires": format_rfc3339(self.expires) if self.expires else "",
            "usages": [*self.usages],
            "groups": [*self.groups],
        }
        return {name: value for name, value in fields.items() if value}


def token_view(made: TokenSecret) -> TokenView:
    """Show a token that was made here."""
    return TokenView(
        token=made.token,
        description=made.description,
        expires=made.expires,
        usages=tuple(sorted(usage.value for usage in made.usages)),
        groups=tuple(dict.fromkeys(made.groups)),
    )


def read(secret: JsonObject) -> TokenView:
    """Read a Secret of kube-system; raises ``Denied``.

    1. Type, name and ``token-id`` agree. 2. The secret is one. 3. The expiration, if there is one, is RFC 3339.
    """
    # 1
    found = stored_token(secret)
    if found is None:
        raise _unreadable("a name of bootstrap-token- and the token-id", "others")
    # 2
    token = parse(found.reveal())
    # 3
    expiration, description, groups = (_clean(one) for one in text_values(secret, _KEYS))
    expires = try_parse_rfc3339(expiration)
    if expiration and expires is None:
        raise _unreadable("an expiration such as 2026-01-01T00:00:00Z", ascii(expiration[:40]))
    return TokenView(
        token=token,
        description=description,
        expires=expires,
        usages=tuple(sorted(_usages(secret))),
        groups=tuple(groups.split(",")) if groups and not groups.startswith(",") else (),
    )


def token_secret_name(secret: JsonObject) -> str:
    """Name a Secret in a message."""
    return ascii(text(secret, "metadata", "name")[:_SHOWN])[1:-1] or "(no name)"


def warnings(secret: JsonObject) -> Iterator[str]:
    """Yield what its author may not have meant."""
    if _MISTAKEN in mapping(secret, "data"):
        name = token_secret_name(secret)
        yield f"{name}: the key {_MISTAKEN} is read by nobody; extra groups belong in auth-extra-groups"


_KEYS: Final = ("expiration", "description", "auth-extra-groups")


def _usages(secret: JsonObject) -> Iterator[str]:
    """Yield every usage that is on, also those that this version does not know."""
    for key in mapping(secret, "data"):
        if key.startswith(_USAGE_PREFIX) and text_values(secret, [key]) == ("true",):
            yield key.removeprefix(_USAGE_PREFIX)


def _clean(value: str) -> str:
    return value.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


def _unreadable(expected: str, got: str) -> Denied:
    return Denied(
        Reason.TOKEN_MALFORMED,
        expected=expected,
        got=got,
        remedy="delete the Secret, and make a token with: nodeattest token create",
    )
