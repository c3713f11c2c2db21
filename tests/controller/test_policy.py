"""The laws of NodeAttestationPolicy."""

from __future__ import annotations

import pytest

from nodeattest_controller.model.policy import ServingPolicy, check_authorized, parse_attestation_policy, policy_for
from nodeattest_kube.jsontypes import JsonObject, JsonValue
from nodeattest_providers.errors import Denied, Reason, Unavailable
from nodeattest_providers.names import ProviderName

TPM = ProviderName("tpm")


def policy(name: str = "p", **spec: JsonValue) -> JsonObject:
    body: JsonObject = {"authorizedAttestors": ["tpm"], **spec}
    return {"metadata": {"name": name, "namespace": "fleet"}, "spec": body}


def cluster(labels: dict[str, str] | None = None, **spec: JsonValue) -> JsonObject:
    meta: JsonObject = {"name": "c", "namespace": "fleet", "labels": dict(labels or {})}
    return {"metadata": meta, "spec": dict(spec)}


def test_no_policy_lets_nobody_in_and_waits_for_one() -> None:
    with pytest.raises(Unavailable) as refused:
        policy_for(cluster(), [])
    assert refused.value.reason is Reason.POLICY_MISSING


def test_two_policies_at_once_are_denied() -> None:
    with pytest.raises(Denied) as refused:
        policy_for(cluster(), [policy("a"), policy("b")])
    assert refused.value.reason is Reason.POLICY_INVALID
    assert refused.value.got == "a, b"


@pytest.mark.parametrize(
    ("joined", "ruling"), [({"b": 1}, "b"), ({"a": 2, "b": 1}, "a"), ({"a": 1, "b": 1}, None), ({"gone": 9}, None)]
)
def test_of_two_policies_the_one_that_most_machines_joined_under_goes_on(
    joined: dict[str, int], ruling: str | None
) -> None:
    def found() -> str:
        return policy_for(cluster(), [policy("a"), policy("b")], recorded=lambda name: joined.get(name, 0)).name

    if ruling is not None:
        assert found() == ruling
        return
    with pytest.raises(Denied, match="a, b"):
        found()


@pytest.mark.parametrize(
    ("most", "least", "rules"),
    [
        ("Audit", "Enforce", False),
        ("Audit", None, False),
        ("Audit", "Sometimes", False),
        ("Audit", "Audit", True),
        ("Enforce", "Audit", True),
        (None, "Audit", True),
    ],
)
def test_no_audit_goes_on_beside_a_policy_that_is_none(most: str | None, least: str | None, rules: bool) -> None:
    named = {"most": most, "least": least}
    both = [policy(name, **({"enforcement": how} if how else {})) for name, how in named.items()]
    joined = {"most": 9, "least": 1}
    if rules:
        assert policy_for(cluster(), both, recorded=joined.__getitem__).name == "most"
        return
    with pytest.raises(Denied, match="least, most"):
        policy_for(cluster(), both, recorded=joined.__getitem__)


def test_a_lifetime_in_days_is_told_to_be_written_in_hours() -> None:
    with pytest.raises(Denied, match="14 days are 336h"):
        parse_attestation_policy(policy(certificateLifetime="14d"))


@pytest.mark.parametrize(
    ("selector", "labels", "selected"),
    [
        ({}, {}, True),
        ({"matchLabels": {"env": "prod"}}, {"env": "prod"}, True),
        ({"matchLabels": {"env": "prod"}}, {"env": "dev"}, False),
        ({"matchLabels": {"env": "prod"}}, {}, False),
        ({"matchExpressions": [{"key": "env", "operator": "In", "values": ["a", "b"]}]}, {"env": "b"}, True),
        ({"matchExpressions": [{"key": "env", "operator": "In", "values": ["a", "b"]}]}, {}, False),
        ({"matchExpressions": [{"key": "env", "operator": "NotIn", "values": ["a"]}]}, {}, True),
        ({"matchExpressions": [{"key": "env", "operator": "Exists"}]}, {"env": ""}, True),
        ({"matchExpressions": [{"key": "env", "operator": "DoesNotExist"}]}, {"env": ""}, False),
        ({"matchExpressions": [{"key": "env", "operator": "Sometimes"}]}, {"env": ""}, False),
        ({"matchLabels": {"a": "1"}, "matchExpressions": [{"key": "b", "operator": "Exists"}]}, {"a": "1"}, False),
    ],
)
def test_selectors_select_as_in_kubernetes(selector: JsonValue, labels: dict[str, str], selected: bool) -> None:
    candidates = [policy(clusterSelector=selector)]
    if selected:
        assert policy_for(cluster(labels), candidates).name == "p"
    else:
        with pytest.raises(Unavailable):
            policy_for(cluster(labels), candidates)


def test_insecure_beside_a_secure_attestor_is_denied() -> None:
    with pytest.raises(Denied) as refused:
        parse_attestation_policy(policy(authorizedAttestors=["tpm", "insecure"]))
    assert refused.value.reason is Reason.POLICY_INVALID


def test_an_empty_list_of_attestors_means_none() -> None:
    with pytest.raises(Denied) as refused:
        check_authorized(parse_attestation_policy(policy(authorizedAttestors=[])), TPM)
    assert refused.value.reason is Reason.ATTESTOR_NOT_AUTHORIZED


def test_an_attestor_that_is_not_named_is_denied() -> None:
    with pytest.raises(Denied) as refused:
        check_authorized(parse_attestation_policy(policy()), ProviderName("insecure"))
    assert refused.value.reason is Reason.ATTESTOR_NOT_AUTHORIZED
    check_authorized(parse_attestation_policy(policy()), TPM)


