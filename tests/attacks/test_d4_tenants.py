"""D4: what tenants write into their own namespaces, and strangers at the webhook, against the controller's time."""

from __future__ import annotations

import asyncio
import base64
import json
import socket
import ssl
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from functools import partial
from itertools import count
from pathlib import Path
from typing import Final

import pytest
from bootstrap_config_kit import answer_of, config, handled, handler_of, review
from catalogue import Expected, Row, Verdict, attacks, evaluated
from counted_calls import calls
from fake_api import FakeApi
from front_kit import LOOPBACK, Authority
from handmade import integer, tlv
from node_attested_world import KEY, machine, refusal
from virtual import advance, run_virtually

from nodeattest_controller.controllers.bootstrap_config.config_reviewer import PATH
from nodeattest_controller.controllers.bootstrap_config.kubeadmconfig import RenderingRefused, RenderOptions
from nodeattest_controller.controllers.bootstrap_config.render import render
from nodeattest_controller.controllers.bootstrap_config.server import serve_webhook
from nodeattest_controller.controllers.node_attested.outcomes import CSROutcomes
from nodeattest_controller.metrics import Metrics
from nodeattest_controller.model.certificate_authority import load_authority
from nodeattest_controller.model.machine_view import view_of_machine
from nodeattest_controller.model.policy import selecting
from nodeattest_controller.model.resolver import check_machine_ready
from nodeattest_controller.runtime.cluster_log import ClusterLog
from nodeattest_controller.runtime.indexes import ClusterKey, Inventory, cluster_key
from nodeattest_controller.settings import Settings
from nodeattest_kube.addresses import TENANT_ADDRESSES, Lookups
from nodeattest_kube.client import ApiClient
from nodeattest_kube.errors import KubeconfigError, Unreachable
from nodeattest_kube.kubeconfig import parse_kubeconfig
from nodeattest_parsing.values import JsonObject, JsonValue
from nodeattest_providers.errors import Reason
from nodeattest_providers.identifiers import ProviderName

Case = Callable[[], Expected]


def bombs() -> Expected:
    for bomb in (":".join(["59"] * 130_000), "[" + "1," * 30_000 + "]", "[" * 60_000, "x\n " * 20_000):
        with pytest.raises(KubeconfigError):
            parse_kubeconfig(f"extensions: {bomb}\n".encode())
    return Expected(Verdict.IGNORE, "")


def long_key() -> Expected:
    p, q = (1 << 4096) + 1, (1 << 4096) + 3
    numbers = (0, p * q, 65537, 3, p, q, 3, 3, 1)
    body = base64.encodebytes(tlv(0x30, *map(integer, numbers))).decode()
    key = f"-----BEGIN RSA PRIVATE KEY-----\n{body}-----END RSA PRIVATE KEY-----\n".encode()
    data = {
        "tls.crt": base64.b64encode(Authority("kubernetes").pem).decode(),
        "tls.key": base64.b64encode(key).decode(),
    }
    return evaluated(lambda: load_authority({"data": {**data}}, "c"))


def endless_pool() -> Expected:
    inventory, listed = Inventory(), [f"x://{number}" for number in range(100_000)]
    spec: JsonObject = {"clusterName": "blue", "providerIDList": [*listed]}
    inventory.put_pool("fleet/p", {"metadata": {"namespace": "fleet", "name": "p"}, "spec": spec})
    [member] = inventory.members(cluster_key("fleet", "blue"), "x://7")
    return evaluated(lambda: check_machine_ready(member))


def endless_addresses() -> Expected:
    addresses: list[JsonValue] = [{"type": "Hostname", "address": f"host-{number}"} for number in range(30_000)]
    spec: JsonObject = {"clusterName": "blue", "providerID": "x://7"}
    member = view_of_machine({"metadata": {"name": "m"}, "spec": spec, "status": {"addresses": addresses}})
    return evaluated(lambda: check_machine_ready(member))


