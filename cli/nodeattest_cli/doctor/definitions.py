"""Our CustomResourceDefinitions: there, of this release, and without versions that are served no more. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from typing import Final

from nodeattest_cli.doctor.facts import HealthFacts, Unread
from nodeattest_cli.doctor.model import HealthFinding, HealthSeverity, listed
from nodeattest_controller import manifests
from nodeattest_controller.model.objects import condition, flag, items, mapping, strings, text
from nodeattest_kube.jsontypes import JsonObject

__all__ = ["IDS", "look", "missing"]

IDS: Final = ("definitions-served", "definitions-of-release", "definitions-stored")
_APPLY: Final = "kubectl apply -k manifests/crd of this release"


def look(facts: HealthFacts) -> Iterator[HealthFinding]:
    """Compare what the server has with what this release ships."""
    known = facts.management.definitions
    shipped = _shipped()
    unread = [value.why for value in known.values() if isinstance(value, Unread)]
    if unread:
        yield HealthFinding(
            id="definitions-served",
            severity=HealthSeverity.UNKNOWN,
            expected="our CustomResourceDefinitions are there",
            found=unread[0],
            remedy="let this user read them",
        )
        return
    there = {name: value for name, value in known.items() if value is not None and not isinstance(value, Unread)}
    yield _served(facts, shipped, there)
    yield _of_release(shipped, there)
    yield _stored(there)


def missing(facts: HealthFacts) -> list[JsonObject]:
    """Return the definitions of this release that the server does not have."""
    known = facts.management.definitions
    return [one for name, one in _shipped().items() if known.get(name, one) is None]


@cache
def _shipped() -> Mapping[str, JsonObject]:
    """Return those of this release by name."""
    return {text(one, "metadata", "name"): one for one in manifests.crds()}


def _served(facts: HealthFacts, shipped: Mapping[str, JsonObject], there: dict[str, JsonObject]) -> HealthFinding:
    wrong = [f"{text(one, 'metadata', 'name')} is not there" for one in missing(facts)]
    for name, definition in there.items():
        wanted = {text(one, "name") for one in items(shipped[name], "spec", "versions") if flag(one, "served")}
        served = {text(one, "name") for one in items(definition, "spec", "versions") if flag(one, "served")}
        established = condition(items(definition, "status", "conditions"), "Established")
        if not wanted <= served:
            wrong.append(f"{name} does not serve {listed(sorted(wanted - served))}")
        elif established is None or established.get("status") != "True":
            wrong.append(f"{name} is not established")
    return HealthFinding(
        id="definitions-served",
        severity=HealthSeverity.ERROR if wrong else HealthSeverity.OK,
        expected="our CustomResourceDefinitions are there and served",
        found="; ".join(wrong) or listed(sorted(there)),
        remedy=f"{_APPLY}; --fix creates those that are not there" if wrong else "",
    )


def _of_release(shipped: Mapping[str, JsonObject], there: dict[str, JsonObject]) -> HealthFinding:
    other = sorted(name for name, definition in there.items() if not _is_same(definition, shipped[name]))
    return HealthFinding(
        id="definitions-of-release",
        severity=HealthSeverity.WARNING if other else HealthSeverity.OK,
        expected="their schemas are those of this release",
        found=f"another schema: {listed(other)}" if other else f"the same in {len(there)} definitions",
        remedy=f"{_APPLY}, unless the controller is of another release" if other else "",
    )


def _is_same(definition: JsonObject, shipped: JsonObject) -> bool:
    found = {text(one, "name"): one for one in items(definition, "spec", "versions")}
    for wanted in items(shipped, "spec", "versions"):
        schema = mapping(found.get(text(wanted, "name"), {}), "schema", "openAPIV3Schema")
        expected = mapping(wanted, "schema", "openAPIV3Schema")
        if schema != expected:
            return False
    return True


def _stored(there: dict[str, JsonObject]) -> HealthFinding:
    wrong: list[str] = []
    for name, definition in there.items():
        served = {text(one, "name") for one in items(definition, "spec", "versions") if flag(one, "served")}
        left = sorted(set(strings(definition, "status", "storedVersions")) - served)
        wrong += [f"{name} stores {listed(left)}"] if left else []
    return HealthFinding(
        id="definitions-stored",
        severity=HealthSeverity.ERROR if wrong else HealthSeverity.OK,
        expected="objects are stored in versions that are served",
        found="; ".join(wrong) or "they are",
        remedy="write each object once again, then take the version out of status.storedVersions" if wrong else "",
    )
