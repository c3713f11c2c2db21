"""``spec.composite``: which proofs a machine must bring together. Without a section nobody is admitted.

allOf: [tpm, aws]                                       # both
anyOf: [{allOf: [tpm, aws]}, {allOf: [tpm, azure]}]     # one of these pairs
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Final

from nodeattest_providers.composite.protocol import MAX_PARTS, MIN_PARTS, NEVER_PARTS, is_part
from nodeattest_providers.config_fields import check_keys, invalid, items, mapping, text
from nodeattest_providers.identifiers import ProviderName, printable
from nodeattest_providers.node_interface import JsonValue

_WHERE: Final = "spec.composite"
_MAX_ALTERNATIVES: Final = 8


@dataclass(frozen=True, slots=True)
class CompositePolicy:
    """What a cluster's operator decided."""

    alternatives: tuple[frozenset[ProviderName], ...]
    """Each a set of parts that suffices; never empty, each of at least two."""

    def admits(self, parts: Collection[ProviderName]) -> bool:
        """Return whether exactly these parts are one of the alternatives."""
        return frozenset(parts) in self.alternatives

    @property
    def parts(self) -> tuple[ProviderName, ...]:
        """Every part that some alternative names, sorted."""
        return tuple(sorted(frozenset[ProviderName]().union(*self.alternatives)))

    def __str__(self) -> str:
        return " or ".join(" with ".join(sorted(parts)) for parts in self.alternatives)


def parse_policy(settings: Mapping[str, JsonValue]) -> CompositePolicy:
    """Read the section."""
    check_keys(settings, _WHERE, ("allOf", "anyOf"))
    if len(settings) != 1:
        raise invalid(_WHERE, "either allOf or anyOf", "both" if settings else "neither")
    if "allOf" in settings:
        return CompositePolicy((_all_of(settings["allOf"], f"{_WHERE}.allOf"),))
    alternatives: list[frozenset[ProviderName]] = []
    for number, item in enumerate(items(settings["anyOf"], f"{_WHERE}.anyOf")):
        where = f"{_WHERE}.anyOf[{number}]"
        entry = mapping(item, where)
        check_keys(entry, where, ("allOf",), ("allOf",))
        alternatives.append(_all_of(entry["allOf"], f"{where}.allOf"))
    if not 1 <= len(alternatives) <= _MAX_ALTERNATIVES:
        raise invalid(f"{_WHERE}.anyOf", f"1 to {_MAX_ALTERNATIVES} alternatives", str(len(alternatives)))
    return CompositePolicy(tuple(alternatives))


def _all_of(value: JsonValue, where: str) -> frozenset[ProviderName]:
    names = [text(item, where) for item in items(value, where)]
    for name in names:
        if not is_part(name):
            raise invalid(
                where, f"providers that prove something, none of {', '.join(sorted(NEVER_PARTS))}", printable(name)
            )
    if len(set(names)) != len(names) or not MIN_PARTS <= len(names) <= MAX_PARTS:
        raise invalid(where, f"{MIN_PARTS} to {MAX_PARTS} different providers", ", ".join(names) or "none")
    return frozenset(map(ProviderName, names))
