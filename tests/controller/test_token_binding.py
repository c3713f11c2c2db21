"""Identity rule 4: a bootstrap token is worth the machine whose bootstrap configuration names it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from builders import make_member, make_request

from nodeattest_controller.model.issuance_rules import bound_group
from nodeattest_controller.model.machine_view import (
    ContractReference,
    MachineView,
)
from nodeattest_controller.model.policy import TokenBinding
from nodeattest_controller.model.token_binding import (
    NamedTokens,
    asking_token,
    check_token_binding,
    check_token_named,
    named_tokens,
)
from nodeattest_parsing.values import JsonObject, JsonValue
from nodeattest_providers.errors import Denied, Reason, Unavailable

GROUP = "bootstrap.cluster.x-k8s.io"
REF = ContractReference(GROUP, "KubeadmConfig", "node-0", "v1beta1")
MEMBER = make_member(bootstrap=REF)
SECRET = "0123456789abcdef"
REQUIRED, PREFERRED, OFF = TokenBinding.REQUIRED, TokenBinding.PREFERRED, TokenBinding.OFF


def config(token: JsonValue = f"abcdef.{SECRET}", **parts: JsonValue) -> JsonObject:
    discovery: JsonObject = {"bootstrapToken": {"token": token}, **parts}
    return {"metadata": {"name": "node-0"}, "spec": {"joinConfiguration": {"discovery": discovery}}}


def named(*ids: str, settled: bool = True, by_file: bool = False) -> NamedTokens:
    return NamedTokens(frozenset(ids), settled, by_file)


def refused(token_id: str, found: NamedTokens | None, binding: TokenBinding) -> Denied:
    with pytest.raises(Denied) as denied:
        check_token_named(token_id, MEMBER, found, binding)
    return denied.value


@pytest.mark.parametrize("binding", [REQUIRED, PREFERRED])
def test_any_other_token_is_denied_wherever_one_is_named(binding: TokenBinding) -> None:
    denied = refused("fedcba", named("abcdef"), binding)
    assert denied.reason is Reason.TOKEN_NOT_THIS_MACHINES
    assert "abcdef" in denied.expected
    assert "abcdef" not in denied.remedy  # which every holder of a token reads
    check_token_named("fedcba", MEMBER, named("abcdef"), OFF)


SETTLED: JsonObject = {"status": {"initialization": {"dataSecretCreated": True}}}


@pytest.mark.parametrize("discovery", [None, {}, {"bootstrapToken": {}}, {"bootstrapToken": {"token": ""}}])
def test_a_token_that_the_bootstrap_provider_never_named_is_denied_with_the_machine_to_be_deleted(
    discovery: JsonObject | None,
) -> None:
    join: JsonObject = {} if discovery is None else {"discovery": discovery}
    found = named_tokens({"spec": {"joinConfiguration": join}, **SETTLED})
    denied = refused("abcdef", found, REQUIRED)
    assert denied.reason is Reason.TOKEN_NOT_NAMED
    assert denied.got == "one that has bootstrap data, but names no token"
    assert denied.remedy == "delete the Machine, so that its MachineSet or control plane makes another"
    check_token_named("abcdef", MEMBER, found, PREFERRED)
    with pytest.raises(Denied) as of_pool:
        check_token_named("abcdef", make_member(kind="MachinePool", bootstrap=REF), found, REQUIRED)
    assert "new KubeadmConfig" in of_pool.value.remedy


def test_a_configuration_that_is_not_written_yet_is_waited_for() -> None:
    with pytest.raises(Unavailable, match=Reason.BOOTSTRAP_CONFIG_UNREADABLE):
        check_token_named("abcdef", MEMBER, named(settled=False), REQUIRED)
    assert refused("abcdef", named("fedcba", settled=False), REQUIRED).reason is Reason.TOKEN_NOT_THIS_MACHINES


@pytest.mark.parametrize("member", [make_member(), make_member(bootstrap=ContractReference(GROUP, "RKE2Config", "x"))])
def test_what_stands_in_the_place_of_a_kubeadm_config_is_said(member: MachineView) -> None:
    with pytest.raises(Denied, match=r"no reference|RKE2Config") as denied:
        check_token_named("abcdef", member, None, REQUIRED)
    assert denied.value.reason is Reason.TOKEN_NOT_NAMED


@pytest.mark.parametrize(
    ("told", "ids"),
    [
        (config(), {"abcdef"}),
        (config(tlsBootstrapToken=f"tlstls.{SECRET}"), {"abcdef", "tlstls"}),
        (config("", file={"kubeConfigPath": "/x"}, tlsBootstrapToken=f"tlstls.{SECRET}"), {"tlstls"}),
        ({"spec": {"initConfiguration": {"bootstrapTokens": [{"token": f"initin.{SECRET}"}]}}}, {"initin"}),
        ({"spec": {"joinConfiguration": {}}}, set[str]()),
        ({"spec": "nonsense"}, set[str]()),
        ({}, set[str]()),
    ],
)
def test_each_place_in_which_a_configuration_names_a_token_counts(told: JsonObject, ids: set[str]) -> None:
    found = named_tokens(told)
    assert found.ids == ids
    assert SECRET not in repr(found)


def test_only_bootstrap_tokens_are_asked_for_and_our_own_group_binds_already() -> None:
    assert asking_token(make_request(username="system:bootstrap:abcdef"), MEMBER) == "abcdef"
    assert asking_token(make_request(username="system:node:node-0"), MEMBER) is None
    asked = make_request(username="system:bootstrap:abcdef")
    mine, other = (bound_group("fleet/c", f"sandbox://{name}") for name in ("node-0", "node-1"))
    assert asking_token(replace(asked, groups=asked.groups | {mine}), MEMBER) is None
    assert asking_token(replace(asked, groups=asked.groups | {other}), MEMBER) == "abcdef"


async def test_a_record_s_own_token_is_the_one_that_it_names() -> None:
    record = make_member(kind="MachineRecord", bootstrap_token_id="abcdef")

    async def never(_machine: MachineView, _token_id: str) -> NamedTokens:
        raise AssertionError("a record has no KubeadmConfig")

    own, stolen = (make_request(username=f"system:bootstrap:{token}") for token in ("abcdef", "fedcba"))
    for binding in (REQUIRED, PREFERRED):
        await check_token_binding(own, record, binding, never)
        with pytest.raises(Denied, match=Reason.TOKEN_NOT_THIS_MACHINES):
            await check_token_binding(stolen, record, binding, never)
    assert asking_token(stolen, make_member(kind="MachineRecord")) is None
    assert asking_token(make_request(username="system:node:node-0"), record) is None


# A token that is bound to a machine is worth this machine and no other


def test_the_vector_of_the_wire_format_page_is_the_codes() -> None:
    page = (Path(__file__).parents[2] / "docs" / "wire-format.md").read_text()
    assert f"`{bound_group('fleet/blue', 'metal://rack-1/7')}`" in page
