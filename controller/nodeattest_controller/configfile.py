"""The component configuration: ``NodeAttestationControllerConfiguration`` in YAML, and flags over it.

Unknown and repeated fields, wrong types and a wrong apiVersion are a ``SettingsError`` naming the file, the path and
the nearest known field. A flag beats the file, the file beats the default; null means the default.
``load(dump(s)) == s``. The section ``platforms`` is read by the providers themselves; no platform is asked.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Callable, Mapping
from dataclasses import fields
from pathlib import Path
from types import MappingProxyType
from typing import Final, cast

import yaml

from nodeattest_controller.settings import Settings, camel
from nodeattest_parsing import strict_yaml
from nodeattest_parsing.strict_yaml import Scalars
from nodeattest_parsing.times import format_seconds, parse_seconds
from nodeattest_parsing.values import JsonObject, ParseError
from nodeattest_providers import registry
from nodeattest_providers.errors import Denied, Reason
from nodeattest_providers.identifiers import ProviderName, printable
from nodeattest_providers.node_interface import JsonValue
from nodeattest_providers.platform import Platform, check_signer, make_signer
from nodeattest_providers.verifier_interface import ClusterAPISigner
from nodeattest_serving.bounded_server import SettingsError

API_VERSION: Final = "config.nodeattest.x-k8s.io/v1alpha1"
KIND: Final = "NodeAttestationControllerConfiguration"
_MAX_DEPTH: Final = 16
"""Levels of YAML; the deepest setting has five."""
_MAX_VALUES: Final = 1 << 14
"""Values and keys of YAML."""
_MAX_BYTES: Final = 1 << 20
"""Of a configuration file; a ConfigMap holds no more."""
_NO_FLAGS: Final[Mapping[str, object]] = MappingProxyType({})


def load(path: Path | None, flags: Mapping[str, object] = _NO_FLAGS, *, identity: str) -> Settings:
    """Build the settings from a file and from flags (field name to value, None where not given)."""
    values: dict[str, object] = {}
    if path is not None:
        values |= _from_document(_parse(path), str(path))
    for name, value in flags.items():
        if value is not None:
            values[name] = _read(name, value, "--" + name.replace("_", "-"))
    # Each value has passed the reader of its field's own type, which the type checker cannot follow.
    return Settings(identity=identity, **cast("dict[str, str]", values))  # pyright: ignore[reportArgumentType] - above


def dump(settings: Settings) -> str:
    """Write the settings as a configuration file that gives the same settings again."""
    document: dict[str, object] = {"apiVersion": API_VERSION, "kind": KIND}
    for name, kind in _KINDS.items():
        value: object = getattr(settings, name)
        if value is not None:
            document[camel(name)] = _WRITERS.get(kind, lambda same: same)(value)
    return yaml.safe_dump(document, sort_keys=False, allow_unicode=True)


def check_platforms(platforms: Mapping[str, Mapping[str, JsonValue]], source: str) -> None:
    """Let every named provider read its settings; ``source`` names the file in messages."""
    for name, section in platforms.items():
        where = f"{source}: .platforms.{name}"
        if name not in _known():
            raise SettingsError(f"{where}: unknown provider; {_nearest_provider(name)}")
        try:
            make_signer(ProviderName(name), Platform(settings=section, may_call=False))
        except Denied as denied:
            if denied.reason is Reason.SIGNER_UNKNOWN:
                raise SettingsError(f"{where}: the provider cannot be used: got {denied.got}") from denied
            raise SettingsError(f"{where}: expected {denied.expected}, got {denied.got}") from denied


def check_signers(
    own: Mapping[ProviderName, ClusterAPISigner], platforms: Mapping[str, Mapping[str, JsonValue]]
) -> None:
    """Refuse signers that the program that runs us may not hand in: built-in names mean the classes that ship here."""
    for name, signer in own.items():
        taken = "of a built-in provider" if name in registry.RESERVED else "of an installed entry point"
        if name in registry.RESERVED | _known():
            raise SettingsError(
                f"signers: expected a provider of your own, got {printable(name)}, which is a name {taken}"
            )
        if name in platforms:
            raise SettingsError(
                f"platforms.{name}: expected none: the program that passes the signer gives it its settings"
            )
        try:
            check_signer(signer, name)
        except Denied as denied:
            raise SettingsError(f"signers.{printable(name)}: expected {denied.expected}, got {denied.got}") from denied


def _known() -> frozenset[str]:
    return registry.installed(registry.SIGNERS)


def _nearest_provider(name: str) -> str:
    found = difflib.get_close_matches(name, sorted(_known()), n=1)
    return f"did you mean .platforms.{found[0]}?" if found else f"known are {', '.join(sorted(_known()))}"


def _parse(path: Path) -> JsonObject:
    try:
        with path.open("rb") as stream:
            content = stream.read(_MAX_BYTES + 1)
    except OSError as error:
        raise SettingsError(f"{path}: cannot be read: {error.strerror}") from error
    if len(content) > _MAX_BYTES:
        raise SettingsError(f"{path}: expected at most {_MAX_BYTES} bytes")
    try:
        return strict_yaml.parse_object(
            content, scalars=Scalars.KUBERNETES, max_depth=_MAX_DEPTH, max_values=_MAX_VALUES
        )
    except ParseError as error:
        raise SettingsError(f"{path}: expected YAML, got {error.found}; expected {error.expected}") from None


def _from_document(entries: JsonObject, source: str) -> dict[str, object]:
    for field, expected in (("apiVersion", API_VERSION), ("kind", KIND)):
        if entries.get(field) != expected:
            raise SettingsError(f"{source}: .{field}: expected {expected}, got {_describe(entries.get(field))}")
    values: dict[str, object] = {}
    for field, value in entries.items():
        if field in {"apiVersion", "kind"}:
            continue
        name = _NAMES.get(field)
        if name is None:
            raise SettingsError(f"{source}: .{field}: unknown field{_nearest(field)}")
        if value is not None:
            values[name] = _read(name, value, f"{source}: .{field}")
    return values


def _nearest(field: str) -> str:
    lowered = {known.lower(): known for known in _NAMES}
    found = difflib.get_close_matches(field.lower(), lowered, n=1)
    return f"; did you mean .{lowered[found[0]]}?" if found else f"; known are {', '.join(_NAMES)}"


def _read(name: str, value: object, where: str) -> object:
    try:
        return _READERS[_KINDS[name]](value)
    except ValueError as error:
        raise SettingsError(f"{where}: expected {error}, got {_describe(value)}") from error


def _describe(value: object) -> str:
    """Say a value and its type in YAML's words."""
    if value is None:
        return "nothing"
    if isinstance(value, str):
        return repr(value)
    if isinstance(value, list | dict):
        return "a list" if isinstance(value, list) else "a mapping"
    kinds: dict[type, str] = {bool: "boolean", int: "number", float: "number"}
    return f"{str(value).lower()} (a {kinds.get(type(value), type(value).__name__)})"


