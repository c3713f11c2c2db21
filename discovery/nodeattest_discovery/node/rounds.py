"""Several servers asked in turn, round after round, until one gives a sound answer or the time is over.

Promises: a server that was refused is not asked again, and does not keep the others from being asked; a server that is
away or not ready is asked again every five seconds, as kubeadm asks its only one.
Leaves to others: what is asked, and which answers are final.
Source: kubeadm discovery/token (PollUntilContextTimeout: at once, then every five seconds, at most five minutes).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from nodeattest_discovery.node.address import Address
from nodeattest_discovery.node.surroundings import Patience
from nodeattest_providers.errors import Denied, Reason, Unavailable

__all__ = ["first_sound"]

T = TypeVar("T")


def first_sound(servers: Sequence[Address], ask: Callable[[Address], T], patience: Patience) -> T:
    """Return the first sound answer.

    ``ask`` raises ``Denied`` for an answer that no waiting mends, ``Unavailable`` for one that it may. Raises the first
    refusal when every server was refused, else the last ``Unavailable`` when the time is over.
    """
    left = list(dict.fromkeys(servers))
    refused: list[Denied] = []
    while True:
        waiting: Unavailable | None = None
        for server in tuple(left):
            try:
                return ask(server)
            except Denied as denied:
                refused.append(denied)
                left.remove(server)
                patience.around.tell(f"{server.url} is refused: {denied}")
            except Unavailable as unavailable:
                waiting = unavailable
        if waiting is None:
            raise refused[0] if refused else Unavailable(Reason.API_UNAVAILABLE, "no server", remedy="name one")
        patience.around.tell(f"{waiting.detail}; asking again")
        if not patience.pause():
            raise waiting
