"""Expressions for provider IDs and references to host objects."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nodeattest_controller.model.infrastructure_kinds import KINDS, Expression, parse_expression
from nodeattest_kube.jsontypes import JsonObject, JsonValue
from nodeattest_providers.identifiers import is_dns_name

GROUP = "infrastructure.cluster.x-k8s.io"


def provider_id(source: str) -> Expression:
    parsed = parse_expression(source, is_provider_id=True)
    assert parsed is not None
    return parsed


@pytest.mark.parametrize(
    "source",
    [
        "acme://{infra.spec.a}{infra.spec.b}",
        "acme://{infra.spec.a}-{infra.spec.b}",
        "acme://{infra.spec.a}.{infra.spec.b}",
        "byoh://{host.metadata.name}*",
        "{infra.spec.a}",
        "acme:{infra.spec.a}",
        "acme://{infra.spec.a}/*/x",
        "acme://{infra}",
        "acme://{infra.spec.a",
        "acme://{cluster.metadata.name}",
        "acme://{infra.spec.a|lower}",
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
    assert provider_id("acme://{infra.spec.a}/{infra.spec.b}").identifier({"infra": infra}) == ""
    assert provider_id("acme://{infra.spec.b}/{infra.spec.a}").identifier({"infra": infra}) == ""


NAMES = st.from_regex(r"[a-z0-9]([a-z0-9.-]{0,5}[a-z0-9])?", fullmatch=True).filter(is_dns_name)


@given(NAMES, NAMES, NAMES, NAMES)
def test_two_lists_of_operands_never_give_one_provider_id(a: str, b: str, c: str, d: str) -> None:
    for source in ("x://{infra.spec.a}/{infra.spec.b}", "x://{infra.spec.a}:{infra.spec.b}"):
        ids = {
            provider_id(source).identifier({"infra": {"spec": {"a": left, "b": right}}})
            for left, right in ((a, b), (c, d))
        }
        assert len(ids) == len({(a, b), (c, d)})


@given(st.text(max_size=80))
def test_any_text_is_an_expression_or_none(source: str) -> None:
    for is_provider_id in (True, False):
        parsed = parse_expression(source, is_provider_id=is_provider_id)
        assert parsed is None or parsed.source == source


METAL: JsonObject = {
    "metadata": {
        "name": "worker-1",
        "namespace": "fleet",
        "annotations": {
            "metal3.io/BareMetalHost": "fleet/rack-1",
            f"{GROUP}/HetznerBareMetalHost": "fleet/rack-1",
        },
    },
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
    assert found.provider_ids[0].identifier({"infra": METAL, "host": host}) == expected


def test_a_pooled_machine_without_an_address_has_that_of_its_host() -> None:
    infra: JsonObject = {"spec": {"port": 22, "pool": "p"}}
    host: JsonObject = {"spec": {"machine": {"address": "192.0.2.9", "port": 2222}}}
    values = [one.identifier({"infra": infra, "host": host}) for one in KINDS[GROUP, "RemoteMachine"].provider_ids]
    assert values == ["", "remote-machine://192.0.2.9:2222"]


def consumer(**changes: JsonValue) -> JsonObject:
    return {"spec": {"consumerRef": {"kind": "Metal3Machine", "namespace": "fleet", "name": "worker-1", **changes}}}


@pytest.mark.parametrize(
    ("host", "is_mutual"),
    [
        (consumer(), True),
        (consumer(kind="HetznerBareMetalMachine"), False),
        (consumer(namespace="other"), False),
        (consumer(namespace=""), False),
        (consumer(name="worker-2"), False),
        ({"spec": {}}, False),
        ({}, False),
    ],
)
def test_a_host_object_names_its_infrastructure_machine_in_turn(host: JsonObject, is_mutual: bool) -> None:
    reference = KINDS[GROUP, "Metal3Machine"].host
    assert reference is not None
    assert reference.is_mutual({"infra": METAL, "host": host}) is is_mutual


@pytest.mark.parametrize("annotation", ["other/rack-1", "fleet/", "/rack-1", "fleet/a/b", "fleet/Rack", "", "fleet"])
def test_a_host_in_another_namespace_than_its_provider_uses_is_none(annotation: str) -> None:
    reference = KINDS[GROUP, "Metal3Machine"].host
    assert reference is not None
    infra: JsonObject = {"metadata": {"annotations": {"metal3.io/BareMetalHost": annotation}}}
    key = reference.key({"infra": infra}, "fleet")
    assert key is None or (annotation, key.namespace, key.name) == ("fleet", "fleet", "fleet")
