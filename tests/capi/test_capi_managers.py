"""What is made of the components of Cluster API's managers before they run as processes."""

from __future__ import annotations

import base64
from pathlib import Path

import pytest
from managers import COMPONENTS, deployment_of, found_managers, prepared

DOCUMENTS = """\
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: clusters.cluster.x-k8s.io, labels: {cluster.x-k8s.io/provider: cluster-api}}
spec:
  conversion:
    strategy: Webhook
    webhook:
      clientConfig: {service: {name: capi-webhook-service, namespace: capi-system, path: /convert}}
      conversionReviewVersions: [v1]
---
apiVersion: admissionregistration.k8s.io/v1
kind: MutatingWebhookConfiguration
metadata: {name: capi-mutating-webhook-configuration}
webhooks:
  - name: default.cluster.cluster.x-k8s.io
    clientConfig: {service: {name: capi-webhook-service, namespace: capi-system, path: /mutate-clusters}}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: capi-controller-manager, namespace: capi-system}
spec:
  template:
    spec:
      serviceAccountName: capi-manager
      containers:
        - name: manager
          args:
            - --leader-elect
            - --diagnostics-address=${CAPI_DIAGNOSTICS_ADDRESS:=:8443}
            - --feature-gates=MachinePool=${EXP_MACHINE_POOL:=true},ClusterTopology=${CLUSTER_TOPOLOGY:=false}
"""


def test_webhooks_are_called_on_loopback_by_the_path_of_their_service() -> None:
    definition, webhooks, _ = prepared(DOCUMENTS, "https://127.0.0.1:1", "pem")
    bundle = base64.b64encode(b"pem").decode()
    called = definition["spec"]["conversion"]["webhook"]["clientConfig"]
    assert called == {"url": "https://127.0.0.1:1/convert", "caBundle": bundle}
    called = webhooks["webhooks"][0]["clientConfig"]
    assert called == {"url": "https://127.0.0.1:1/mutate-clusters", "caBundle": bundle}


def test_definitions_get_the_label_by_which_clusterctl_finds_what_moves() -> None:
    definition, *_ = prepared(DOCUMENTS, "https://127.0.0.1:1", "pem")
    assert definition["metadata"]["labels"] == {
        "cluster.x-k8s.io/provider": "cluster-api",
        "clusterctl.cluster.x-k8s.io": "",
    }


def test_a_manager_gets_the_flags_of_its_deployment_but_those_of_its_place() -> None:
    namespace, account, arguments = deployment_of(prepared(DOCUMENTS, "https://127.0.0.1:1", "pem"))
    assert (namespace, account) == ("capi-system", "capi-manager")
    assert arguments == ["--feature-gates=MachinePool=true,ClusterTopology=true"]


def test_what_is_missing_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CAPI_ASSETS", raising=False)
    assert found_managers(tmp_path) == "CAPI_ASSETS names no folder with Cluster API's managers"
    monkeypatch.setenv("CAPI_ASSETS", str(tmp_path))
    (tmp_path / "clusterctl").touch()
    assert found_managers(tmp_path) == f"CAPI_ASSETS lacks {', '.join([*COMPONENTS, *COMPONENTS.values()])}"
