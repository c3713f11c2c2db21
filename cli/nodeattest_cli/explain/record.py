"""Refused requests as a machine's MachineAttestation keeps them, each with what to do: text and JSON. Pure.

Leaves to others: printing, which escapes (``output.print_lines``).
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Final

from nodeattest_cli.explain.remedies import remedy_of
from nodeattest_controller.model.objects import rfc3339, text
from nodeattest_controller.model.refusals import RecordedRefusal, Requester, render_refusals
from nodeattest_kube.jsontypes import JsonValue

__all__ = ["record_lines", "record_to_json"]

_WHO: Final = {
    Requester.NODE: "by the machine's own node",
    Requester.BOOTSTRAP: "by a bootstrap token, whoever held it",
    Requester.OTHER: "by somebody else",
}


def record_lines(refusals: Sequence[RecordedRefusal], since: datetime | None) -> list[str]:
    """Show refusals; those before ``since``, the newest certificate, are marked as such."""
    if not refusals:
        return []
    lines = ["refused requests, as its MachineAttestation has them:"]
    for one in refusals:
        past = ", before its newest certificate" if since is not None and one.time < since else ""
        lines.append(f"  {one.reason}: {_WHO[one.requester]}, last at {rfc3339(one.time)}{past}")
        details = [("CSR", one.request), ("found", one.message), ("do", remedy_of(one.reason))]
        lines += [f"      {name.ljust(5)}  {value}" for name, value in details if value]
    return lines


def record_to_json(refusals: Sequence[RecordedRefusal]) -> list[JsonValue]:
    """Return ``refusals`` of ``-o json``: as the MachineAttestation has them, with the remedy."""
    return [{**entry, "remedy": remedy_of(text(entry, "reason"))} for entry in render_refusals(refusals)]
