"""Whether API servers call the webhook for a namespace's bootstrap configuration: by label and configuration. Pure.

The matchConditions of this release leave out only updates that the webhook would allow unchanged. With an
objectSelector or any other condition, it is not known whether the webhook is called. Source: kubernetes apiserver
pkg/admission/plugin/webhook (generic/webhook.go shouldCallHook, predicates).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import product
from typing import Final

from nodeattest_controller import manifests
from nodeattest_controller.model.policy import selector_holds
from nodeattest_parsing.objects import items, mapping, strings, text
from nodeattest_parsing.values import JsonObject

LABEL: Final = "attestation.cluster.x-k8s.io/bootstrap-config"
_ENABLED: Final = "enabled"
_DISABLED: Final = "disabled"
_VALUES: Final = frozenset({_ENABLED, _DISABLED})
"""``disabled``: somebody decided that the webhook renders nothing there."""
EXPECTED: Final = f"a namespace with the label {LABEL}={_ENABLED}, without which the webhook renders nothing"


def is_decided(namespace: JsonObject) -> bool:
    """Tell whether a Namespace says, one way or the other, what the webhook does there."""
    return text(namespace, "metadata", "labels", LABEL) in _VALUES


def is_disabled(namespace: JsonObject) -> bool:
    """Tell whether a Namespace says that the webhook renders nothing there."""
    return text(namespace, "metadata", "labels", LABEL) == _DISABLED


def label_command(namespace: str) -> str:
    """Return the command that labels a namespace."""
    return f"kubectl label namespace {namespace or 'NAMESPACE'} {LABEL}={_ENABLED}"


def needs_webhook(policy: JsonObject | None) -> bool:
    """Tell whether machines of a policy's Clusters join by what is rendered only; None does not."""
    return policy is not None and (text(mapping(policy, "spec"), "enforcement") or "Enforce") == "Enforce"


MUTATING: Final = "MutatingWebhookConfiguration"
WEBHOOK_NAME: Final = "bootstrap-config.attestation.cluster.x-k8s.io"
_RENDERED: Final = (
    ("bootstrap.cluster.x-k8s.io", "kubeadmconfigs"),
    ("controlplane.cluster.x-k8s.io", "kubeadmcontrolplanes"),
)
"""What the webhook renders."""
_OPERATIONS: Final = ("CREATE", "UPDATE")
"""When: a control plane's user changes it, and a KubeadmConfig may get its Cluster's label after it was created."""
_VERSIONS: Final = ("v1beta1", "v1beta2")
"""Versions of both that Cluster API serves."""


@dataclass(frozen=True, slots=True)
class WebhookCalls:
    """What a configuration says of a namespace; at most one field is set, and none where the webhook is called."""

    why_not: str = ""
    """Why it is not called."""
    why_unknown: str = ""
    """Why that is not known."""
    weakness: str = ""
    """When it is called, and its absence is passed over."""


def webhook_calls(configuration: JsonObject | None, namespace: JsonObject) -> WebhookCalls:
    """Tell whether the webhook is called for what is created or changed in a namespace.

    ``configuration``: the MutatingWebhookConfiguration; None: there is none.
    """
    if configuration is None:
        return WebhookCalls(why_not="its MutatingWebhookConfiguration is absent")
    found = [one for one in items(configuration, "webhooks") if text(one, "name") == WEBHOOK_NAME]
    if not found:
        return WebhookCalls(why_not=f"the MutatingWebhookConfiguration has no webhook {WEBHOOK_NAME}")
    labels = mapping(namespace, "metadata", "labels")
    called = [one for one in found if selector_holds(mapping(one, "namespaceSelector"), labels)]
    if not called:
        return WebhookCalls(why_not="the MutatingWebhookConfiguration's namespaceSelector leaves this namespace out")
    return _calls_there(called)


def _calls_there(webhooks: Sequence[JsonObject]) -> WebhookCalls:
    """Tell whether webhooks that select a namespace are called for what is rendered."""
    missing, partial = list[str](), list[str]()
    for (group, resource), operation in product(_RENDERED, _OPERATIONS):
        versions = {version for one in webhooks for version in _versions(one, group, resource, operation)}
        if versions != {*_VERSIONS}:
            (partial if versions else missing).append(f"{operation} of {resource}")
    if missing:
        return WebhookCalls(why_not=f"the MutatingWebhookConfiguration has no rule for {', '.join(missing)}")
    unknown = [field for one in webhooks for field in narrowed_by(one)]
    if partial:
        unknown.append(f"matchPolicy Exact without a rule for {' and '.join(_VERSIONS)} ({', '.join(partial)})")
    if unknown:
        has = f"the MutatingWebhookConfiguration has {', '.join(unknown)}"
        return WebhookCalls(why_unknown=f"{has}; make it that of manifests/webhook; nodeattest doctor compares them")
    return WebhookCalls(weakness="its failurePolicy is not Fail" if any(map(is_passed_over, webhooks)) else "")


def shipped_configuration(kind: str = MUTATING) -> JsonObject:
    """Return a webhook configuration of this release."""
    return next(one for one in manifests.objects("webhook") if text(one, "kind") == kind)


def narrowed_by(webhook: JsonObject) -> Sequence[str]:
    """Name the fields by which a webhook is called for fewer objects than this release's."""
    fields = ["objectSelector"] if webhook.get("objectSelector") else []
    own = {text(one, "expression") for one in items(webhook, "matchConditions")} - set(_conditions().values())
    return [*fields, "matchConditions"] if own else fields


def missing_conditions(webhook: JsonObject) -> Sequence[str]:
    """Name the matchConditions of this release that the webhook for bootstrap configuration lacks."""
    there = {text(one, "expression") for one in items(webhook, "matchConditions")}
    return [name for name, expression in _conditions().items() if expression not in there]


@cache
def _conditions() -> dict[str, str]:
    """Return the expressions of this release's conditions by name."""
    [webhook] = items(shipped_configuration(), "webhooks")
    return {text(one, "name"): text(one, "expression") for one in items(webhook, "matchConditions")}


def is_passed_over(webhook: JsonObject) -> bool:
    """Tell whether an API server goes on without a webhook that does not answer."""
    return text(webhook, "failurePolicy") != "Fail"


def _versions(webhook: JsonObject, group: str, resource: str, operation: str) -> Iterator[str]:
    """Yield the versions of a resource for which a webhook is called: with Equivalent, of one that is listed, all."""
    for rule in items(webhook, "rules"):
        if (
            {"*", group} & set(strings(rule, "apiGroups"))
            and {"*", "*/*", resource, f"{resource}/*"} & set(strings(rule, "resources"))
            and {"*", operation} & set(strings(rule, "operations"))
            and text(rule, "scope") in {"", "*", "Namespaced"}
        ):
            given = set(strings(rule, "apiVersions"))
            listed = [version for version in _VERSIONS if {"*", version} & given]
            yield from _VERSIONS if listed and text(webhook, "matchPolicy") != "Exact" else listed