def _typed(kind: type, expected: str) -> Callable[[object], object]:
    """Make a reader that takes values of exactly one type."""

    def read(value: object) -> object:
        if type(value) is not kind:
            raise ValueError(expected)
        return value

    return read


def _duration(value: object) -> float:
    if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value):
        return float(value)
    try:
        return parse_seconds(value if isinstance(value, str) else "")
    except ParseError as error:
        raise ValueError(error.expected) from None


def _path(value: object) -> Path:
    if not isinstance(value, str):
        raise ValueError("a string")
    if not Path(value).is_file():
        raise ValueError("a file that exists")
    return Path(value)


def _strings(value: object) -> tuple[str, ...]:
    if not isinstance(value, list) or not all(isinstance(word, str) for word in cast("list[object]", value)):
        raise ValueError("a list of strings")
    return tuple(cast("list[str]", value))


def _platforms(value: object) -> object:
    sections = cast("dict[str, object]", value).values() if isinstance(value, dict) else [None]
    if not all(isinstance(section, dict) for section in sections):
        raise ValueError("a mapping from providers to their platforms' settings")
    return cast("object", value)


_READERS: Final[dict[str, Callable[[object], object]]] = {
    "str": _typed(str, "a string"),
    "str | None": _typed(str, "a string"),
    "bool": _typed(bool, "true or false"),
    "int": _typed(int, "a whole number"),
    "float": _duration,
    "Path | None": _path,
    "tuple[str, ...]": _strings,
    "Mapping[str, Mapping[str, JsonValue]]": _platforms,
}
"""By the annotation of the field: a field of a new type needs a reader here before it can be read."""
_WRITERS: Final[dict[str, Callable[[object], object]]] = {
    "float": lambda value: format_seconds(cast("float", value)),
    "Path | None": str,
    "tuple[str, ...]": lambda value: list(cast("tuple[str, ...]", value)),
}


_KINDS: Final[dict[str, str]] = {field.name: str(field.type) for field in fields(Settings) if field.name != "identity"}
_NAMES: Final[dict[str, str]] = {camel(name): name for name in _KINDS}
