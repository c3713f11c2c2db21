"""Protected clusters: policies, automatic approval, what machines join with, attested machines and certificates. Pure.

The controller asks the API server about automatic approval besides, and watches what the in-tree signer issues: a
binding that is found here is open in any case, and none that is found here is closed only where the condition says so.
No Secret is read: neither tokens, nor bootstrap data as it was made of a KubeadmConfig.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Final

from nodeattest_cli.doctor.facts import HealthFacts, Unread, WorkloadFacts, readable
from nodeattest_cli.doctor.model import HealthFinding, HealthSeverity, listed, make_finding
from nodeattest_cli.fleet import MACHINE_GONE, MachineRow, rows_of
from nodeattest_cli.policy.check import problems
from nodeattest_controller.controllers.auto_approval.decide import CONDITION, ApprovalReason
from nodeattest_controller.controllers.auto_approval.permissions import (
    RoleGrant,
    SubjectKind,
    bootstrap_groups_of,
    grant_of,
    nominal_permissions,
)
from nodeattest_controller.controllers.bootstrap_config.kubeadmconfig.fields import RenderingRefused
from nodeattest_controller.controllers.bootstrap_config.kubeadmconfig.render import is_rendered
from nodeattest_controller.controllers.node_attested.conditions import Known, newest_certificate
from nodeattest_controller.controllers.policy_status.decide import READY, PolicyReason
from nodeattest_controller.model.attestation import IssuedCertificate, parse_attestation
from nodeattest_controller.model.bootstrap_providers import provider_of_kind
from nodeattest_controller.model.machine_view import bootstrap_config_ref, cluster_of
from nodeattest_controller.model.token_binding import DELETE_UNNAMED, LOST_TOKEN, named_tokens
from nodeattest_controller.runtime.workload_client import BOOTSTRAP_BINDING
from nodeattest_controller.verification.policy_validation import installed
from nodeattest_parsing.objects import condition, items, key_of, mapping, number, rfc3339, strings, text
from nodeattest_parsing.values import JsonObject, JsonValue
from nodeattest_providers.errors import Unavailable
from nodeattest_providers.identifiers import ProviderName

_SEEN_BY_US: Final = frozenset({PolicyReason.INVALID, PolicyReason.CONFLICT})
"""Reasons of the condition that other findings tell with more detail."""
_EARLY: Final = frozenset({ApprovalReason.NOT_INITIALIZED, ApprovalReason.WAITING_FOR_CLUSTER_INFO})
"""A cluster that is coming up."""
_KUBEADM: Final = ("bootstrap.cluster.x-k8s.io", "KubeadmConfig")
_BOOTSTRAPPER: Final = "system:node-bootstrapper"
_SIGNATURE: Final = "jws-kubeconfig-"
_PARTS: Final = 4
"""A certificate with less than a quarter of its lifetime left was not renewed: agents renew long before."""


def _unread(name: str, expected: str, values: Mapping[str, object]) -> HealthFinding | None:
    """Make the finding for the first of some lists, by what it is of, that could not be read."""
    for what, value in values.items():
        if isinstance(value, Unread):
            return make_finding(name, expected, "", unknown=[value.why], remedy=f"let this user list {what}")
    return None


def check_policies(facts: HealthFacts) -> Iterator[HealthFinding]:
    """Look at each policy by every check of ``policy check``, and at each cluster's policies."""
    found, clusters = facts.management.policies, facts.management.clusters
    expected = "each cluster has one valid policy, or none"
    unread = _unread("policies-valid", expected, {"NodeAttestationPolicies": found, "Clusters": clusters})
    if unread is not None:
        yield unread
        return
    policies = readable(found)
    named = {
        key_of(one): (*strings(one, "spec", "authorizedAttestors"), *strings(one, "spec", "composite", "allOf"))
        for one in policies
    }
    wrong = [
        f"{key_of(one)}: {problem}"
        for one in policies
        for problem in problems({key: value for key, value in one.items() if key != "status"}, named[key_of(one)])
    ]
    yield make_finding(
        "policies-valid",
        "every policy is valid",
        f"{len(policies)} valid",
        errors=[listed(wrong)] if wrong else [],
        remedy="nodeattest policy check -f FILE; until then no node joins under it",
    )
    # One of others may be installed in the controller and not here.
    absent = {f"{key}: {name}" for key, names in named.items() for name in names if not installed(ProviderName(name))}
    yield make_finding(
        "policies-providers",
        "every provider that a policy names is known here",
        "all are",
        warnings=[listed(sorted(absent))] if absent else [],
        remedy="correct the name, unless the controller has it from another package",
    )
    yield _accepted(policies)
    yield from _policies_of_clusters(facts)


