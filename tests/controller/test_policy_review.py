"""What the webhook makes of a policy that is being written: by tables, and over its API server."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import cast

import pytest
from bootstrap_config_kit import alone, answer_of, handled, now, review

from nodeattest_controller import manifests
from nodeattest_controller.controllers.bootstrap_config import admission_review, policy_reviewer
from nodeattest_controller.controllers.bootstrap_config.decide import AdmissionOutcome, Allow, Refuse, Verdict
from nodeattest_controller.controllers.bootstrap_config.facts import FactReader, Neighbours
from nodeattest_controller.controllers.bootstrap_config.policy_reviewer import (
    COMPARISONS,
    COMPARISONS_OF_CLIENT,
    MAX_SELECTOR,
    ComparisonLimiter,
    PolicyChange,
    decide_alone,
    decide_beside,
    policy_change,
)
from nodeattest_controller.model.objects import mapping, strings, text
from nodeattest_kube.client import ApiClient
from nodeattest_parsing.values import JsonObject, JsonValue
from nodeattest_sandbox.apiserver.jsonvalue import JsonMap
from nodeattest_sandbox.control_plane import ControlPlane, start_sandbox
from nodeattest_sandbox.definitions import install_cluster_api, install_definitions

API = "attestation.cluster.x-k8s.io/v1alpha1"
CLUSTERS = "/apis/cluster.x-k8s.io/v1beta2/namespaces/default/clusters"
RECORDS = f"/apis/{API}/namespaces/default/clusterrecords"
POLICIES = f"/apis/{API}/namespaces/default/nodeattestationpolicies"


def policy(name: str = "metal", env: str = "prod", **spec: JsonValue) -> JsonObject:
    selector: JsonObject = {"matchLabels": {"env": env}} if env else {}
    return {
        "apiVersion": API,
        "kind": "NodeAttestationPolicy",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {"clusterSelector": selector, "authorizedAttestors": ["tpm"], **spec},
    }


def change(after: JsonObject, before: JsonObject | None = None, *, is_unlabelled: bool = False) -> PolicyChange | None:
    asked = json.dumps(review(after, before)).encode()
    return policy_change(admission_review.parse(asked), is_unlabelled=is_unlabelled)


async def verdict(
    after: JsonObject,
    before: JsonObject | None,
    /,
    *others: JsonObject,
    is_unlabelled: bool = False,
    **clusters: str,
) -> Verdict:
    """Decide as the reviewer does; ``clusters``: their label ``env`` by name."""
    asked = change(after, before, is_unlabelled=is_unlabelled)
    assert asked is not None
    beside: list[JsonObject] = [{"metadata": {"name": name, "labels": {"env": env}}} for name, env in clusters.items()]
    return decide_alone(asked) or await decide_beside(asked, Neighbours([*others], beside))


INVALID = policy(certificateLimetime="1h")


@pytest.mark.parametrize(
    ("after", "before"),
    [
        (policy(), policy()),
        (INVALID, INVALID),
        ({**INVALID, "metadata": {"name": "metal", "deletionTimestamp": "2026-01-01T00:00:00Z"}}, policy()),
        ({**INVALID, "kind": "MachineAttestation"}, None),
        ({**INVALID, "apiVersion": "other.example/v1"}, None),
    ],
    ids=["same spec", "same invalid spec", "going away", "another kind", "another group"],
)
def test_what_changes_no_spec_of_a_policy_that_stays_is_not_looked_at(
    after: JsonObject, before: JsonObject | None
) -> None:
    assert change(after, before) is None


@pytest.mark.parametrize(
    ("after", "before", "outcome"),
    [
        (policy(), None, AdmissionOutcome.ACCEPTED),
        (INVALID, None, AdmissionOutcome.DENIED),
        (policy(tpm={"endorsementCAs": ["no PEM"]}), None, AdmissionOutcome.DENIED),
        (INVALID, policy(), AdmissionOutcome.DENIED),
        (INVALID, policy(certificateLifetime="9s"), AdmissionOutcome.LEFT),
        (policy(), INVALID, AdmissionOutcome.ACCEPTED),
    ],
    ids=["valid", "a mistyped field", "a provider's section", "made invalid", "invalid before", "repaired"],
)
async def test_what_is_invalid_and_was_not_before_is_refused(
    after: JsonObject, before: JsonObject | None, outcome: AdmissionOutcome
) -> None:
    assert (await verdict(after, before)).outcome is outcome


@pytest.mark.parametrize(
    ("after", "before", "env", "outcome"),
    [
        (policy(), None, "prod", AdmissionOutcome.DENIED),
        (policy(env=""), None, "prod", AdmissionOutcome.DENIED),
        (policy(), None, "dev", AdmissionOutcome.ACCEPTED),
        (policy(), policy(env="dev"), "prod", AdmissionOutcome.DENIED),
        (policy(env=""), policy(), "prod", AdmissionOutcome.ACCEPTED),
        (policy(env="dev"), policy(env=""), "prod", AdmissionOutcome.ACCEPTED),
        (policy(enforcement="Audit"), policy(), "prod", AdmissionOutcome.ACCEPTED),
    ],
    ids=[
        "created",
        "selects all",
        "another Cluster",
        "moved over it",
        "overlapped before",
        "repaired",
        "same selector",
    ],
)
async def test_a_policy_that_would_overlap_another_is_refused_and_one_that_did_before_can_be_repaired(
    after: JsonObject, before: JsonObject | None, env: str, outcome: AdmissionOutcome
) -> None:
    assert (await verdict(after, before, policy("other", ""), c1=env)).outcome is outcome


@pytest.mark.parametrize(
    ("after", "before", "outcome"),
    [
        (policy(), None, AdmissionOutcome.DENIED),
        (policy(enforcement="Enforce"), None, AdmissionOutcome.DENIED),
        (policy(enforcement="Audit"), None, AdmissionOutcome.ACCEPTED),
        (policy(), policy(enforcement="Audit"), AdmissionOutcome.DENIED),
        (policy(certificateLifetime="24h"), policy(), AdmissionOutcome.ACCEPTED),
        (policy(enforcement="Audit"), policy(), AdmissionOutcome.ACCEPTED),
    ],
    ids=["by default", "created", "an audit", "that comes to enforce", "enforced before", "that comes to audit"],
)
async def test_where_the_namespace_has_no_label_no_policy_comes_to_enforce(
    after: JsonObject, before: JsonObject | None, outcome: AdmissionOutcome
) -> None:
    found = await verdict(after, before, is_unlabelled=True)
    assert found.outcome is outcome
    if isinstance(found, Refuse):
        remedy = "kubectl label namespace default attestation.cluster.x-k8s.io/bootstrap-config=enabled"
        assert str(found.denied).endswith(remedy)
        assert found.public.endswith(remedy)


async def test_without_the_label_a_policy_that_enforced_before_is_taken_with_a_warning() -> None:
    for after, before in ((policy(env=""), policy()), (policy(certificateLifetime="24h"), policy())):
        taken = await verdict(after, before, is_unlabelled=True)
        assert isinstance(taken, Allow)
        assert "kubectl label namespace default" in taken.warnings[0]
        taken = await verdict(after, before)
        assert isinstance(taken, Allow)
        assert not taken.warnings


async def test_a_refused_overlap_names_clusters_and_policies_and_what_to_do() -> None:
    beside: list[JsonObject] = [{"metadata": {"name": f"c{number}", "labels": {"env": "prod"}}} for number in range(9)]
    asked = change(policy())
    assert asked is not None
    refused = await decide_beside(asked, Neighbours([policy("cloud"), policy("all", "")], beside))
    assert isinstance(refused, Refuse)
    said = str(refused.denied)
    assert said.startswith("PolicyInvalid: expected one NodeAttestationPolicy for a Cluster, got metal as another one")
    assert "c0 (also all, cloud); c1 (also all, cloud)" in said
    assert said.endswith("and 5 more; narrow the clusterSelectors so that one policy remains")
    for name in ("c0", "cloud", "metal"):
        assert name not in refused.public
    assert "kubectl get nodeattestationpolicies -n default" in refused.public


async def test_a_selector_that_is_too_large_to_compare_passes_and_says_so() -> None:
    values: list[JsonValue] = [str(number) for number in range(MAX_SELECTOR + 1)]
    term: JsonObject = {"key": "env", "operator": "In", "values": values}
    large = policy(clusterSelector={"matchExpressions": [term]})
    passed = await verdict(large, None, policy("other", ""), c1="1")
    assert isinstance(passed, Allow)
    assert passed.outcome is AdmissionOutcome.UNAVAILABLE
    assert "not compared with other policies" in passed.warnings[0]


@pytest.fixture(scope="module")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    with start_sandbox(tmp_path_factory.mktemp("policy-review"), name="management") as running:
        client = running.client()
        install_cluster_api(client)
        install_definitions(client, manifests.crds())  # pyright: ignore[reportArgumentType] - the sandbox's own JSON type
        paused: JsonMap = {"metadata": {"name": "moved", "labels": {"env": "moved"}}, "spec": {"paused": True}}
        client.create(CLUSTERS, {"metadata": {"name": "prod", "labels": {"env": "prod"}}, "spec": {}})
        client.create(CLUSTERS, paused)
        record = {"apiVersion": API, "kind": "ClusterRecord", "metadata": {"name": "rack", "labels": {"env": "rack"}}}
        client.create(RECORDS, cast("JsonMap", {**record, "spec": {}}))
        client.create(POLICIES, cast("JsonMap", policy("there", "")))
        yield running


async def ask(plane: ControlPlane, document: JsonObject, *, inventory: tuple[str, ...] = ("ClusterAPI",)) -> JsonObject:
    """POST a review to a handler whose callers are strangers, and give the response."""
    async with ApiClient.from_kubeconfig_file(plane.admin_kubeconfig) as client:
        reader = FactReader(client, namespace=None, now=now, inventory=inventory)
        async with alone(lambda _: reader) as handler:
            reply = await handled(handler, "client", json.dumps(document).encode(), path=policy_reviewer.PATH)
    return answer_of(reply.body)


async def test_the_clusters_that_are_there_count_but_paused_ones(plane: ControlPlane) -> None:
    refused = await ask(plane, review(policy()))
    assert (refused["allowed"], text(refused, "status", "reason")) == (False, "PolicyInvalid")
    assert "narrow the clusterSelectors" in text(refused, "status", "message")
    assert "there" not in text(refused, "status", "message")
    for env in ("moved", "rack", "nowhere"):
        assert (await ask(plane, review(policy(env=env))))["allowed"] is True
    assert (await ask(plane, review(policy("there", "prod"))))["allowed"] is True


@pytest.mark.parametrize("verifies_clients", [False, True])
async def test_a_stranger_learns_of_few_made_up_selectors_whether_a_cluster_has_their_labels(
    plane: ControlPlane, verifies_clients: bool
) -> None:
    async with ApiClient.from_kubeconfig_file(plane.admin_kubeconfig) as client:
        reader = FactReader(client, namespace=None, now=now)
        async with alone(lambda _: reader, verifies_clients=verifies_clients) as handler:

            async def is_refused(caller: str) -> bool:
                asked = json.dumps(review(policy("made-up"))).encode()
                answer = answer_of((await handled(handler, caller, asked, path=policy_reviewer.PATH)).body)
                is_silent = any("not compared" in warning for warning in strings(answer, "warnings"))
                assert answer["allowed"] is is_silent
                return not is_silent

            told = [await is_refused("192.0.2.7") for _ in range(3 * COMPARISONS)]
            assert told.count(True) == (3 * COMPARISONS if verifies_clients else COMPARISONS)
            assert await is_refused("192.0.2.1")  # an API server at another address has a share of its own


async def test_reviews_of_namespaces_where_nothing_can_be_compared_take_no_comparison(plane: ControlPlane) -> None:
    async with ApiClient.from_kubeconfig_file(plane.admin_kubeconfig) as client:
        reader = FactReader(client, namespace=None, now=now)
        limiter = ComparisonLimiter(lambda: 0.0)
        reviewer = policy_reviewer.PolicyReviewer(reader, is_unlabelled=False, comparisons=limiter)

        async def outcome(namespace: str) -> AdmissionOutcome:
            seen = reviewer.read(json.dumps(review(policy("made-up"), namespace=namespace)).encode())
            return (await seen.verdict("192.0.2.7", asyncio.get_running_loop().time() + 60)).outcome

        for _ in range(COMPARISONS):
            assert limiter.take("192.0.2.7", "default")
        left = COMPARISONS_OF_CLIENT - COMPARISONS
        for _ in range(2):  # a namespace that is not there, before and after one that is
            found = [await outcome("nowhere") for _ in range(COMPARISONS + 1)]
            assert set(found) == {AdmissionOutcome.ACCEPTED}
            assert await outcome("default") is AdmissionOutcome.UNAVAILABLE
        assert sum(limiter.take("192.0.2.7", f"n{number}") for number in range(2 * left)) == left
        assert await outcome("nowhere") is AdmissionOutcome.UNAVAILABLE  # nothing is read for it


def test_a_caller_cannot_have_its_comparisons_forgotten_by_asking_about_other_namespaces() -> None:
    limiter = ComparisonLimiter(lambda: 0.0)
    assert sum(limiter.take("192.0.2.7", "team") for _ in range(2 * COMPARISONS)) == COMPARISONS
    others = sum(limiter.may_ask("192.0.2.7") and limiter.take("192.0.2.7", f"n{n}") for n in range(20_001))
    assert others == COMPARISONS_OF_CLIENT - COMPARISONS
    assert not limiter.take("192.0.2.7", "team")
    assert limiter.take("192.0.2.1", "team")


async def test_reviews_that_come_together_read_their_namespace_once(plane: ControlPlane) -> None:
    def lists() -> int:
        return sum(one.resource == "nodeattestationpolicies" and one.verb == "list" for one in plane.requests())

    before = lists()
    async with ApiClient.from_kubeconfig_file(plane.admin_kubeconfig) as client:
        reader = FactReader(client, namespace=None, now=now)
        found = await asyncio.gather(*(reader.beside("default", name) for name in ("there", "new", "newer")))
    assert [one is not None and len(one.policies) for one in found] == [0, 1, 1]
    assert lists() == before + 1


async def test_clusters_that_operators_write_down_count_where_they_are_served(plane: ControlPlane) -> None:
    both = ("ClusterAPI", "MachineRecords")
    assert (await ask(plane, review(policy(env="rack")), inventory=both))["allowed"] is False


async def test_an_api_server_says_by_the_path_that_the_namespace_has_no_label() -> None:
    async with alone() as handler:
        asked = json.dumps(review(policy())).encode()
        reply = await handled(handler, "client", asked, path=policy_reviewer.UNLABELLED_PATH)
    refused = answer_of(reply.body)
    assert (refused["allowed"], text(refused, "status", "reason")) == (False, "PolicyInvalid")
    assert "kubectl label namespace default" in text(refused, "status", "message")


async def test_a_policy_of_a_namespace_that_this_controller_does_not_watch_passes() -> None:
    def watching(client: ApiClient) -> FactReader:
        return FactReader(client, namespace="fleet", now=now)

    async with alone(watching) as handler:
        for asked in (policy(), INVALID):
            content = json.dumps(review(asked)).encode()
            for path in (policy_reviewer.PATH, policy_reviewer.UNLABELLED_PATH):
                passed = answer_of((await handled(handler, "client", content, path=path)).body)
                assert passed["allowed"] is True
                assert not strings(passed, "warnings")


async def test_a_policy_that_cannot_be_compared_passes_with_a_warning() -> None:
    async with alone() as handler:
        reply = await handled(handler, "client", json.dumps(review(policy())).encode(), path=policy_reviewer.PATH)
        passed = answer_of(reply.body)
        assert passed["allowed"] is True
        assert strings(passed, "warnings")[0].startswith("not compared with other policies")
        invalid = json.dumps(review(INVALID)).encode()
        refused = answer_of((await handled(handler, "client", invalid, path=policy_reviewer.PATH)).body)
        assert "did you mean certificateLifetime?" in text(mapping(refused, "status"), "message")
