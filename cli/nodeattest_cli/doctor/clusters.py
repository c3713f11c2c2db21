"""Protected clusters: policies, automatic approval, what machines join with, attested machines and certificates.

The controller asks the API server about automatic approval besides, and watches what the in-tree signer issues: a
binding that is found here is open in any case, and none that is found here is closed only where the condition says so.
No Secret is read: neither tokens, nor bootstrap data as it was made of a KubeadmConfig.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Sequence
from datetime import datetime
from typing import Final

from nodeattest_cli.doctor.model import HealthFinding, HealthSeverity, listed, make_finding
from nodeattest_cli.doctor.survey import (
    BOOTSTRAP,
    Survey,
    Unread,
    listed_objects,
    machine_cluster_key,
    optional,
    required,
)
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
from nodeattest_controller.model.machine_view import bootstrap_config_ref
from nodeattest_controller.model.token_binding import DELETE_UNNAMED, LOST_TOKEN, named_tokens
from nodeattest_controller.runtime.workload_client import BOOTSTRAP_BINDING
from nodeattest_controller.verification.verifiers import offline_signer
from nodeattest_discovery.clusterinfo import PATH as CLUSTER_INFO
from nodeattest_kube import paths
from nodeattest_kube.client import ApiClient
from nodeattest_kube.errors import ApiError
from nodeattest_parsing.objects import condition, items, key_of, mapping, number, rfc3339, strings, text
from nodeattest_parsing.values import JsonObject
from nodeattest_providers.errors import Unavailable
from nodeattest_providers.identifiers import ProviderName

_SEEN_BY_US: Final = frozenset({PolicyReason.INVALID, PolicyReason.CONFLICT})
"""Reasons of the condition that other findings tell with more detail."""
_EARLY: Final = frozenset({ApprovalReason.NOT_INITIALIZED, ApprovalReason.WAITING_FOR_CLUSTER_INFO})
"""A cluster that is coming up."""
_RBAC: Final = ("rbac.authorization.k8s.io", "v1")
_BOOTSTRAPPER: Final = "system:node-bootstrapper"
_SIGNATURE: Final = "jws-kubeconfig-"
_PARTS: Final = 4
"""A certificate with less than a quarter of its lifetime left was not renewed: agents renew long before."""
_RENDER: Final = "nodeattest render, or the webhook (docs/bootstrap-config.md); then make the machines anew"
_NAME_TOKEN: Final = f"{DELETE_UNNAMED} (docs/denials.md#the-request)"
_LIST_CONFIGS: Final = "let this user list KubeadmConfigs, which may hold bootstrap tokens"


async def check_policies(survey: Survey) -> AsyncIterator[HealthFinding]:
    """Look at each policy by every check of ``policy check``, and at each cluster's policies."""
    policies, clusters = required(survey.policies), required(survey.clusters)
    wrong: list[str] = []
    absent: set[str] = set()  # one of another package may be installed in the controller and not here
    for policy in policies:
        key, written = key_of(policy), {name: value for name, value in policy.items() if name != "status"}
        named = (*strings(policy, "spec", "authorizedAttestors"), *strings(policy, "spec", "composite", "allOf"))
        wrong += [f"{key}: {problem}" for problem in problems(written, named)]
        absent |= {f"{key}: {name}" for name in named if not offline_signer(ProviderName(name))}
    yield make_finding(
        "policies-valid",
        "every policy is valid",
        f"{len(policies)} valid",
        errors=[listed(wrong)] if wrong else [],
        remedy="nodeattest policy check -f FILE; until then no node joins under it",
    )
    yield make_finding(
        "policies-providers",
        "every provider that a policy names is known here",
        "all are",
        warnings=[listed(sorted(absent))] if absent else [],
        remedy="correct the name, unless the controller has it from another package",
    )
    yield _accepted(policies)
    yield _overlap(survey, clusters)
    alone = [key_of(cluster) for cluster in clusters if not survey.policies_of(cluster)]
    yield make_finding(
        "clusters-without-policy",
        "there are clusters; those that no policy selects are not protected, and no more is said of them",
        listed(alone) or "none",
        warnings=[] if clusters else ["there is no Cluster or ClusterRecord, so none was looked at"],
        remedy="say --namespace, or --all-namespaces",
    )


def _accepted(policies: Sequence[JsonObject]) -> HealthFinding:
    refused, waiting = list[str](), list[str]()
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


def _overlap(survey: Survey, clusters: Sequence[JsonObject]) -> HealthFinding:
    shared: list[str] = []
    for cluster in clusters:
        policies = survey.policies_of(cluster)
        ruling = [
            f" ({text(conflict, 'ruling')} goes on)"
            for policy in policies
            for conflict in items(policy, "status", "conflicts")
            if text(conflict, "cluster") == text(cluster, "metadata", "name") and text(conflict, "ruling")
        ]
        if len(policies) > 1:
            names = listed(sorted(text(one, "metadata", "name") for one in policies))
            shared.append(f"{key_of(cluster)} by {names}{''.join(ruling[:1])}")
    return make_finding(
        "policies-overlap",
        "at most one policy selects a cluster",
        "no cluster is selected by two",
        errors=[listed(shared)] if shared else [],
        remedy="narrow the clusterSelectors so that one policy remains",
    )


