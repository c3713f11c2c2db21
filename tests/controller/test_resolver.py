"""Which Machine a request belongs to, and which provider ID it must have: one law a test."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Any

import pytest
from builders import decide, make_member, make_request
from hypothesis import given
from hypothesis import strategies as st

from nodeattest_controller.controllers.csr.machine_checks import one_machine, one_provider_id, own_provider_id
from nodeattest_controller.model.attestation import new_attestation
from nodeattest_controller.model.infrastructure_kinds import KINDS, HostReference, InfrastructureKind, parse_expression
from nodeattest_controller.model.machine_view import ContractReference, MachineView
from nodeattest_controller.model.policy import InfrastructurePolicy, Policy, TokenBinding
from nodeattest_controller.model.resolver import (
    ExpectedProviderID,
    Infrastructure,
    expected_provider_id,
    host_names,
    platform_endorsement_keys,
)
from nodeattest_controller.verification.controller_facts import read_infrastructure
from nodeattest_parsing.values import JsonObject, JsonValue
from nodeattest_providers.errors import Denied, Reason, Unavailable
from nodeattest_providers.identifiers import (
    ANNOTATION_PROVIDER_ID,
    ANNOTATION_TPM_ENDORSEMENT_KEY,
    ProviderID,
    is_dns_name,
)
from nodeattest_providers.insecure.verifier import InsecureSigner
from nodeattest_providers.tpm.verifier import TpmSigner
from nodeattest_providers.verifier_interface import NodeRequest

REQUIRED = TokenBinding.REQUIRED
GROUP = "infrastructure.cluster.x-k8s.io"
METAL = KINDS[GROUP, "Metal3Machine"]
KEY, OTHER_KEY = "sha256:" + "0a" * 32, "sha256:" + "0b" * 32


def nameless(**changes: object) -> MachineView:
    """Return a Machine to which Cluster API has given no provider ID."""
    infra = ContractReference(GROUP, "Metal3Machine", "node-0")
    return make_member(**{"provider_id": ProviderID(""), "infra": infra, **changes})


def other(**changes: object) -> MachineView:
    return make_member(**{"name": "node-1", "uid": "m-1", **changes})


def metal(infra: JsonObject | None = None, host: JsonObject | None = None, **changes: object) -> Infrastructure:
    named: JsonObject = {"metadata": {"name": "node-0", "namespace": "fleet"}, **(infra or {})}
    there: JsonObject = {"metadata": {"name": "rack-1", "namespace": "fleet"}, **(host or {})}
    found = Infrastructure(kind=METAL, objects={"infra": named, "host": there}, host_counts=True)
    return replace(found, **changes)  # pyright: ignore[reportArgumentType] - the tests name real fields


# Selection


def select(
    request: NodeRequest, by_id: list[MachineView], by_token: list[MachineView], binding: TokenBinding = REQUIRED
) -> None:
    policy = Policy(name="p", attestors=frozenset(), lifetime=None, enforce=True, token_binding=binding)
    decide(one_machine, request, by_provider_id=by_id, by_token=by_token, policy=policy)


def check_id(expected: ExpectedProviderID) -> None:
    decide(own_provider_id, NO_ID, selected_machine=nameless(), expected_provider_id=expected)


@pytest.mark.parametrize("binding", [REQUIRED, TokenBinding.PREFERRED])
def test_token_and_provider_id_lead_to_the_same_machine(binding: TokenBinding) -> None:
    select(ITS_ID, [make_member()], [make_member()], binding)
    with pytest.raises(Denied, match=Reason.TOKEN_NOT_THIS_MACHINES) as refused:
        select(ITS_ID, [make_member()], [other(provider_id=ProviderID("sandbox://node-1"))], binding)
    assert "node-0" in refused.value.got
    assert "node-1" in refused.value.expected


def test_without_token_binding_the_provider_id_alone_selects() -> None:
    select(ITS_ID, [make_member()], [other(), other(name="node-2", uid="m-2")], TokenBinding.OFF)
    with pytest.raises(Denied, match=Reason.MACHINE_AMBIGUOUS):
        select(NO_ID, [], [other(), other(name="node-2", uid="m-2")], TokenBinding.OFF)


STATED: JsonObject = {"spec": {"providerID": "metal3://stated"}}
TOLD = ExpectedProviderID(ProviderID("x://1"), "a source")
PREFIX = ExpectedProviderID(ProviderID("byoh://host/"), "a source", is_prefix=True)
NO_ID, ITS_ID = make_request(provider_id=""), make_request()
RECORDED = nameless().with_provider_id("x://1", "a record")


@pytest.mark.parametrize(
    ("check", "reason"),
    [
        (lambda: select(NO_ID, [], [make_member(), other()]), Reason.MACHINE_AMBIGUOUS),
        (lambda: select(ITS_ID, [make_member(), other()], [make_member()]), Reason.MACHINE_AMBIGUOUS),
        (lambda: expected_provider_id(nameless(), metal(STATED)), Reason.MACHINE_AMBIGUOUS),
        (lambda: expected_provider_id(RECORDED, metal(STATED)), Reason.PROVIDER_ID_CHANGED),
        (lambda: check_id(PREFIX), Reason.PROVIDER_ID_REQUIRED),
        (lambda: platform_endorsement_keys(nameless(), SHARED, has_joined=False), Reason.ENDORSEMENT_KEY_UNTRUSTED),
    ],
)
def test_sources_that_contradict_each_other_are_refused(check: Callable[[], object], reason: Reason) -> None:
    with pytest.raises(Denied) as refused:
        check()
    assert (refused.value.reason, refused.value.annotations) == (reason, {})


def test_a_request_without_a_provider_id_is_told_which_it_is() -> None:
    with pytest.raises(Denied, match=Reason.PROVIDER_ID_REQUIRED) as refused:
        check_id(TOLD)
    assert refused.value.annotations == {ANNOTATION_PROVIDER_ID: "x://1"}


# Provider IDs


def test_the_first_source_of_a_provider_id_decides() -> None:
    stated = metal({"spec": {"providerID": "metal3://stated"}}, {"metadata": {}})
    own = expected_provider_id(make_member(provider_id_source="Machine spec.providerID"), stated)
    assert own == ExpectedProviderID(ProviderID("sandbox://node-0"), "Machine spec.providerID")
    second = expected_provider_id(nameless(), stated)
    assert second == ExpectedProviderID(ProviderID("metal3://stated"), "Metal3Machine spec.providerID")
    recorded = expected_provider_id(RECORDED, metal({"spec": {"providerID": "x://1"}}))
    assert recorded == ExpectedProviderID(ProviderID("x://1"), "a record")
    third = expected_provider_id(nameless(), metal())
    assert third is not None
    assert (third.value, third.is_prefix) == ("metal3://fleet/rack-1/node-0", False)
    assert METAL.provider_ids[0].source in third.source
    agreed = expected_provider_id(nameless(), metal({"spec": {"providerID": third.value}}))
    assert agreed == replace(third, source="Metal3Machine spec.providerID")
    assert expected_provider_id(nameless(), None) is None
    assert expected_provider_id(nameless(), metal(kind=InfrastructureKind())) is None


@pytest.mark.parametrize(
    ("suffix", "matches"),
    [("a", True), ("a-1", True), ("", False), ("a/b", False), ("A", False), ("a.b", False), ("a" * 64, False)],
)
def test_a_free_suffix_is_one_dns_label(suffix: str, matches: bool) -> None:
    expected = ExpectedProviderID(ProviderID("byoh://host/"), "s", is_prefix=True)
    assert expected.matches(f"byoh://host/{suffix}") is matches
    assert not expected.matches(f"byoh://host2/{suffix}")
    assert not expected.matches(suffix)


def test_a_certificate_that_cannot_be_renewed_waits_for_cluster_api() -> None:
    machine = nameless(is_confirmed=False)
    facts: dict[str, Any] = {"machine": machine, "attestation": new_attestation(machine)}
    with pytest.raises(Unavailable, match=Reason.MACHINE_NOT_READY):
        decide(one_provider_id, **facts, verifier=InsecureSigner())
    decide(one_provider_id, **facts, verifier=TpmSigner())


# Names and keys of host objects


def annotated(key: str) -> JsonObject:
    return {"metadata": {"name": "rack-1", "namespace": "fleet", "annotations": {ANNOTATION_TPM_ENDORSEMENT_KEY: key}}}


SHARED = metal(host=annotated(KEY), keys_of_several_hosts=frozenset({KEY}))


def test_a_host_object_gives_names_and_keys_only_where_the_policy_takes_them() -> None:
    found = metal(host=annotated(KEY))
    assert host_names(found) == {"BareMetalHost": ("rack-1",)}
    assert list(platform_endorsement_keys(nameless(), found, has_joined=False).values()) == [KEY]
    assert list(platform_endorsement_keys(nameless(), SHARED, has_joined=True).values()) == [KEY]
    both = platform_endorsement_keys(nameless(), metal(annotated(OTHER_KEY), annotated(KEY)), has_joined=False)
    assert sorted(both.values()) == [KEY, OTHER_KEY]
    ignored = replace(found, host_counts=False)
    assert host_names(ignored) == {}
    assert platform_endorsement_keys(nameless(), ignored, has_joined=False) == {}


# Expressions for provider IDs and references to host objects


def provider_id(source: str, infra: JsonObject) -> str:
    parsed = parse_expression(source, is_provider_id=True)
    assert parsed is not None
    return parsed.identifier({"infra": infra})


def test_an_expression_reads_items_of_lists() -> None:
    infra: JsonObject = {"status": {"addresses": [{"address": "10.0.0.7"}]}}
    assert provider_id("acme://{infra.status.addresses[0].address}", infra) == "acme://10.0.0.7"
    assert not provider_id("acme://{infra.status.addresses[1].address}", infra)


@pytest.mark.parametrize(
    "source",
    [
        "acme://{infra.spec.a}{infra.spec.b}",
        "acme://{infra.spec.a}-{infra.spec.b}",
        "byoh://{host.metadata.name}*",
        "{infra.spec.a}",
        "acme:{infra.spec.a}",
        "acme://{infra}",
        "acme://{cluster.metadata.name}",
        "acme://\u212a/{infra.spec.a}",
        "acme://" + "x" * 600,
    ],
)
def test_an_expression_that_could_give_one_id_for_two_machines_is_invalid(source: str) -> None:
    assert parse_expression(source, is_provider_id=True) is None


@pytest.mark.parametrize(
    "operand",
    ["", "A", "a/b", "a:b", "a b", "..", "a" * 254, True, 1.5, -1, None, ["a"], {"a": "b"}, "\u212a"],
)
def test_an_operand_that_is_no_dns_name_and_no_number_gives_no_provider_id(operand: JsonValue) -> None:
    infra: JsonObject = {"spec": {"a": operand, "b": "b"}}
    assert provider_id("acme://{infra.spec.a}/{infra.spec.b}", infra) == ""
    assert provider_id("acme://{infra.spec.b}/{infra.spec.a}", infra) == ""


NAMES = st.from_regex(r"[a-z0-9]([a-z0-9.-]{0,5}[a-z0-9])?", fullmatch=True).filter(is_dns_name)


@given(NAMES, NAMES, NAMES, NAMES)
def test_two_lists_of_operands_never_give_one_provider_id(a: str, b: str, c: str, d: str) -> None:
    for source in ("x://{infra.spec.a}/{infra.spec.b}", "x://{infra.spec.a}:{infra.spec.b}"):
        ids = {provider_id(source, {"spec": {"a": left, "b": right}}) for left, right in ((a, b), (c, d))}
        assert len(ids) == len({(a, b), (c, d)})


@given(st.text(max_size=80))
def test_any_text_is_an_expression_or_none(source: str) -> None:
    for is_provider_id in (True, False):
        parsed = parse_expression(source, is_provider_id=is_provider_id)
        assert parsed is None or parsed.source == source


HOST: JsonObject = dict.fromkeys(("metal3.io/BareMetalHost", f"{GROUP}/HetznerBareMetalHost"), "fleet/rack-1")
METAL3: JsonObject = {
    "metadata": {"name": "worker-1", "namespace": "fleet", "uid": "u-1", "annotations": HOST},
    "spec": {"address": "192.0.2.7", "port": 22, "pool": "p"},
}


@pytest.mark.parametrize(
    ("kind", "host", "expected"),
    [
        ("Metal3Machine", {"metadata": {"namespace": "fleet", "name": "rack-1"}}, "metal3://fleet/rack-1/worker-1"),
        ("HetznerBareMetalMachine", {"spec": {"serverID": 1234}}, "hcloud://bm-1234"),
        ("RemoteMachine", {}, "remote-machine://192.0.2.7:22"),
        ("ByoMachine", {"metadata": {"name": "host-7"}}, "byoh://host-7/"),
        ("KubevirtMachine", {}, "kubevirt://worker-1"),
        ("LXCMachine", {}, "lxc:///worker-1"),
    ],
)
def test_the_shipped_expressions_give_what_their_providers_set(kind: str, host: JsonObject, expected: str) -> None:
    found = KINDS[GROUP, kind]
    assert found.provider_ids[0].identifier({"infra": METAL3, "host": host}) == expected


THE_MACHINE: JsonObject = {"namespace": "fleet", "name": "worker-1"}
BYO_LABEL = "byoh.infrastructure.cluster.x-k8s.io/byomachine-name"
OWNER = "v1alpha1.tinkerbell.org/owner"
BACK_REFERENCES: dict[str, JsonObject] = {
    "Metal3Machine": {"spec": {"consumerRef": {"kind": "Metal3Machine", **THE_MACHINE}}},
    "HetznerBareMetalMachine": {"spec": {"consumerRef": {"kind": "HetznerBareMetalMachine", **THE_MACHINE}}},
    "TinkerbellMachine": {"metadata": {"labels": {f"{OWNER}Namespace": "fleet", f"{OWNER}Name": "worker-1"}}},
    "RemoteMachine": {"status": {"machineRef": THE_MACHINE}, "spec": {"pool": "p"}},
    "ByoMachine": {
        "status": {"machineRef": {"uid": "u-1", **THE_MACHINE}},
        "metadata": {"labels": {BYO_LABEL: "fleet.worker-1"}},
    },
}


def spoilt(value: JsonObject) -> Iterator[JsonObject]:
    """Give the value with another text, and with none, in each place where it has one."""
    for key, inner in value.items():
        others: Iterable[JsonValue] = spoilt(inner) if isinstance(inner, dict) else ("another", "")
        for other in others:
            yield {**value, key: other}


@pytest.mark.parametrize("kind", [kind for (_group, kind), found in KINDS.items() if found.host is not None])
def test_a_host_object_names_its_infrastructure_machine_in_full(kind: str) -> None:
    reference, host = KINDS[GROUP, kind].host, BACK_REFERENCES[kind]
    assert reference is not None
    assert reference.is_mutual({"infra": METAL3, "host": host})
    for other_host in (*spoilt(host), {}):
        assert not reference.is_mutual({"infra": METAL3, "host": other_host})


# Which host object counts for a Machine: in its namespace, or in one that the policy names

TINKERBELL: JsonObject = {
    "metadata": {"name": "tm-0", "namespace": "fleet", "owners": ["m-0"]},
    "spec": {"hardwareName": "hw-0"},
    "status": {"targetNamespace": "tinkerbell"},
}
HARDWARE: JsonObject = {
    "metadata": {
        "name": "hw-0",
        "namespace": "tinkerbell",
        "labels": {f"{OWNER}Namespace": "fleet", f"{OWNER}Name": "tm-0"},
    }
}
REMOTE: JsonObject = {"metadata": TINKERBELL["metadata"], "spec": {"pool": "p"}}
POOLED: JsonObject = {
    "metadata": {"name": "hw-0", "namespace": "tinkerbell"},
    "spec": {"pool": "p"},
    "status": {"machineRef": {"namespace": "fleet", "name": "tm-0"}},
}


class Objects:
    """All objects, wherever they are asked for."""

    async def get(self, reference: ContractReference, namespace: str) -> JsonObject:
        del namespace
        return {"TinkerbellMachine": TINKERBELL, "RemoteMachine": REMOTE}.get(reference.kind, HARDWARE)

    async def consumers(self, host: HostReference, consumer: str) -> list[JsonObject]:
        del host, consumer
        return [POOLED]

    async def holders_of_key(self, reference: ContractReference, fingerprint: str) -> list[str]:
        raise NotImplementedError


@pytest.mark.parametrize("namespaces", [frozenset[str](), frozenset({"tinkerbell"})])
@pytest.mark.parametrize(
    ("kind", "host"), [("TinkerbellMachine", "Hardware"), ("RemoteMachine", "PooledRemoteMachine")]
)
async def test_a_host_object_elsewhere_counts_only_where_the_policy_says_so(
    namespaces: frozenset[str], kind: str, host: str
) -> None:
    machine = make_member(uid="m-0", namespace="fleet", infra=ContractReference(GROUP, kind, "tm-0"))
    policy = InfrastructurePolicy(host_objects=frozenset({host}), host_namespaces=namespaces)
    if not namespaces:
        with pytest.raises(Unavailable, match=r"hostNamespaces|in a namespace that counts"):
            await read_infrastructure(machine, policy, Objects())
        return
    found = await read_infrastructure(machine, policy, Objects())
    assert found is not None
    assert found.host_counts
