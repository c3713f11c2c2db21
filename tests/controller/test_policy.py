"""The laws of NodeAttestationPolicy."""

from __future__ import annotations

import copy

import pytest
from builders import make_policy
from cel_rules import violations
from hypothesis import given
from hypothesis import strategies as st

from nodeattest_cli.policy.check import problems
from nodeattest_controller import manifests
from nodeattest_controller.model.policy import parse_attestation_policy, policy_for
from nodeattest_parsing.objects import items, mapping, text
from nodeattest_parsing.values import JsonObject, JsonValue
from nodeattest_providers.errors import Denied, Reason, Unavailable
from nodeattest_sandbox.apiserver import crd
from nodeattest_sandbox.apiserver.kinds import Kind


def policy(name: str = "p", **spec: JsonValue) -> JsonObject:
    body: JsonObject = {"authorizedAttestors": ["tpm"], **spec}
    return {"metadata": {"name": name, "namespace": "fleet"}, "spec": body}


def cluster(labels: dict[str, str] | None = None, **spec: JsonValue) -> JsonObject:
    meta: JsonObject = {"name": "c", "namespace": "fleet", "labels": dict(labels or {})}
    return {"metadata": meta, "spec": dict(spec)}


@pytest.mark.parametrize(
    ("joined", "enforcement", "ruling"),
    [
        ({"b": 1}, {}, "b"),
        ({"a": 2, "b": 1}, {}, "a"),
        ({"a": 1, "b": 1}, {}, None),
        ({"gone": 9}, {}, None),
        ({"a": 9, "b": 1}, {"a": "Audit", "b": "Enforce"}, None),
        ({"a": 9, "b": 1}, {"a": "Audit"}, None),
        ({"a": 9, "b": 1}, {"a": "Audit", "b": "Sometimes"}, None),
        ({"a": 9, "b": 1}, {"a": "Audit", "b": "Audit"}, "a"),
        ({"a": 9, "b": 1}, {"b": "Audit"}, "a"),
    ],
)
def test_of_two_policies_the_one_that_most_machines_joined_under_goes_on_unless_it_audits_alone(
    joined: dict[str, int], enforcement: dict[str, str], ruling: str | None
) -> None:
    both = [policy(name, enforcement=enforcement.get(name, "Enforce")) for name in ("a", "b")]
    if ruling is not None:
        assert policy_for(cluster(), both, recorded=lambda name: joined.get(name, 0)).name == ruling
        return
    with pytest.raises(Denied, match="a, b"):
        policy_for(cluster(), both, recorded=lambda name: joined.get(name, 0))


@pytest.mark.parametrize(
    ("selector", "labels", "selected"),
    [
        ({}, {}, True),
        ({"matchLabels": {"env": "prod"}}, {"env": "prod"}, True),
        ({"matchLabels": {"env": "prod"}}, {"env": "dev"}, False),
        ({"matchExpressions": [{"key": "env", "operator": "In", "values": ["a", "b"]}]}, {"env": "b"}, True),
        ({"matchExpressions": [{"key": "env", "operator": "In", "values": ["a", "b"]}]}, {}, False),
        ({"matchExpressions": [{"key": "env", "operator": "NotIn", "values": ["a"]}]}, {}, True),
        ({"matchExpressions": [{"key": "env", "operator": "Exists"}]}, {"env": ""}, True),
        ({"matchExpressions": [{"key": "env", "operator": "DoesNotExist"}]}, {"env": ""}, False),
        ({"matchExpressions": [{"key": "env", "operator": "Sometimes"}]}, {"env": ""}, False),
    ],
)
def test_selectors_select_as_in_kubernetes(selector: JsonValue, labels: dict[str, str], selected: bool) -> None:
    candidates = [policy(clusterSelector=selector)]
    if selected:
        assert policy_for(cluster(labels), candidates).name == "p"
    else:
        with pytest.raises(Unavailable):
            policy_for(cluster(labels), candidates)


def test_a_cluster_that_turned_kubelet_authentication_off_authorizes_nobody() -> None:
    ours = policy_for(cluster(security={"kubeletAuthentication": False, "authorizedAttestors": ["tpm"]}), [policy()])
    assert ours.attestors == frozenset()


