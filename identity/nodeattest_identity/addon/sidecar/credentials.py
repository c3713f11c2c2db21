"""The one bearer token of a request. Pure.

Promises: there is exactly one token, in exactly one ``Authorization`` header. A token in the query is refused, because
queries are logged and forwarded. No message quotes a credential.
Source: RFC 6750 §2.1 to §2.3; RFC 9110 §11.6.2; companion proposal 003.
"""

from __future__ import annotations

import re
from typing import Final
from urllib.parse import unquote_to_bytes

from nodeattest_identity.proxy.headers import RawHeaders, canonical
from nodeattest_identity.proxy.paths import RequestTarget
from nodeattest_identity.proxy.refusals import Refusal, RefusalError

__all__ = ["bearer", "require_no_token_in_query"]

_BEARER: Final = re.compile(rb"bearer +([A-Za-z0-9._~+/\-]+=*)", re.IGNORECASE)
"""RFC 6750 §2.1, with any number of spaces (RFC 9110 §11.6.2)."""
_PARAMETER: Final = b"access-token"
_CHALLENGE: Final = "Bearer"


def bearer(headers: RawHeaders) -> bytes:
    """Return the token of a request; raises ``RefusalError``."""
    given = [value for name, value in headers if canonical(name) == b"authorization"]
    if len(given) > 1:
        raise RefusalError(Refusal.CREDENTIALS_AMBIGUOUS, f"expected one Authorization header, got {len(given)}")
    found = _BEARER.fullmatch(given[0].strip()) if given else None
    if found is None:
        got = "another scheme, or no token" if given else "none"
        raise RefusalError(
            Refusal.CREDENTIALS_MISSING,
            f"expected Authorization: Bearer, got {got}",
            headers={"WWW-Authenticate": _CHALLENGE},
        )
    return found.group(1)


def require_no_token_in_query(target: RequestTarget) -> None:
    """Raise ``RefusalError`` for ``?access_token=`` in any spelling."""
    if not target.query:
        return
    for part in re.split("[&;]", target.query):
        name = unquote_to_bytes(part.partition("=")[0].replace("+", " "))
        if canonical(name.strip()) == _PARAMETER:
            raise RefusalError(Refusal.CREDENTIALS_AMBIGUOUS, "expected no access_token in the query, got one")
