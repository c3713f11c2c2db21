"""D3 and D8 at the reconciler: others' writes to a request, and serving certificates for what is not the node's.

A bad guest can have its Machine list any address; what no node may serve is refused all the same.
"""

from __future__ import annotations

import base64
from collections.abc import Awaitable, Callable, Mapping
from datetime import timedelta
from ipaddress import ip_address
from typing import Any, Final

import pytest
from catalogue import Expected, Row, Verdict, attacks
from controller_rows import ADDRESS, AS_NODE, CLUSTER, HOSTNAME, MACHINE, OTHER, Elsewhere, Scene, never_joined_serves
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import NameOID
from csr_world import CSRS, NODE, PROVIDER_ID, SIGNERS, OneRound, World, kubelets_request
from machine_scene import end_of

from nodeattest_parsing.objects import mapping, text
from nodeattest_parsing.strict_base64 import decode_base64
from nodeattest_parsing.values import JsonObject, JsonValue
from nodeattest_providers import envelope, identifiers
from nodeattest_providers.errors import Reason, Unavailable
from nodeattest_providers.node_interface import Evidence
from nodeattest_providers.pkcs10 import build_csr
from nodeattest_providers.verifier_interface import Facts
from nodeattest_sandbox.pki import ClusterPki

Attack = Callable[[Scene], Awaitable[Expected]]
ENDPOINT, VICTIM, VICTIMS = "10.0.0.100", "victim", "10.0.0.66"
KEY: Final = ec.generate_private_key(ec.SECP256R1())
FORGED: Final[JsonObject] = {
    identifiers.ANNOTATION_CHALLENGE: "{}",
    identifiers.ANNOTATION_REASON: "fine",
    identifiers.ANNOTATION_TPM_ENDORSEMENT_KEY: "mine",
}
FAT: Final[JsonObject] = {f"a-{number}": "x" * 20_000 for number in range(10)}
HELD: Final[JsonObject] = {"finalizers": ["example.com/hold"], "ownerReferences": [{"kind": "Node", "uid": "somebody"}]}


class Silent(Elsewhere):
    """A provider whose platform does not answer."""

    async def addresses(self, facts: Facts) -> tuple[tuple[str, str], ...] | None:
        del facts
        raise Unavailable(Reason.PLATFORM_UNAVAILABLE, "no answer", remedy="see to the platform")


