"""Hostile tenants stop no join of another tenant, and the leader keeps its Lease."""

from __future__ import annotations

import base64
import logging
import socket
import ssl
import threading
import time
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from enum import StrEnum
from functools import cache
from itertools import count
from pathlib import Path
from typing import Final

import pytest
from filing_requests import Wanted, file_request
from polling import eventually
from world import Controller, World

from nodeattest_sandbox import fleet
from nodeattest_sandbox.apiserver.jsonvalue import JsonMap, JsonValue, map_at, text_at
from nodeattest_sandbox.client import ApiRefusal
from nodeattest_sandbox.pki import ClusterPki

_BACKLOG: Final = 512
_HEAD: Final = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"
_PAUSE: Final = 0.05
_VALUES: Final = (49_900, 499_000, None)
"""How many values pages hold; None: no end."""
_SPACES: Final = b" " * (1 << 16)


class Behaviour(StrEnum):
    """What it does with each request."""

    HANG = "hangs"
    DRIP = "drips"
    """Sends its answer byte by byte."""
    FLAP = "flaps"
    """Closes each second connection, and refuses with errors that ask for a new list."""
    FLOOD = "floods"
    """Answers with large pages: one that is read, of a list without end, one of too many values, one without end."""


class HostileServer:
    """Answers every connection in a thread of its own until it is closed."""

    def __init__(self, pki: ClusterPki, behaviour: Behaviour) -> None:
        self.behaviour = behaviour
        self.connections = 0
        self._answers = count()
        self._closed = threading.Event()
        self._context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        self._context.load_cert_chain(pki.server_certificate, pki.server_key)
        self._socket = socket.create_server(("127.0.0.1", 0), backlog=_BACKLOG)
        self._pki = pki
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def kubeconfig(self) -> bytes:
        """How the controller reaches it."""
        host, port = self._socket.getsockname()
        path = self._pki.directory / "hostile.conf"
        return self._pki.token_kubeconfig(path, f"https://{host}:{port}", "none").read_bytes()

    def close(self) -> None:
        """End all connections."""
        self._closed.set()
        self._socket.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                connection, _peer = self._socket.accept()
                self.connections += 1
                threading.Thread(target=self._serve, args=(connection, self.connections), daemon=True).start()

    def _serve(self, connection: socket.socket, number: int) -> None:
        with suppress(OSError), connection:
            connection.settimeout(60)
            if self.behaviour is Behaviour.FLAP and number % 2:
                return
            with self._context.wrap_socket(connection, server_side=True) as tls:
                while not self._closed.is_set():
                    if not self._request(tls):
                        return
                    self._answer(tls)

    def _request(self, tls: ssl.SSLSocket) -> bytes:
        head = b""
        while b"\r\n\r\n" not in head and (more := tls.recv(65536)):
            head += more
        return head

    def _answer(self, tls: ssl.SSLSocket) -> None:
        if self.behaviour is Behaviour.HANG:
            self._closed.wait(60)
        elif self.behaviour is Behaviour.DRIP:
            tls.sendall(_HEAD + b"Content-Length: 100000\r\n\r\n")
            while not self._closed.wait(_PAUSE):
                tls.sendall(b" ")
        elif self.behaviour is Behaviour.FLOOD:
            self._flood(tls, next(self._answers))
        else:
            body = b'{"kind":"Status","code":410,"reason":"Expired"}'
            tls.sendall(b"HTTP/1.1 410 Gone\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body))

    def _flood(self, tls: ssl.SSLSocket, number: int) -> None:
        values = _VALUES[number % len(_VALUES)]
        if values is None:
            tls.sendall(_HEAD + b"Content-Length: %d\r\n\r\n" % (1 << 40))
            while not self._closed.is_set():
                tls.sendall(_SPACES)
        head = b'{"kind":"List","metadata":{"resourceVersion":"1","continue":"%d"},"items":[' % number
        body = head + b'{"metadata":{"name":"a%d"},"fat":{' % number + _fat(values or 0) + b"}}]}"
        tls.sendall(_HEAD + b"Content-Length: %d\r\n\r\n%s" % (len(body), body))


@cache
def _fat(values: int) -> bytes:
    return b",".join(b'"v%d":""' % each for each in range(values))


@contextmanager
def hostile_server(directory: Path, behaviour: Behaviour) -> Generator[HostileServer]:
    """Run one."""
    server = HostileServer(ClusterPki.make(directory, behaviour.name.lower()), behaviour)
    try:
        yield server
    finally:
        server.close()


_LOG: Final = logging.getLogger(__name__)
TENANT: Final = "hostile"
TENANTS: Final = (TENANT, "hostile-2", "hostile-3")
"""Whose API servers misbehave at the same time."""
CLUSTERS: Final = 4
"""Of each hostile tenant, each with the same API server."""
TRIES: Final = 3
PAUSE: Final = 0.2
"""Seconds between two changes of a Secret."""
LEASE: Final = "/apis/coordination.k8s.io/v1/namespaces/nodeattest-system/leases/node-attestation-controller"
CAPI_API: Final = "/apis/cluster.x-k8s.io/v1beta1/namespaces"
POLICIES: Final = "/apis/attestation.cluster.x-k8s.io/v1alpha1/namespaces/{}/nodeattestationpolicies"
NAMES: Final = count()
Hostile = Callable[[World, Path], AbstractContextManager[Callable[[], int]]]
"""What a tenant does in a world, with a folder for its files; gives how often it was done so far."""


@pytest.fixture(scope="module")
def controller(world: World) -> Iterator[Controller]:
    world.set_policy(authorizedAttestors=["insecure"])
    for tenant in TENANTS:
        fleet.create_namespace(world.admin, tenant)
        world.set_policy(tenant, authorizedAttestors=["insecure"])
    with world.controller(log="isolation.log") as running:
        world.await_service(running)
        yield running
    for tenant in TENANTS:
        world.admin.delete(f"{POLICIES.format(tenant)}/policy")


def join(world: World) -> None:
    """Let an honest machine join, and log how long that took: a test on a machine under load requires no time."""
    name = f"isolated-{next(NAMES)}"
    world.machine(name)
    token, began = world.token(), time.monotonic()
    filed = file_request(world, Wanted(node=name), token=token)
    eventually(lambda: filed.state() == "issued", seconds=60, what="the certificate beside the hostile tenant")
    _LOG.info("%s joined in %.2f s", name, time.monotonic() - began)


def terms(world: World) -> JsonValue:
    """Return who leads, and how often that changed."""
    spec = map_at(world.admin.get(LEASE), "spec")
    return [spec.get("holderIdentity"), spec.get("leaseTransitions")]


@contextmanager
def clusters(
    world: World, kubeconfig: bytes, number: int = CLUSTERS, *, tenant: str = TENANT
) -> Generator[list[JsonMap]]:
    """Make Clusters of a hostile tenant, and delete what was made."""
    prefix = f"h{next(NAMES)}"
    made = [
        fleet.create_cluster(
            world.admin,
            f"{prefix}-{each}",
            namespace=tenant,
            kubeconfig=kubeconfig,
            ca_certificate=world.workload.ca_certificate.read_bytes(),
            ca_key=world.workload.ca_key.read_bytes(),
        )
        for each in range(number)
    ]
    try:
        yield made
    finally:
        for cluster in made:
            world.admin.delete(f"{CAPI_API}/{tenant}/clusters/{text_at(cluster, 'metadata', 'name')}")


@contextmanager
def bombs(world: World, _directory: Path) -> Generator[Callable[[], int]]:
    """Kubeconfigs that cost minutes, or just less than a refusal, changed all the time (HOSTILE 1)."""
    documents = [
        b"extensions: " + b":".join([b"59"] * 130_000),
        b"users: [" + b"1," * 30_000 + b"]",
        b"[" * 60_000,
        b'users: [{name: "u", user: {token: "' + b"x" * 60_000 + b'"}}]',
    ]
    with clusters(world, b"none", 4) as made:
        names = [text_at(cluster, "metadata", "name") for cluster in made]
        turns, end = [0], threading.Event()

        def change() -> None:
            while not end.wait(PAUSE):
                turn = turns[0]
                document = documents[turn % len(documents)] + b"\n# %d\n" % turn
                data: JsonMap = {"value": base64.b64encode(document).decode()}
                path = f"/api/v1/namespaces/{TENANT}/secrets/{names[turn % len(names)]}-kubeconfig"
                with suppress(ApiRefusal, OSError):  # a server that takes no more of it
                    world.admin.patch(path, {"data": data})
                    turns[0] += 1

        thread = threading.Thread(target=change, daemon=True)
        thread.start()
        try:
            yield lambda: turns[0]
        finally:
            end.set()
            thread.join(30)


def api_server(behaviour: Behaviour) -> Hostile:
    """Clusters of three tenants whose API server misbehaves."""

    @contextmanager
    def running(world: World, directory: Path) -> Generator[Callable[[], int]]:
        with hostile_server(directory, behaviour) as server, ExitStack() as stack:
            for tenant in TENANTS:
                stack.enter_context(clusters(world, server.kubeconfig, tenant=tenant))
            yield lambda: server.connections

    return running


HOSTILE: Final[Mapping[str, Hostile]] = {
    "kubeconfig bombs": bombs,
    **{f"API server {behaviour}": api_server(behaviour) for behaviour in Behaviour},
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_tenant_ends_no_other_tenants_join_and_costs_no_lease(
    world: World, controller: Controller, tmp_path: Path, name: str
) -> None:
    join(world)
    leads = terms(world)
    with HOSTILE[name](world, tmp_path) as done:
        for acts in range(1, TRIES + 1):
            eventually(lambda acts=acts: done() >= acts, seconds=60, what="the hostile tenant at work")
            join(world)
    assert terms(world) == leads
    assert controller.said("connected")
