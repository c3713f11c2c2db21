"""The webhook for bootstrap configuration and policies: configurations, CAs, endpoints, and whether it answers.

The Secret with the serving certificate is not read: that the API server takes that certificate is seen by a
KubeadmConfig that is created on trial (``dryRun``), which the webhook renders without a trace.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import Final

from cryptography import x509

from nodeattest_cli.doctor.model import HealthFinding, listed, make_finding, not_looked_at
from nodeattest_cli.doctor.survey import BOOTSTRAP, VALIDATING, Survey, listed_objects, required
from nodeattest_controller.controllers.bootstrap_config.kubeadmconfig.render import is_rendered
from nodeattest_controller.model.machine_view import CLUSTER_LABEL
from nodeattest_controller.model.webhook_configuration import (
    MUTATING,
    WEBHOOK_NAME,
    is_passed_over,
    missing_conditions,
    narrowed_by,
    shipped_configuration,
)
from nodeattest_kube import paths
from nodeattest_kube.errors import ApiError, Forbidden, Unreachable
from nodeattest_parsing.objects import flag, items, key_of, mapping, rfc3339, strings, text
from nodeattest_parsing.strict_base64 import decode_base64
from nodeattest_parsing.values import JsonObject, JsonValue
from nodeattest_providers.certificate_chain import X509_ERRORS

_SAME: Final = ("rules", "sideEffects", "admissionReviewVersions", "matchPolicy")
"""Fields that an installation has no reason to change."""
_NAMESPACE_NAME: Final = "kubernetes.io/metadata.name"
_PARTS: Final = 4
"""A CA in the last quarter of its lifetime is reported: cert-manager replaces one when a third is left."""
_APPLY: Final = "kubectl apply -k manifests/webhook of this release"
_TRIAL: Final = "nodeattest-doctor"


async def check_webhook(survey: Survey) -> AsyncIterator[HealthFinding]:
    """Look at the configurations, and at what they lead to."""
    mutating, validating = (required(survey.webhooks[kind]) for kind in (MUTATING, VALIDATING))
    if mutating is None:
        yield _absent(survey)
        return
    yield _configuration(survey, {MUTATING: mutating, VALIDATING: validating or {}})
    yield _authorities(survey, [*items(mutating, "webhooks"), *items(validating or {}, "webhooks")])
    services = [mapping(one, "clientConfig", "service") for one in items(mutating, "webhooks")]
    for service in [one for one in services if one][:1]:
        yield await _endpoints(survey, service)


def _absent(survey: Survey) -> HealthFinding:
    """Without the webhook, an installation is whole where the Deployment does not serve it."""
    namespace = survey.target.controller_namespace
    unseen = "there is no webhook, and whether the controller serves it is not known: no Deployment of the controller "
    unseen += f"was found in {namespace}; see --controller-namespace"
    serves = survey.argument("--webhook-bind-address") not in {None, "0"}
    return make_finding(
        "webhook-configuration",
        "the webhook is configured where the controller serves it",
        "no webhook (manifests without it)",
        errors=["the controller serves it, and no API server calls it"] if serves else [],
        unknown=[] if required(survey.deployments) else [unseen],
        remedy=_APPLY,
    )


def _configuration(survey: Survey, configurations: dict[str, JsonObject]) -> HealthFinding:
    """Compare both with this release; one that is there is weak where it is ignored and should not be."""
    wrong, weak = list[str](), list[str]()
    for kind, configuration in configurations.items():
        there = {text(one, "name"): one for one in items(configuration, "webhooks")}
        for wanted in items(shipped_configuration(kind), "webhooks"):
            name, webhook = text(wanted, "name"), there.get(text(wanted, "name"))
            if webhook is None:
                wrong.append(f"there is no webhook {name}")
                continue
            faults = [f"{field} is another" for field in _SAME if webhook.get(field) != wanted.get(field)]
            faults += _service_faults(survey.target.controller_namespace, webhook, wanted)
            if kind == MUTATING:
                faults += [f"it lacks the matchCondition {one}" for one in missing_conditions(webhook)]
            lacking, narrower = _selector_faults(survey, webhook, wanted)
            wrong += [f"{name}: {fault}" for fault in (*faults, *lacking)]
            weak += [f"{name}: {fault}" for fault in narrower]
            if is_passed_over(webhook) and not is_passed_over(wanted):
                weak.append(f"{name}: failurePolicy is {text(webhook, 'failurePolicy')}")
    remedy = "set failurePolicy Fail (with Ignore, machines are made without the agent while no replica answers)"
    remedy += ", and take out selectors and conditions that this release does not have"
    return make_finding(
        "webhook-configuration",
        "it is that of this release, with its failurePolicy",
        "the same",
        errors=wrong,
        warnings=weak,
        remedy=_APPLY if wrong else remedy,
    )


def _service_faults(controller_namespace: str, webhook: JsonObject, wanted: JsonObject) -> Iterator[str]:
    """Compare where API servers send reviews; a URL is an installation's own, but for its path."""
    path = text(wanted, "clientConfig", "service", "path")
    service, url = mapping(webhook, "clientConfig", "service"), text(webhook, "clientConfig", "url")
    if not service:
        if not url.endswith(path):
            yield f"its URL does not end with {path}"
        return
    named = f"{text(service, 'namespace')}/{text(service, 'name')}"
    expected = f"{controller_namespace}/{text(wanted, 'clientConfig', 'service', 'name')}"
    if named != expected:
        yield f"it calls the Service {named} in place of {expected}"
    if text(service, "path") != path:
        yield f"it calls the path {text(service, 'path')} in place of {path}"


