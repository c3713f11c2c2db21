"""A running controller and what is filed against it; many attacks are filed in one go and each is then awaited."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from itertools import count
from typing import Final, TypeVar

from catalogue import Row, Verdict
from filing_requests import Filed, Wanted, file_request
from polling import eventually
from world import CSRS, World

from nodeattest_providers.identifiers import ANNOTATION_REASON
from nodeattest_sandbox.apiserver.jsonvalue import JsonMap, text_at
from nodeattest_sandbox.client import Client

_NUMBERS: Final = count(1)
_AT_ONCE: Final = 4
"""Attackers who try at a time; more only wait for the same two processes."""
S = TypeVar("S")


@contextmanager
def controlled(world: World, log: str, **policy: object) -> Generator[None]:
    """Run the controller under one policy, with waits that outlast the tests."""
    world.set_policy(**policy)  # pyright: ignore[reportArgumentType] - the tests write JSON
    config = world.directory / f"{log}.yaml"
    head = "apiVersion: config.nodeattest.x-k8s.io/v1alpha1\nkind: NodeAttestationControllerConfiguration\n"
    config.write_text(head + "waitLimit: 300s\n")
    with world.controller("--config", str(config), "--leader-elect", "false", log=log) as running:
        world.await_service(running)
        yield


def file_object(world: World, client: Client, spec: JsonMap, metadata: JsonMap | None = None) -> Filed:
    """File a request of this spec; the API server puts the requester in."""
    body: JsonMap = {
        "apiVersion": "certificates.k8s.io/v1",
        "kind": "CertificateSigningRequest",
        "metadata": {"name": f"attack-{next(_NUMBERS):04d}", **(metadata or {})},
        "spec": spec,
    }
    return Filed(world, text_at(client.create(CSRS, body), "metadata", "name"))


def attempted(attempts: Mapping[str, Callable[[S], Filed]], scene: S) -> Mapping[str, Future[Filed]]:
    """Let all attackers try at once; whoever cannot even file fails in the test of its own row."""
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        return {row: pool.submit(attempt, scene) for row, attempt in attempts.items()}


def becomes(filed: Filed, row: Row, *, seconds: float = 60.0) -> None:
    """Wait for the end that the row tells; any other end fails at once."""
    reason = row.expected.reason
    match row.expected.verdict:
        case Verdict.DENY:
            ended = eventually(lambda: _end(filed), seconds=seconds, what=f"the end of {row.id}")
            assert ended in {f"Denied:{reason}", f"Failed:{reason}"}, ended
        case Verdict.WAIT:
            # It may wait for something else first, where the controller has not seen yet what is there.
            what, said = f"the wait of {row.id}", partial(_waits, filed)
            eventually(lambda: said() == reason, seconds=seconds, what=what, state=said)
            assert filed.state() == ""
        case Verdict.ACCEPT:
            ended = eventually(lambda: _end(filed), seconds=seconds, what=f"the end of {row.id}")
            assert ended == "issued", ended
        case Verdict.IGNORE | Verdict.SHED:
            raise AssertionError(f"{row.id} has no end to wait for")


def stays(filed: Filed) -> None:
    """Require that nothing is written on a request, though one that came later got its end."""
    before = filed.read()
    later = file_request(filed.world, Wanted(node=f"after-{filed.name}", version=99))
    eventually(lambda: _end(later), what="the end of a later request")
    assert filed.read() == before


def _end(filed: Filed) -> str:
    """Tell how a request ended; an approval is not an end."""
    state = filed.state()
    return "" if state == "Approved" else state


def _waits(filed: Filed) -> str:
    return filed.annotation(ANNOTATION_REASON).partition(":")[0]
