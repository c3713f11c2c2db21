"""What every kubeconfig of discovery has in common, be it cluster-info or a discovery file.

Promises: strict YAML, apiVersion v1, kind Config, known fields only; the caller says in whose words others are refused.
Source: client-go tools/clientcmd/api/v1.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from nodeattest_parsing import strict_yaml
from nodeattest_parsing.errors import ParseError
from nodeattest_parsing.strict_base64 import decode_base64
from nodeattest_parsing.strict_yaml import Scalars
from nodeattest_providers.errors import Denied
from nodeattest_providers.node_interface import JsonObject, JsonValue

__all__ = ["ErrorFactory", "check_fields", "decode_data", "parse_kubeconfig_document"]

ErrorFactory = Callable[[str, str], Denied]
"""Expected and got to the refusal."""

_MAX_DEPTH: Final = 16
"""Levels; a kubeconfig has seven."""
_MAX_VALUES: Final = 4096
"""Values and keys; a kubeconfig has dozens, and reading one takes PyYAML some 40 µs."""
_FIELDS: Final = frozenset(
    {"apiVersion", "kind", "clusters", "contexts", "current-context", "users", "preferences", "extensions"}
)


def parse_kubeconfig_document(text: str, malformed: ErrorFactory) -> JsonObject:
    """Read a kubeconfig; raises what ``malformed`` makes."""
    try:
        found = strict_yaml.parse_object(text, scalars=Scalars.TEXT, max_depth=_MAX_DEPTH, max_values=_MAX_VALUES)
    except ParseError as error:
        raise malformed("a kubeconfig in YAML", error.found) from None
    if found.get("apiVersion", "v1") != "v1" or found.get("kind", "Config") != "Config":
        raise malformed("apiVersion v1 and kind Config", "others")
    check_fields(found, _FIELDS, "", malformed)
    return found


def check_fields(found: Mapping[str, JsonValue], known: frozenset[str], where: str, malformed: ErrorFactory) -> None:
    """Refuse fields that are not known; ``where`` stands before the name of the first."""
    unknown = sorted(found.keys() - known)
    if unknown:
        raise malformed(f"only {', '.join(sorted(known))}", ascii(where + unknown[0][:40])[1:-1])


def decode_data(text: str) -> bytes:
    """Decode a field ``…-data``, without line ends, which Go overlooks (encoding/base64); raises ``ValueError``."""
    return decode_base64(text.replace("\r", "").replace("\n", ""))