def _selector_faults(survey: Survey, webhook: JsonObject, wanted: JsonObject) -> tuple[list[str], list[str]]:
    """Compare the selectors: what is not as shipped, and what else narrows them.

    An overlay may name the namespaces (``kubernetes.io/metadata.name``), if those of all protected clusters are there.
    """
    there = items(webhook, "namespaceSelector", "matchExpressions")
    shipped = items(wanted, "namespaceSelector", "matchExpressions")
    wrong = [f"namespaceSelector lacks {_requirement(one)}" for one in shipped if one not in there]
    weak: list[str] = []
    namespaces = {text(one, "metadata", "namespace") for one in survey.protected()}
    for one in (one for one in there if one not in shipped):
        if text(one, "key") == _NAMESPACE_NAME and text(one, "operator") == "In":
            left = sorted(namespaces - set(strings(one, "values")))
            wrong += [f"namespaceSelector leaves out {listed(left)}"] if left else []
        else:
            weak.append(f"namespaceSelector has {_requirement(one)} besides")
    if mapping(webhook, "namespaceSelector", "matchLabels"):
        weak.append("namespaceSelector has matchLabels besides")
    weak += [f"it has {field}" for field in narrowed_by(webhook)]
    return wrong, weak


def _requirement(one: JsonObject) -> str:
    return f"{text(one, 'key')} {text(one, 'operator')} ({listed(strings(one, 'values'))})"


def _authorities(survey: Survey, webhooks: list[JsonObject]) -> HealthFinding:
    """See that each bundle holds a CA that is good now, and how long."""
    wrong, soon, ends = list[str](), list[str](), list[str]()
    for webhook in webhooks:
        name, given = text(webhook, "name"), text(webhook, "clientConfig", "caBundle")
        try:
            bundle = x509.load_pem_x509_certificates(decode_base64(given))
        except X509_ERRORS:
            wrong.append(f"{name}: caBundle {'is not certificates in PEM' if given else 'is empty'}")
            continue
        last = max(bundle, key=lambda one: one.not_valid_after_utc)
        begin, end = last.not_valid_before_utc, last.not_valid_after_utc
        if end <= survey.now:
            wrong.append(f"{name}: its CA expired at {rfc3339(end)}")
        else:
            is_soon = end - survey.now < (end - begin) / _PARTS
            (soon if is_soon else ends).append(f"{name}: until {rfc3339(end)}")
    return make_finding(
        "webhook-ca",
        "API servers know a CA of it that is valid",
        "",
        errors=wrong,
        warnings=soon,
        also=ends,
        remedy="cert-manager's CA injector writes it: see the Certificate nodeattest-webhook (kubectl describe), and "
        "that cert-manager runs",
    )