@pytest.mark.parametrize(
    "spec",
    [
        {"serving": {"kubelet": "approve"}},
        {"serving": {"kubelet": None}},
        {"serving": {"attested": "Deny"}},
        {"serving": {"kubelt": "Approve"}},
        {"serving": "Approve"},
        {"infrastructure": []},
        {"infrastructure": {"hostObjects": ["Host"]}},
        {"infrastructure": {"shortNodeNames": "yes"}},
        {"infrastructure": {"providerIDs": [{"group": "g", "kind": "k", "expression": "{infra.spec.a}"}]}},
        {"providers": {"tpm": {}}},
        {"maxFailedShare": 101},
        {"tpm": {"pcrs": 1.5}},
        {"tpm": {"pcrs": [0] * 60_001}},
        {"clusterSelector": {"matchLabel": {"env": "prod"}}},
        {"clusterSelector": {"matchExpressions": [{"key": "env", "operator": "In"}]}},
        {"clusterSelector": {"matchExpressions": [{"key": "env", "operator": "Exists", "values": ["a"]}]}},
    ],
)
def test_a_section_that_nobody_understands_is_denied(spec: JsonObject) -> None:
    with pytest.raises(Denied, match=Reason.POLICY_INVALID):
        parse_attestation_policy({**policy(), "spec": spec})


# The CRD's CEL rules: an API server takes them, and they refuse what the controller would call invalid, no more


def policy_schema() -> JsonObject:
    for definition in manifests.crds():
        if text(definition, "spec", "names", "kind") == "NodeAttestationPolicy":
            return mapping(items(definition, "spec", "versions")[0], "schema", "openAPIV3Schema")
    raise AssertionError("no definition of NodeAttestationPolicy")


SCHEMA = policy_schema()
KIND = Kind("attestation.cluster.x-k8s.io", "v1alpha1", "nodeattestationpolicies", "NodeAttestationPolicy",
            custom=True, schema=SCHEMA)  # fmt: skip
EK, ZEROS = "sha256:" + "0a" * 32, "sha256:" + "0" * 64
AWS: JsonObject = {"accounts": ["123456789012"], "regions": ["us-east-1"], "roles": ["nodes"]}
PAIR: JsonValue = ["tpm", "aws"]


def selector(operator: str, *values: str) -> JsonValue:
    return {"matchExpressions": [{"key": "tier", "operator": operator, **({"values": [*values]} if values else {})}]}


def refused_by_server(policy: JsonObject) -> list[str]:
    """Answer as an API server: defaults, then schema and rules."""
    received = copy.deepcopy(policy)
    crd.apply(KIND, received)
    by_schema = [f"{cause.field}: {cause.message}" for cause in crd.validate(KIND, received)]
    return by_schema or list(violations(SCHEMA, received))


@pytest.mark.parametrize(
    "policy",
    [
        make_policy(authorizedAttestors=[]),
        make_policy(authorizedAttestors=["insecure"]),
        make_policy(authorizedAttestors=["tpm", "challenge"]),
        make_policy(certificateLifetime="8760h"),
        make_policy(certificateLifetime="8759h60m"),
        make_policy(clusterSelector=selector("In", "a")),
        make_policy(clusterSelector=selector("DoesNotExist")),
        make_policy(authorizedAttestors=["composite"], composite={"allOf": PAIR}, aws=AWS),
        make_policy(authorizedAttestors=["composite"], composite={"anyOf": [{"allOf": PAIR}]}, aws=AWS),
        make_policy(tpm={"endorsementKeys": [{"providerID": "a", "sha256": EK}]}),
        make_policy(tpm={"pcrs": {"selection": [0, 7], "values": {"7": ["ab" * 32]}}}),
        make_policy(tpm={"pcrs": {"bank": "sha384", "selection": [10], "values": {"10": ["ab" * 48]}}}),
        make_policy(gcp={"projects": ["my-project"], "pcrs": {"bank": "sha512", "values": {"0": ["ab" * 64]}}}),
        make_policy(providers={"acme": {"anything": 1}}),
        make_policy(enforcement="Audit", tokenBinding="Off", onFailure="Cordon", maxFailedShare=100),
    ],
    ids=lambda policy: str(mapping(policy, "spec")),
)
def test_a_good_policy_passes_the_server_and_the_offline_check(policy: JsonObject) -> None:
    assert refused_by_server(policy) == []
    assert list(problems(policy)) == []


