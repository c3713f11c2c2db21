"""A world without Cluster API: its cluster and its machines are records of ours."""

from __future__ import annotations

import base64
from typing import Final

from world import CLUSTER, NAMESPACE, OWN, World

from nodeattest_sandbox import fleet
from nodeattest_sandbox.apiserver.jsonvalue import JsonMap, JsonValue
from nodeattest_sandbox.swtpm import SoftwareTpm

RECORDS: Final = f"{OWN}/machinerecords"
_GROUP_VERSION: Final = "attestation.cluster.x-k8s.io/v1alpha1"
_LABELS: Final[JsonMap] = {"cluster.x-k8s.io/cluster-name": CLUSTER}


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

    def _make_cluster(self) -> JsonMap:
        fleet.create_namespace(self.admin, NAMESPACE)
        metadata: JsonMap = {"name": CLUSTER, "labels": {"site": "cellar"}}
        cluster = self.admin.create(
            f"{OWN}/clusterrecords",
            {"apiVersion": _GROUP_VERSION, "kind": "ClusterRecord", "metadata": metadata, "spec": {}},
        )
        pki = self.workload.pki
        pair = {"tls.crt": pki.ca_certificate.read_bytes(), "tls.key": pki.ca_key.read_bytes()}
        self._secret(f"{CLUSTER}-kubeconfig", value=self.workload.admin_kubeconfig.read_bytes())
        self._secret(f"{CLUSTER}-ca", **pair)
        return cluster

    def _secret(self, name: str, **data: bytes) -> None:
        encoded: JsonMap = {key: base64.b64encode(value).decode() for key, value in data.items()}
        metadata: JsonMap = {"name": name, "labels": _LABELS}
        body: JsonMap = {"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "data": encoded}
        self.admin.create(f"/api/v1/namespaces/{NAMESPACE}/secrets", body)