def endless_files() -> Expected:
    files: list[JsonValue] = [{"path": f"/etc/f{number}", "content": "x"} for number in range(4_000)]
    commands: list[JsonValue] = [f"echo {number}" for number in range(8_000)]
    spec: JsonObject = {"files": files, "preKubeadmCommands": commands, "joinConfiguration": {}}
    config: JsonObject = {"apiVersion": "bootstrap.cluster.x-k8s.io/v1beta1", "kind": "KubeadmConfig", "spec": spec}
    with pytest.raises(RenderingRefused) as refused:
        render(config, RenderOptions(provider=ProviderName("tpm")))
    [reason] = {one.reason for one in refused.value.refusals}
    return Expected(Verdict.DENY, reason)


def endless_labels() -> Expected:
    selector: JsonObject = {"matchLabels": {"tier": "edge"}}
    policies: list[JsonObject] = [{"spec": {"clusterSelector": selector}}] * 100
    labels: JsonObject = {f"label-{number}": "" for number in range(100_000)}
    cluster: JsonObject = {"metadata": {"labels": {**labels, "tier": "edge"}}}
    few: JsonObject = {"metadata": {"labels": {"tier": "edge"}}}
    assert len(selecting(cluster, policies)) == len(policies)
    assert calls(lambda: selecting(cluster, policies)) == calls(lambda: selecting(few, policies))
    return Expected(Verdict.ACCEPT, "")


def kubeconfig_for(**cluster: str) -> bytes:
    document = {
        "current-context": "c",
        "contexts": [{"name": "c", "context": {"cluster": "c"}}],
        "clusters": [{"name": "c", "cluster": cluster}],
    }
    return json.dumps(document).encode()


def inward_literals() -> Expected:
    for host in ("169.254.169.254", "127.0.0.1", "[fe80::1]", "[fd00:c1::a9fe:a9fe]", "[64:ff9b::a9fe:a9fe]"):
        for cluster in ({"server": f"https://{host}"}, {"server": "https://a.example", "proxy-url": f"http://{host}"}):
            with pytest.raises(KubeconfigError):
                parse_kubeconfig(kubeconfig_for(**cluster), addresses=TENANT_ADDRESSES)
    return Expected(Verdict.IGNORE, "")


def inward_names() -> Expected:
    """Ask a server whose name moves from an address where nobody is to loopback, where somebody listens."""
    answers = iter(["192.0.2.1", "127.0.0.1", "169.254.169.254"])

    def getaddrinfo(_host: str, port: int, *_more: object) -> list[tuple[int, int, int, str, tuple[str, int]]]:
        return [(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP, "", (next(answers), port))]

    async def ask(port: int) -> None:
        lookups = Lookups(getaddrinfo)
        for _answer in range(3):
            config = kubeconfig_for(server=f"https://moves.example:{port}")
            async with ApiClient.from_kubeconfig(config, request_timeout=0.2, addresses=TENANT_ADDRESSES) as client:
                client.use_resolver(lookups.of("hostile"))
                with pytest.raises(Unreachable):
                    await client.get("/version")
        lookups.close()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(0)
        asyncio.run(ask(listener.getsockname()[1]))
        with pytest.raises(BlockingIOError):
            listener.accept()
    return Expected(Verdict.IGNORE, "")


def slow_reviews() -> Expected:
    """An API server is answered at once, the stranger's slow reviews when their time is over."""

    async def ask(body: bytes) -> tuple[int, list[int]]:
        handler = handler_of()
        slow = [asyncio.create_task(handled(handler, "stranger", body, TIMEOUT)) for _ in "x" * 8]
        await asyncio.sleep(0)
        asked = (await handled(handler, "api-server", body)).status
        return asked, [(await each).status for each in slow]

    other = {**config({"path": "/x", "content": "x" * (16 << 10)}), "kind": "Pod"}
    asked, slow = run_virtually(ask(json.dumps(review(other)).encode()))
    assert (asked, set(slow)) == (200, {408})
    return Expected(Verdict.SHED, "")


def endless_lines() -> Expected:
    log = ClusterLog(clock=lambda: 0.0)
    lines = sum(log.allows("refused", ClusterKey("fleet/hostile"), "system:bootstrap:thief0") for _ in range(18_000))
    assert lines == 5  # about one requester
    assert log.allows("refused", ClusterKey("fleet/hostile"), "system:bootstrap:honest")
    lines = sum(log.allows("refused", ClusterKey("fleet/hostile"), f"invented-{number}") for number in range(18_000))
    assert lines == 24  # of 30 about a cluster
    assert log.allows("refused", ClusterKey("fleet/honest"), "system:bootstrap:honest")
    return Expected(Verdict.SHED, "")


