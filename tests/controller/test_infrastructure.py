"""Which host object counts for a Machine: in its namespace, or in one that the policy names."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import pytest
from builders import make_member

from nodeattest_controller.model.infrastructure_kinds import HostReference
from nodeattest_controller.model.machine_view import ContractReference
from nodeattest_controller.model.policy import InfrastructurePolicy
from nodeattest_controller.verification.controller_facts import read_infrastructure
from nodeattest_parsing.values import JsonObject
from nodeattest_providers.errors import Unavailable

GROUP: Final = "infrastructure.cluster.x-k8s.io"
OWNER: Final = "v1alpha1.tinkerbell.org"
INFRA: JsonObject = {
    "metadata": {"name": "tm-0", "namespace": "fleet", "owners": ["m-0"]},
    "spec": {"hardwareName": "hw-0"},
    "status": {"targetNamespace": "tinkerbell"},
}
HOST: JsonObject = {
    "metadata": {
        "name": "hw-0",
        "namespace": "tinkerbell",
        "labels": {f"{OWNER}/ownerNamespace": "fleet", f"{OWNER}/ownerName": "tm-0"},
    }
}


@dataclass(frozen=True)
class Objects:
    """Both objects, wherever they are asked for."""

    async def get(self, reference: ContractReference, namespace: str) -> JsonObject:
        del namespace
        return INFRA if reference.kind == "TinkerbellMachine" else HOST

    async def consumers(self, host: HostReference, consumer: str) -> list[JsonObject]:
        raise NotImplementedError

    async def holders_of_key(self, reference: ContractReference, fingerprint: str) -> list[str]:
        raise NotImplementedError


@pytest.mark.parametrize("namespaces", [frozenset[str](), frozenset({"tinkerbell"})])
async def test_a_host_object_elsewhere_counts_only_where_the_policy_says_so(namespaces: frozenset[str]) -> None:
    machine = make_member(uid="m-0", namespace="fleet", infra=ContractReference(GROUP, "TinkerbellMachine", "tm-0"))
    policy = InfrastructurePolicy(host_objects=frozenset({"Hardware"}), host_namespaces=namespaces)
    if not namespaces:
        with pytest.raises(Unavailable, match="hostNamespaces"):
            await read_infrastructure(machine, policy, Objects())
        return
    found = await read_infrastructure(machine, policy, Objects())
    assert found is not None
    assert found.host_counts
