"""No regular expression of ours takes more than linear time for what it reads once.

Two repetitions without a bound share characters where one is inside the other, or where nothing that must be there
separates them: then a text of such characters is divided among them in every way. Possessive ones give nothing back.
"""

from __future__ import annotations

import importlib
import pkgutil
import re
from collections.abc import Callable
from typing import Any, Final, cast

import pytest

import nodeattest_authenticator
import nodeattest_cli
import nodeattest_controller
import nodeattest_discovery
import nodeattest_identity
import nodeattest_kube
import nodeattest_parsing
import nodeattest_providers
import nodeattest_serving

PACKAGES: Final = (
    *(nodeattest_authenticator, nodeattest_cli, nodeattest_controller, nodeattest_discovery, nodeattest_identity),
    *(nodeattest_kube, nodeattest_parsing, nodeattest_providers, nodeattest_serving),
)
PARSE: Final = cast("Callable[[str | bytes], Any]", vars(vars(re)["_parser"])["parse"])
"""The standard library shows the tree of a pattern nowhere else."""
EXCEPTIONS: Final = {
    "nodeattest_identity.addon.gateway.redirects._SPLIT": "it matches every text, so nothing is given back",
    "nodeattest_identity.proxy.request._IDENTITY": "its last repetition takes a field's name to the end, always",
}
"""By module and name: why they are linear all the same."""
_ENDLESS: Final = 1 << 16
_EVERY: Final = frozenset(range(256))
_CLASSES: Final = {
    "CATEGORY_DIGIT": frozenset(b"0123456789"),
    "CATEGORY_SPACE": frozenset(b" \t\n\r\f\v"),
    "CATEGORY_WORD": frozenset(code for code in range(256) if chr(code).isalnum() or chr(code) == "_"),
}


def patterns() -> dict[str, re.Pattern[Any]]:
    """Find all that are module constants, by module and name."""
    found: dict[str, re.Pattern[Any]] = {}
    for package in PACKAGES:
        for info in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            if not info.name.endswith("__main__"):
                module = importlib.import_module(info.name)
                for name, value in vars(module).items():
                    if isinstance(value, re.Pattern):
                        found[f"{info.name}.{name}"] = value
    return found


Atom = tuple[frozenset[int], bool, bool]
"""Characters; whether they are repeated without a bound; whether there is one at least."""
Sequence = tuple[Atom, ...]


def is_slow(pattern: str | bytes) -> bool:
    """Tell whether two repetitions of a pattern share characters."""
    tree = PARSE(pattern)
    return any(_shares(one) for one in sequences(tree))


def _shares(sequence: Sequence) -> bool:
    before: list[frozenset[int]] = []
    """What the repetitions match that nothing separates from here."""
    for characters, endless, needed in sequence:
        if endless and any(characters & each for each in before):
            return True
        if needed:
            before = [each for each in before if each & characters]
        if endless:
            before.append(characters)
    return False


def sequences(tree: Any) -> set[Sequence]:
    """Write a tree as sequences of atoms: one for each way through branches, what is repeated twice."""
    ways: set[Sequence] = {()}
    for kind, value in tree:
        more = _ways(str(kind), value)
        ways = {one + other for one in ways for other in more}
        assert len(ways) < 100_000
    return ways


def _ways(name: str, value: Any) -> set[Sequence]:
    if name in {"AT", "ASSERT", "ASSERT_NOT"}:
        return {()}
    if name == "SUBPATTERN":
        return sequences(value[-1])
    if name == "BRANCH":
        return {way for branch in value[1] for way in sequences(branch)}
    if name in {"MAX_REPEAT", "MIN_REPEAT"}:
        least, most, inner = value
        skipped: set[Sequence] = set() if int(least) else {()}
        if len(inner) == 1 and str(inner[0][0]) in {"LITERAL", "NOT_LITERAL", "ANY", "IN"}:
            return {((characters_of(inner), int(most) >= _ENDLESS, int(least) > 0),)}
        once = sequences(inner)
        return skipped | ({one + other for one in once for other in once} if int(most) > 1 else once)
    needed = name not in {"POSSESSIVE_REPEAT", "ATOMIC_GROUP"} or (name == "POSSESSIVE_REPEAT" and int(value[0]) > 0)
    return {((characters_of([(name, value)]), False, needed),)}


def characters_of(tree: Any) -> frozenset[int]:
    """Return the characters that may be in what a tree matches."""
    found: set[int] = set()
    for kind, value in tree:
        name = str(kind)
        if name == "LITERAL":
            found.add(value & 255)
        elif name in {"NOT_LITERAL", "ANY", "GROUPREF"}:
            found |= _EVERY - ({value & 255} if name == "NOT_LITERAL" else set())
        elif name == "IN":
            found |= _set_of(value)
        elif name in {"MAX_REPEAT", "MIN_REPEAT", "POSSESSIVE_REPEAT"}:
            found |= characters_of(value[2])
        elif name == "SUBPATTERN":
            found |= characters_of(value[-1])
        elif name == "ATOMIC_GROUP":
            found |= characters_of(value)
        elif name == "BRANCH":
            for branch in value[1]:
                found |= characters_of(branch)
    return frozenset(found)


def _set_of(parts: Any) -> frozenset[int]:
    found: set[int] = set()
    for kind, value in parts:
        name = str(kind)
        if name == "LITERAL":
            found.add(value & 255)
        elif name == "RANGE":
            found |= set(range(value[0], min(value[1], 255) + 1))
        elif name == "CATEGORY":
            category = str(value)
            plain = _CLASSES.get(category.replace("_NOT_", "_"), _EVERY)
            found |= _EVERY - plain if "_NOT_" in category else plain
    negated = any(str(kind) == "NEGATE" for kind, _ in parts)
    return frozenset(_EVERY - found if negated else found)


def test_every_pattern_is_linear() -> None:
    found = patterns()
    assert len(found) > 100
    assert {name for name, one in found.items() if is_slow(one.pattern)} == EXCEPTIONS.keys()


@pytest.mark.parametrize(
    "slow", ["(a+)+b", "(?:a|b*)*c", r"\s*\s*x", r"[a-z\n]+={0,2}\n*", r"(?:\w+\s?)*$", "a+[ab]a+"]
)
def test_a_slow_pattern_is_known(slow: str) -> None:
    assert is_slow(slow)


@pytest.mark.parametrize(
    "quick", ["a+b+", "(?:/[a-z]+)*", r"[^-]++[^-]*+", r"\s*=\s*", "[a-z]{1,63}(?:[.][a-z]{1,63})*"]
)
def test_a_linear_pattern_is_known(quick: str) -> None:
    assert not is_slow(quick)
