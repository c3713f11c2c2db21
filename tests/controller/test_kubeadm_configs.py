"""KubeadmConfigs are read until their watch runs, and again where it has no good answer: what cannot be read lets
nobody pass."""

from __future__ import annotations

import time
from asyncio import Task, TaskGroup
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from builders import make_member, make_request
from polling import until

from nodeattest_controller.model.infrastructure_kinds import BOOTSTRAP_PROVIDERS, provider_of_kind
from nodeattest_controller.model.machine_view import (
    ContractReference,
    MachineView,
    bootstrap_config_ref,
    view_of_machine,
)
from nodeattest_controller.model.policy import TokenBinding
from nodeattest_controller.model.token_binding import NamedTokens, check_token_binding
from nodeattest_controller.runtime.indexes import Inventory, cluster_key
from nodeattest_controller.runtime.informers import StartWatch
from nodeattest_controller.runtime.kubeadm_configs import KubeadmConfigs
from nodeattest_kube import client as paths
from nodeattest_kube.client import WATCH_SECONDS, ApiClient
from nodeattest_kube.reflector import Reflector
from nodeattest_parsing.values import JsonObject
from nodeattest_providers.errors import Denied, Reason, Unavailable
from nodeattest_sandbox.apiserver.jsonvalue import JsonMap, JsonValue
from nodeattest_sandbox.control_plane import ControlPlane

GROUP = "bootstrap.cluster.x-k8s.io"
PATH = f"/apis/{GROUP}/v1beta1/namespaces/default/kubeadmconfigs"
TOKEN = "abcdef.0123456789abcdef"
REQUIRED = TokenBinding.REQUIRED


def config(token: str) -> JsonMap:
    return {"joinConfiguration": {"discovery": {"bootstrapToken": {"token": token}}}}


def written(plane: ControlPlane, name: str, token: str = TOKEN, version: str = "") -> MachineView:
    """Write a KubeadmConfig; returns the Machine that has it."""
    meta: JsonValue = {"name": name}
    body: JsonMap = {"apiVersion": f"{GROUP}/v1beta1", "kind": "KubeadmConfig", "metadata": meta, "spec": config(token)}
    plane.client().create(PATH, body)
    return member_of(name, version)


def member_of(name: str, version: str = "v1beta1", kind: str = "KubeadmConfig") -> MachineView:
    return make_member(namespace="default", uid=f"uid-{name}", bootstrap=ContractReference(GROUP, kind, name, version))


def pool_of(member: MachineView) -> JsonObject:
    """Write a MachinePool that lists the machine and has a member's configuration."""
    reference: JsonObject = {"apiVersion": f"{GROUP}/v1beta1", "kind": "KubeadmConfig"}
    reference["name"] = member.bootstrap.name if member.bootstrap else ""
    template: JsonObject = {"spec": {"clusterName": "c", "bootstrap": {"configRef": reference}}}
    return {
        "apiVersion": "cluster.x-k8s.io/v1beta1",
        "kind": "MachinePool",
        "metadata": {"name": "pool", "namespace": "default", "uid": "p-0"},
        "spec": {"clusterName": "c", "providerIDList": ["sandbox://node-0"], "template": template},
    }


def pools_machine() -> JsonObject:
    """Write what Cluster API makes for an instance of a pool."""
    owner: JsonObject = {"apiVersion": "cluster.x-k8s.io/v1beta1", "kind": "MachinePool", "name": "pool", "uid": "p-0"}
    return {
        "apiVersion": "cluster.x-k8s.io/v1beta1",
        "kind": "Machine",
        "metadata": {"name": "pool-0", "namespace": "default", "uid": "m-0", "ownerReferences": [owner]},
        "spec": {"clusterName": "c", "providerID": "sandbox://node-0", "bootstrap": {"dataSecretName": ""}},
    }


