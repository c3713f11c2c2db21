"""Watches ClusterRoles and ClusterRoleBindings of a workload cluster, so that a new permission is seen within seconds.

Promises: of each object is kept only whether it matters; subscribers are notified at once of a change that does, and
``revision`` tells every change. ``on_recovery`` is called when a watch begins, and again after an error.
Leaves to others: what is granted to whom, which is read anew after a change (``rbac_audit``).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Final

from nodeattest_controller.controllers.auto_approval.permissions import (
    RBAC_GROUP,
    binds_joiners_or_nodes,
    permissions_of_role,
)
from nodeattest_controller.runtime.informers import MOST
from nodeattest_kube import client as paths
from nodeattest_kube.client import ApiClient
from nodeattest_kube.errors import Forbidden
from nodeattest_kube.reflector import Reflector
from nodeattest_parsing.objects import flag, mapping, text
from nodeattest_parsing.values import JsonObject

_MAX_BYTES: Final = 64 << 20
MAX_SILENCE: Final = 300.0
"""Seconds without contact after which a watch counts as broken; a healthy one has bookmarks or ends each minute."""


class RBACWatch:
    """The two watches of one cluster."""

    def __init__(self, client: ApiClient, *, on_recovery: Callable[[], None] | None = None) -> None:
        self._subscribers: list[Callable[[], None]] = []
        self._changes = 0
        kinds = {"clusterroles": _role, "clusterrolebindings": _binding}
        self._reflectors = [
            Reflector(
                client,
                paths.collection_path(RBAC_GROUP, "v1", resource),
                on_change=self._changed,
                on_recovery=on_recovery,
                transform=keep,
                max_objects=MOST,
                max_bytes=_MAX_BYTES,
            )
            for resource, keep in kinds.items()
        ]

    def subscribe(self, subscriber: Callable[[], None]) -> None:
        """Have a subscriber notified of permissions that appear."""
        self._subscribers.append(subscriber)

    def trouble(self) -> str:
        """Say what keeps one of the two from being followed; empty while nothing does."""
        return next((found for one in self._reflectors if (found := trouble_of(one))), "")

    def revision(self) -> int | None:
        """Return a number that differs after every change; None while changes are not followed, or not all of them."""
        unseen = any(reflector.left_out or reflector.last_error for reflector in self._reflectors)
        return None if unseen or self.trouble() else self._changes

    async def run(self) -> None:
        """Watch until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            for reflector in self._reflectors:
                tasks.create_task(reflector.run())

    def _changed(self, _name: str, value: JsonObject | None) -> None:
        self._changes += 1
        if value is not None and flag(value, "matters"):
            for subscriber in self._subscribers:
                subscriber()


def trouble_of(reflector: Reflector) -> str:
    """Say what keeps a collection from being followed; a watch that just ended is no trouble.

    One that hung is, until the collection was listed again: nobody knows which changes it did not show.
    """
    error = reflector.last_error
    if isinstance(error, Forbidden) or not reflector.synced:
        return str(error) if error is not None else "the first list is not complete yet"
    if reflector.hung is not None:
        return str(reflector.hung)
    return f"no contact for minutes: {error}" if time.monotonic() - reflector.last_contact > MAX_SILENCE else ""


def _role(role: JsonObject) -> JsonObject:
    return _kept(role, matters=bool(permissions_of_role(role)))


def _binding(binding: JsonObject) -> JsonObject:
    return _kept(binding, matters=binds_joiners_or_nodes(binding))


def _kept(found: JsonObject, *, matters: bool) -> JsonObject:
    meta = mapping(found, "metadata")
    return {
        "metadata": {name: text(meta, name) for name in ("name", "uid", "resourceVersion")},
        "matters": matters,
    }
