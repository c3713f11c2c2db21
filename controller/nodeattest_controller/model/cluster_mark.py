"""Which controller a Cluster is for, by Cluster API's label, and which one serves it, by a condition. Pure."""

from __future__ import annotations

from typing import Final

from nodeattest_controller.model.objects import condition, items, text
from nodeattest_parsing.printable import one_line
from nodeattest_parsing.values import JsonObject

__all__ = ["SERVED", "WATCH_FILTER_LABEL", "mark_of", "mark_text", "watch_filter_of"]

WATCH_FILTER_LABEL: Final = "cluster.x-k8s.io/watch-filter"
"""Cluster API's label (api/core/v1beta2/common_types.go, WatchLabel)."""
SERVED: Final = "NodeAttestationServed"
"""The type of the condition that marks a Cluster."""
_BEGIN: Final = "by "
_LONGEST: Final = 320
"""Characters of a mark: a namespace's and a Lease's name."""


def watch_filter_of(cluster: JsonObject) -> str:
    """Return the value of the label; empty where there is none."""
    return text(cluster, "metadata", "labels", WATCH_FILTER_LABEL)


def mark_of(cluster: JsonObject) -> str:
    """Name the controller that serves a Cluster; empty where none does."""
    found = condition(items(cluster, "status", "conditions"), SERVED)
    return one_line(text(dict(found), "message").removeprefix(_BEGIN), _LONGEST) if found is not None else ""


def mark_text(controller: str) -> str:
    """Return the condition's message."""
    return f"{_BEGIN}{controller}"
