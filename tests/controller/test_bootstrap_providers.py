"""Machines of Talos, RKE2, k3s and MicroK8s, in their own formats: known, left alone, never admitted."""

from __future__ import annotations

import base64
from datetime import UTC, datetime

import pytest
from builders import make_member, make_request

from nodeattest_controller.controllers.bootstrap_token.decide import token_of
from nodeattest_controller.model.bootstrap_providers import (
    BOOTSTRAP_PROVIDERS,
    control_plane_provider,
    provider_of_kind,
)
from nodeattest_controller.model.machine_view import bootstrap_config_ref
from nodeattest_controller.model.policy import TokenBinding
from nodeattest_controller.model.token_binding import NamedTokens, check_token_binding
from nodeattest_kube.jsontypes import JsonObject
from nodeattest_providers.errors import Denied, Reason

BOOTSTRAP, CONTROL_PLANE = "bootstrap.cluster.x-k8s.io", "controlplane.cluster.x-k8s.io"
NOW = datetime(2026, 5, 4, 12, 0, tzinfo=UTC)
PREFIXES = sorted(BOOTSTRAP_PROVIDERS)


def secret(name: str, data: dict[str, str], kind: str = "cluster.x-k8s.io/secret") -> JsonObject:
    encoded: JsonObject = {key: base64.b64encode(value.encode()).decode() for key, value in data.items()}
    meta: JsonObject = {"name": name, "namespace": "kube-system", "uid": "s-0", "resourceVersion": "1"}
    return {"type": kind, "metadata": meta, "data": encoded}


@pytest.mark.parametrize("prefix", PREFIXES)
def test_each_kind_of_a_provider_is_known_in_its_own_group_only(prefix: str) -> None:
    provider = BOOTSTRAP_PROVIDERS[prefix]
    for group, kinds in ((BOOTSTRAP, ("Config", "ConfigTemplate")), (CONTROL_PLANE, ("ControlPlane",))):
        for kind in kinds:
            assert provider_of_kind(group, prefix + kind) is provider
            assert provider_of_kind("example.com", prefix + kind) is None
            assert provider_of_kind(group, f"My{prefix}{kind}") is None
    assert provider_of_kind(BOOTSTRAP, f"{prefix}ControlPlane") is None


@pytest.mark.parametrize("kind", ["Kubeadm", "Ck8s", ""])
def test_kubeadms_kinds_and_unknown_ones_are_nobodys_here(kind: str) -> None:
    assert provider_of_kind(BOOTSTRAP, f"{kind}Config") is None
    assert provider_of_kind(CONTROL_PLANE, f"{kind}ControlPlane") is None


@pytest.mark.parametrize(
    "reference",
    [
        {"apiVersion": f"{CONTROL_PLANE}/v1beta1", "kind": "RKE2ControlPlane", "name": "blue", "namespace": "fleet"},
        {"apiGroup": CONTROL_PLANE, "kind": "RKE2ControlPlane", "name": "blue"},
    ],
)
def test_a_clusters_control_plane_says_whose_it_is_in_both_contracts(reference: JsonObject) -> None:
    provider = control_plane_provider({"spec": {"controlPlaneRef": reference}})
    assert provider is BOOTSTRAP_PROVIDERS["RKE2"]
    assert control_plane_provider({"spec": {}}) is None


@pytest.mark.parametrize("prefix", PREFIXES)
@pytest.mark.parametrize("versioned", [True, False])
async def test_a_token_opens_no_machine_of_another_provider(prefix: str, versioned: bool) -> None:
    names: JsonObject = {"apiVersion": f"{BOOTSTRAP}/v1beta1"} if versioned else {"apiGroup": BOOTSTRAP}
    config: JsonObject = {**names, "kind": f"{prefix}Config", "name": "blue-w-0"}
    spec: JsonObject = {"bootstrap": {"configRef": config, "dataSecretName": "blue-w-0"}}
    member = make_member(bootstrap=bootstrap_config_ref({"spec": spec}))

    async def never(*_: object) -> NamedTokens:
        raise AssertionError("nothing of another provider is read")

    with pytest.raises(Denied) as denied:
        await check_token_binding(make_request(), member, TokenBinding.REQUIRED, never)
    assert denied.value.reason is Reason.TOKEN_NOT_NAMED
    assert denied.value.got == f"a {prefix}Config of {BOOTSTRAP}"


@pytest.mark.parametrize(
    "stored",
    [
        secret(
            "bootstrap-token-abc123",  # Talos: one for all machines, without an end
            {
                "token-id": "abc123",
                "token-secret": "0123456789abcdef",
                "auth-extra-groups": "system:bootstrappers:nodes",
                "usage-bootstrap-authentication": "true",
            },
            "bootstrap.kubernetes.io/token",
        ),
        secret("blue-token", {"value": "9f86d081884c7d65"}),  # RKE2, k3s
        secret("blue-jointoken", {"value": "0123456789abcdef0123456789abcdef"}),  # MicroK8s
        secret("blue-w-0-bootstrap-data", {"value": "version: v1alpha1\n"}),  # Talos
        secret("blue-w-0", {"value": "## template: jinja\n#cloud-config\n", "format": "cloud-config"}),
    ],
    ids=lambda stored: str(stored["metadata"]["name"]),
)
def test_no_token_and_no_bootstrap_data_of_another_provider_is_ever_changed(stored: JsonObject) -> None:
    assert token_of(stored, NOW) is None