def hiding_claims() -> Expected:
    inventory, victim = Inventory(), machine(0, node=False)
    document: JsonObject = {
        "apiVersion": "cluster.x-k8s.io/v1beta1",
        "kind": "Machine",
        "metadata": {"name": victim.name, "namespace": "fleet", "uid": victim.uid},
        "spec": {"clusterName": "c", "providerID": victim.provider_id},
    }
    inventory.put_machine("fleet/victim", document)
    pending = CSROutcomes(KEY, inventory, lambda: 0.0)
    claim = partial(refusal, provider_id=victim.provider_id, by_node=False)
    for _ in range(100):
        pending.refused(claim(Reason.PROOF_INVALID, username="system:bootstrap:thief0"))
    pending.refused(claim(Reason.ENDORSEMENT_KEY_UNTRUSTED, username="system:bootstrap:abcdef"))
    shown = pending.claim(victim.provider_id)
    assert shown is not None
    assert shown.reason is Reason.ENDORSEMENT_KEY_UNTRUSTED
    return Expected(Verdict.IGNORE, "")


CASES: Final[Mapping[str, Case]] = {
    "D4-130": bombs,
    "D4-131": long_key,
    "D4-132": endless_pool,
    "D4-133": endless_addresses,
    "D4-134": inward_literals,
    "D4-135": inward_names,
    "D4-136": slow_reviews,
    "D4-137": endless_files,
    "D4-138": endless_labels,
    "D4-192": endless_lines,
    "D4-193": hiding_claims,
}


@pytest.mark.parametrize(("row", "case"), attacks(CASES))
def test_one_tenants_objects_are_refused_by_their_size(row: Row, case: Case) -> None:
    assert case() == row.expected


# Strangers from 200 addresses, and an API server that calls the webhook meanwhile

ADDRESSES: Final = 200
CALLS: Final = 3
FLOOD: Final = 60
ROUND_TRIP: Final = 0.1
TIMEOUT: Final = 5.0
"""Seconds, as in manifests/webhook."""
REVIEW: Final = json.dumps(review({**config(), "kind": "Pod"})).encode()
"""Its answer needs no read of the API server."""
REQUEST: Final = (
    f"POST {PATH}?timeout=5s HTTP/1.1\r\nHost: webhook\r\nContent-Type: application/json\r\n"
    f"Content-Length: {len(REVIEW)}\r\n\r\n"
).encode() + REVIEW


def half_a_hello(tls: ssl.SSLContext) -> bytes:
    """Write a ClientHello without its last byte."""
    outgoing = ssl.MemoryBIO()
    with suppress(ssl.SSLWantReadError):
        tls.wrap_bio(ssl.MemoryBIO(), outgoing, server_hostname=LOOPBACK).do_handshake()
    return outgoing.read()[:-1]


async def strangers(port: int, tls: ssl.SSLContext, connected: asyncio.Event) -> None:
    """Connect from each address, again and again: say nothing, half a ClientHello, or nothing after the handshake."""
    opened = count(1)

    async def hold(address: str, first: bytes, *, shakes: bool) -> None:
        reader, writer = await asyncio.open_connection(LOOPBACK, port, local_addr=(address, 0))
        if next(opened) == 3 * ADDRESSES:
            connected.set()
        try:
            if shakes:
                await writer.start_tls(tls, server_hostname=LOOPBACK)
            writer.write(first)
            await reader.read()
        finally:
            writer.transport.abort()

    async def again_and_again(number: int, first: bytes, *, shakes: bool) -> None:
        while True:
            with suppress(OSError):
                await hold(f"127.0.{1 + number // 100}.{1 + number % 100}", first, shakes=shakes)
            await advance(ROUND_TRIP)

    async with asyncio.TaskGroup() as group:
        for number in range(ADDRESSES):
            for first, shakes in ((b"", False), (half_a_hello(tls), False), (b"", True)):
                group.create_task(again_and_again(number, first, shakes=shakes))


