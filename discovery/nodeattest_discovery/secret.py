"""Bootstrap tokens as Secrets: read exactly as the control plane reads them, and written so that all parts agree.

kube-controller-manager and kube-apiserver decide three questions by different rules: whether a token signs
(``signing_token``), has expired (``expiry``), and authenticates (``authenticating_groups``). Any content is accepted.
Source: k8s.io/cluster-bootstrap token/util/helpers.go and secrets; kubernetes pkg/controller/bootstrap;
plugin/pkg/auth/authenticator/token/bootstrap.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Final, cast

from nodeattest_discovery.token import BOOTSTRAP_GROUP, BootstrapToken, is_token, is_token_id
from nodeattest_parsing.objects import rfc3339
from nodeattest_parsing.strict_base64 import decode_base64, encode_base64
from nodeattest_parsing.times import try_parse_rfc3339
from nodeattest_parsing.values import ParseError
from nodeattest_providers.errors import Denied, Reason

NAMESPACE: Final = "kube-system"
SECRET_TYPE: Final = "bootstrap.kubernetes.io/token"
DEFAULT_GROUP: Final = "system:bootstrappers:kubeadm:default-node-token"
"""The group to which kubeadm binds the permissions of joining nodes."""
_NAME_PREFIX: Final = "bootstrap-token-"
_USAGE_PREFIX: Final = "usage-bootstrap-"
_GROUP: Final = re.compile(r"system:bootstrappers:[a-z0-9:-]{0,255}[a-z0-9]", re.ASCII)


class Usage(StrEnum):
    """What a token may be used for."""

    SIGNING = "signing"
    AUTHENTICATION = "authentication"


class Expiry(StrEnum):
    """How the token cleaner reads an expiration."""

    NEVER = "never"
    PENDING = "pending"
    PAST = "past"
    """Also for an expiration that Go cannot parse: such a token is deleted at once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenSecret:
    """A token to write."""

    token: BootstrapToken
    usages: frozenset[Usage] = frozenset(Usage)
    groups: tuple[str, ...] = (DEFAULT_GROUP,)
    """Extra groups of a client that authenticates with the token."""
    expires: datetime | None = None
    """With a time zone. None: never."""
    description: str = ""


def secret_name(token_id: str) -> str:
    """Return the name of a token's Secret."""
    return _NAME_PREFIX + token_id


def is_token_secret(secret: Mapping[str, object]) -> bool:
    """Return whether type and name are a token's, regardless of the data."""
    name = _member(secret, "metadata", "name")
    return secret.get("type") == SECRET_TYPE and isinstance(name, str) and name.startswith(_NAME_PREFIX)


def check_group(group: str) -> str:
    """Return an extra group unchanged. Raises ``Denied`` if the API server would refuse the token for it."""
    if _GROUP.fullmatch(group) is None:
        raise Denied(
            Reason.TOKEN_MALFORMED,
            expected=r"a group that matches \Asystem:bootstrappers:[a-z0-9:-]{0,255}[a-z0-9]\z",
            got=ascii(group[:64]),
            remedy="name groups below system:bootstrappers: only, in lower case",
        )
    return group


def encode(secret: TokenSecret) -> dict[str, str]:
    """Return ``data`` of the Secret, in base64. Raises ``Denied`` if an API server would not accept the token.

    1. It has a usage. 2. Groups are well-formed, and set only if the token authenticates. 3. The description is text.
    Groups keep their order, as in kubeadm.
    """
    # 1
    if not secret.usages:
        raise _unusable("a usage: signing, authentication or both", "none")
    # 2
    groups = list(dict.fromkeys(check_group(group) for group in secret.groups))
    if groups and Usage.AUTHENTICATION not in secret.usages:
        raise _unusable("no groups for a token that does not authenticate", f"{len(groups)} groups")
    values = {
        "token-id": secret.token.id,
        "token-secret": secret.token.secret,
        "description": secret.description,
        "expiration": rfc3339(secret.expires) if secret.expires else "",
        "auth-extra-groups": ",".join(groups),
        **{_USAGE_PREFIX + usage: "true" for usage in sorted(secret.usages)},
    }
    # 3
    try:
        return {key: encode_base64(_bytes(value)) for key, value in values.items() if value}
    except UnicodeEncodeError:
        raise _unusable("a description that is text", "half a character") from None