def _accepted(policies: Sequence[JsonObject]) -> HealthFinding:
    refused: list[str] = []
    waiting: list[str] = []
    for policy in policies:
        said = condition(items(policy, "status", "conditions"), READY)
        observed, current = number(policy, "status", "observedGeneration"), number(policy, "metadata", "generation")
        if said is None or observed != current:
            waiting.append(key_of(policy))
        elif said.get("status") != "True" and said.get("reason") not in _SEEN_BY_US:
            refused.append(f"{key_of(policy)}: {said.get('reason')}: {said.get('message')}")
    return make_finding(
        "policies-accepted",
        "the controller has taken every policy as it is now",
        f"{len(policies)} taken",
        errors=refused,
        warnings=[f"no report on {listed(waiting)} as it is now"] if waiting else [],
        remedy="see the policy's condition Ready, and whether a controller runs",
    )


def _policies_of_clusters(facts: HealthFacts) -> Iterator[HealthFinding]:
    shared: list[str] = []
    alone: list[str] = []
    for cluster in facts.clusters():
        policies = facts.policies_of(cluster)
        if len(policies) > 1:
            ruling = [
                f" ({text(conflict, 'ruling')} goes on)"
                for policy in policies
                for conflict in items(policy, "status", "conflicts")
                if text(conflict, "cluster") == text(cluster, "metadata", "name") and text(conflict, "ruling")
            ]
            names = listed(sorted(text(one, "metadata", "name") for one in policies))
            shared.append(f"{key_of(cluster)} by {names}{''.join(ruling[:1])}")
        elif not policies:
            alone.append(key_of(cluster))
    yield make_finding(
        "policies-overlap",
        "at most one policy selects a cluster",
        "no cluster is selected by two",
        errors=[listed(shared)] if shared else [],
        remedy="narrow the clusterSelectors so that one policy remains",
    )
    nothing = "there is no Cluster or ClusterRecord, so none was looked at"
    yield make_finding(
        "clusters-without-policy",
        "there are clusters; those that no policy selects are not protected, and no more is said of them",
        listed(alone) or "none",
        warnings=[] if facts.clusters() else [nothing],
        remedy="say --namespace, or --all-namespaces",
    )


def check_approval(facts: HealthFacts) -> Iterator[HealthFinding]:
    """Look at automatic approval by the in-tree signer: what the controller says of it, and what RBAC grants."""
    for cluster in facts.protected():
        workload = facts.workloads.get(key_of(cluster))
        if workload is not None:
            yield _approval(facts, cluster, workload)


