"""Reconciler and issuer in process, over two API servers in memory and a verifier whose answer is set."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from typing import Any, Final

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import NameOID
from fake_api import FakeApi
from management_kit import tasks

from nodeattest_controller.controllers.csr.issuer import Issuer
from nodeattest_controller.controllers.csr.reconciler import Reconciler, Result
from nodeattest_controller.controllers.csr.task import RequestLimiter
from nodeattest_controller.metrics import Metrics
from nodeattest_controller.runtime.challenge_keys import ChallengeKeys
from nodeattest_controller.runtime.cluster_controller import CSRDenied, CSRIssued
from nodeattest_controller.runtime.cluster_log import ClusterLog
from nodeattest_controller.runtime.indexes import ClusterKey
from nodeattest_controller.runtime.management_cache import ManagementCache
from nodeattest_controller.runtime.references import KubeadmConfigs
from nodeattest_controller.runtime.workload_client import WorkloadClient
from nodeattest_controller.verification.controller_facts import ControllerFacts
from nodeattest_controller.verification.verifiers import VerificationRunner
from nodeattest_kube.events import EventRecorder
from nodeattest_kube.store import MemoryPool
from nodeattest_parsing.objects import condition, items, rfc3339, text
from nodeattest_parsing.values import JsonObject, JsonValue
from nodeattest_providers import envelope, identifiers
from nodeattest_providers.errors import Check, Unavailable
from nodeattest_providers.identifiers import NodeName, ProviderID, ProviderName, Purpose
from nodeattest_providers.node_interface import Evidence, FirstRequestRef
from nodeattest_providers.node_interface import JsonValue as EvidenceValue
from nodeattest_providers.pkcs10 import build_csr
from nodeattest_providers.verifier_interface import AttestedNode, ClusterAPISigner, Facts, NodeRequest
from nodeattest_sandbox.pki import ClusterPki

KEY: Final = ClusterKey("fleet/blue")
NODE, PROVIDER_ID = NodeName("worker-1"), ProviderID("metal://rack-1/1")
CAPI: Final = "/apis/cluster.x-k8s.io/v1beta1/namespaces/fleet"
OWN: Final = "/apis/attestation.cluster.x-k8s.io/v1alpha1/namespaces/fleet"
CSRS: Final = "/apis/certificates.k8s.io/v1/certificatesigningrequests"
SIGNERS: Final = {
    Purpose.CLIENT: "cluster.x-k8s.io/kube-apiserver-client-kubelet-tpm",
    Purpose.SERVING: "cluster.x-k8s.io/kubelet-serving-tpm",
}
WAIT_LIMIT: Final = 600.0
CREATED: Final = datetime.now(UTC).replace(microsecond=0) + timedelta(hours=12)
"""Of every request. Later than the beginning of each CA that a test makes, however long the tests take."""


class OneRound(ClusterAPISigner):
    """A verifier whose answer is set."""

    provider, versions, secure = ProviderName("tpm"), (1,), True
    reads_infrastructure = False

    def __init__(self) -> None:
        self.answer: AttestedNode | Exception = attested()
        self.wrong: dict[str, Any] = {}
        """Fields of the answer that are another machine's."""
        self.calls = 0

    async def verify_client_attestation_data(self, request: NodeRequest, facts: Facts) -> AttestedNode:
        del facts
        self.calls += 1
        if isinstance(self.answer, Exception):
            raise self.answer
        return replace(self.answer, **{"provider_id": request.csr.provider_id, **self.wrong})


class TwoRounds(OneRound):
    """The same in two steps: evidence names the first request, or none."""

    two_step = True

    def first_request(self, request: NodeRequest) -> FirstRequestRef | None:
        data = request.evidence.data
        return FirstRequestRef(name=str(data["name"]), uid=str(data["uid"])) if "name" in data else None


def attested(first: FirstRequestRef | None = None, **fingerprints: str) -> AttestedNode:
    """What a verification proves of the machine."""
    return AttestedNode(
        provider=ProviderName("tpm"),
        provider_id=PROVIDER_ID,
        fingerprints=fingerprints or {"ek": "sha256:ek"},
        first_request=first,
        checks=(Check("c", "s", "e", "g", passed=True),),
    )