def approval(survey: Survey, cluster: JsonObject, grants: Sequence[RoleGrant] | Unread) -> HealthFinding:
    """Say of automatic approval by the in-tree signer what the controller says, and what RBAC grants.

    ``grants`` is an ``Unread`` where the cluster does not answer: who wrote the condition may not reach it either.
    """
    found: dict[HealthSeverity, list[str]] = {severity: [] for severity in HealthSeverity}
    severity, words = _of_condition(survey, cluster)
    found[severity].append(words)
    if isinstance(grants, Unread):
        found[HealthSeverity.UNKNOWN].append(f"its bindings could not be read: {grants}")
    elif grants:
        is_open = any(SubjectKind.BOOTSTRAPPERS in grant.to for grant in grants) and survey.enforces(cluster)
        worse = HealthSeverity.ERROR if is_open else HealthSeverity.WARNING
        found[worse].append(f"ClusterRoleBindings grant it: {listed(map(str, grants))}")
    else:
        found[HealthSeverity.OK].append("no ClusterRoleBinding grants it")
    return make_finding(
        "automatic-approval",
        "nobody but the controller approves certificates of nodes",
        "",
        errors=found[HealthSeverity.ERROR],
        unknown=found[HealthSeverity.UNKNOWN],
        warnings=found[HealthSeverity.WARNING],
        also=found[HealthSeverity.OK],
        remedy="docs/operate.md#automatic-approval says what each reason needs",
        cluster=key_of(cluster),
    )


def _of_condition(survey: Survey, cluster: JsonObject) -> tuple[HealthSeverity, str]:
    if not survey.runs("hardening"):
        return HealthSeverity.OK, "the controller hardening is turned off"
    said = condition(items(cluster, "status", "conditions"), CONDITION)
    if said is None:
        return HealthSeverity.WARNING, f"the Cluster has no condition {CONDITION} yet"
    status, reason = said.get("status"), str(said.get("reason"))
    words = f"{CONDITION} is {status}: {reason}: {said.get('message')}"
    if status == "True":
        return HealthSeverity.OK, f"{CONDITION} is True"
    if status == "False" and reason not in {ApprovalReason.AUDIT, ApprovalReason.CLOSED_FOR_BOOTSTRAP}:
        return HealthSeverity.ERROR, words
    # That two policies select it is another finding, and the cause of this.
    of_conflict = reason == ApprovalReason.CANNOT_VERIFY and len(survey.policies_of(cluster)) > 1
    is_early = status != "False" and reason in _EARLY
    return HealthSeverity.OK if of_conflict or is_early else HealthSeverity.WARNING, words


async def check_bindings(survey: Survey, cluster: JsonObject, client: ApiClient) -> AsyncIterator[HealthFinding]:
    """Look at ClusterRoleBindings: who approves by them, and whether tokens may create requests."""
    key = key_of(cluster)
    try:
        bindings = await listed_objects(client, paths.collection_path(*_RBAC, "clusterrolebindings"))
        roles = await listed_objects(client, paths.collection_path(*_RBAC, "clusterroles"))
    except ApiError as error:
        yield approval(survey, cluster, Unread(str(error)))
        raise
    permissions = {text(role, "metadata", "name"): nominal_permissions(role) for role in roles}
    grants = [grant for binding in bindings if (grant := grant_of(binding, permissions)) is not None]
    yield approval(survey, cluster, grants)
    try:
        info = await optional(client, CLUSTER_INFO)
        signatures = sum(name.startswith(_SIGNATURE) for name in mapping(info or {}, "data"))
        said = f"cluster-info is signed by {signatures} tokens"
        said = said if info is not None else "no cluster-info: machines need another way to find the cluster"
    except ApiError as error:
        said = f"cluster-info was not read: {error}"
    lets_ask = any(map(_lets_tokens_ask, bindings))
    yield make_finding(
        "bootstrap-tokens",
        "bootstrap tokens may create CertificateSigningRequests, and cluster-info is there",
        "they may",
        errors=[] if lets_ask else [f"no ClusterRoleBinding gives them {_BOOTSTRAPPER}"],
        also=[said],
        remedy=f"the controller makes {BOOTSTRAP_BINDING} when it connects: see its log, and apply "
        "manifests/workload-rbac",
        cluster=key,
    )


def _lets_tokens_ask(binding: JsonObject) -> bool:
    bound = text(binding, "roleRef", "name") == _BOOTSTRAPPER
    names = (text(subject, "name") for subject in items(binding, "subjects"))
    return bound and (bool(bootstrap_groups_of(binding)) or "system:bootstrappers" in names)


