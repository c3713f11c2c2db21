"""The webhook for bootstrap configuration and policies: configurations, CAs, endpoints, and whether it answers. Pure.

The Secret with the serving certificate is not read: that the API server takes that certificate is seen by a
KubeadmConfig that is created on trial (``dryRun``), which the webhook renders without a trace.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from cryptography import x509

from nodeattest_cli.doctor.facts import HealthFacts, TrialRefusal, Unread
from nodeattest_cli.doctor.model import HealthFinding, listed, make_finding
from nodeattest_controller.controllers.bootstrap_config.kubeadmconfig.render import is_rendered
from nodeattest_controller.model.webhook_configuration import (
    MUTATING,
    WEBHOOK_NAME,
    is_passed_over,
    missing_conditions,
    narrowed_by,
    shipped_configuration,
)
from nodeattest_parsing.objects import items, mapping, rfc3339, strings, text
from nodeattest_parsing.strict_base64 import decode_base64
from nodeattest_parsing.values import JsonObject
from nodeattest_providers.certificate_chain import X509_ERRORS

__all__ = ["MUTATING", "VALIDATING", "check_webhook", "shipped_configuration"]

VALIDATING: Final = "ValidatingWebhookConfiguration"
_SAME: Final = ("rules", "sideEffects", "admissionReviewVersions", "matchPolicy")
"""Fields that an installation has no reason to change."""
_NAMESPACE_NAME: Final = "kubernetes.io/metadata.name"
_PARTS: Final = 4
"""A CA in the last quarter of its lifetime is reported: cert-manager replaces one when a third is left."""
_APPLY: Final = "kubectl apply -k manifests/webhook of this release"
_ANSWERS: Final = "webhook-answers"
_RENDERS: Final = "it renders a KubeadmConfig that is created on trial (dryRun)"


def check_webhook(facts: HealthFacts) -> Iterator[HealthFinding]:
    """Look at the configurations, and at what they lead to."""
    found, validation = facts.management.webhook, facts.management.validation
    for one in (found, validation):
        if isinstance(one, Unread):
            name, expected = "webhook-configuration", "the webhook is configured"
            yield make_finding(name, expected, "", unknown=[one.why], remedy="let this user read it")
            return
    if not isinstance(found, dict):
        yield _absent(facts)
        return
    validating = validation if isinstance(validation, dict) else JsonObject()
    yield _configuration(facts, found, validating)
    yield _authorities(facts, (found, validating))
    yield from _endpoints(facts, found)
    yield from _answers(facts, found)


def _absent(facts: HealthFacts) -> HealthFinding:
    """Without the webhook, an installation is whole where the Deployment does not serve it."""
    name, expected = "webhook-configuration", "the webhook is configured where the controller serves it"
    deployments = facts.management.deployments
    if isinstance(deployments, Unread) or not deployments:
        why = deployments.why if isinstance(deployments, Unread) else "no Deployment of the controller was found"
        unknown = [f"there is no webhook, and whether the controller serves it is not known: {why}"]
        remedy = (
            f"see that --controller-namespace is right, and that this user may list Deployments in {facts.namespace}"
        )
        return make_finding(name, expected, "", unknown=unknown, remedy=remedy)
    serves = facts.argument("--webhook-bind-address") not in {None, "0"}
    wrong = ["the controller serves it, and no API server calls it"] if serves else []
    return make_finding(name, expected, "no webhook (manifests without it)", errors=wrong, remedy=_APPLY)


def _configuration(facts: HealthFacts, mutating: JsonObject, validating: JsonObject) -> HealthFinding:
    """Compare both with this release; one that is there is weak where it is ignored and should not be."""
    wrong: list[str] = []
    weak: list[str] = []
    for kind, found in ((MUTATING, mutating), (VALIDATING, validating)):
        there = {text(one, "name"): one for one in items(found, "webhooks")}
        for wanted in items(shipped_configuration(kind), "webhooks"):
            name, webhook = text(wanted, "name"), there.get(text(wanted, "name"))
            if webhook is None:
                wrong.append(f"there is no webhook {name}")
                continue
            wrong += [f"{name}: {field} is another" for field in _SAME if webhook.get(field) != wanted.get(field)]
            wrong += [f"{name}: {fault}" for fault in _service_faults(facts, webhook, wanted)]
            if kind == MUTATING:
                wrong += [f"{name}: it lacks the matchCondition {one}" for one in missing_conditions(webhook)]
            lacking, narrower = _selector_faults(facts, webhook, wanted)
            wrong += [f"{name}: {fault}" for fault in lacking]
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


def _service_faults(facts: HealthFacts, webhook: JsonObject, wanted: JsonObject) -> Iterator[str]:
    """Compare where API servers send reviews; a URL is an installation's own, but for its path."""
    path = text(wanted, "clientConfig", "service", "path")
    service, url = mapping(webhook, "clientConfig", "service"), text(webhook, "clientConfig", "url")
    if not service:
        if not url.endswith(path):
            yield f"its URL does not end with {path}"
        return
    named = f"{text(service, 'namespace')}/{text(service, 'name')}"
    expected = f"{facts.namespace}/{text(wanted, 'clientConfig', 'service', 'name')}"
    if named != expected:
        yield f"it calls the Service {named} in place of {expected}"
    if text(service, "path") != path:
        yield f"it calls the path {text(service, 'path')} in place of {path}"


