"""Checks of protected clusters: what the controller reports, what machines join with, and who is attested.

The controller's own conditions are shown as they are. No Secret is read: neither tokens nor bootstrap data.
"""

from __future__ import annotations

from collections import Counter
from typing import Final

from nodeattest_cli.doctor.findings import OLDEST, CheckResult
from nodeattest_cli.doctor.installation import TOLERATED, kubernetes_version
from nodeattest_cli.doctor.survey import BOOTSTRAP, Survey
from nodeattest_cli.fleet import MACHINE_GONE, rows_of
from nodeattest_cli.output import listed
from nodeattest_controller.controllers.auto_approval.decide import CONDITION, ApprovalReason
from nodeattest_controller.controllers.bootstrap_config.render import has_agent
from nodeattest_controller.controllers.node_attested.conditions import Known
from nodeattest_controller.controllers.policy_status import READY, PolicyReason
from nodeattest_controller.model.certificate_authority import BACKDATE
from nodeattest_controller.model.machine_view import bootstrap_config_ref
from nodeattest_controller.runtime.cluster_manager import ACCEPTED
from nodeattest_controller.runtime.guard import SERVED, mark_of
from nodeattest_kube.access_review import ResourceAttributes, ReviewedUser, is_access_allowed
from nodeattest_kube.client import ApiClient
from nodeattest_parsing.objects import condition, items, key_of, number, rfc3339, text
from nodeattest_parsing.values import JsonObject

_FINE: Final = frozenset({PolicyReason.VALID, PolicyReason.RENDERING_DISABLED})
"""Reasons of a policy that is Ready, and does what it says."""
_EARLY: Final = frozenset({ApprovalReason.NOT_INITIALIZED, ApprovalReason.WAITING_FOR_CLUSTER_INFO})
"""A cluster that is coming up."""
_PARTLY: Final = frozenset({ApprovalReason.AUDIT, ApprovalReason.CLOSED_FOR_BOOTSTRAP})
"""What an operator chose, or what ends by itself."""


async def check_policies(survey: Survey) -> CheckResult:
    """Show each policy's condition Ready."""
    policies = await survey.policies()
    errors, warnings = list[str](), list[str]()
    for policy in policies:
        ready = condition(items(policy, "status", "conditions"), READY)
        observed, current = number(policy, "status", "observedGeneration"), number(policy, "metadata", "generation")
        if ready is None or observed != current:
            warnings.append(f"{key_of(policy)}: the controller has not reported on it yet")
        elif ready.get("status") != "True" or ready.get("reason") not in _FINE:
            found = errors if ready.get("status") != "True" else warnings
            found.append(f"{key_of(policy)}: {ready.get('reason')}: {ready.get('message')}")
    return CheckResult(ok=f"{len(policies)} accepted", errors=errors, warnings=warnings)


async def check_unprotected(survey: Survey) -> CheckResult:
    """List the clusters without a policy: of those nothing more is checked."""
    clusters = await survey.clusters()
    alone = [key_of(cluster) for cluster in clusters if not await survey.policies_of(cluster)]
    missing = [] if clusters else ["there is no Cluster or ClusterRecord, so none was checked"]
    return CheckResult(ok=listed(alone) or "none", warnings=missing)


async def check_conditions(survey: Survey, cluster: JsonObject) -> CheckResult:
    """Show the controller's conditions of a cluster that are not True."""
    conditions, errors, warnings = items(cluster, "status", "conditions"), list[str](), list[str]()
    expected = [SERVED, *([CONDITION] if await survey.runs("hardening") else [])]
    for name in (*expected, ACCEPTED):
        found = condition(conditions, name)
        if found is None:
            warnings += [f"the Cluster has no condition {name} yet"] if name in expected else []
        elif found.get("status") != "True" and found.get("reason") not in _EARLY:
            is_error = found.get("status") == "False" and found.get("reason") not in _PARTLY
            words = f"{name} is {found.get('status')}: {found.get('reason')}: {found.get('message')}"
            (errors if is_error else warnings).append(words)
    mark, checked = mark_of(cluster), f"{survey.controller_namespace}/{survey.lease_name}"
    warnings += [f"{mark} serves the Cluster, and {checked} is checked here"] if mark not in {"", checked} else []
    return CheckResult(ok=f"{listed(expected)} are True", errors=errors, warnings=warnings)