@dataclass
class Observed:
    """What observers were told."""

    issued: list[CSRIssued] = field(default_factory=list[CSRIssued])
    denied: list[CSRDenied] = field(default_factory=list[CSRDenied])

    def granted(self, verdict: CSRIssued) -> None:
        self.issued.append(verdict)

    def refused(self, verdict: CSRDenied) -> None:
        self.denied.append(verdict)


class World:
    """One cluster with one machine."""

    def __init__(
        self,
        pki: ClusterPki,
        verifier: OneRound,
        *,
        issuer: type[Issuer] = Issuer,
        beside: World | None = None,
        memory: int | None = None,
        purposes: frozenset[Purpose] = frozenset(Purpose),
    ) -> None:
        """``beside``: another replica, of the same API servers. ``memory``: bytes of the management cluster's cache."""
        self.pki = pki
        self.verifier = verifier
        self.management_api = beside.management_api if beside else FakeApi()
        self.management_api.documents["/apis/cluster.x-k8s.io"] = {"preferredVersion": {"version": "v1beta1"}}
        self.workload_api = beside.workload_api if beside else FakeApi()
        self.now: datetime = CREATED
        self.clock_ahead = timedelta(0)
        """How much the controller's clock is before the workload API server's."""
        self.workload_api.date = lambda: self.now - self.clock_ahead
        self.confirm: Callable[[], Awaitable[bool]] = _confirmed
        """What a read of Leases gives: whether nobody else has served the cluster."""
        self.observed = Observed()
        self.metrics = Metrics()
        self.management = management = ManagementCache(self.management_api, namespace=None, memory=memory)
        self.workload = WorkloadClient(
            KEY,
            self.workload_api,
            has_provider=lambda name: name == self.verifier.provider,
            on_request=lambda _name: None,
            now=self.clock,
            memory=MemoryPool(1 << 30),
        )
        api, day = self.management_api, timedelta(days=1)
        self.events = EventRecorder(api, now=self.clock, component="test", instance="test", clock=self.seconds)
        self.challenge_keys = ChallengeKeys(api, namespace="system", rotate_after=day, now=self.clock)
        self._runner = VerificationRunner(5.0)
        self._configs = KubeadmConfigs(self.management_api, management.caches)
        shared: dict[str, Any] = {"events": self.events, "metrics": self.metrics, "observers": [self.observed]}
        self.reconciler = Reconciler(
            management,
            issuer(
                management,
                still_leads=self._still_leads,
                certificate_lifetime=1209600,
                now=self.clock,
                clock=self.seconds,
                **shared,
            ),
            facts_of=self.facts_of,
            purposes=purposes,
            wait_limit=WAIT_LIMIT,
            limiter=RequestLimiter(self.seconds),
            log=ClusterLog(self.seconds),
            random_unit=lambda: 0.0,
            now=self.clock,
            **shared,
        )
        if beside is None:
            self._objects()

    def facts_of(self, workload: WorkloadClient) -> ControllerFacts:
        return ControllerFacts(
            management=self.management,
            workload=workload,
            verifiers=lambda _provider: self.verifier,
            runner=self._runner,
            kubeadm_configs=self._configs,
            challenge_keys=self.challenge_keys,
            provider_id_oid=identifiers.PROVIDER_ID_OID,
            clock=self.clock,
        )

    async def _still_leads(self) -> bool:
        return await self.confirm()

    def clock(self) -> datetime:
        return self.now

    def seconds(self) -> float:
        return (self.now - CREATED).total_seconds()

    def _objects(self) -> None:
        put, meta = self.management_api.put, {"name": "blue", "namespace": "fleet"}
        put(f"{CAPI}/clusters/blue", {"kind": "Cluster", "metadata": {**meta}, "spec": {}})
        put(f"{CAPI}/machines/m-1", machine())
        self.policy()
        files = {"tls.crt": self.pki.ca_certificate, "tls.key": self.pki.ca_key}
        encoded: JsonObject = {name: base64.b64encode(path.read_bytes()).decode() for name, path in files.items()}
        labels: JsonObject = {"cluster.x-k8s.io/cluster-name": "blue"}
        put("/api/v1/namespaces/fleet/secrets/blue-ca", {"metadata": {"labels": labels}, "data": encoded})

    def policy(self, **spec: JsonValue) -> None:
        whole: JsonObject = {"authorizedAttestors": ["tpm"], "tokenBinding": "Off", **spec}
        self.management_api.put(f"{OWN}/nodeattestationpolicies/p", {"metadata": {}, "spec": whole})

    @asynccontextmanager
    async def running(self) -> AsyncGenerator[World]:
        ready = asyncio.Event()
        await self.challenge_keys.reconcile()
        async with tasks(self.management.run(ready), self.workload.run()):
            await asyncio.wait_for(ready.wait(), 60)
            yield self
            await self.events.drain()

    async def reconcile(self, name: str = "r-1") -> Result:
        """Reconcile a request once the cache has it as the server has it."""
        await self.seen(name)
        return await self.reconciler.reconcile(self.workload, name)

    async def overtake(
        self, slow: str, quick: str, held: str, *, answer: AttestedNode | None = None
    ) -> dict[str, Result]:
        """Hold one reconcile at its first call to a path that ends so, and let another one overtake it.

        All that the slow one compared before is compared with what was known then. ``answer``: the verification's of
        the quick one, and of what the slow one verifies afterwards.
        """
        arrived, go_on = asyncio.Event(), asyncio.Event()

        async def hold(_method: str, path: str) -> None:
            if path.endswith(held) and not arrived.is_set():
                arrived.set()
                await go_on.wait()

        self.management_api.on_call = self.workload_api.on_call = hold
        waiting = asyncio.create_task(self.reconcile(slow))
        await asyncio.wait_for(arrived.wait(), 60)
        self.verifier.answer = answer or self.verifier.answer
        overtaking = await self.reconcile(quick)
        go_on.set()
        return {quick: overtaking, slow: await waiting}

    async def follow(self) -> None:
        """Start the caches of KubeadmConfigs and infrastructure objects, as earlier requests would have."""
        await self._configs.follow()
        for each in self.management.inventory.machines_of(KEY):
            if each.infra is not None:
                with suppress(Unavailable):
                    await self.management.platforms.get(each.infra, each.namespace)
        await self.settle()

    async def settle(self) -> None:
        """Let both watches deliver what was written."""
        for _turn in range(200):
            await asyncio.sleep(0)

    async def seen(self, name: str) -> None:
        """Wait until the cache has a request as the server has it; nobody is told of a settled one."""
        version = ("metadata", "resourceVersion")
        wanted = text(self.workload_api.objects.get(f"{CSRS}/{name}", {}), *version)
        for _turn in range(1000):
            if text(self.workload.requests.get(name) or {}, *version) == wanted:
                return
            await asyncio.sleep(0)
        raise AssertionError(f"the cache has not {name} at version {wanted}")

    def file(self, name: str = "r-1", **changes: Any) -> JsonObject:
        """File a ``request``."""
        return self.workload_api.put(f"{CSRS}/{name}", request(name, **changes))

    def join_node(self) -> None:
        """Give the Machine its addresses, and register its Node."""
        listed = {"Hostname": NODE, "InternalIP": "10.0.0.1"}
        addresses: list[JsonValue] = [{"type": kind, "address": address} for kind, address in listed.items()]
        self.management_api.put(f"{CAPI}/machines/m-1", machine(addresses=addresses))
        node: JsonObject = {"metadata": {"name": NODE}, "spec": {"providerID": PROVIDER_ID}}
        self.workload_api.put(f"/api/v1/nodes/{NODE}", node)

    def file_kubelets(self, name: str = "k-1", *, address: str = "10.0.0.1") -> JsonObject:
        return self.workload_api.put(f"{CSRS}/{name}", kubelets_request(name, address))

    def csr(self, name: str = "r-1") -> JsonObject:
        return self.workload_api.objects[f"{CSRS}/{name}"]

    def condition(self, kind: str, name: str = "r-1") -> str:
        """Return the reason of a request's condition; empty where it has none."""
        return text({**(condition(items(self.csr(name), "status", "conditions"), kind) or {})}, "reason")

    def annotation(self, kind: str, name: str = "r-1") -> str:
        return text(self.csr(name), "metadata", "annotations", kind)

    def attestations(self) -> list[JsonObject]:
        return [obj for path, obj in self.management_api.objects.items() if "/machineattestations/" in path]

    def warnings(self) -> list[str]:
        """Return the reasons of the Warning Events."""
        found = [obj for path, obj in self.management_api.objects.items() if "/events/" in path]
        return [text(event, "reason") for event in found if text(event, "type") == "Warning"]


