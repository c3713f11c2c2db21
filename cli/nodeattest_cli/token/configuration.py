"""Bootstrap tokens out of a kubeadm configuration file: the list ``bootstrapTokens`` of its InitConfiguration.

Promises: the list is understood whole or refused; the rest of the file is kubeadm's and not looked at.
Source: kubernetes cmd/kubeadm/app/apis/kubeadm/v1beta4/types.go and bootstraptoken/v1 (v1beta3 has the same fields).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from nodeattest_cli.documents import read_objects
from nodeattest_cli.errors import UserError
from nodeattest_cli.token.factory import DEFAULT_TTL, TokenSpec
from nodeattest_cli.token.input import parse_token
from nodeattest_controller.model.objects import text
from nodeattest_discovery.token import BootstrapToken
from nodeattest_kube.jsontypes import JsonObject, JsonValue

__all__ = ["token_specs"]

_VERSIONS: Final = frozenset(f"kubeadm.k8s.io/v1beta{number}" for number in (3, 4))
_KIND: Final = "InitConfiguration"
_FIELDS: Final = frozenset({"token", "description", "ttl", "expires", "usages", "groups"})


def token_specs(path: str) -> list[TokenSpec]:
    """Read what is asked for; one token by default where the file lists none. Raises ``UserError``."""
    found = [one for one in read_objects(path) if text(one, "kind") == _KIND]
    if len(found) != 1 or text(found[0], "apiVersion") not in _VERSIONS:
        raise UserError(f"{path}: expected one {_KIND} of {', '.join(sorted(_VERSIONS))}, got another or none")
    listed = found[0].get("bootstrapTokens")
    if listed is not None and not isinstance(listed, list):
        raise UserError(f"{path}: bootstrapTokens: expected a list, got something else")
    return list(_specs(listed or [{}]))


def _specs(listed: list[JsonValue]) -> Iterator[TokenSpec]:
    for number, entry in enumerate(listed):
        where = f"bootstrapTokens[{number}]"
        if not isinstance(entry, dict):
            raise UserError(f"{where}: expected an object, got something else")
        unknown = sorted(entry.keys() - _FIELDS)
        if unknown:
            raise UserError(f"{where}: expected {', '.join(sorted(_FIELDS))}, got {ascii(unknown[0][:40])[1:-1]}")
        yield _spec(entry, where)


def _spec(entry: JsonObject, where: str) -> TokenSpec:
    if entry.get("expires"):
        raise UserError(f"{where}.expires: use ttl instead: a time in a file is past before it is noticed")
    return TokenSpec(
        token=_token(entry, where),
        usages=_strings(entry, "usages", where),
        groups=_strings(entry, "groups", where),
        ttl=_text(entry, "ttl", where) or DEFAULT_TTL,
        description=_text(entry, "description", where),
    )


def _token(entry: JsonObject, where: str) -> BootstrapToken | None:
    written = _text(entry, "token", where)
    return parse_token(written) if written else None


def _text(entry: JsonObject, name: str, where: str) -> str:
    value = entry.get(name)
    if value is not None and not isinstance(value, str):
        raise UserError(f"{where}.{name}: expected text, got something else; put it in quotes")
    return value or ""


def _strings(entry: JsonObject, name: str, where: str) -> list[str] | None:
    """Read a list of texts; absent and empty are the default, as in kubeadm."""
    value = entry.get(name)
    if value is None:
        return None
    words = [one for one in value if isinstance(one, str)] if isinstance(value, list) else []
    if not isinstance(value, list) or len(words) != len(value):
        raise UserError(f"{where}.{name}: expected a list of texts, got something else")
    return words or None