def starts(
    client: ApiClient,
    clock: Callable[[], float] = time.monotonic,
    began: Callable[[Reflector, int], None] = lambda _reflector, _longest: None,
) -> StartWatch:
    """Return what starts a watch; ``began`` gets it, and how many seconds each connection lasts at most."""

    def start(
        group: str,
        version: str,
        resource: str,
        *,
        keep: Callable[[JsonObject], JsonObject],
        watch_seconds: tuple[int, int] = WATCH_SECONDS,
    ) -> Reflector:
        path = paths.collection_path(group, version, resource)
        reflector = Reflector(
            client,
            path,
            on_change=lambda _key, _object: None,
            transform=keep,
            watch_seconds=watch_seconds,
            clock=clock,
        )
        began(reflector, watch_seconds[1])
        return reflector

    return start


def unwatched(client: ApiClient) -> KubeadmConfigs:
    """Make the configurations of a controller whose watch shows nothing yet."""

    return KubeadmConfigs(client, starts(client))


async def check_token(
    plane: ControlPlane,
    member: MachineView,
    *,
    asks: str = "abcdef",
    kubeconfig: Path | None = None,
    binding: TokenBinding = REQUIRED,
) -> None:
    async with ApiClient.from_kubeconfig_file(kubeconfig or plane.admin_kubeconfig) as client:
        configs = unwatched(client)
        await check_token_binding(make_request(username=f"system:bootstrap:{asks}"), member, binding, configs.tokens_of)


def forbidden(plane: ControlPlane, binding: TokenBinding) -> tuple[MachineView, Path]:
    return written(plane, f"forbidden-{binding.lower()}"), plane.client_kubeconfig("nobody-in-particular")


def absent(plane: ControlPlane, _binding: TokenBinding) -> tuple[MachineView, Path]:
    return member_of("absent"), plane.admin_kubeconfig


def malformed(plane: ControlPlane, binding: TokenBinding) -> tuple[MachineView, Path]:
    return written(plane, f"malformed-{binding.lower()}", "no token at all"), plane.admin_kubeconfig


def no_version(plane: ControlPlane, _binding: TokenBinding) -> tuple[MachineView, Path]:
    return member_of("absent", "v9"), plane.admin_kubeconfig


def no_name(plane: ControlPlane, _binding: TokenBinding) -> tuple[MachineView, Path]:
    return member_of("../../secrets/x"), plane.admin_kubeconfig


def no_version_at_all(plane: ControlPlane, _binding: TokenBinding) -> tuple[MachineView, Path]:
    return member_of("absent", "v1beta1/"), plane.admin_kubeconfig


def down(plane: ControlPlane, _binding: TokenBinding) -> tuple[MachineView, Path]:
    elsewhere = plane.admin_kubeconfig.with_name("down.kubeconfig")
    elsewhere.write_text(plane.admin_kubeconfig.read_text().replace(plane.server, "https://127.0.0.1:1"))
    return member_of("absent"), elsewhere


@pytest.mark.parametrize("binding", [TokenBinding.REQUIRED, TokenBinding.PREFERRED])
@pytest.mark.parametrize("spoilt", [forbidden, absent, malformed, no_version, no_version_at_all, no_name, down])
async def test_a_configuration_that_cannot_be_read_lets_nobody_pass(
    plane: ControlPlane, spoilt: Callable[[ControlPlane, TokenBinding], tuple[MachineView, Path]], binding: TokenBinding
) -> None:
    member, kubeconfig = spoilt(plane, binding)
    with pytest.raises(Unavailable, match=Reason.BOOTSTRAP_CONFIG_UNREADABLE) as unreadable:
        await check_token(plane, member, kubeconfig=kubeconfig, binding=binding)
    assert "no token at all" not in str(unreadable.value)


