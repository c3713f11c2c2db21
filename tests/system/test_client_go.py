"""A real client-go process with our plugin as its credential: no request waits for a renewal.

``kubectl proxy`` stands for kubelet: it keeps one client-go transport, whose lock is held while the plugin runs.
Answers are counted while the plugin's new connection to the API server is held: one that waited for it would be the
last.
Certificates are made short by a CA certificate that ends soon (same key and name as the cluster's): lifetimes are
clamped to it, so nothing of the product has to be told that this is a test.
"""

from __future__ import annotations

import http.client
import subprocess
import threading
from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from counting_relay import CountingRelay
from needs import kubernetes_program
from polling import eventually
from runbook import shorten_certificates
from world import World

from nodeattest_sandbox.apiserver.jsonvalue import maps_at, text_at

CUT_BY_CLIENT_GO = {500, 502}
"""How ``kubectl proxy`` answers for a request whose connection client-go closed."""


@dataclass
class Poller:
    """Asks through the proxy again and again, and remembers what was said."""

    port: int
    path: str
    answers: list[int] = field(default_factory=list[int])
    _stop: threading.Event = field(default_factory=threading.Event)

    def run(self) -> None:
        """Poll until stopped."""
        while not self._stop.wait(0.1):
            connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
            try:
                connection.request("GET", self.path)
                code = connection.getresponse().status
            except OSError:
                code = 0
            finally:
                connection.close()
            self.answers.append(code)

    def goes_on(self, count: int) -> None:
        """Wait for so many more answers."""
        before = len(self.answers)
        eventually(lambda: len(self.answers) >= before + count, f"{count} more answers")

    def stop(self) -> None:
        """Stop polling."""
        self._stop.set()

    def assert_unharmed(self, code: int, *, rotations: int) -> None:
        """Every answer so far was the API server's.

        client-go closes all its connections when its certificate changes; the request that is being written at that
        very moment fails inside client-go, whatever the plugin does: at most one a rotation.
        """
        assert self.answers
        cut = [found for found in self.answers if found != code]
        assert set(cut) <= CUT_BY_CLIENT_GO
        assert len(cut) <= rotations


def await_denial(world: World, node: str, reason: str) -> None:
    """Wait for a denial that the node's requests do not have yet."""
    old = {text_at(one, "metadata", "name") for one in world.requests_of(node) if world.denial(one)}

    def is_denied() -> bool:
        new = [one for one in world.requests_of(node) if text_at(one, "metadata", "name") not in old]
        return any(world.denial(one) == reason for one in new)

    eventually(is_denied, what="the denied renewal")


@contextmanager
def proxy(kubectl: Path, kubeconfig: Path) -> Generator[int]:
    """Run ``kubectl proxy`` and tell its port."""
    command = [kubectl, "--kubeconfig", kubeconfig, "proxy", "--port=0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, stdin=subprocess.DEVNULL) as process:
        assert process.stdout is not None
        port = int(process.stdout.readline().rpartition(":")[2])
        try:
            yield port
        finally:
            process.terminate()


@pytest.mark.swtpm
def test_a_client_go_process_never_stalls_through_issue_renewal_denial_and_a_hung_server(world: World) -> None:
    kubectl = kubernetes_program("kubectl")
    world.set_policy(authorizedAttestors=["tpm"])
    name, tpm = "client-go", world.tpm("client-go")
    world.machine(name, tpm=tpm)
    with ExitStack() as stack:
        stack.callback(world.reset_authority)
        relay = stack.enter_context(CountingRelay(world.workload.server))
        controller = stack.enter_context(world.controller("--leader-elect", "false", log="client-go.log"))
        world.await_service(controller)
        shorten_certificates(world, 60)
        agent = world.agent(name, "tpm", server=relay.url, tcti=tpm.tcti)
        joined = agent.join(world.token())
        assert joined.returncode == 0, joined.stderr
        port = stack.enter_context(proxy(kubectl, agent.kubeconfig))
        poller = Poller(port, f"/api/v1/nodes/{name}")
        thread = threading.Thread(target=poller.run)
        thread.start()
        stack.callback(thread.join)
        stack.callback(poller.stop)

        def issued() -> int:
            return len(list(maps_at(world.ledger(name), "spec", "issued")))

        def hang(what: str, lifetime: int) -> None:
            """Let the plugin's next request wait until so many answers came meanwhile; then its certificate is made."""
            poller.goes_on(1)
            before = relay.connections
            relay.passing.clear()
            eventually(lambda: relay.connections > before, what)
            poller.goes_on(10)
            poller.assert_unharmed(404, rotations=1)
            shorten_certificates(world, lifetime)
            relay.passing.set()

        hang("the plugin's request to renew", lifetime=150)
        eventually(lambda: issued() >= 2, what="the renewal")
        poller.assert_unharmed(404, rotations=1)

        world.set_policy(authorizedAttestors=[])
        await_denial(world, name, "AttestorNotAuthorized")
        failure = agent.directory / "cache" / "failure"
        eventually(failure.exists, "the denial in the agent's cache")  # while the policy still denies each request
        poller.goes_on(10)
        poller.assert_unharmed(404, rotations=1)

        world.set_policy(authorizedAttestors=["tpm"])
        world.await_policy()
        failure.unlink(missing_ok=True)  # how long a denial is remembered is tested elsewhere
        hang("the plugin's request after the denial", lifetime=3600)
        eventually(lambda: issued() >= 3, what="the renewal after the hung server")
        poller.goes_on(10)
        poller.assert_unharmed(404, rotations=2)
