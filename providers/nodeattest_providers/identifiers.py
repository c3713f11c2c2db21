"""The two names that a request carries: the node's and the provider's ID, as closed grammars.

Promises: a ``NodeName`` or ``ProviderID`` made here has no look-alike: ASCII where Kubernetes says so, no control
characters, bounded length. Attestor and verifier use the same rules, so a node learns of a bad name before it asks.
Source: pkg/apis/core/validation ValidateNodeName (RFC 1123 subdomain); the proposal's provider-ID extension.
"""

from __future__ import annotations

import re
import unicodedata
from typing import Final

from nodeattest_providers.errors import Denied, Reason
from nodeattest_providers.names import NodeName, ProviderID

_MAX_DNS_NAME: Final = 253
"""Characters (RFC 1123 §2.1; k8s.io/apimachinery DNS1123SubdomainMaxLength)."""
MAX_PROVIDER_ID: Final = 1024
"""Characters; the longest in use are Azure resource IDs of about 250."""
_DNS_LABEL: Final = "[a-z0-9](?:[-a-z0-9]*[a-z0-9])?"
_DNS_NAME: Final = re.compile(rf"{_DNS_LABEL}(?:\.{_DNS_LABEL})*")
_SHOWN: Final = 80
"""Characters of a foreign text in a message."""


def is_dns_name(text: str) -> bool:
    """Whether a text is an RFC 1123 subdomain in lower case, as Kubernetes spells it: no wildcard, no final dot."""
    return len(text) <= _MAX_DNS_NAME and _DNS_NAME.fullmatch(text) is not None


def node_name(text: str) -> NodeName:
    """Accept a Node's name; anything else is ``Denied``."""
    if not is_dns_name(text):
        raise Denied(
            Reason.NODE_NAME_INVALID,
            expected=f"an RFC 1123 subdomain in lower case, at most {_MAX_DNS_NAME} characters",
            got=printable(text),
            remedy="name the node by a lower-case DNS name",
        )
    return NodeName(text)


def provider_id(text: str) -> ProviderID:
    """Accept a provider ID: visible characters and inner spaces only; anything else is ``Denied``."""
    if not 1 <= len(text) <= MAX_PROVIDER_ID or not _is_visible(text):
        raise Denied(
            Reason.PROVIDER_ID_INVALID,
            expected=f"1 to {MAX_PROVIDER_ID} characters, none of them invisible",
            got=printable(text),
            remedy="send the value of the Machine's spec.providerID",
        )
    return ProviderID(text)


def printable(text: str, most: int = _SHOWN) -> str:
    """Show foreign text in a message: ASCII, on one line, at most so many characters of it."""
    return ascii(text[:most]) + ("…" if len(text) > most else "")


def _is_visible(text: str) -> bool:
    """Whether no character is a control, format, private or unassigned one, a surrogate, or a line separator."""
    return not any(unicodedata.category(character) in _INVISIBLE for character in text)


_INVISIBLE: Final = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})
