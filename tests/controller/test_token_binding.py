"""Identity rule 4: a bootstrap token is worth the machine whose bootstrap configuration names it.

KubeadmConfigs are read until their watch runs, and again where it has no good answer: what cannot be read lets nobody
pass.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from builders import decide, known, make_member, make_request
from fake_api import FakeApi
from management_kit import tasks
from polling import until

from nodeattest_controller.controllers.csr.machine_checks import own_token
from nodeattest_controller.model.bootstrap_providers import BOOTSTRAP_PROVIDERS, control_plane_provider
from nodeattest_controller.model.kubeadm_config import KeptConfig, bound_group, read_config
from nodeattest_controller.model.machine_view import ContractReference, MachineView, view_of_machine
from nodeattest_controller.model.policy import Policy, TokenBinding
from nodeattest_controller.runtime.indexes import Inventory, cluster_key
from nodeattest_controller.runtime.informers import InformerSet
from nodeattest_controller.runtime.references import KubeadmConfigs
from nodeattest_kube import paths
from nodeattest_kube.errors import ApiError, Forbidden, NotFound, Unreachable
from nodeattest_kube.reflector import Reflector
from nodeattest_parsing.values import JsonObject, JsonValue
from nodeattest_providers.errors import Denied, Reason, Unavailable

PATH = "/apis/bootstrap.cluster.x-k8s.io/v1beta1/namespaces/default/kubeadmconfigs"
TOKEN = "abcdef.0123456789abcdef"
GROUP = "bootstrap.cluster.x-k8s.io"
REF = ContractReference(GROUP, "KubeadmConfig", "node-0", "v1beta1")
MEMBER = make_member(bootstrap=REF)
SECRET = "0123456789abcdef"
REQUIRED, PREFERRED, OFF = TokenBinding


def config(token: JsonValue = f"abcdef.{SECRET}", **parts: JsonValue) -> JsonObject:
    discovery: JsonObject = {"bootstrapToken": {"token": token}, **parts}
    return {"metadata": {"name": "node-0"}, "spec": {"joinConfiguration": {"discovery": discovery}}}


def named(*ids: str, settled: bool = True) -> KeptConfig:
    return KeptConfig(ids=frozenset(ids), settled=settled)


def under(binding: TokenBinding) -> Policy:
    return Policy(name="p", attestors=frozenset(), lifetime=None, enforce=True, token_binding=binding)


def ask(token: str, found: KeptConfig | None, binding: TokenBinding, member: MachineView = MEMBER) -> None:
    """Ask with a token for a machine whose configuration names these."""

    async def tokens(_machine: MachineView, _token_id: str) -> KeptConfig:
        assert found is not None, "there is no KubeadmConfig"
        return found

    request = make_request(username=f"system:bootstrap:{token}")
    decide(own_token, request, machine=member, policy=under(binding), named_tokens=tokens)


def refused(
    token: str, found: KeptConfig | None, binding: TokenBinding = REQUIRED, member: MachineView = MEMBER
) -> Denied:
    with pytest.raises(Denied) as denied:
        ask(token, found, binding, member)
    return denied.value


@pytest.mark.parametrize("binding", [REQUIRED, PREFERRED])
def test_any_other_token_is_denied_wherever_one_is_named(binding: TokenBinding) -> None:
    denied = refused("fedcba", named("abcdef"), binding)
    assert denied.reason is Reason.TOKEN_NOT_THIS_MACHINES
    assert "abcdef" in denied.expected
    assert "abcdef" not in denied.remedy  # which every holder of a token reads
    ask("fedcba", named("abcdef"), OFF)


SETTLED: JsonObject = {"status": {"initialization": {"dataSecretCreated": True}}}


@pytest.mark.parametrize("discovery", [None, {}, {"bootstrapToken": {}}, {"bootstrapToken": {"token": ""}}])
def test_a_token_that_the_bootstrap_provider_never_named_is_denied_with_the_machine_to_be_deleted(
    discovery: JsonObject | None,
) -> None:
    join: JsonObject = {} if discovery is None else {"discovery": discovery}
    found = read_config({"spec": {"joinConfiguration": join}, **SETTLED})
    denied = refused("abcdef", found, REQUIRED)
    assert denied.reason is Reason.TOKEN_NOT_NAMED
    assert denied.got == "one that has bootstrap data, but names no token"
    assert denied.remedy == "delete the Machine, so that its MachineSet or control plane makes another"
    ask("abcdef", found, PREFERRED)
    of_pool = refused("abcdef", found, member=make_member(kind="MachinePool", bootstrap=REF))
    assert "new KubeadmConfig" in of_pool.remedy
    by_file: JsonObject = {"joinConfiguration": {"discovery": {"file": {"kubeConfigPath": "/x"}}}}
    assert "delete" not in refused("abcdef", read_config({"spec": by_file, **SETTLED})).remedy


def test_a_configuration_that_is_not_written_yet_is_waited_for() -> None:
    with pytest.raises(Unavailable, match=Reason.BOOTSTRAP_CONFIG_UNREADABLE):
        ask("abcdef", named(settled=False), REQUIRED)
    assert refused("abcdef", named("fedcba", settled=False), REQUIRED).reason is Reason.TOKEN_NOT_THIS_MACHINES


@pytest.mark.parametrize("member", [make_member(), make_member(bootstrap=ContractReference(GROUP, "RKE2Config", "x"))])
def test_what_stands_in_the_place_of_a_kubeadm_config_is_said(member: MachineView) -> None:
    denied = refused("abcdef", None, member=member)
    assert denied.reason is Reason.TOKEN_NOT_NAMED
    assert denied.got in {"no reference to a bootstrap configuration", f"a RKE2Config of {GROUP}"}


@pytest.mark.parametrize(
    ("told", "ids"),
    [
        (config(), {"abcdef"}),
        (config(tlsBootstrapToken=f"tlstls.{SECRET}"), {"abcdef", "tlstls"}),
        (config(tlsBootstrapToken="no token"), set[str]()),  # nor does the other one count
        (config("", file={"kubeConfigPath": "/x"}, tlsBootstrapToken=f"tlstls.{SECRET}"), {"tlstls"}),
        ({"spec": {"initConfiguration": {"bootstrapTokens": [{"token": f"initin.{SECRET}"}]}}}, {"initin"}),
        ({"spec": {"joinConfiguration": {}}}, set[str]()),
        ({"spec": "nonsense"}, set[str]()),
        ({}, set[str]()),
    ],
)
def test_each_place_in_which_a_configuration_names_a_token_counts(told: JsonObject, ids: set[str]) -> None:
    found = read_config(told)
    assert found.ids == ids
    assert SECRET not in repr(found)


def test_only_bootstrap_tokens_are_asked_for_and_our_own_group_binds_already() -> None:
    asked, node = make_request(username="system:bootstrap:abcdef"), make_request(username="system:node:node-0")
    mine, other = (bound_group("fleet/c", f"sandbox://{name}") for name in ("node-0", "node-1"))
    facts = {"machine": make_member(), "policy": under(REQUIRED)}
    for passes in (node, replace(asked, groups=asked.groups | {mine})):
        decide(own_token, passes, **facts)
    with pytest.raises(Denied, match=Reason.TOKEN_NOT_NAMED):
        decide(own_token, replace(asked, groups=asked.groups | {other}), **facts)


@pytest.mark.parametrize("binding", [REQUIRED, PREFERRED])
def test_a_record_s_own_token_is_the_one_that_it_names(binding: TokenBinding) -> None:
    record = make_member(kind="MachineRecord", bootstrap_token_id="abcdef")
    ask("abcdef", None, binding, record)
    assert refused("fedcba", None, binding, record).reason is Reason.TOKEN_NOT_THIS_MACHINES
    ask("fedcba", None, binding, make_member(kind="MachineRecord"))


def test_the_vector_of_the_wire_format_page_is_the_codes() -> None:
    page = (Path(__file__).parents[2] / "docs" / "wire-format.md").read_text()
    assert f"`{bound_group('fleet/blue', 'metal://rack-1/7')}`" in page


class Site(InformerSet):
    """A management cluster's KubeadmConfigs, and a watch of them once one was asked for."""

    def __init__(self) -> None:  # pyright: ignore[reportMissingSuperCall]
        self.api = FakeApi()
        self.configs = KubeadmConfigs(self.api, self)
        self.watches: list[Reflector] = []

    def follow(
        self,
        group: str,
        version: str,
        resource: str,
        keep: Callable[[JsonObject], JsonObject],
        watch_seconds: tuple[int, int] = (0, 0),
    ) -> Reflector:
        path = paths.collection_path(group, version, resource)
        self.watches.append(Reflector(self.api, path, on_change=lambda _key, _object: None, transform=keep))
        return self.watches[-1]

    def write(self, name: str, token: str = TOKEN) -> MachineView:
        """Write a KubeadmConfig; returns the Machine that has it."""
        self.api.put(f"{PATH}/{name}", {**config(token), "metadata": {}})
        return member_of(name)

    async def check(self, member: MachineView, asks: str = "abcdef", binding: TokenBinding = REQUIRED) -> None:
        request = make_request(username=f"system:bootstrap:{asks}")
        await own_token.run(known(request, machine=member, policy=under(binding), named_tokens=self.configs.tokens_of))

    async def shows(self, name: str, token_id: str) -> None:
        """Wait until the watch has a configuration with this token."""
        watch = self.watches[0]
        await until(lambda: watch.synced and token_id in str(watch.get(f"default/{name}")), "the watch's event")


