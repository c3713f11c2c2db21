"""``nodeattest doctor`` ends in time, whatever the API server answers, and says what it has not looked at."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncGenerator, Callable, Mapping

from fake_api import FakeApi
from health_facts import cluster, policy, webhook

from nodeattest_cli.doctor.collect import HealthTarget, gather
from nodeattest_cli.doctor.command import examine
from nodeattest_cli.doctor.facts import HealthFacts, Unread
from nodeattest_cli.doctor.model import HealthSeverity, exit_code
from nodeattest_controller.model.webhook_configuration import MUTATING
from nodeattest_kube.errors import ApiError
from nodeattest_parsing.objects import mapping, text
from nodeattest_parsing.values import JsonObject, JsonValue

HANG_GUARD = 60.0
CAPI = "/apis/cluster.x-k8s.io/v1beta2/namespaces"
OWN = "/apis/attestation.cluster.x-k8s.io/v1alpha1/namespaces"
CONFIGS = "/apis/bootstrap.cluster.x-k8s.io/v1beta2/namespaces/{}/kubeadmconfigs?dryRun=All"


class Installation(FakeApi):
    """A management cluster with Cluster API, one of whose lists has pages without end."""

    def __init__(self, endless: str = "", items: int = 0) -> None:
        super().__init__()
        self.endless, self.items = endless, items
        self.documents["/version"] = {"gitVersion": "v1.34.0"}
        for group in ("cluster.x-k8s.io", "bootstrap.cluster.x-k8s.io"):
            self.documents[f"/apis/{group}"] = {"preferredVersion": {"version": "v1beta2"}}
        yes: JsonObject = {"status": {"allowed": True}}
        self.answers["/apis/authorization.k8s.io/v1/subjectaccessreviews"] = lambda _body: yes

    async def pages(
        self,
        path: str,
        query: Mapping[str, str] | None = None,
        limit: int = 500,
        *,
        skipped: Callable[[], None] | None = None,
    ) -> AsyncGenerator[JsonObject]:
        """Yield pages; each is a request."""
        if not self.endless or not path.endswith(f"/{self.endless}"):
            async for page in super().pages(path, query, limit, skipped=skipped):
                yield page
            return
        item: list[JsonValue] = [{"metadata": {"name": "m"}}]
        for number in itertools.count():
            await self.get("/version")
            await asyncio.sleep(0.001)
            yield {"metadata": {"continue": str(number)}, "items": item * self.items}


async def looked(client: FakeApi, *, timeout_seconds: float = 600.0) -> HealthFacts:
    target = HealthTarget(namespace=None, timeout=timeout_seconds)
    work = gather(client, target)
    return await asyncio.wait_for(work, HANG_GUARD)


async def test_a_list_that_never_ends_is_left_in_time_and_what_comes_after_it_is_said_to_be_unread() -> None:
    facts = await looked(Installation(endless="nodeattestationpolicies"), timeout_seconds=1.0)
    policies = facts.management.policies
    assert isinstance(policies, Unread)
    assert "the time in which this process may ask is over" in policies.why
    assert isinstance(facts.management.machines, Unread)
    found = examine(facts)
    severities = {one.id: one.severity for one in found}
    assert {severities[one] for one in ("policies-valid", "machines-attested")} == {HealthSeverity.UNKNOWN}
    assert exit_code(found) != 0


async def test_the_webhook_is_tried_once_in_each_namespace_whose_policy_enforces() -> None:
    api = Installation()
    tried: list[JsonObject] = []

    def refuse(body: JsonObject) -> JsonObject:
        tried.append(body)
        raise ApiError(500, "InternalError", 'failed calling webhook "another"')

    hook = webhook(MUTATING)
    name = text(hook, "metadata", "name")
    api.put(f"/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations/{name}", hook)
    for where in ("one", "two", "audited"):
        api.answers[CONFIGS.format(where)] = refuse
        ruling = policy()
        spec: JsonObject = {**mapping(ruling, "spec"), **({"enforcement": "Audit"} if where == "audited" else {})}
        meta: JsonObject = {"name": "prod", "namespace": where}
        api.put(f"{OWN}/{where}/nodeattestationpolicies/prod", {**ruling, "metadata": meta, "spec": spec})
        for each in ("a", "b"):
            head: JsonObject = {"name": each, "namespace": where, "labels": {"env": "prod"}}
            api.put(f"{CAPI}/{where}/clusters/{each}", {**cluster(each), "metadata": head})
    facts = await looked(api)
    assert not isinstance(facts.management.trials, Unread)
    assert set(facts.management.trials) == {"one/a", "two/a"}
    assert [text(one, "metadata", "namespace") for one in tried] == ["one", "two"]
    told = {one.cluster: one.severity for one in examine(facts) if one.id == "webhook-answers"}
    assert told == {"one/a": HealthSeverity.UNKNOWN, "two/a": HealthSeverity.UNKNOWN}