def _approval(facts: HealthFacts, cluster: JsonObject, workload: WorkloadFacts) -> HealthFinding:
    said = condition(items(cluster, "status", "conditions"), CONDITION)
    severity, words = _of_condition(facts, said)
    if len(facts.policies_of(cluster)) > 1 and said is not None and said.get("reason") == ApprovalReason.CANNOT_VERIFY:
        severity = HealthSeverity.OK  # by which policy is another finding, and the cause of this
    found: dict[HealthSeverity, list[str]] = {severity: [words]}
    grants, also = _grants(workload), list[str]()
    if workload.unreached is not None:
        # What the condition says may be old: who wrote it does not reach the cluster either.
        found.setdefault(HealthSeverity.UNKNOWN, []).append(
            "the cluster does not answer, and its bindings were not read"
        )
    elif isinstance(grants, Unread):
        found.setdefault(HealthSeverity.UNKNOWN, []).append(f"its bindings could not be read: {grants.why}")
    elif grants:
        lets_join = any(SubjectKind.BOOTSTRAPPERS in grant.to for grant in grants)
        is_open = lets_join and facts.enforces(key_of(cluster))
        worse = HealthSeverity.ERROR if is_open else HealthSeverity.WARNING
        found.setdefault(worse, []).append(f"ClusterRoleBindings grant it: {listed(map(str, grants))}")
    else:
        also = ["no ClusterRoleBinding grants it"]
    return make_finding(
        "automatic-approval",
        "nobody but the controller approves certificates of nodes",
        "",
        errors=found.get(HealthSeverity.ERROR, []),
        unknown=found.get(HealthSeverity.UNKNOWN, []),
        warnings=found.get(HealthSeverity.WARNING, []),
        also=[*found.get(HealthSeverity.OK, []), *also],
        remedy="docs/operate.md#automatic-approval says what each reason needs",
        cluster=key_of(cluster),
    )


def _of_condition(facts: HealthFacts, said: Mapping[str, JsonValue] | None) -> tuple[HealthSeverity, str]:
    if not facts.runs("hardening"):
        return HealthSeverity.OK, "the controller hardening is turned off"
    if said is None:
        return HealthSeverity.WARNING, f"the Cluster has no condition {CONDITION} yet"
    reason = str(said.get("reason"))
    words = f"{CONDITION} is {said.get('status')}: {reason}: {said.get('message')}"
    match said.get("status"):
        case "True":
            return HealthSeverity.OK, f"{CONDITION} is True"
        case "False" if reason != ApprovalReason.AUDIT:
            quiet = reason == ApprovalReason.CLOSED_FOR_BOOTSTRAP
            return HealthSeverity.WARNING if quiet else HealthSeverity.ERROR, words
        case _:
            return HealthSeverity.OK if reason in _EARLY else HealthSeverity.WARNING, words


def _grants(workload: WorkloadFacts) -> Sequence[RoleGrant] | Unread:
    """Resolve the bindings that matter, as the controller does."""
    for unread in (workload.roles, workload.bindings):
        if isinstance(unread, Unread):
            return unread
    permissions = {text(role, "metadata", "name"): nominal_permissions(role) for role in readable(workload.roles)}
    found = (grant_of(binding, permissions) for binding in readable(workload.bindings))
    return [grant for grant in found if grant is not None]


def joiners(facts: HealthFacts) -> list[JsonObject]:
    """Return the Machines and pools of protected clusters that name a bootstrap configuration and have not joined.

    A pool is always about to: its next instance is made of the same configuration.
    """
    known = readable(facts.management.attestations)
    joined = {(_cluster_key(one), text(one, "spec", "providerID")) for one in known if items(one, "spec", "issued")}
    protected = {key_of(one) for one in facts.protected()}
    return [
        machine
        for machine in readable(facts.management.machines)
        if bootstrap_config_ref(machine) is not None
        and _cluster_key(machine) in protected
        and not mapping(machine, "status", "nodeRef")
        and "deletionTimestamp" not in mapping(machine, "metadata")
        and (_cluster_key(machine), text(machine, "spec", "providerID")) not in joined
    ]


def _cluster_key(machine: JsonObject) -> str:
    return f"{text(machine, 'metadata', 'namespace')}/{cluster_of(machine)}"


def check_bootstrap(facts: HealthFacts) -> Iterator[HealthFinding]:
    """Look at what machines join with: the agent in their bootstrap data, refused configurations, and tokens."""
    waiting, management = joiners(facts), facts.management
    known = not any(isinstance(one, Unread) for one in (management.machines, management.attestations))
    for cluster in facts.protected():
        key = key_of(cluster)
        if facts.enforces(key) and known:  # what could not be read is told with the machines
            yield _bootstrap_data(facts, key, [one for one in waiting if _cluster_key(one) == key])
        workload = facts.workloads.get(key)
        if workload is not None and workload.unreached is None:
            yield _bootstrap_tokens(key, workload)
    if not isinstance(management.policies, Unread):
        refused = [
            f"{text(one, 'kind')} {text(policy, 'metadata', 'namespace')}/{text(one, 'name')}: {text(one, 'reason')}: "
            f"{text(one, 'message')}"
            for policy in management.policies
            for one in items(policy, "status", "refusedConfigurations")
        ]
        yield make_finding(
            "bootstrap-refused",
            "no bootstrap configuration was refused of late",
            "none was",
            warnings=[listed(refused)] if refused else [],
            remedy="the message says what to correct; no Machine is made until then",
        )