def san(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def address(name: str) -> JsonValue:
    kind = "InternalIP" if isinstance(san(name), x509.IPAddress) else "InternalDNS"
    return {"type": kind, "address": name}


# What others do to a request


async def meddled(
    scene: Scene, metadata: JsonObject | None = None, status: JsonObject | None = None, **request: Any
) -> Expected:
    """File a request, let somebody write to it, and require that only the controller's own verdict changes it."""
    await scene.settle()
    world, path = scene.world, f"{CSRS}/r-1"
    filed = world.file("r-1", **request)
    noted: JsonObject = {**mapping(filed, "metadata"), **(metadata or {})}
    before = world.workload_api.put(path, {**filed, "metadata": noted, "status": status or {}})
    await world.settle()
    ended = await end_of(world, "r-1") if world.workload.requests.get("r-1") is not None else None
    return ended if ended and world.csr() != before else Expected(Verdict.IGNORE, "")


def decided(kind: str, **request: Any) -> Attack:
    """Let somebody else set a condition."""
    conditions: JsonObject = {"conditions": [{"type": kind, "status": "True", "reason": "Somebody"}]}
    return lambda scene: meddled(scene, status=conditions, **request)


async def approved_by_others(scene: Scene) -> Expected:
    ended = await decided("Approved")(scene)
    assert scene.world.condition("Failed") == ended.reason  # who was approved cannot be denied
    assert scene.world.attestations() == []
    return ended


def of_signer(name: str) -> Attack:
    return lambda scene: meddled(scene, signerName=name)


async def for_68_years(scene: Scene) -> Expected:
    ended = await meddled(scene, expirationSeconds=2147483647)
    pem = decode_base64(text(scene.world.csr(), "status", "certificate"))
    certificate = x509.load_pem_x509_certificate(pem)
    assert certificate.not_valid_after_utc - certificate.not_valid_before_utc <= timedelta(days=366)
    return ended


async def without_machine(scene: Scene) -> Expected:
    scene.world.management_api.remove(MACHINE)
    return await meddled(scene, {"annotations": FORGED})


# Kubelet's own requests


async def join(scene: Scene, names: tuple[object, ...], *, listed: bool) -> None:
    """Join, and have the Machine list one's own address, and ``names`` too if ``listed``."""
    scene.world.file("honest", key=KEY)
    assert (await end_of(scene.world, "honest")).verdict is Verdict.ACCEPT
    scene.world.join_node()
    extra = [address(name) for name in names if isinstance(name, str)] if listed else []
    scene.change(MACHINE, "status", addresses=[HOSTNAME, ADDRESS, *extra])
    await scene.settle()


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
        return await end_of(scene.world, "k-1")

    return attack


async def without_a_machine(scene: Scene) -> Expected:
    await scene.settle()
    scene.world.management_api.remove(MACHINE)
    await scene.settle()
    scene.world.file_kubelets()
    return await end_of(scene.world, "k-1")


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
    raw = envelope.encode(der, Evidence(identifiers.ProviderName("tpm"), 1, {"x": "y"}))
    sent: dict[str, Any] = {
        "signerName": SIGNERS[identifiers.Purpose.SERVING],
        "request": base64.b64encode(raw).decode(),
        **AS_NODE,
        **spec,
    }

    async def attack(scene: Scene) -> Expected:
        await join(scene, names, listed=listed)
        scene.world.file("serving", **sent)
        return await end_of(scene.world, "serving")

    return attack


async def by_a_machine_that_never_joined(scene: Scene) -> Expected:
    _, reason = await never_joined_serves(scene)
    return Expected(Verdict.DENY, reason)


CASES: Final[Mapping[str, Attack]] = {
    "D3-73": approved_by_others,
    "D3-74": decided("Denied"),
    "D3-75": decided("Immortal", node=identifiers.NodeName("somebody")),
    "D3-76": of_signer("kubernetes.io/kube-apiserver-client-kubelet"),
    "D3-77": of_signer("example.com/kube-apiserver-client-kubelet-insecure"),
    "D3-81": of_signer("cluster.x-k8s.io/kube-apiserver-client-kubelet-tpm2"),
    "D3-78": without_machine,
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
    "D8-97": by_a_machine_that_never_joined,
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
PLATFORMS: Final[Mapping[str, type[OneRound]]] = {"D8-106": Elsewhere, "D8-107": Elsewhere, "D8-108": Silent}


async def outcome(pki: ClusterPki, row: str, attack: Attack) -> Expected:
    """Carry out an attack beside a Machine that is its victim."""
    async with World(pki, PLATFORMS.get(row, OneRound)()).running() as world:
        scene = Scene(world).change(
            CLUSTER,
            "spec",
            controlPlaneEndpoint={"host": ENDPOINT, "port": 6443},
            clusterNetwork={"services": {"cidrBlocks": ["10.97.0.0/16"]}},
        )
        scene.put_machine(VICTIM, OTHER, addresses=[{"type": "Hostname", "address": VICTIM}, address(VICTIMS)])
        world.policy(serving={"kubelet": "Approve", "attested": "Sign"})
        await scene.settle()
        return await attack(scene)


@pytest.mark.parametrize(("row", "attack"), attacks(CASES))
async def test_no_certificate_names_what_is_not_the_nodes(pki: ClusterPki, row: Row, attack: Attack) -> None:
    assert await outcome(pki, row.id, attack) == row.expected


async def test_a_key_with_a_certificate_gets_none_for_other_names(pki: ClusterPki) -> None:
    key = ec.generate_private_key(ec.SECP256R1())

    async def attack(scene: Scene) -> Expected:
        for _repeated in range(2):
            assert (await attested("10.0.0.1", key=key)(scene)).verdict is Verdict.ACCEPT
        return await attested(key=key)(scene)

    assert await outcome(pki, "D8-0", attack) == Expected(Verdict.DENY, Reason.KEY_REUSED)


@pytest.mark.parametrize("attack", [kubelet("10.0.0.9"), attested("10.0.0.9")], ids=["kubelet's own", "attested"])
async def test_an_address_that_only_the_platform_lists_is_granted(pki: ClusterPki, attack: Attack) -> None:
    assert await outcome(pki, "D8-106", attack) == Expected(Verdict.ACCEPT, "")


@pytest.mark.parametrize("attack", [kubelet("10.0.0.1"), attested("10.0.0.1")], ids=["kubelet's own", "attested"])
async def test_a_request_for_what_the_machine_lists_is_granted(pki: ClusterPki, attack: Attack) -> None:
    assert await outcome(pki, "D8-0", attack) == Expected(Verdict.ACCEPT, "")