def signing_token(secret: Mapping[str, object], now: datetime) -> BootstrapToken | None:
    """Return the token that signs cluster-info, by the bootstrap signer's rules. Its secret may have any form.

    1. Type, name and ``token-id`` agree. 2. The secret is not empty. 3. It has not expired.
    4. ``usage-bootstrap-signing`` is exactly ``true``.
    """
    token = stored_token(secret)
    if token is None or not token.secret:
        return None
    if expiry(secret, now)[0] is Expiry.PAST or not _has_usage(secret, Usage.SIGNING):
        return None
    return token


def stored_token(secret: Mapping[str, object]) -> BootstrapToken | None:
    """Return ID and secret of a Secret whose type, name and ``token-id`` agree."""
    name = _member(secret, "metadata", "name")
    if secret.get("type") != SECRET_TYPE or not isinstance(name, str) or not name.startswith(_NAME_PREFIX):
        return None
    token_id = name.removeprefix(_NAME_PREFIX)
    if not is_token_id(token_id) or _value(secret, "token-id") != token_id:
        return None
    return BootstrapToken(token_id, _value(secret, "token-secret"))


def expiry(secret: Mapping[str, object], now: datetime) -> tuple[Expiry, datetime | None]:
    """Return whether a token has expired, by the token cleaner's rules, and the time.

    Only type and expiration count, so a Secret with a wrong name, ID or usage expires, too.
    """
    text = _value(secret, "expiration")
    if not text or secret.get("type") != SECRET_TYPE:
        return Expiry.NEVER, None
    moment = try_parse_rfc3339(text)
    if moment is None or moment <= now:
        return Expiry.PAST, moment
    return Expiry.PENDING, moment


def authenticating_groups(secret: Mapping[str, object], now: datetime) -> tuple[str, ...] | None:
    """Return the sorted groups of a client that authenticates with this token, or None if nobody may.

    The caller compares the secret. A secret of another form is refused, because an API server accepts no other, and a
    short one could be guessed from one JWT. An invalid group refuses the whole token. A Secret that is being deleted
    counts as deleted.
    """
    token = stored_token(secret)
    if token is None or not is_token(token.reveal()) or _member(secret, "metadata", "deletionTimestamp") is not None:
        return None
    if expiry(secret, now)[0] is Expiry.PAST or not _has_usage(secret, Usage.AUTHENTICATION):
        return None
    text = _value(secret, "auth-extra-groups")
    extra = text.split(",") if text else []
    if any(_GROUP.fullmatch(group) is None for group in extra):
        return None
    return tuple(sorted({BOOTSTRAP_GROUP, *extra}))


def text_values(secret: Mapping[str, object], keys: Iterable[str]) -> tuple[str, ...]:
    """Return entries of a stored token as text, empty if absent."""
    return tuple(_value(secret, key) for key in keys)


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")


def _has_usage(secret: Mapping[str, object], usage: Usage) -> bool:
    return _value(secret, _USAGE_PREFIX + usage) == "true"


def _value(secret: Mapping[str, object], key: str) -> str:
    text = _member(secret, "data", key)
    if not isinstance(text, str):
        return ""
    try:
        return decode_base64(text).decode("utf-8", "surrogateescape")
    except ParseError:
        return ""


def _member(secret: Mapping[str, object], name: str, key: str) -> object:
    holder = secret.get(name)
    return cast("dict[str, object]", holder).get(key) if isinstance(holder, dict) else None


def _unusable(expected: str, got: str) -> Denied:
    remedy = "choose usages and groups that belong together"
    return Denied(Reason.TOKEN_MALFORMED, expected=expected, got=got, remedy=remedy)