async def test_a_machine_of_a_pool_asks_with_the_token_of_the_pool_that_lists_it(plane: ControlPlane) -> None:
    inventory, listing = Inventory(), pool_of(written(plane, "pooled"))
    cluster, mine = cluster_key("default", "c"), make_request(username="system:bootstrap:abcdef")
    machine = view_of_machine(pools_machine())

    async with ApiClient.from_kubeconfig_file(plane.admin_kubeconfig) as client:
        configs = unwatched(client)
        for binding in (REQUIRED, TokenBinding.PREFERRED):  # the pool does not list it yet
            with pytest.raises(Unavailable, match=Reason.BOOTSTRAP_CONFIG_UNREADABLE):
                await check_token_binding(mine, inventory.bootstrap_owner(cluster, machine), binding, configs.tokens_of)
        inventory.put_pool("default/pool", listing)
        await check_token_binding(mine, inventory.bootstrap_owner(cluster, machine), REQUIRED, configs.tokens_of)
        other = make_request(username="system:bootstrap:fedcba")
        with pytest.raises(Denied, match=Reason.TOKEN_NOT_THIS_MACHINES):
            await check_token_binding(other, inventory.bootstrap_owner(cluster, machine), REQUIRED, configs.tokens_of)
        inventory.put_pool("default/twin", listing)  # two pools that list it: whose it is nobody knows
        with pytest.raises(Unavailable):
            await check_token_binding(other, inventory.bootstrap_owner(cluster, machine), REQUIRED, configs.tokens_of)


@dataclass
class Watched:
    """KubeadmConfigs with a watch that runs."""

    configs: KubeadmConfigs
    plane: ControlPlane
    now: float = 0.0
    started: list[Reflector] = field(default_factory=list[Reflector])
    longest: int = 0
    """Seconds that its watch lasts at most."""

    def reads(self) -> int:
        return len([one for one in self.plane.requests() if one.resource == "kubeadmconfigs" and one.verb == "get"])

    async def passes(self, member: MachineView, asks: str = "abcdef") -> None:
        request = make_request(username=f"system:bootstrap:{asks}")
        await check_token_binding(request, member, REQUIRED, self.configs.tokens_of)

    async def shows(self, name: str, token_id: str) -> None:
        """Wait until the watch has a configuration with this token."""
        watch, key = self.started[0], f"default/{name}"
        await until(lambda: watch.synced and token_id in str(watch.get(key)), "the watch's event")


@asynccontextmanager
async def watched(plane: ControlPlane, kubeconfig: Path | None = None) -> AsyncGenerator[Watched]:
    async with ApiClient.from_kubeconfig_file(kubeconfig or plane.admin_kubeconfig) as client, TaskGroup() as tasks:
        running: list[Task[None]] = []

        def began(reflector: Reflector, longest: int) -> None:
            site.started.append(reflector)
            site.longest = longest
            running.append(tasks.create_task(reflector.run()))

        site = Watched(KubeadmConfigs(client, starts(client, lambda: site.now, began)), plane)
        yield site
        for task in running:
            task.cancel()


async def test_a_refusal_follows_a_read_and_a_token_that_was_replaced_passes_no_more(plane: ControlPlane) -> None:
    member = written(plane, "rotated")
    async with watched(plane) as site:
        await site.passes(member)
        await site.shows("rotated", "abcdef")
        before = site.reads()
        with pytest.raises(Denied):
            await site.passes(member, "fedcba")
        assert site.reads() == before + 1
        plane.client().patch(f"{PATH}/rotated", {"spec": config("fedcba.0123456789abcdef")})
        await site.passes(member, "fedcba")  # read, or watched by now: nobody is refused by what was true before
        await site.shows("rotated", "fedcba")
        with pytest.raises(Denied):
            await site.passes(member)
        plane.client().delete(f"{PATH}/rotated")
        await until(lambda: site.started[0].get("default/rotated") is None, "the watch's event")
        with pytest.raises(Unavailable):
            await site.passes(member, "fedcba")


# Machines of Talos, RKE2, k3s and MicroK8s, in their own formats: known, left alone, never admitted


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