def _bootstrap_data(facts: HealthFacts, key: str, waiting: Sequence[JsonObject]) -> HealthFinding:
    """See that each joiner's configuration starts the agent, and names the token that the machine has."""
    found: dict[str, list[str]] = {"wrong": [], "lost": [], "unknown": []}
    configs, requires_token = facts.management.configs, facts.requires_named_tokens(key)
    known = {key_of(one): one for one in readable(configs or ())}
    for machine in waiting:
        reference = bootstrap_config_ref(machine)
        if reference is None:
            continue
        what, said = "unknown", ""
        other = provider_of_kind(reference.group, reference.kind)
        config = known.get(f"{text(machine, 'metadata', 'namespace')}/{reference.name}")
        if other is not None:
            what, said = "wrong", f"{reference.kind} ({other.name}) cannot attest"
        elif (reference.group, reference.kind) != _KUBEADM:
            said = f"{reference.kind} is not known here"
        elif isinstance(configs, Unread):
            said = configs.why
        elif config is None:
            said = f"KubeadmConfig {reference.name} is not there"
        elif not _starts_agent(config):
            what, said = "wrong", f"KubeadmConfig {reference.name} is not rendered"
        elif requires_token and _lost_token(config):
            what, said = "lost", f"KubeadmConfig {reference.name} {LOST_TOKEN}"
        if said:
            found[what].append(f"{text(machine, 'kind')} {text(machine, 'metadata', 'name')}: {said}")
    remedies = {
        "wrong": "nodeattest render, or the webhook (docs/bootstrap-config.md); then make the machines anew",
        "lost": f"{DELETE_UNNAMED} (docs/denials.md#the-request)",
        "unknown": "let this user list KubeadmConfigs, which may hold bootstrap tokens",
    }
    wrong = [listed(found[what]) for what in ("wrong", "lost") if found[what]]
    needed = [remedies[what] for what in ("wrong", "lost") if found[what]] or [remedies["unknown"]]
    return make_finding(
        "bootstrap-data",
        "machines that have not joined yet have the agent in their bootstrap configuration, and their token",
        f"{len(waiting)} machines are about to join, all with the agent",
        errors=wrong,
        unknown=[listed(found["unknown"])] if found["unknown"] else [],
        remedy="; ".join(needed),
        cluster=key,
    )


def _starts_agent(config: JsonObject) -> bool:
    try:
        return is_rendered({**config, "kind": "KubeadmConfig"})
    except RenderingRefused:
        return False


def _lost_token(config: JsonObject) -> bool:
    """Return whether the token of a machine that joins will never be named; ``kubeadm init`` needs none."""
    try:
        return "joinConfiguration" in mapping(config, "spec") and named_tokens(config).token_lost
    except Unavailable:  # it names something else
        return False


def _bootstrap_tokens(key: str, workload: WorkloadFacts) -> HealthFinding:
    """See that bootstrap tokens may create requests; how many of them sign cluster-info says that there are some."""
    bindings, info = workload.bindings, workload.cluster_info
    remedy = (
        f"the controller makes {BOOTSTRAP_BINDING} when it connects: see its log, and apply manifests/workload-rbac"
    )
    errors: list[str] = []
    if isinstance(bindings, Unread):
        remedy = "let this user list ClusterRoleBindings there"
    elif not any(_lets_tokens_ask(binding) for binding in bindings):
        errors = [f"no ClusterRoleBinding gives them {_BOOTSTRAPPER}"]
    said = "no cluster-info: machines need another way to find the cluster"
    if isinstance(info, dict):
        signatures = sum(name.startswith(_SIGNATURE) for name in mapping(info, "data"))
        said = f"cluster-info is signed by {signatures} tokens"
    elif isinstance(info, Unread):
        said = f"cluster-info was not read: {info.why}"
    return make_finding(
        "bootstrap-tokens",
        "bootstrap tokens may create CertificateSigningRequests, and cluster-info is there",
        "they may",
        errors=errors,
        unknown=[bindings.why] if isinstance(bindings, Unread) else [],
        also=[said],
        remedy=remedy,
        cluster=key,
    )