async def _endpoints(survey: Survey, service: JsonObject) -> HealthFinding:
    """See that a Service leads to a replica that is ready."""
    namespace, name = text(service, "namespace"), text(service, "name")
    path = paths.collection_path("discovery.k8s.io", "v1", "endpointslices", namespace=namespace)
    slices = await listed_objects(survey.client, path, {"labelSelector": f"kubernetes.io/service-name={name}"})
    endpoints = [endpoint for one in slices for endpoint in items(one, "endpoints")]
    ready = sum(mapping(endpoint, "conditions").get("ready") is not False for endpoint in endpoints)
    return make_finding(
        "webhook-endpoints",
        f"the Service {namespace}/{name} leads to replicas that are ready",
        f"{ready} are",
        errors=[] if ready else ["none are"],
        remedy="see that the Deployment's pods are ready, and that the Service's selector fits their labels",
    )


async def check_trials(survey: Survey) -> AsyncIterator[HealthFinding]:
    """Try the webhook with one Cluster of each namespace for which it renders: whether it does is the namespace's."""
    configuration = required(survey.webhooks[MUTATING])
    if configuration is None:
        return
    for needed in (survey.policies, survey.clusters):
        required(needed)
    version, chosen = required(survey.bootstrap_api), dict[str, JsonObject]()
    for cluster in survey.protected() if version else ():
        if not flag(cluster, "spec", "paused") and survey.enforces(cluster):
            chosen.setdefault(text(cluster, "metadata", "namespace"), cluster)
    for cluster in chosen.values():
        yield await _try(survey, cluster, version, configuration)
    if not chosen:
        said = "nothing to render yet: no Cluster has a policy that enforces, or no KubeadmConfig can be made"
        yield _trial("", said)


def _trial(key: str, ok: str, *, error: str = "", unknown: str = "", remedy: str = "") -> HealthFinding:
    return make_finding(
        "webhook-answers",
        "it renders a KubeadmConfig that is created on trial (dryRun)",
        ok,
        errors=[error] if error else [],
        unknown=[unknown] if unknown else [],
        remedy=remedy,
        cluster=key,
    )


async def _try(survey: Survey, cluster: JsonObject, version: str, configuration: JsonObject) -> HealthFinding:
    """Create a KubeadmConfig of a cluster in a dry run: nothing is stored, and the webhook reports nothing."""
    key, namespace = key_of(cluster), text(cluster, "metadata", "namespace")
    argument: JsonObject = {"name": "provider-id", "value": f"{_TRIAL}://trial"}
    arguments: JsonValue = {"provider-id": argument["value"]} if version == "v1beta1" else [argument]
    labels: JsonObject = {CLUSTER_LABEL: text(cluster, "metadata", "name")}
    body: JsonObject = {
        "apiVersion": f"{BOOTSTRAP}/{version}",
        "kind": "KubeadmConfig",
        "metadata": {"name": _TRIAL, "namespace": namespace, "labels": labels},
        "spec": {"joinConfiguration": {"nodeRegistration": {"kubeletExtraArgs": arguments}}},
    }
    path = paths.collection_path(BOOTSTRAP, version, "kubeadmconfigs", namespace=namespace)
    try:
        made: JsonObject = {**await survey.client.create(f"{path}?dryRun=All", body), "kind": "KubeadmConfig"}
    except ApiError as error:
        return _trial_refused(key, error)
    if is_rendered(made):
        return _trial(key, "it does")
    exempt = any(map(is_passed_over, items(configuration, "webhooks")))
    said = "the KubeadmConfig stayed as it was" + ("; with failurePolicy Ignore, nothing says why" if exempt else "")
    remedy = "see the webhook's rules and selectors, and the label of the namespace (docs/bootstrap-config.md)"
    return _trial(key, "", error=said, remedy=remedy)


def _trial_refused(key: str, error: ApiError) -> HealthFinding:
    """Tell who refused a trial: the webhook, which then answers, the API server, or who is in the way."""
    said = str(error)
    if isinstance(error, Unreachable) or (isinstance(error, Forbidden) and "webhook" not in error.message):
        return not_looked_at("webhook-answers", said, key)
    if f'admission webhook "{WEBHOOK_NAME}" denied' in said:
        return _trial(key, f"it answers: {said}")
    if WEBHOOK_NAME in said:
        return _trial(key, "", error=said, remedy="docs/runbooks.md#nodeattestationwebhookerrors")
    refused = f"the API server refused the trial for another reason: {said}"
    return _trial(key, "", unknown=refused, remedy="docs/bootstrap-config.md")