async def check_reachable(survey: Survey, client: ApiClient) -> CheckResult:
    """Compare the clocks of both API servers: certificates begin five minutes before they are signed."""
    theirs, ours = client.server_time(), survey.client.server_time()
    ahead = (theirs - ours).total_seconds() if theirs is not None and ours is not None else 0.0
    said = [f"its clock is {abs(ahead):.0f} s {'ahead of' if ahead >= 0 else 'behind'} the management cluster's"]
    is_far = abs(ahead) > BACKDATE.total_seconds()
    warnings = said if abs(ahead) > TOLERATED and not is_far else []
    return CheckResult(ok="it does", errors=said if is_far else [], warnings=warnings)


async def check_workload_version(_survey: Survey, client: ApiClient) -> CheckResult:
    """Compare a workload cluster's version with what this release supports."""
    return kubernetes_version(text(await client.get("/version"), "gitVersion"), OLDEST)


async def check_tokens(_survey: Survey, client: ApiClient) -> CheckResult:
    """Ask whether any bootstrap token may create requests."""
    create = ResourceAttributes(verb="create", group="certificates.k8s.io", resource="certificatesigningrequests")
    user = ReviewedUser(name="system:bootstrap:doctor", groups=["system:bootstrappers", "system:authenticated"])
    return CheckResult(ok="they may", errors=[] if await is_access_allowed(client, create, user) else ["they may not"])


async def check_bootstrap_data(survey: Survey, cluster: JsonObject) -> CheckResult | None:
    """See that the KubeadmConfig of each machine that is about to join starts the agent.

    Other kinds than KubeadmConfig are in the condition of the Cluster.
    """
    if not await survey.enforces(cluster):
        return None
    named: dict[str, str] = {}
    for machine in await survey.joiners(cluster):
        reference = bootstrap_config_ref(machine)
        if reference is not None and reference.group == BOOTSTRAP and reference.kind == "KubeadmConfig":
            named[f"{text(machine, 'metadata', 'namespace')}/{reference.name}"] = text(machine, "metadata", "name")
    configs = {key_of(one): one for one in await survey.objects(BOOTSTRAP, "kubeadmconfigs")} if named else {}
    wrong: list[str] = []
    for key, machine in named.items():
        config = configs.get(key)
        if config is None or not has_agent({**config, "kind": "KubeadmConfig"}):
            state = "does not exist" if config is None else "is not rendered"
            wrong.append(f"Machine {machine}: KubeadmConfig {key.partition('/')[2]} {state}")
    return CheckResult(
        ok=f"{len(named)} machines are about to join, all with the agent", errors=[listed(wrong)] if wrong else []
    )


async def check_machines(survey: Survey, cluster: JsonObject) -> CheckResult:
    """Count a cluster's machines by the reason of their condition NodeAttested."""
    documents, key = [*await survey.machines(), *await survey.attestations()], key_of(cluster)
    rows = [row for row in rows_of(documents, survey.now) if f"{row.namespace}/{row.cluster}" == key]
    rows = [row for row in rows if row.state != MACHINE_GONE]
    lost = [f"{row.machine} ({row.refused or row.state})" for row in rows if row.expires and not row.attested]
    claimed = [f"{row.machine} ({row.refused})" for row in rows if row.refused and not row.expires]
    foreign = [row.machine for row in rows if row.state == Known.NOT_ATTESTED]
    warnings = [f"requests refused that claim {listed(claimed)}"] if claimed else []
    warnings += [f"joined without attestation: {listed(foreign)}"] if foreign else []
    counts = [f"{number} {state}" for state, number in sorted(Counter(row.state for row in rows).items())]
    ends = min(((row.expires, row.machine) for row in rows if row.expires), default=None)
    counts += [f"the first certificate expires at {rfc3339(ends[0])} ({ends[1]})"] if ends else []
    return CheckResult(
        ok="; ".join(counts) or "no machine",
        errors=[f"refused or expired: {listed(lost)}"] if lost else [],
        warnings=warnings,
    )