async def _confirmed() -> bool:
    return True


def machine(name: str = "m-1", provider_id: str = PROVIDER_ID, **status: JsonValue) -> JsonObject:
    """A Machine whose node has not joined yet."""
    return {
        "apiVersion": "cluster.x-k8s.io/v1beta1",
        "kind": "Machine",
        "metadata": {"name": name, "namespace": "fleet", "uid": f"uid-{name}"},
        "spec": {"clusterName": "blue", "providerID": provider_id, "bootstrap": {"dataSecretName": "d"}},
        "status": {"addresses": [{"type": "Hostname", "address": NODE}], "bootstrapReady": True, **status},
    }


def request(
    name: str,
    *,
    evidence: Mapping[str, EvidenceValue] | None = None,
    key: ec.EllipticCurvePrivateKey | None = None,
    node: NodeName = NODE,
    provider_id: ProviderID = PROVIDER_ID,
    **spec: JsonValue,
) -> JsonObject:
    """A stored request, of a bootstrap token unless ``spec`` says otherwise."""
    purpose = Purpose.SERVING if spec.get("signerName") == SIGNERS[Purpose.SERVING] else Purpose.CLIENT
    names = ("10.0.0.1",) if purpose is Purpose.SERVING else ()
    der = build_csr(key or ec.generate_private_key(ec.SECP256R1()), node, provider_id, ip_addresses=names)
    raw = envelope.encode(der, Evidence(ProviderName("tpm"), 1, dict(evidence or {"x": "y"})))
    given: dict[str, JsonValue] = {
        "signerName": SIGNERS[purpose],
        "usages": ["digital signature", "client auth" if purpose is Purpose.CLIENT else "server auth"],
        "username": "system:bootstrap:abcdef",
        "groups": ["system:bootstrappers"],
        **spec,
    }
    return _stored(name, raw, **given)


