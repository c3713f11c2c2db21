"""Runs the reconcilers of the tests' infrastructure provider, in a thread: each for every object, again and again.

Promises: an object's reconciler runs at least every half second or so, but not while its Cluster is paused or has not
come yet; what it was refused is tried again with the next round.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, cast

from kinds import CLUSTER, CLUSTER_LABEL, KINDS, Kind, Object, name_of

from nodeattest_sandbox.client import ApiRefusal, Client

if TYPE_CHECKING:
    from collections.abc import Generator

_PAUSE: Final = 0.3  # seconds
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Access:
    """One namespace of an API server."""

    api: Client
    namespace: str

    def get(self, kind: Kind, name: str) -> Object | None:
        return cast("Object | None", self.api.find(kind.path(self.namespace, name)))

    def create(self, value: Object) -> None:
        """Create an object; one of this name that exists stays as it is."""
        self.api.ensure(KINDS[value["kind"]].path(self.namespace), cast("Any", value))

    def patch(self, value: Object, subresource: str = "", /, **patch: Any) -> Object:
        """Merge these fields into an object, where they differ."""
        if _holds(value, patch):
            return value
        path = KINDS[value["kind"]].path(self.namespace, name_of(value), subresource)
        return cast("Object", self.api.patch(path, cast("Any", patch)))

    def status(self, value: Object, **status: Any) -> Object:
        """Merge these fields into an object's status."""
        return self.patch(value, "status", status=status)

    def is_paused(self, value: Object) -> bool:
        """Tell whether an object's Cluster is paused, or has none yet."""
        cluster = self.get(CLUSTER, value["metadata"].get("labels", {}).get(CLUSTER_LABEL, "-"))
        return cluster is None or bool(cluster["spec"].get("paused"))


Reconcile = Callable[[Access, Object], None]
"""Brings one object as near to its desired state as it can be now."""


@contextmanager
def running(access: Access, reconcilers: Mapping[Kind, Reconcile]) -> Generator[None]:
    """Reconcile until the end of the block."""
    over = threading.Event()

    def run() -> None:
        while not over.wait(_PAUSE):
            for kind, reconcile in reconcilers.items():
                _round(access, kind, reconcile)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join(60)


def _round(access: Access, kind: Kind, reconcile: Reconcile) -> None:
    try:
        found = access.api.list(kind.path(access.namespace))
    except (ApiRefusal, OSError) as error:
        _log.warning("%s: %s", kind.plural, error)
        return
    for value in cast("list[Object]", found):
        full = {"apiVersion": kind.api_version, "kind": kind.kind, **value}
        try:
            if not access.is_paused(full):
                reconcile(access, full)
        except (ApiRefusal, OSError) as error:
            _log.warning("%s %s: %s", kind.kind, name_of(value), error)


def _holds(value: Any, patch: Any) -> bool:
    if isinstance(patch, dict) and isinstance(value, dict):
        wanted, found = cast("Object", patch), cast("Object", value)
        return all(_holds(found.get(key), item) for key, item in wanted.items())
    return value == patch
