"""Asks several servers in turn, again and again, until one gives a valid answer or the time is over.

Promises: a server that was refused is not asked again, and does not keep the others from being asked; a server that is
away or not ready is asked again every five seconds, as kubeadm asks its only one.
Leaves to others: what is asked, and which answers are final.
Source: kubeadm discovery/token (PollUntilContextTimeout: at once, then every five seconds, at most five minutes).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from nodeattest_discovery.node.clock import Deadline
from nodeattest_discovery.node.environment import RETRY
from nodeattest_parsing.endpoint import Endpoint
from nodeattest_providers.errors import Denied, Reason, Unavailable

__all__ = ["first_valid"]

T = TypeVar("T")


def first_valid(
    servers: Sequence[Endpoint], ask: Callable[[Endpoint], T], deadline: Deadline, log: Callable[[str], None]
) -> T:
    """Return the first valid answer.

    ``ask`` raises ``Denied`` for an answer that no waiting mends, ``Unavailable`` for one that it may. Raises the first
    refusal when every server was refused, else the last ``Unavailable`` when the time is over.
    """
    left = list(dict.fromkeys(servers))
    refused: list[Denied] = []
    deadline.waits_for("answer", f"an answer of {', '.join(server.url for server in left)}")
    while True:
        waiting: Unavailable | None = None
        for server in tuple(left):
            try:
                return ask(server)
            except Denied as denied:
                refused.append(denied)
                left.remove(server)
                log(f"{server.url} is refused: {denied}")
            except Unavailable as unavailable:
                waiting = unavailable
        if waiting is None:
            raise refused[0] if refused else Unavailable(Reason.API_UNAVAILABLE, "no server", remedy="name one")
        deadline.waits_for("another answer", f"another answer: {waiting.detail}")
        if not deadline.pause(RETRY):
            raise waiting