def kubelets_request(name: str, address: str = "10.0.0.1", *, node: NodeName = NODE) -> JsonObject:
    """A stored request of kubelet itself, for the node's name and an address."""
    subject = [(NameOID.ORGANIZATION_NAME, "system:nodes"), (NameOID.COMMON_NAME, f"system:node:{node}")]
    names = [x509.DNSName(node), x509.IPAddress(ip_address(address))]
    builder = (
        x509.CertificateSigningRequestBuilder()
        .subject_name(x509.Name([x509.NameAttribute(kind, value) for kind, value in subject]))
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
    )
    encoded = builder.sign(ec.generate_private_key(ec.SECP256R1()), hashes.SHA256()).public_bytes(Encoding.PEM)
    return _stored(
        name,
        encoded,
        signerName=identifiers.KUBELET_SERVING_SIGNER,
        usages=["digital signature", "server auth"],
        username=f"system:node:{NODE}",
        groups=["system:nodes", "system:authenticated"],
    )


def _stored(name: str, encoded: bytes, **spec: JsonValue) -> JsonObject:
    return {
        "kind": "CertificateSigningRequest",
        "metadata": {"name": name, "creationTimestamp": rfc3339(CREATED)},
        "spec": {"request": base64.b64encode(encoded).decode(), **spec},
        "status": {},
    }
