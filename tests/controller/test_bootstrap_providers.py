"""Machines of Talos, RKE2, k3s and MicroK8s, in their own formats: known, left alone, never admitted."""

from __future__ import annotations

import pytest
from builders import make_member, make_request

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
PREFIXES = sorted(BOOTSTRAP_PROVIDERS)


@pytest.mark.parametrize("prefix", PREFIXES)
def test_each_kind_of_a_provider_is_known_in_its_own_group_only(prefix: str) -> None:
    provider = BOOTSTRAP_PROVIDERS[prefix]
    for group, kinds in ((BOOTSTRAP, ("Config", "ConfigTemplate")), (CONTROL_PLANE, ("ControlPlane",))):
        for kind in kinds:
            assert provider_of_kind(group, prefix + kind) is provider
            assert provider_of_kind("example.com", prefix + kind) is None
            assert provider_of_kind(group, f"My{prefix}{kind}") is None
    assert provider_of_kind(BOOTSTRAP, f"{prefix}ControlPlane") is None


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

    with pytest.raises(Denied, match=Reason.TOKEN_NOT_NAMED) as denied:
        await check_token_binding(make_request(), member, TokenBinding.REQUIRED, never)
    assert denied.value.got == f"a {prefix}Config of {BOOTSTRAP}"
