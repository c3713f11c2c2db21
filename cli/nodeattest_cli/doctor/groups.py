"""The groups of findings, in the order in which they are shown. Pure."""

from __future__ import annotations

import shlex
from dataclasses import replace
from typing import Final

from nodeattest_cli.doctor import (
    access,
    approval,
    attested,
    bootstrap,
    clocks,
    definitions,
    leadership,
    move,
    policy_findings,
    versions,
    webhook,
)
from nodeattest_cli.doctor.facts import HealthFacts
from nodeattest_cli.doctor.model import HealthFinding

__all__ = ["GROUPS", "examine"]

GROUPS: Final = {
    "move": move,
    "versions": versions,
    "definitions": definitions,
    "controller": leadership,
    "rights": access,
    "webhook": webhook,
    "policies": policy_findings,
    "automatic approval": approval,
    "bootstrap": bootstrap,
    "machines": attested,
    "clocks": clocks,
}
"""By their titles; each has ``IDS`` and ``look``."""


def examine(facts: HealthFacts) -> list[HealthFinding]:
    """Look at everything; before a move, commands of remedies name the target's kubeconfig."""
    found = [finding for group in GROUPS.values() for finding in group.look(facts)]
    if facts.move is None:
        return found
    kubectl = f"kubectl --kubeconfig {shlex.quote(facts.move.kubeconfig)} "
    return [replace(one, remedy=one.remedy.replace("kubectl ", kubectl)) for one in found]
