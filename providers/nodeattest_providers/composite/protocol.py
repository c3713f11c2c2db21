"""The parts' evidence and challenges, and ``spec.composite``: which proofs a machine must bring together.

Source: docs/wire-format.md, "composite/v1".
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Final

from nodeattest_providers import canonical_json
from nodeattest_providers.canonical_json import Fields
from nodeattest_providers.challenge_response import parse_challenge, parse_first_request_ref, phase_fields, ref_to_json
from nodeattest_providers.config_fields import Section, invalid, text
from nodeattest_providers.errors import Denied, Reason
from nodeattest_providers.identifiers import ProviderName, printable
from nodeattest_providers.node_interface import FirstRequestRef, JsonObject, JsonValue
from nodeattest_providers.registry import INSECURE

PROVIDER: Final = ProviderName("composite")
VERSION: Final = 1
PART_VERSION: Final = 1
"""Of each part's evidence; another one needs another version of the composite's."""
MIN_PARTS: Final = 2
MAX_PARTS: Final = 4
"""Nobody has more proofs of one machine; each costs a verification."""
NEVER_PARTS: Final = INSECURE | {PROVIDER}

_FORM: Final = f"{PROVIDER}/v{VERSION}"
_NAME: Final = re.compile(r"[a-z0-9](?:[-a-z0-9]{0,61}[a-z0-9])?", re.ASCII)
"""An RFC 1123 label, as in the envelope's provider block."""
_MAX_CHALLENGE: Final = 64 * 1024
"""Characters of one part's challenge; all annotations of an object have 256 KiB (apimachinery ValidateAnnotations)."""
_REMEDY: Final = "send evidence as docs/wire-format.md says; kubelet-authenticator does"


@dataclass(frozen=True, slots=True, kw_only=True)
class CompositeEvidence:
    """All parts of one phase."""

    parts: Mapping[ProviderName, JsonObject] = field(repr=False)
    first: FirstRequestRef | None = None

    def to_json(self) -> JsonObject:
        parts: JsonObject = {name: {"v": PART_VERSION, "data": data} for name, data in self.parts.items()}
        if self.first is None:
            return {"phase": 1, "parts": parts}
        return {"phase": 2, "first": ref_to_json(self.first), "parts": parts}


@dataclass(frozen=True, slots=True)
class CompositeChallenge:
    """The challenge annotation: those of the parts that have one."""

    texts: Mapping[ProviderName, str] = field(repr=False)
    """By part; empty where no part has a challenge of its own."""

    def to_text(self) -> str:
        texts: JsonObject = {str(name): text for name, text in self.texts.items()}
        return canonical_json.dumps(texts).decode()

    @classmethod
    def parse(cls, text: str) -> CompositeChallenge:
        value, where = parse_challenge(text), "composite challenge"
        names = _part_names(value, where, minimum=0)
        fields = Fields.of(value, where, names)
        return cls({name: fields.text(name, 1, _MAX_CHALLENGE) for name in names})


def is_part(name: str) -> bool:
    return _NAME.fullmatch(name) is not None and name not in NEVER_PARTS


def parse_evidence(data: JsonObject) -> CompositeEvidence:
    phase, fields = phase_fields(data, _FORM, {1: ("parts",), 2: ("first", "parts")}, {})
    first = None if phase == 1 else parse_first_request_ref(fields)
    return CompositeEvidence(parts=_parts(data["parts"], fields.where), first=first)


def _parts(value: JsonValue, where: str) -> Mapping[ProviderName, JsonObject]:
    where = f"{where}, parts"
    names = _part_names(value, where, minimum=MIN_PARTS)
    fields = Fields.of(value, where, names)
    parts: dict[ProviderName, JsonObject] = {}
    for name in names:
        fields.nested(name, ("v", "data")).integer("v", PART_VERSION, PART_VERSION)
        inner = value[name] if isinstance(value, dict) else None
        data = inner["data"] if isinstance(inner, dict) else None
        if not isinstance(data, dict):
            raise _malformed(f"{where}, {name}, data: an object", "another value")
        parts[name] = data
    return parts


def _part_names(value: JsonValue, where: str, *, minimum: int) -> tuple[ProviderName, ...]:
    names = sorted(value) if isinstance(value, dict) else []
    if not isinstance(value, dict) or not minimum <= len(names) <= MAX_PARTS or not all(map(is_part, names)):
        raise _malformed(
            f"{where}: an object of {minimum} to {MAX_PARTS} providers that prove something", f"{len(names)} entries"
        )
    return tuple(map(ProviderName, names))


def _malformed(expected: str, got: str) -> Denied:
    return Denied(Reason.EVIDENCE_MALFORMED, expected=expected, got=got, remedy=_REMEDY)


_MAX_ALTERNATIVES: Final = 8


@dataclass(frozen=True, slots=True)
class CompositePolicy:
    """What a cluster's operator decided."""

    alternatives: tuple[frozenset[ProviderName], ...]
    """Each a set of parts that suffices; never empty, each of at least two."""

    def admits(self, parts: Collection[ProviderName]) -> bool:
        return frozenset(parts) in self.alternatives

    @property
    def parts(self) -> tuple[ProviderName, ...]:
        return tuple(sorted(frozenset[ProviderName]().union(*self.alternatives)))

    def __str__(self) -> str:
        return " or ".join(" with ".join(sorted(parts)) for parts in self.alternatives)


def parse_policy(settings: Mapping[str, JsonValue]) -> CompositePolicy:
    """Read ``spec.composite``: ``allOf: [tpm, aws]``, or ``anyOf`` with a list of such objects."""
    section = Section(settings, "spec.composite", ("allOf", "anyOf"))
    if len(settings) != 1:
        raise invalid(section.where, "either allOf or anyOf", "both" if settings else "neither")
    if "allOf" in section:
        return CompositePolicy((_all_of(section),))
    alternatives = tuple(map(_all_of, section.sections("anyOf", ("allOf",), ("allOf",))))
    if not 1 <= len(alternatives) <= _MAX_ALTERNATIVES:
        raise invalid(section.at("anyOf"), f"1 to {_MAX_ALTERNATIVES} alternatives", str(len(alternatives)))
    return CompositePolicy(alternatives)


def _all_of(section: Section) -> frozenset[ProviderName]:
    where = section.at("allOf")
    names = [text(item, where) for item in section.items("allOf")]
    for name in names:
        if not is_part(name):
            expected = f"providers that prove something, none of {', '.join(sorted(NEVER_PARTS))}"
            raise invalid(where, expected, printable(name))
    if len(set(names)) != len(names) or not MIN_PARTS <= len(names) <= MAX_PARTS:
        raise invalid(where, f"{MIN_PARTS} to {MAX_PARTS} different providers", ", ".join(names) or "none")
    return frozenset(map(ProviderName, names))
