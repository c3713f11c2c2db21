"""D3 and D8 at the reconciler: others' writes to a request, and serving certificates for what is not the node's.

A bad guest can have its Machine list any address; what no node may serve is refused all the same.
"""

from __future__ import annotations

import base64
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import asynccontextmanager
from datetime import timedelta
from ipaddress import ip_address
from typing import Any, Final

import pytest
from catalogue import Expected, Row, Verdict, attacks
from controller_rows import ELSEWHERE, never_joined_serves
from controller_scene import (
    ADDRESS,
    AS_NODE,
    CLUSTER,
    GRANTED,
    HOSTNAME,
    MACHINE,
    OTHER,
    Attack,
    Scene,
    decision,
    hostname,
    running,
    verifier,
)
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import NameOID
from csr_world import CSRS, NODE, PROVIDER_ID, SIGNERS, OneRound, kubelets_request

from nodeattest_parsing.objects import mapping, text
from nodeattest_parsing.strict_base64 import decode_base64
from nodeattest_parsing.values import JsonObject, JsonValue
from nodeattest_providers import envelope, identifiers
from nodeattest_providers.errors import Reason, Unavailable
from nodeattest_providers.identifiers import NodeName, ProviderName, Purpose
from nodeattest_providers.node_interface import Evidence
from nodeattest_providers.pkcs10 import build_csr
from nodeattest_providers.verifier_interface import Facts
from nodeattest_sandbox.pki import ClusterPki

ENDPOINT, VICTIM, VICTIMS = "10.0.0.100", "victim", "10.0.0.66"
KEY: Final = ec.generate_private_key(ec.SECP256R1())
FORGED: Final[JsonObject] = {
    identifiers.ANNOTATION_CHALLENGE: "{}",
    identifiers.ANNOTATION_REASON: "fine",
    identifiers.ANNOTATION_TPM_ENDORSEMENT_KEY: "mine",
}
FAT: Final[JsonObject] = {f"a-{number}": "x" * 20_000 for number in range(10)}
HELD: Final[JsonObject] = {"finalizers": ["example.com/hold"], "ownerReferences": [{"kind": "Node", "uid": "somebody"}]}


async def silent(_: Facts) -> None:
    raise Unavailable(Reason.PLATFORM_UNAVAILABLE, "no answer", remedy="see to the platform")


