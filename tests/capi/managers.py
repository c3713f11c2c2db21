"""Cluster API's managers: the real ones where ``CAPI_ASSETS`` has them, and their imitation."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Protocol

from nodeattest_sandbox.control_plane import ControlPlane

__all__ = ["Managers"]


class Managers(Protocol):
    """What the journey needs of them; all else is said by objects in the API."""

    def versions(self) -> dict[str, str]:
        """Return the version of each program that runs."""
        ...

    def install(self, plane: ControlPlane) -> None:
        """Make a management cluster of a control plane: definitions, rights, webhooks."""
        ...

    def running(self, plane: ControlPlane, namespace: str) -> AbstractContextManager[None]:
        """Run them for a namespace of a management cluster, for the length of the block."""
        ...

    def move(self, source: ControlPlane, target: ControlPlane, namespace: str) -> None:
        """Move the namespace's clusters to another management cluster."""
        ...