def member_of(name: str, version: str = "v1beta1") -> MachineView:
    reference = ContractReference(GROUP, "KubeadmConfig", name, version)
    return make_member(namespace="default", uid=f"uid-{name}", bootstrap=reference)


@pytest.mark.parametrize(
    ("name", "version", "error"),
    [
        ("there", "v1beta1", Forbidden(403, "Forbidden", "no")),
        ("there", "v1beta1", Unreachable("down")),
        ("malformed", "v1beta1", None),
        ("absent", "v1beta1/", None),
        ("../../secrets/x", "v1beta1", None),
        ("there", "", NotFound(404, "NotFound", "the group is not served")),
    ],
)
async def test_a_configuration_that_cannot_be_read_lets_nobody_pass(
    name: str, version: str, error: ApiError | None
) -> None:
    site = Site()
    site.write("there")
    site.write("malformed", "no token at all")
    if error is not None:
        site.api.fail("GET", GROUP, error)
    with pytest.raises(Unavailable, match=Reason.BOOTSTRAP_CONFIG_UNREADABLE) as unreadable:
        await site.check(member_of(name, version), binding=PREFERRED)
    assert "no token at all" not in str(unreadable.value)


async def test_a_machine_of_a_pool_asks_with_the_token_of_the_pool_that_lists_it() -> None:
    site, inventory, cluster = Site(), Inventory(), cluster_key("default", "c")
    site.write("pooled")
    of_pool: JsonObject = {"apiVersion": "cluster.x-k8s.io/v1beta1", "kind": "MachinePool", "name": "pool"}
    reference: JsonObject = {"apiVersion": f"{GROUP}/v1beta1", "kind": "KubeadmConfig", "name": "pooled"}
    template: JsonObject = {"spec": {"clusterName": "c", "bootstrap": {"configRef": reference}}}
    listing: JsonObject = {
        **of_pool,
        "metadata": {"name": "pool", "namespace": "default", "uid": "p-0"},
        "spec": {"clusterName": "c", "providerIDList": ["sandbox://node-0"], "template": template},
    }
    machine = view_of_machine(
        {
            "apiVersion": "cluster.x-k8s.io/v1beta1",
            "kind": "Machine",
            "metadata": {"name": "pool-0", "namespace": "default", "ownerReferences": [{**of_pool, "uid": "p-0"}]},
            "spec": {"clusterName": "c", "providerID": "sandbox://node-0", "bootstrap": {"dataSecretName": ""}},
        }
    )
    with pytest.raises(Unavailable, match=Reason.BOOTSTRAP_CONFIG_UNREADABLE):  # the pool does not list it yet
        await site.check(inventory.bootstrap_owner(cluster, machine), binding=PREFERRED)
    inventory.put_pool("default/pool", listing)
    await site.check(inventory.bootstrap_owner(cluster, machine))
    with pytest.raises(Denied, match=Reason.TOKEN_NOT_THIS_MACHINES):
        await site.check(inventory.bootstrap_owner(cluster, machine), "fedcba")
    inventory.put_pool("default/twin", listing)  # two pools that list it: whose it is nobody knows
    with pytest.raises(Unavailable):
        await site.check(inventory.bootstrap_owner(cluster, machine), "fedcba")


