"""Mints a token for one user and one service, valid for a minute.

Source: companion proposal 003, "Properties of this token".
"""

from __future__ import annotations

import secrets
from http import HTTPStatus
from typing import Final

from nodeattest_identity.addon.gateway.errors import StatusError
from nodeattest_identity.addon.gateway.front_proxy import UserInfo
from nodeattest_identity.tokens.jwt import SigningKey, mint
from nodeattest_parsing.values import JsonObject

LIFETIME: Final = 60
"""Seconds; the longest that proposal 003 allows."""
_MAX_TOKEN: Final = 7_168
"""Bytes of a token; a header field may have 8190 in most servers, ours included."""


def mint_token(key: SigningKey, issuer: str, user: UserInfo, audience: str, *, now: float) -> str:
    """Mint a token at ``now``, seconds since the epoch; raises ``StatusError``."""
    extra: JsonObject = {}
    if user.uid:
        extra["uid"] = user.uid
    if user.groups:
        extra["groups"] = list(user.groups)
    token = mint(
        key,
        issuer=issuer,
        subject=user.user,
        audience=audience,
        now=now,
        lifetime=LIFETIME,
        jwt_id=secrets.token_urlsafe(16),
        extra=extra,
    )
    if len(token) > _MAX_TOKEN:
        raise StatusError(
            HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE,
            f"expected a name and groups that fit into a token of {_MAX_TOKEN} bytes, got {len(token)}",
        )
    return token