def _lets_tokens_ask(binding: JsonObject) -> bool:
    bound = text(binding, "roleRef", "name") == _BOOTSTRAPPER
    names = (text(subject, "name") for subject in items(binding, "subjects"))
    return bound and (bool(bootstrap_groups_of(binding)) or "system:bootstrappers" in names)


def check_machines(facts: HealthFacts) -> Iterator[HealthFinding]:
    """Count the machines of each protected cluster, and look whose certificates expire next."""
    machines, attestations = facts.management.machines, facts.management.attestations
    expected = "every machine of a protected cluster is attested"
    unread = _unread("machines-attested", expected, {"Machines": machines, "MachineAttestations": attestations})
    if unread is not None:
        yield unread
        return
    records = readable(attestations)
    certificates = {key_of(one): newest_certificate(parse_attestation(one)) for one in records}
    rows = [row for row in rows_of([*readable(machines), *records], facts.now) if row.state != MACHINE_GONE]
    for cluster in facts.protected():
        own = [row for row in rows if f"{row.namespace}/{row.cluster}" == key_of(cluster)]
        yield _machines(key_of(cluster), own)
        ends = ((certificates.get(f"{row.namespace}/{row.attestation}"), row.machine) for row in own)
        yield _certificates(key_of(cluster), [(end, name) for end, name in ends if end is not None], facts.now)


def _machines(key: str, rows: Sequence[MachineRow]) -> HealthFinding:
    """Count them by state; what expired is said with the certificates."""
    counted = Counter(row.state for row in rows)
    refused = [f"{row.machine} ({row.refused})" for row in rows if row.refused and row.expires is not None]
    claimed = [f"{row.machine} ({row.refused})" for row in rows if row.refused and row.expires is None]
    foreign = [row.machine for row in rows if row.state == Known.NOT_ATTESTED]
    warnings = [f"requests refused that claim {listed(claimed)}"] if claimed else []
    warnings += [f"joined without attestation: {listed(foreign)}"] if foreign else []
    return make_finding(
        "machines-attested",
        "every machine is attested or about to be, and none is refused",
        "no machine",
        errors=[f"renewal refused: {listed(refused)}"] if refused else [],
        warnings=warnings,
        also=[f"{count} {state}" for state, count in sorted(counted.items())],
        remedy="nodeattest machines list --not-attested; nodeattest explain machine/NAME; docs/operate.md#adoption",
        cluster=key,
    )


def _certificates(key: str, found: Sequence[tuple[IssuedCertificate, str]], now: datetime) -> HealthFinding:
    by_end = sorted(found, key=lambda each: (each[0].not_after, each[1]))
    left = [(end.not_after - now, end.not_after - end.not_before, name) for end, name in by_end]
    expired = [name for rest, _, name in left if rest.total_seconds() <= 0]
    late = [name for rest, whole, name in left if 0 < rest.total_seconds() < whole.total_seconds() / _PARTS]
    first = next(((end, name) for end, name in by_end if end.not_after > now), None)
    page = "NodeAttestationCertificateEnded" if expired else "NodeAttestationCertificateEndsSoon"
    return make_finding(
        "certificates",
        "every certificate has a quarter of its lifetime left",
        "no certificate",
        errors=[f"expired: {listed(expired)}"] if expired else [],
        warnings=[f"less than a quarter left: {listed(late)}"] if late else [],
        also=[f"the first expires at {rfc3339(first[0].not_after)} ({first[1]})"] if first else [],
        remedy=f"docs/runbooks.md#{page.lower()}",
        cluster=key,
    )
