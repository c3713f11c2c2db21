"""Bare metal without Cluster API: no CRD of its in the management cluster, the same controller and the same rules."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import pytest
from polling import eventually
from runbook import serials
from world import CLUSTER, NAMESPACE, OWN, Controller, World, built_world

from nodeattest_sandbox import fleet
from nodeattest_sandbox.apiserver.jsonvalue import JsonMap, JsonValue, maps_at, text_at
from nodeattest_sandbox.client import ApiRefusal
from nodeattest_sandbox.control_plane import StartControlPlane
from nodeattest_sandbox.swtpm import SoftwareTpm

FLAGS = ("--inventory", "MachineRecords", "--leader-elect", "false")


@pytest.fixture(scope="module")
def world(start_control_plane: StartControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RecordedWorld]:
    directory = tmp_path_factory.mktemp("recorded")
    with built_world(start_control_plane, directory, RecordedWorld, "recorded-") as built:
        yield built


@pytest.fixture(scope="module")
def controller(world: RecordedWorld) -> Iterator[Controller]:
    selector: JsonMap = {"matchLabels": {"site": "cellar"}}
    world.set_policy(authorizedAttestors=["tpm"], clusterSelector=selector, tokenBinding="Off")
    with world.controller(*FLAGS, log="records.log") as running:
        world.await_service(running)
        yield running


def stands(world: RecordedWorld, name: str) -> tuple[str, str]:
    """Return status and reason of NodeAttested."""
    conditions = list(maps_at(world.admin.get(f"{RECORDS}/{name}"), "status", "conditions"))
    return (text_at(conditions[0], "status"), text_at(conditions[0], "reason")) if conditions else ("", "")


@pytest.mark.swtpm
@pytest.mark.usefixtures("controller")
def test_a_recorded_machine_joins_renews_and_is_refused_when_its_record_is_gone(world: RecordedWorld) -> None:
    with pytest.raises(ApiRefusal, match="404"):
        world.admin.get("/apis/cluster.x-k8s.io")
    tpm = world.tpm("unit-1")
    record = world.record("unit-1", tpm=tpm, node="cellar-1")
    agent = world.agent("cellar-1", "tpm", provider_id="sandbox://unit-1", tcti=tpm.tcti)
    joined = agent.join(world.token())
    assert joined.returncode == 0, joined.stderr
    ledger = world.ledger("unit-1")
    assert text_at(ledger, "spec", "nodeName") == "cellar-1"
    assert text_at(ledger, "spec", "fingerprints", "tpm.ek") == tpm.endorsement_fingerprint()
    [owner] = maps_at(ledger, "metadata", "ownerReferences")
    assert (text_at(owner, "kind"), text_at(owner, "uid")) == ("MachineRecord", text_at(record, "metadata", "uid"))
    events = eventually(lambda: told(world, "unit-1", "NodeAttested"), what="the Event")  # of a burst's first node
    assert text_at(events[0], "involvedObject", "kind") == "MachineRecord"
    eventually(lambda: stands(world, "unit-1") == ("True", "Attested"), what="the condition of the record")
    renewed = agent.join(world.token(), "--renew")
    assert renewed.returncode == 0, renewed.stderr
    issued = serials(world)["unit-1"]
    assert len(issued) == 2
    world.admin.delete(f"{RECORDS}/unit-1")
    refused = agent.join(world.token(), "--renew", "--timeout", "20")
    assert refused.returncode != 0
    assert "MachineNotFound" in refused.stderr
    assert serials(world).get("unit-1", []) in ([], issued)  # nobody collects garbage beside an API server alone


def told(world: RecordedWorld, name: str, reason: str) -> list[JsonMap]:
    events = world.admin.list(f"/api/v1/namespaces/{NAMESPACE}/events")
    return [
        one for one in events if text_at(one, "involvedObject", "name") == name and text_at(one, "reason") == reason
    ]


# What needs no proof: with the insecure provider, so that a plain request will do


RECORDS: Final = f"{OWN}/machinerecords"
_GROUP_VERSION: Final = "attestation.cluster.x-k8s.io/v1alpha1"


class RecordedWorld(World):
    """Two control planes, the management one with our CRDs and no others."""

    def record(self, name: str, *, tpm: SoftwareTpm | None = None, node: str = "", **spec: JsonValue) -> JsonMap:
        """Create a MachineRecord, with the endorsement key's hash where the machine has a TPM."""
        key: JsonMap = {"endorsementKeyHash": tpm.endorsement_fingerprint()} if tpm else {}
        body: JsonMap = {
            "apiVersion": _GROUP_VERSION,
            "kind": "MachineRecord",
            "metadata": {"name": name},
            "spec": {
                "clusterName": CLUSTER,
                "providerID": f"sandbox://{name}",
                "nodeName": node or name,
                **key,
                **spec,
            },
        }
        return self.admin.create(RECORDS, body)

    def make_cluster(self) -> JsonMap:
        fleet.create_namespace(self.admin, NAMESPACE)
        metadata: JsonMap = {"name": CLUSTER, "labels": {"site": "cellar"}}
        cluster = self.admin.create(
            f"{OWN}/clusterrecords",
            {"apiVersion": _GROUP_VERSION, "kind": "ClusterRecord", "metadata": metadata, "spec": {}},
        )
        pki = self.workload.pki
        pair = {"tls.crt": pki.ca_certificate.read_bytes(), "tls.key": pki.ca_key.read_bytes()}
        self.keep_secret(f"{CLUSTER}-kubeconfig", value=self.workload.admin_kubeconfig.read_bytes())
        self.keep_secret(f"{CLUSTER}-ca", **pair)
        return cluster