def test_the_clusters_own_list_narrows_and_never_widens() -> None:
    wide = policy(authorizedAttestors=["tpm", "aws"])
    ours = policy_for(cluster(security={"kubeletAuthentication": True, "authorizedAttestors": ["tpm", "gcp"]}), [wide])
    assert ours.attestors == {TPM}


def test_a_cluster_that_turned_kubelet_authentication_off_authorizes_nobody() -> None:
    ours = policy_for(cluster(security={"kubeletAuthentication": False, "authorizedAttestors": ["tpm"]}), [policy()])
    assert ours.attestors == frozenset()


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("336h", 1209600), ("10m", 600), ("1m", 60), ("1h30m", 5400), ("3600s", 3600), ("8760h", 31536000)],
)
def test_lifetimes_are_durations_as_go_writes_them(text: str, seconds: int) -> None:
    assert parse_attestation_policy(policy(certificateLifetime=text)).lifetime == seconds


@pytest.mark.parametrize("text", ["59s", "٣h", "8760h1s", "forever", "1d", "-1h", "1h ", "99999999h", "1.5h"])
def test_lifetimes_out_of_range_or_in_another_spelling_are_denied(text: str) -> None:
    with pytest.raises(Denied) as refused:
        parse_attestation_policy(policy(certificateLifetime=text))
    assert refused.value.reason is Reason.POLICY_INVALID


def test_a_mistyped_field_is_denied_and_the_nearest_is_named() -> None:
    with pytest.raises(Denied) as refused:
        parse_attestation_policy(policy(certificateLifetme="1h"))
    assert refused.value.reason is Reason.POLICY_INVALID
    assert refused.value.remedy == "did you mean certificateLifetime?"


def test_an_unknown_enforcement_is_denied() -> None:
    with pytest.raises(Denied):
        parse_attestation_policy(policy(enforcement="Sometimes"))


def test_a_fraction_in_a_providers_settings_is_denied() -> None:
    with pytest.raises(Denied) as refused:
        parse_attestation_policy(policy(tpm={"pcrs": {"selection": [1.5]}}))
    assert refused.value.reason is Reason.POLICY_INVALID


def test_third_party_sections_reach_their_provider() -> None:
    found = parse_attestation_policy(policy(providers={"contoso": {"zone": "a"}}, tpm={"trustOnFirstUse": True}))
    assert found.settings(ProviderName("contoso")) == {"zone": "a"}
    assert found.settings(TPM) == {"trustOnFirstUse": True}
    assert found.settings(ProviderName("aws")) == {}


@pytest.mark.parametrize(
    ("section", "serving"),
    [
        (None, ServingPolicy(approves_kubelet=False, signs_attested=True)),
        ({}, ServingPolicy(approves_kubelet=False, signs_attested=True)),
        ({"kubelet": "Approve"}, ServingPolicy(approves_kubelet=True, signs_attested=True)),
        ({"kubelet": "Ignore", "attested": "Refuse"}, ServingPolicy(approves_kubelet=False, signs_attested=False)),
        ({"attested": "Sign"}, ServingPolicy(approves_kubelet=False, signs_attested=True)),
    ],
)
def test_kubelets_requests_are_left_alone_and_attested_ones_signed_unless_told(
    section: JsonValue, serving: ServingPolicy
) -> None:
    found = policy() if section is None else policy(serving=section)
    assert parse_attestation_policy(found).serving == serving


@pytest.mark.parametrize(
    "section",
    [
        {"kubelet": "approve"},
        {"kubelet": True},
        {"kubelet": None},
        {"attested": "Deny"},
        {"kubelt": "Approve"},
        "Approve",
    ],
)
def test_a_serving_section_that_nobody_understands_is_denied(section: JsonValue) -> None:
    with pytest.raises(Denied) as refused:
        parse_attestation_policy(policy(serving=section))
    assert refused.value.reason is Reason.POLICY_INVALID


def test_the_clusters_own_list_keeps_what_the_policy_says_of_serving() -> None:
    security: JsonValue = {"kubeletAuthentication": True, "authorizedAttestors": ["tpm"]}
    found = policy_for(cluster(security=security), [policy(serving={"kubelet": "Approve"})])
    assert found.serving.approves_kubelet


SILENT_SELECTORS: list[tuple[JsonValue, str]] = [
    ({"matchLabel": {"env": "prod"}}, "did you mean matchLabels"),
    ({"matchExpressions": [{"key": "env", "operator": "In"}]}, "list values of the label"),
    ({"matchExpressions": [{"key": "env", "operator": "NotIn", "values": []}]}, "list values of the label"),
    ({"matchExpressions": [{"key": "env", "operator": "Exists", "values": ["a"]}]}, "take out the values"),
    ({"matchExpressions": [{"key": "env", "operator": "Exists", "value": ["a"]}]}, "did you mean values"),
]


@pytest.mark.parametrize(("selector", "said"), SILENT_SELECTORS)
def test_a_selector_that_does_not_say_what_it_seems_to_is_denied(selector: JsonValue, said: str) -> None:
    with pytest.raises(Denied) as refused:
        parse_attestation_policy(policy(clusterSelector=selector))
    assert refused.value.reason is Reason.POLICY_INVALID
    assert said in refused.value.remedy


def test_our_own_providers_settings_stand_in_their_own_section_only() -> None:
    with pytest.raises(Denied, match=r"spec\.providers"):
        parse_attestation_policy(policy(tpm={"trustOnFirstUse": False}, providers={"tpm": {"trustOnFirstUse": True}}))
