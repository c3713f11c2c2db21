"""Machines that stand one way or another, and the reconciler of ``NodeAttested`` over API servers in memory."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta

from builders import ENTRY, make_member
from fake_api import FakeApi
from management_kit import cache_running, deps_of, tasks

from nodeattest_controller.controllers.node_attested.reconciler import NodeAttestedController
from nodeattest_controller.model.attestation import Attestation, IssuedCertificate, new_attestation
from nodeattest_controller.model.attestation_object import render_attestation
from nodeattest_controller.model.attestation_status import DENIED, LastDecision, Remediation, parse_refusals
from nodeattest_controller.model.machine_view import MachineView
from nodeattest_controller.model.policy import FailureAction, Policy
from nodeattest_controller.runtime.cluster_controller import CSRDenied, CSRIssued
from nodeattest_controller.runtime.indexes import ClusterKey
from nodeattest_controller.runtime.management_cache import ManagementCache
from nodeattest_parsing.objects import condition, items, mapping, text
from nodeattest_parsing.values import JsonObject, JsonValue
from nodeattest_providers.errors import Reason
from nodeattest_providers.identifiers import NodeName, ProviderID, ProviderName, Purpose

KEY = ClusterKey("fleet/c")
NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
ISSUED = NOW - timedelta(days=2)


def certificate(*, ends: datetime = NOW + timedelta(days=12), issued: datetime = ISSUED) -> IssuedCertificate:
    return replace(ENTRY, not_before=issued, not_after=ends, issued_at=issued)


def machine(number: int = 0, *, control_plane: bool = False, node: bool = True) -> MachineView:
    return make_member(
        name=f"node-{number}",
        uid=f"m-{number}",
        provider_id=ProviderID(f"sandbox://node-{number}"),
        is_control_plane=control_plane,
        node_ref_name=NodeName(f"node-{number}") if node else None,
    )


def document(member: MachineView, version: str = "v1beta2") -> JsonObject:
    labels: JsonObject = {"cluster.x-k8s.io/control-plane": ""} if member.is_control_plane else {}
    return {
        "apiVersion": f"cluster.x-k8s.io/{version}",
        "kind": "Machine",
        "metadata": {"name": member.name, "namespace": "fleet", "uid": member.uid, "labels": labels},
        "spec": {"clusterName": "c", "providerID": member.provider_id},
        "status": {"nodeRef": {"name": member.node_ref_name}} if member.node_ref_name else {},
    }


def ledger(
    member: MachineView,
    *,
    refused: Reason | None = None,
    treated: FailureAction | None = None,
    ends: datetime = NOW + timedelta(days=12),
    since: datetime = NOW,
) -> Attestation:
    """Make a machine's ledger with one certificate; its last word may be a refusal."""
    verdict = LastDecision(DENIED, str(refused), since) if refused else LastDecision("Approved", "Attested", ISSUED)
    done = Remediation(action=treated, node_name=member.name, node_uid="n", reason="", time=NOW) if treated else None
    return replace(
        new_attestation(member),
        resource_version="1",
        node_name=NodeName(member.name),
        provider=ProviderName("tpm"),
        issued=(certificate(ends=ends),),
        verdict=verdict,
        treatment=done,
    )


def record(member: MachineView, known: Attestation) -> JsonObject:
    body = render_attestation(known, member, "signer")
    spec: JsonObject = {**mapping(body, "spec")}
    if known.verdict is not None:
        spec["lastVerdict"] = known.verdict.render()
    if known.treatment is not None:
        spec["onFailure"] = known.treatment.render()
    owner: JsonObject = {"apiVersion": member.api_version, "kind": member.kind, "name": member.name, "uid": member.uid}
    meta: JsonObject = {"name": known.name, "namespace": "fleet", "ownerReferences": [owner]}
    return {**body, "metadata": meta, "spec": spec}


def policy(action: FailureAction = FailureAction.TAINT, share: int = 10, *, enforce: bool = True) -> Policy:
    return Policy(
        name="p",
        attestors=frozenset({ProviderName("tpm")}),
        lifetime=None,
        enforce=enforce,
        on_failure=action,
        max_failed_share=share,
    )


def refusal(reason: Reason, **changes: object) -> CSRDenied:
    """Make the refusal of node-0's own request."""
    verdict = CSRDenied(
        cluster=KEY,
        provider_id=ProviderID("sandbox://node-0"),
        node_name=NodeName("node-0"),
        username="system:node:node-0",
        by_node=True,
        provider=ProviderName("tpm"),
        purpose=Purpose.CLIENT,
        reason=reason,
        request_name="csr-1",
        message="",
        at=NOW,
    )
    return replace(verdict, **changes)  # pyright: ignore[reportArgumentType] - the tests name real fields


def grant(member: MachineView, at: datetime = NOW) -> CSRIssued:
    return CSRIssued(cluster=KEY, member=member, at=at)


OWN = "/apis/attestation.cluster.x-k8s.io/v1alpha1/namespaces/fleet"


def claim(member: MachineView, reason: Reason = Reason.PCR_VALUE_NOT_ALLOWED, **changes: object) -> CSRDenied:
    """Make the refusal of a bootstrap token's request that claims a machine."""
    by_token: dict[str, object] = {"by_node": False, "username": "system:bootstrap:abcdef"}
    return refusal(reason, **{"provider_id": member.provider_id, "node_name": member.name, **by_token, **changes})