async def answer_to(request: bytes, port: int, tls: ssl.SSLContext) -> bytes:
    """Return what the webhook answers to an API server; nothing where it does not."""
    try:
        async with asyncio.timeout(TIMEOUT):
            reader, writer = await asyncio.open_connection(LOOPBACK, port)
            await advance(ROUND_TRIP)
            await writer.start_tls(tls, server_hostname=LOOPBACK)
            await advance(ROUND_TRIP)
            writer.write(request)
            answer = await reader.read()
            writer.transport.abort()
    except OSError:  # a TimeoutError is one
        return b""
    return answer


async def answered(port: int, tls: ssl.SSLContext) -> int:
    """Count the answered calls of an API server that calls one by one."""
    answers = [(await answer_to(REQUEST, port, tls)).partition(b"\r\n\r\n") for _ in range(CALLS)]
    good = [body for head, _, body in answers if head.startswith(b"HTTP/1.1 200 ")]
    return sum(answer_of(body)["allowed"] is True for body in good)


def settings_of(directory: Path, **more: object) -> tuple[Settings, ssl.SSLContext]:
    """Return the settings of a webhook with a certificate, and what its callers trust."""
    authority = Authority()
    for file, name in zip(authority.certify(directory), ("tls.crt", "tls.key"), strict=True):
        file.rename(directory / name)
    address = {"webhook_bind_address": f"{LOOPBACK}:0", "webhook_cert_dir": str(directory)}
    made = Settings(identity="a", **address, **more)  # pyright: ignore[reportArgumentType] - the cases name real fields
    return made, ssl.create_default_context(cadata=authority.pem.decode())


@asynccontextmanager
async def served(settings: Settings) -> AsyncGenerator[int]:
    """Serve a webhook beside a management API server that does not answer."""
    async with serve_webhook(settings, FakeApi(), Metrics()) as webhook:
        assert webhook is not None
        yield webhook.port


def beside_strangers(directory: Path, _: object, *, shows_certificate: bool) -> None:
    clients, client_ca = Authority("API servers"), directory / "clients.crt"
    client_ca.write_bytes(clients.pem)
    settings, tls = settings_of(directory, webhook_client_ca_file=client_ca if shows_certificate else None)
    strange = ssl.create_default_context()
    strange.check_hostname, strange.verify_mode = False, ssl.CERT_NONE
    if shows_certificate:
        tls.load_cert_chain(*clients.certify(directory / "client", "kube-apiserver", client=True))

    async def calls() -> int:
        connected = asyncio.Event()
        async with served(settings) as port:
            running = asyncio.create_task(strangers(port, strange, connected))
            await connected.wait()
            good = await answered(port, tls)
            running.cancel()
            await asyncio.wait([running])
            return good

    assert run_virtually(calls()) == CALLS


def endless_reviews(directory: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Send what is no AdmissionReview, and count what is logged of it."""
    settings, tls = settings_of(directory)

    async def floods() -> int:
        async with served(settings) as port:
            request = REQUEST.replace(REVIEW, b"{" + b" " * (len(REVIEW) - 2) + b"}")
            answers = [await answer_to(request, port, tls) for _ in range(FLOOD)]
            return sum(answer.startswith(b"HTTP/1.1 400 ") for answer in answers)

    assert run_virtually(floods()) == FLOOD
    assert 0 < len(caplog.messages) < FLOOD / 2


def from_elsewhere(directory: Path, _: object) -> None:
    settings, tls = settings_of(directory, webhook_allowed_cidrs=("192.0.2.0/24",))

    async def calls() -> int:
        async with served(settings) as port:
            return await answered(port, tls)

    assert run_virtually(calls()) == 0


STRANGERS: Final[Mapping[str, Callable[[Path, pytest.LogCaptureFixture], None]]] = {
    "D4-190": partial(beside_strangers, shows_certificate=False),
    "D4-191": partial(beside_strangers, shows_certificate=True),
    "D4-194": endless_reviews,
    "D4-195": from_elsewhere,
}


@pytest.mark.parametrize(("row", "case"), attacks(STRANGERS))
def test_strangers_lose_no_call_of_an_api_server(
    row: Row,
    case: Callable[[Path, pytest.LogCaptureFixture], None],
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    case(tmp_path, caplog)
    assert row.expected == Expected(Verdict.SHED, "")