async def test_a_refusal_follows_a_read_and_a_token_that_was_replaced_passes_no_more() -> None:
    site = Site()
    member = site.write("rotated")
    await site.check(member)
    async with tasks(site.watches[0].run()):
        await site.shows("rotated", "abcdef")
        before = site.api.count("GET", PATH)
        await site.check(member)
        assert site.api.count("GET", PATH) == before
        with pytest.raises(Denied):
            await site.check(member, "fedcba")
        assert site.api.count("GET", PATH) == before + 1
        site.write("rotated", "fedcba.0123456789abcdef")
        await site.check(member, "fedcba")  # read, or watched by now: nobody is refused by what was true before
        await site.shows("rotated", "fedcba")
        with pytest.raises(Denied):
            await site.check(member)
        site.api.remove(f"{PATH}/rotated")
        await until(lambda: site.watches[0].get("default/rotated") is None, "the watch's event")
        with pytest.raises(Unavailable):
            await site.check(member, "fedcba")


@pytest.mark.parametrize("kind", sorted(BOOTSTRAP_PROVIDERS))
def test_a_control_plane_is_known_by_its_kind_in_its_own_group_only(kind: str) -> None:
    for group, named in (("controlplane.cluster.x-k8s.io", kind), ("example.com", kind), (GROUP, f"My{kind}")):
        reference: JsonObject = {"apiGroup": group, "kind": named, "name": "blue"}
        found = control_plane_provider({"spec": {"controlPlaneRef": reference}})
        assert (found is BOOTSTRAP_PROVIDERS[kind]) is (group == "controlplane.cluster.x-k8s.io")