def _selector_faults(facts: HealthFacts, webhook: JsonObject, wanted: JsonObject) -> tuple[list[str], list[str]]:
    """Compare the selectors: what is not as shipped, and what else narrows them.

    An overlay may name the namespaces (``kubernetes.io/metadata.name``), if those of all protected clusters are there.
    """
    there = items(webhook, "namespaceSelector", "matchExpressions")
    shipped = items(wanted, "namespaceSelector", "matchExpressions")
    wrong = [f"namespaceSelector lacks {_requirement(one)}" for one in shipped if one not in there]
    weak: list[str] = []
    namespaces = {text(one, "metadata", "namespace") for one in facts.protected()}
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


def _authorities(facts: HealthFacts, found: Sequence[JsonObject]) -> HealthFinding:
    """See that each bundle holds a CA that is good now, and how long."""
    ends: list[str] = []
    wrong: list[str] = []
    soon: list[str] = []
    for webhook in (one for configuration in found for one in items(configuration, "webhooks")):
        name = text(webhook, "name")
        bundle = _certificates(text(webhook, "clientConfig", "caBundle"))
        if not bundle:
            given = "is not certificates in PEM" if text(webhook, "clientConfig", "caBundle") else "is empty"
            wrong.append(f"{name}: caBundle {given}")
            continue
        last = max(bundle, key=lambda one: one.not_valid_after_utc)
        begin, end = last.not_valid_before_utc, last.not_valid_after_utc
        if end <= facts.now:
            wrong.append(f"{name}: its CA expired at {rfc3339(end)}")
        else:
            is_soon = end - facts.now < (end - begin) / _PARTS
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


def _certificates(bundle: str) -> list[x509.Certificate]:
    try:
        return x509.load_pem_x509_certificates(decode_base64(bundle))
    except X509_ERRORS:
        return []


def _endpoints(facts: HealthFacts, found: JsonObject) -> Iterator[HealthFinding]:
    """Where a Service is named, it leads to a replica that is ready."""
    services = [mapping(one, "clientConfig", "service") for one in items(found, "webhooks")]
    named = {f"{text(one, 'namespace')}/{text(one, 'name')}" for one in services if one}
    if not named:
        return
    slices = facts.management.endpoints
    expected = f"the Service {listed(sorted(named))} leads to replicas that are ready"
    if isinstance(slices, Unread):
        remedy = "let this user list EndpointSlices there"
        yield make_finding("webhook-endpoints", expected, "", unknown=[slices.why], remedy=remedy)
        return
    ready = sum(
        mapping(endpoint, "conditions").get("ready") is not False
        for one in slices
        for endpoint in items(one, "endpoints")
    )
    yield make_finding(
        "webhook-endpoints",
        expected,
        f"{ready} are",
        errors=[] if ready else ["none are"],
        remedy="see that the Deployment's pods are ready, and that the Service's selector fits their labels",
    )


def _answers(facts: HealthFacts, found: JsonObject) -> Iterator[HealthFinding]:
    trials = facts.management.trials
    if isinstance(trials, Unread):
        yield _answer("", trials, found)
    elif not trials:
        said = "nothing to render yet: no Cluster has a policy that enforces, or no KubeadmConfig can be made"
        yield make_finding(_ANSWERS, _RENDERS, said)
    else:
        for key, made in trials.items():
            yield _answer(key, made, found)


def _answer(key: str, made: JsonObject | Unread | TrialRefusal, found: JsonObject) -> HealthFinding:
    errors: list[str] = []
    unknown: list[str] = []
    ok, remedy = "it does", ""
    match made:
        case Unread():
            unknown, remedy = [made.why], "let this user create KubeadmConfigs, or ask one who may"
        case TrialRefusal() if f'admission webhook "{WEBHOOK_NAME}" denied' in made.why:
            ok = f"it answers: {made.why}"
        case TrialRefusal() if WEBHOOK_NAME in made.why:
            errors, remedy = [made.why], "docs/runbooks.md#nodeattestationwebhookerrors"
        case TrialRefusal():
            unknown = [f"the API server refused the trial for another reason: {made.why}"]
            remedy = "docs/bootstrap-config.md"
        case _ if not is_rendered(made):
            ignores = any(text(one, "failurePolicy") != "Fail" for one in items(found, "webhooks"))
            exempt = "; with failurePolicy Ignore, nothing says why" if ignores else ""
            errors = [f"the KubeadmConfig stayed as it was{exempt}"]
            remedy = "see the webhook's rules and selectors, and the label of the namespace (docs/bootstrap-config.md)"
        case _:
            pass
    return make_finding(_ANSWERS, _RENDERS, ok, errors=errors, unknown=unknown, remedy=remedy, cluster=key)