class NodeAttestedWorld:
    """One cluster, its machines, and the reconciler at work on them."""

    def __init__(self, version: str = "v1beta2") -> None:
        self.version = version
        self.capi = f"/apis/cluster.x-k8s.io/{version}/namespaces/fleet"
        self.management_api, self.workload_api = FakeApi(), FakeApi()
        self.management_api.documents["/apis/cluster.x-k8s.io"] = {"preferredVersion": {"version": version}}
        self.leads = True
        self.seconds = 0.0
        self.management = ManagementCache(
            self.management_api,
            namespace=None,
            inventory=("ClusterAPI", "MachineRecords"),
        )
        deps = deps_of(self.management, now=self.now, clock=lambda: self.seconds, leads=lambda: self.leads)
        self.controller = NodeAttestedController(deps)
        self.reconciler = self.controller.for_cluster(KEY, self.workload_api)
        self.cluster()
        self.policy()

    def now(self) -> datetime:
        return NOW + timedelta(seconds=self.seconds)

    # Objects

    def cluster(self, **spec: JsonValue) -> None:
        body: JsonObject = {"apiVersion": f"cluster.x-k8s.io/{self.version}", "kind": "Cluster", "spec": spec}
        self.management_api.put(f"{self.capi}/clusters/c", body)

    def policy(self, **spec: JsonValue) -> None:
        whole: JsonObject = {"authorizedAttestors": ["tpm"], "maxFailedShare": 100, **spec}
        self.management_api.put(f"{OWN}/nodeattestationpolicies/p", {"spec": whole})

    def machine(self, member: MachineView, known: Attestation | None = None, *, node: bool = True) -> str:
        """Create a Machine, its ledger if it has one, and its Node if it has joined; return the Machine's path."""
        path = f"{self.capi}/machines/{member.name}"
        self.management_api.put(path, document(member, self.version))
        if known is not None:
            self.ledger(member, known)
        if node and member.node_ref_name:
            self.workload_api.put(self.node_path(member), {"spec": {"providerID": member.provider_id}})
        return path

    def joined(self, member: MachineView, **changes: object) -> str:
        """Create a Machine that has joined; ``changes`` are ``node_attested_kit.ledger``'s."""
        return self.machine(member, ledger(member, **changes))  # pyright: ignore[reportArgumentType]

    def ledger(self, member: MachineView, known: Attestation) -> None:
        self.management_api.put(f"{OWN}/machineattestations/{known.name}", record(member, known))

    def pool(self, *members: MachineView) -> str:
        path = f"{self.capi}/machinepools/pool"
        meta: JsonObject = {"name": "pool", "uid": "p-0"}
        spec: JsonObject = {"clusterName": "c", "providerIDList": [one.provider_id for one in members]}
        api_version = f"cluster.x-k8s.io/{self.version}"
        body: JsonObject = {"apiVersion": api_version, "kind": "MachinePool", "metadata": meta, "spec": spec}
        self.management_api.put(path, body)
        for member in members:
            self.ledger(member, ledger(member))
        return path

    def node_path(self, member: MachineView) -> str:
        return f"/api/v1/nodes/{member.name}"

    def taints(self, member: MachineView) -> list[str]:
        node = self.workload_api.objects[self.node_path(member)]
        return [text(taint, "value") for taint in items(node, "spec", "taints")]

    # What it says

    def shown(self, path: str) -> JsonObject:
        status = mapping(self.management_api.objects[path], "status")
        return dict(condition(items(status, "conditions"), "NodeAttested") or {})

    def said(self, path: str) -> tuple[str, str]:
        found = self.shown(path)
        return text(found, "status"), text(found, "reason")

    def of_ledger(self, known: Attestation, *path: str) -> str:
        return text(self.management_api.objects[f"{OWN}/machineattestations/{known.name}"], "spec", *path)

    def refusals(self, known: Attestation) -> set[tuple[str, str]]:
        """Return the refused requests that a MachineAttestation has: requester and reason."""
        found = parse_refusals(self.management_api.objects[f"{OWN}/machineattestations/{known.name}"])
        return {(str(one.requester), one.reason) for one in found}

    def told(self) -> list[str]:
        return self.management_api.events()

    def writes(self) -> list[str]:
        """Name what was written, Events apart: the last part of each path but ``status``."""
        calls = [*self.management_api.calls, *self.workload_api.calls]
        written = [path for method, path in calls if method in {"PATCH", "PUT", "DELETE"}]
        return [path.removesuffix("/status").rpartition("/")[2] for path in written]

    # Time

    async def settle(self) -> None:
        for _turn in range(400):
            await asyncio.sleep(0)

    async def resync(self, seconds: float = 0.0) -> None:
        self.seconds += seconds
        await self.settle()
        await self.reconciler.reconcile()
        await self.settle()

    @asynccontextmanager
    async def running(self) -> AsyncGenerator[NodeAttestedWorld]:
        async with cache_running(self.management), tasks(self.reconciler.run()):
            await self.settle()
            yield self
