"""D4: what one tenant writes into its own namespace, against the time of the controller that serves all."""

from __future__ import annotations

import asyncio
import base64
import json
import socket
from collections.abc import Callable, Mapping
from datetime import timedelta
from functools import partial
from typing import Final

import pytest
from bootstrap_config_kit import config, handled, handler_of, review
from builders import CREATED
from catalogue import Expected, Row, Verdict, attacks, evaluated
from counted_calls import calls
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import NameOID
from handmade import integer, tlv
from node_attested_world import KEY, machine, refusal
from virtual import run_virtually

from nodeattest_controller.controllers.bootstrap_config.kubeadmconfig import RenderingRefused, RenderOptions
from nodeattest_controller.controllers.bootstrap_config.render import render
from nodeattest_controller.controllers.bootstrap_config.server import MAX_WAIT
from nodeattest_controller.controllers.node_attested.outcomes import CSROutcomes
from nodeattest_controller.model.certificate_authority import load_authority
from nodeattest_controller.model.machine_view import view_of_machine
from nodeattest_controller.model.policy import selecting
from nodeattest_controller.model.resolver import check_machine_ready
from nodeattest_controller.runtime.cluster_log import BURST, REQUESTER_BURST, ClusterLog
from nodeattest_controller.runtime.indexes import ClusterKey, Inventory, cluster_key
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


def a_ca() -> bytes:
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "kubernetes")])
    builder = x509.CertificateBuilder(name, name, key.public_key(), 1, CREATED, CREATED + timedelta(days=1))
    return builder.sign(key, hashes.SHA256()).public_bytes(Encoding.PEM)


def long_key() -> Expected:
    p, q = (1 << 4096) + 1, (1 << 4096) + 3
    numbers = (0, p * q, 65537, 3, p, q, 3, 3, 1)
    body = base64.encodebytes(tlv(0x30, *map(integer, numbers))).decode()
    key = f"-----BEGIN RSA PRIVATE KEY-----\n{body}-----END RSA PRIVATE KEY-----\n".encode()
    certificate = a_ca()
    data = {"tls.crt": base64.b64encode(certificate).decode(), "tls.key": base64.b64encode(key).decode()}
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
        slow = [asyncio.create_task(handled(handler, "stranger", body, 10 * MAX_WAIT)) for _ in "x" * 8]
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
    assert lines <= REQUESTER_BURST
    assert log.allows("refused", ClusterKey("fleet/hostile"), "system:bootstrap:honest")
    lines = sum(log.allows("refused", ClusterKey("fleet/hostile"), f"invented-{number}") for number in range(18_000))
    assert lines <= BURST
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
