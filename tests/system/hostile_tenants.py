"""What hostile tenants and strangers do beside honest joins, in threads of the test's process."""

from __future__ import annotations

import socket
import ssl
import threading
from collections.abc import Callable, Generator
from contextlib import ExitStack, contextmanager
from typing import Final, Self

import worst_inputs

from nodeattest_controller.controllers.bootstrap_config import admission_review
from nodeattest_sandbox.client import ApiRefusal

PAUSE: Final = 0.2
"""Seconds between two changes of a hostile object."""
SHORT_PAUSE: Final = 0.05
SENDERS: Final = 4


class Repeated:
    """Does something again and again in a thread, and counts how often it was done."""

    def __init__(self, action: Callable[[int], None], pause: float = PAUSE) -> None:
        self._action = action
        self._pause = pause
        self._end = threading.Event()
        self.done = 0
        self._thread = threading.Thread(target=self._run, daemon=True)

    def _run(self) -> None:
        while not self._end.wait(self._pause):
            try:
                self._action(self.done)
            except (ApiRefusal, OSError):  # a server that takes no more of it
                continue
            self.done += 1

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self._end.set()
        self._thread.join(30)


@contextmanager
def large_reviews(port: int) -> Generator[Callable[[], int]]:
    """Strangers at the webhook's port, with the reviews that cost the most (HOSTILE 5)."""
    body = worst_inputs.review_of_different_objects(admission_review.MAX_BODY)
    head = b"POST /mutate-bootstrap-config HTTP/1.1\r\nHost: w\r\nContent-Type: application/json\r\n"
    request = head + b"Content-Length: %d\r\n\r\n" % len(body) + body
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE  # a stranger asks anybody

    def send(_turn: int) -> None:
        plain = socket.create_connection(("127.0.0.1", port), 30)
        with plain, context.wrap_socket(plain) as secured:
            secured.sendall(request)
            if not secured.recv(12).startswith(b"HTTP/1.1"):
                raise OSError("no answer")

    with ExitStack() as stack:
        floods = [stack.enter_context(Repeated(send, SHORT_PAUSE)) for _ in range(SENDERS)]
        yield lambda: sum(flood.done for flood in floods)