async def check_bootstrap(survey: Survey) -> AsyncIterator[HealthFinding]:
    """Look at what machines join with: the agent in their bootstrap data, their token, and refused configurations."""
    refused = [
        f"{text(one, 'kind')} {text(policy, 'metadata', 'namespace')}/{text(one, 'name')}: {text(one, 'reason')}: "
        f"{text(one, 'message')}"
        for policy in required(survey.policies)
        for one in items(policy, "status", "refusedConfigurations")
    ]
    yield make_finding(
        "bootstrap-refused",
        "no bootstrap configuration was refused of late",
        "none was",
        warnings=[listed(refused)] if refused else [],
        remedy="the message says what to correct; no Machine is made until then",
    )
    if any(isinstance(found, Unread) for found in (survey.machines, survey.attestations)):
        return  # told with the machines
    waiting = survey.joiners()
    for cluster in survey.protected():
        if survey.enforces(cluster):
            yield _bootstrap_data(
                survey, cluster, [one for one in waiting if machine_cluster_key(one) == key_of(cluster)]
            )


def _bootstrap_data(survey: Survey, cluster: JsonObject, waiting: Sequence[JsonObject]) -> HealthFinding:
    """See that each joiner's configuration starts the agent, and names the token that the machine has."""
    found: defaultdict[str, list[str]] = defaultdict(list)
    for machine in waiting:
        remedy, said = _bootstrap_fault(survey, cluster, machine)
        if said:
            found[remedy].append(f"{text(machine, 'kind')} {text(machine, 'metadata', 'name')}: {said}")
    return make_finding(
        "bootstrap-data",
        "machines that have not joined yet have the agent in their bootstrap configuration, and their token",
        f"{len(waiting)} machines are about to join, all with the agent",
        errors=[listed(found[remedy]) for remedy in (_RENDER, _NAME_TOKEN) if remedy in found],
        unknown=[listed(found[_LIST_CONFIGS])] if _LIST_CONFIGS in found else [],
        remedy="; ".join(found),
        cluster=key_of(cluster),
    )


def _bootstrap_fault(survey: Survey, cluster: JsonObject, machine: JsonObject) -> tuple[str, str]:
    """Return the remedy for a machine's bootstrap configuration, and what is wrong with it; empty for a sound one."""
    reference, namespace = bootstrap_config_ref(machine), text(machine, "metadata", "namespace")
    group, kind, name = (reference.group, reference.kind, reference.name) if reference is not None else ("", "", "")
    other = provider_of_kind(group, kind)
    configs = {} if isinstance(survey.configs, Unread) else {key_of(one): one for one in survey.configs}
    config = configs.get(f"{namespace}/{name}")
    remedy, said = _LIST_CONFIGS, f"{kind} {name} is not there"
    if other is not None:
        remedy, said = _RENDER, f"{kind} ({other.name}) cannot attest"
    elif (group, kind) != (BOOTSTRAP, "KubeadmConfig"):
        said = f"{kind} is not known here"
    elif isinstance(survey.configs, Unread):
        said = str(survey.configs)
    elif config is not None and not _starts_agent(config):
        remedy, said = _RENDER, f"{kind} {name} is not rendered"
    elif config is not None:
        is_lost = survey.requires_named_tokens(cluster) and _lost_token(config)
        remedy, said = _NAME_TOKEN, f"{kind} {name} {LOST_TOKEN}" if is_lost else ""
    return remedy, said


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


async def check_machines(survey: Survey) -> AsyncIterator[HealthFinding]:
    """Count the machines of each protected cluster, and look whose certificates expire next."""
    machines, records = required(survey.machines), required(survey.attestations)
    certificates = {key_of(one): newest_certificate(parse_attestation(one)) for one in records}
    rows = [row for row in rows_of([*machines, *records], survey.now) if row.state != MACHINE_GONE]
    for cluster in survey.protected():
        key = key_of(cluster)
        own = [row for row in rows if f"{row.namespace}/{row.cluster}" == key]
        yield _machines(key, own)
        ends = ((certificates.get(f"{row.namespace}/{row.attestation}"), row.machine) for row in own)
        yield _certificates(key, [(end, name) for end, name in ends if end is not None], survey.now)


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
    expired = [name for end, name in by_end if end.not_after <= now]
    valid = [(end, name) for end, name in by_end if end.not_after > now]
    late = [name for end, name in valid if end.not_after - now < (end.not_after - end.not_before) / _PARTS]
    page = "NodeAttestationCertificateEnded" if expired else "NodeAttestationCertificateEndsSoon"
    return make_finding(
        "certificates",
        "every certificate has a quarter of its lifetime left",
        "no certificate",
        errors=[f"expired: {listed(expired)}"] if expired else [],
        warnings=[f"less than a quarter left: {listed(late)}"] if late else [],
        also=[f"the first expires at {rfc3339(end.not_after)} ({name})" for end, name in valid[:1]],
        remedy=f"docs/runbooks.md#{page.lower()}",
        cluster=key,
    )