def san(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def address(name: str) -> JsonValue:
    return hostname(name, "InternalIP" if isinstance(san(name), x509.IPAddress) else "InternalDNS")


# What others do to a request


async def meddled(
    scene: Scene, metadata: JsonObject | None = None, status: JsonObject | None = None, **request: Any
) -> Expected:
    """File a request, let somebody write to it, and require that only the controller's own verdict changes it."""
    await scene.settle()
    scene.world.file("r-1", **request)
    before = scene.write("r-1", status, **(metadata or {}))
    await scene.settle()
    ended = await scene.ended("r-1") if scene.world.workload.requests.get("r-1") is not None else None
    return ended if ended and scene.world.csr() != before else Expected(Verdict.IGNORE, "")


async def approved_by_others(scene: Scene) -> Expected:
    ended = await meddled(scene, status=decision("Approved"))
    assert scene.world.condition("Failed") == ended.reason  # who was approved cannot be denied
    assert scene.world.attestations() == []
    return ended


async def for_68_years(scene: Scene) -> Expected:
    ended = await meddled(scene, expirationSeconds=2147483647)
    pem = decode_base64(text(scene.world.csr(), "status", "certificate"))
    certificate = x509.load_pem_x509_certificate(pem)
    assert certificate.not_valid_after_utc - certificate.not_valid_before_utc <= timedelta(days=366)
    return ended


# Kubelet's own requests


async def join(scene: Scene, names: tuple[object, ...], *, listed: bool) -> None:
    """Join, and have the Machine list one's own address, and ``names`` too if ``listed``."""
    assert await scene.file("honest", key=KEY) == GRANTED
    scene.world.join_node()
    extra = [address(name) for name in names if isinstance(name, str)] if listed else []
    await scene.change(MACHINE, "status", addresses=[HOSTNAME, ADDRESS, *extra]).settle()


def kubelet(
    *names: str | x509.GeneralName, listed: bool = False, provider_id: str = PROVIDER_ID, **spec: JsonValue
) -> Attack:
    """Ask for one's own name and for others, which one's Machine may even list."""
    asked = [x509.DNSName(NODE), *(san(name) if isinstance(name, str) else name for name in names)]
    subject = [(NameOID.ORGANIZATION_NAME, "system:nodes"), (NameOID.COMMON_NAME, f"system:node:{NODE}")]
    builder = x509.CertificateSigningRequestBuilder(
        x509.Name([x509.NameAttribute(kind, value) for kind, value in subject])
    ).add_extension(x509.SubjectAlternativeName(asked), critical=False)
    request = base64.b64encode(builder.sign(KEY, hashes.SHA256()).public_bytes(Encoding.PEM)).decode()

    async def attack(scene: Scene) -> Expected:
        await join(scene, names, listed=listed)
        await scene.put_node(provider_id).settle()
        filed = kubelets_request("k-1")
        changed: JsonObject = {**mapping(filed, "spec"), "request": request, **spec}
        scene.world.workload_api.put(f"{CSRS}/k-1", {**filed, "spec": changed})
        return await scene.ended("k-1")

    return attack


async def without_a_machine(scene: Scene) -> Expected:
    await scene.settle()
    return await scene.remove(MACHINE).file_kubelets()


# Attested requests


def attested(*names: str, listed: bool = False, key: ec.EllipticCurvePrivateKey | None = None, **spec: Any) -> Attack:
    """Ask with right evidence, for the member's name and for others."""
    others = [san(name) for name in names]
    der = build_csr(
        key or ec.generate_private_key(ec.SECP256R1()),
        NODE,
        PROVIDER_ID,
        dns_names=(NODE, *(str(one.value) for one in others if isinstance(one, x509.DNSName))),
        ip_addresses=[str(one.value) for one in others if isinstance(one, x509.IPAddress)],
    )
    raw = envelope.encode(der, Evidence(ProviderName("tpm"), 1, {"x": "y"}))
    sent: dict[str, Any] = {
        "signerName": SIGNERS[Purpose.SERVING],
        "request": base64.b64encode(raw).decode(),
        **AS_NODE,
        **spec,
    }

    async def attack(scene: Scene) -> Expected:
        await join(scene, names, listed=listed)
        scene.world.file("serving", **sent)
        return await scene.ended("serving")

    return attack


CASES: Final[Mapping[str, Attack]] = {
    "D3-73": approved_by_others,
    "D3-74": lambda scene: meddled(scene, status=decision("Denied")),
    "D3-75": lambda scene: meddled(scene, status=decision("Immortal"), node=NodeName("somebody")),
    "D3-76": lambda scene: meddled(scene, signerName="kubernetes.io/kube-apiserver-client-kubelet"),
    "D3-77": lambda scene: meddled(scene, signerName="example.com/kube-apiserver-client-kubelet-insecure"),
    "D3-81": lambda scene: meddled(scene, signerName="cluster.x-k8s.io/kube-apiserver-client-kubelet-tpm2"),
    "D3-78": lambda scene: meddled(scene.remove(MACHINE), {"annotations": FORGED}),
    "D3-79": lambda scene: meddled(scene, {"annotations": FAT, **HELD}),
    "D3-80": for_68_years,
    "D8-78": kubelet(VICTIM),
    "D8-79": kubelet(VICTIMS),
    "D8-80": kubelet(ENDPOINT, listed=True),
    "D8-81": kubelet("127.0.0.1", listed=True),
    "D8-82": kubelet("0.0.0.0", listed=True),
    "D8-83": kubelet("169.254.169.254", listed=True),
    "D8-84": kubelet("fd00:ec2::254", listed=True),
    "D8-85": kubelet("10.97.0.1", listed=True),
    "D8-86": kubelet("::ffff:10.6.0.66", listed=True),
    "D8-87": kubelet("*.example.com", listed=True),
    "D8-88": kubelet("localhost", listed=True),
    "D8-89": kubelet("kubernetes.default.svc", listed=True),
    "D8-90": kubelet(x509.RFC822Name("root@example.com")),
    "D8-91": kubelet(x509.UniformResourceIdentifier("spiffe://example.com/victim")),
    "D8-92": kubelet(provider_id="metal://rack-9/9"),
    "D8-93": kubelet(username="admin", groups=["system:masters", "system:authenticated"]),
    "D8-94": kubelet(usages=["digital signature", "server auth", "client auth"]),
    "D8-95": without_a_machine,
    "D8-96": attested(username="system:bootstrap:abcdef", groups=["system:bootstrappers"]),
    "D8-97": never_joined_serves,
    "D8-98": attested(username=f"system:node:{VICTIM}"),
    "D8-99": attested(key=KEY),
    "D8-101": attested(VICTIM),
    "D8-102": attested(VICTIMS),
    "D8-103": attested("127.0.0.1", listed=True),
    "D8-104": attested(ENDPOINT, listed=True),
    "D8-105": attested(),
    "D8-106": attested("10.0.0.1"),
    "D8-107": kubelet("10.0.0.1"),
    "D8-108": attested("10.0.0.1"),
}
PLATFORMS: Final[Mapping[str, Callable[[], OneRound]]] = {
    "D8-106": ELSEWHERE,
    "D8-107": ELSEWHERE,
    "D8-108": verifier(tells_addresses=True, addresses=silent),
}


@asynccontextmanager
async def beside_a_victim(pki: ClusterPki, make: Callable[[], OneRound] = OneRound) -> AsyncGenerator[Scene]:
    async with running(pki, make) as scene:
        endpoint: JsonObject = {"host": ENDPOINT, "port": 6443}
        network: JsonObject = {"services": {"cidrBlocks": ["10.97.0.0/16"]}}
        scene.change(CLUSTER, "spec", controlPlaneEndpoint=endpoint, clusterNetwork=network)
        scene.put_machine(VICTIM, OTHER, addresses=[hostname(VICTIM), address(VICTIMS)])
        await scene.policy(serving={"kubelet": "Approve", "attested": "Sign"}).settle()
        yield scene


@pytest.mark.parametrize(("row", "attack"), attacks(CASES))
async def test_no_certificate_names_what_is_not_the_nodes(pki: ClusterPki, row: Row, attack: Attack) -> None:
    async with beside_a_victim(pki, PLATFORMS.get(row.id, OneRound)) as scene:
        assert await attack(scene) == row.expected


async def test_a_key_with_a_certificate_gets_none_for_other_names(pki: ClusterPki) -> None:
    key = ec.generate_private_key(ec.SECP256R1())
    async with beside_a_victim(pki) as scene:
        for _repeated in range(2):
            assert await attested("10.0.0.1", key=key)(scene) == GRANTED
        assert await attested(key=key)(scene) == Expected(Verdict.DENY, Reason.KEY_REUSED)


@pytest.mark.parametrize("ask", [kubelet, attested])
@pytest.mark.parametrize(("make", "listed"), [(OneRound, "10.0.0.1"), (ELSEWHERE, "10.0.0.9")])
async def test_what_the_machine_or_else_its_platform_lists_is_granted(
    pki: ClusterPki, ask: Callable[[str], Attack], make: Callable[[], OneRound], listed: str
) -> None:
    async with beside_a_victim(pki, make) as scene:
        assert await ask(listed)(scene) == GRANTED
