"""A controller that is killed around one of its writes, at the gate through which it writes."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

from world import Controller, World
from write_gate import Call

from nodeattest_sandbox.apiserver.jsonvalue import text_at

Moment = Literal["before", "after"]


def which(call: Call) -> str:
    """Name one of the controller's writes."""
    if not call.is_write:
        return ""
    if "/machineattestations" in call.path:
        return "ledger"
    if call.path.endswith("/events"):
        return "event"
    if "/certificatesigningrequests/" not in call.path:
        return "node" if "/api/v1/nodes/" in call.path else ""
    return {"approval": "approval", "status": "certificate"}.get(call.path.rpartition("/")[2], "publish")


@dataclass
class Killer:
    """Kills the controller once, before or after a named write."""

    controller: Controller
    write: str
    moment: Moment
    earlier: frozenset[str] = frozenset()
    """Names of requests that other tests left: what is written to them counts nothing."""
    done: threading.Event = field(default_factory=threading.Event)
    _approvals: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @classmethod
    def of(cls, world: World, controller: Controller, write: str, moment: Moment) -> Killer:
        """Make one for requests that are filed from now on."""
        earlier = frozenset(text_at(one, "metadata", "name") for one in world.requests())
        return cls(controller, write, moment, earlier)

    def passes(self, moment: Moment) -> Callable[[Call], bool]:
        """Make the gate's callback for a moment."""

        def decide(call: Call) -> bool:
            with self._lock:
                if moment != self.moment or self.done.is_set() or self._name(call) != self.write:
                    return True
                self.controller.kill()
                self.done.set()
                return False

        return decide

    def _name(self, call: Call) -> str:
        if not self.earlier.isdisjoint(call.path.split("/")):
            return ""
        name = which(call)
        if name != "approval":
            return name
        self._approvals += 1
        return "approve" if self._approvals == 1 else "close"