@pytest.mark.parametrize(
    ("policy", "said"),
    [
        (make_policy(authorizedAttestors=["tpm", "insecure"]), "take insecure out"),
        (make_policy(authorizedAttestors=["null", "tpm"]), "take insecure out"),
        (make_policy(authorizedAttestors=["composite"]), "by allOf or anyOf"),
        (make_policy(certificateLifetime="59s"), "14 days are 336h"),
        (make_policy(certificateLifetime="8761h"), "14 days are 336h"),
        (make_policy(clusterSelector=selector("In")), "at least one of values"),
        (make_policy(clusterSelector=selector("Exists", "a")), "at least one of values"),
        (make_policy(composite={}), "either allOf or anyOf"),
        (make_policy(composite={"allOf": PAIR, "anyOf": [{"allOf": PAIR}]}), "either allOf or anyOf"),
        (make_policy(composite={"allOf": ["tpm", "insecure"]}), "out of allOf"),
        (make_policy(composite={"anyOf": [{"allOf": PAIR}, {"allOf": ["null", "aws"]}]}), "out of anyOf"),
        (make_policy(tpm={"endorsementKeys": [{"providerID": "a", "sha256": ZEROS}]}), "an example's zeros"),
        (make_policy(tpm={"pcrs": {"selection": [0], "values": {"7": ["ab" * 32]}}}), "select each register"),
        (make_policy(tpm={"pcrs": {"selection": [7], "values": {"07": ["ab" * 32]}}}), "select each register"),
        (make_policy(tpm={"pcrs": {"bank": "sha384", "values": {"0": ["ab" * 32]}}}), "hex digits"),
        (
            make_policy(gcp={"projects": ["my-project"], "pcrs": {"bank": "sha512", "values": {"0": ["ab" * 32]}}}),
            "hex digits",
        ),
        (make_policy(providers={"tpm": {}}), "its own section"),
    ],
    ids=lambda value: value if isinstance(value, str) else str(mapping(value, "spec")),
)
def test_a_rule_refuses_what_the_offline_check_refuses(policy: JsonObject, said: str) -> None:
    assert any(said in message for message in refused_by_server(policy)), refused_by_server(policy)
    assert list(problems(policy)), "the offline check finds nothing"


NAMES = st.lists(st.sampled_from(["tpm", "aws", "insecure", "null", "composite", "challenge"]), unique=True, max_size=3)
TIMES = st.from_regex(r"\A([0-9]{1,5}h)?([0-9]{1,6}m)?([0-9]{1,8}s)?\Z") | st.sampled_from(["1d", "1.5h", "-1h", "m"])
DIGESTS = st.sampled_from(["ab" * 32, "ab" * 48, "ab" * 64, "AB" * 32])
PCR_NAMES = st.sampled_from(["0", "7", "23", "24", "07", "x"])


@st.composite
def specs(draw: st.DrawFn) -> JsonObject:
    """Draw a spec whose fields are near the border between good and bad."""
    spec: JsonObject = {"authorizedAttestors": [*draw(NAMES)]}
    if draw(st.booleans()):
        spec["certificateLifetime"] = draw(TIMES)
    if draw(st.booleans()):
        operator, values = draw(st.sampled_from(["In", "NotIn", "Exists"])), draw(st.lists(st.just("a"), max_size=1))
        spec["clusterSelector"] = selector(operator, *values)
    if draw(st.booleans()):
        composite: JsonObject = {"allOf": [*draw(NAMES)]} if draw(st.booleans()) else {}
        if draw(st.booleans()):
            composite["anyOf"] = [{"allOf": [*draw(NAMES)]}]
        spec["composite"] = composite
    if draw(st.booleans()):
        spec["tpm"] = {"pcrs": draw(pcrs())}
    if draw(st.booleans()):
        spec["providers"] = {name: {} for name in draw(st.lists(st.sampled_from(["acme", "tpm"])))}
    if draw(st.booleans()):
        spec["maxFailedShare"] = draw(st.integers(-1, 101))
    return spec


@st.composite
def pcrs(draw: st.DrawFn) -> JsonObject:
    """Draw the registers of a policy; where values are listed, so is a selection, as its default is the provider's."""
    found: JsonObject = {"selection": [*draw(st.lists(st.integers(-1, 24), unique=True, max_size=3))]}
    if draw(st.booleans()):
        found["bank"] = draw(st.sampled_from(["sha256", "sha384", "sha512"]))
    if draw(st.booleans()):
        found["values"] = {name: [*draw(st.lists(DIGESTS, max_size=2))] for name in draw(st.lists(PCR_NAMES))}
    return found


@given(specs())
def test_server_and_offline_check_agree_on_any_policy(spec: JsonObject) -> None:
    policy = make_policy(**spec)
    # The server does not know which providers a controller has.
    said, refused = list(problems(policy, installed=["null"])), refused_by_server(policy)
    assert bool(said) == bool(refused), (said, refused)
