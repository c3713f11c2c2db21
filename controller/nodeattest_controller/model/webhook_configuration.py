"""Whether API servers call the webhook for a namespace's bootstrap configuration: by label and configuration. Pure.

A configuration with other rules, selectors or conditions than this release's is not evaluated: whether the webhook is
called is unknown then. The matchConditions of this release leave out only updates that the webhook would allow
unchanged. Source: kubernetes apiserver pkg/admission/plugin/webhook (generic/webhook.go shouldCallHook, predicates).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Final

from nodeattest_controller import manifests
from nodeattest_controller.model.policy import selector_holds
from nodeattest_parsing.objects import items, mapping, text
from nodeattest_parsing.values import JsonObject

LABEL: Final = "attestation.cluster.x-k8s.io/bootstrap-config"
_ENABLED, _DISABLED = "enabled", "disabled"
EXPECTED: Final = f"a namespace with the label {LABEL}={_ENABLED}, without which the webhook renders nothing"


def is_decided(namespace: JsonObject) -> bool:
    """Return whether the label of a Namespace turns the webhook on or off there."""
    return text(namespace, "metadata", "labels", LABEL) in {_ENABLED, _DISABLED}


def is_disabled(namespace: JsonObject) -> bool:
    return text(namespace, "metadata", "labels", LABEL) == _DISABLED


def label_command(namespace: str) -> str:
    return f"kubectl label namespace {namespace or 'NAMESPACE'} {LABEL}={_ENABLED}"


def needs_webhook(policy: JsonObject | None) -> bool:
    """Return whether machines of a policy's Clusters join only by what is rendered."""
    return policy is not None and (text(mapping(policy, "spec"), "enforcement") or "Enforce") == "Enforce"


MUTATING: Final = "MutatingWebhookConfiguration"
WEBHOOK_NAME: Final = "bootstrap-config.attestation.cluster.x-k8s.io"


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
    """Evaluate whether the webhook is called in a namespace, by the MutatingWebhookConfiguration, if there is one."""
    if configuration is None:
        return WebhookCalls(why_not="its MutatingWebhookConfiguration is absent")
    webhook = next((one for one in items(configuration, "webhooks") if text(one, "name") == WEBHOOK_NAME), None)
    if webhook is None:
        return WebhookCalls(why_not=f"the MutatingWebhookConfiguration has no webhook {WEBHOOK_NAME}")
    if not selector_holds(mapping(webhook, "namespaceSelector"), mapping(namespace, "metadata", "labels")):
        return WebhookCalls(why_not="the MutatingWebhookConfiguration's namespaceSelector leaves this namespace out")
    if not items(webhook, "rules"):
        return WebhookCalls(why_not="the MutatingWebhookConfiguration has no rules")
    rules = items(webhook, "rules")
    others = [] if all(rule in rules for rule in items(_shipped(), "rules")) else ["other rules"]
    unknown = [*others, *narrowed_by(webhook)]
    if unknown:
        has = f"the MutatingWebhookConfiguration has {', '.join(unknown)}"
        return WebhookCalls(why_unknown=f"{has}; make it that of manifests/webhook; nodeattest doctor compares them")
    return WebhookCalls(weakness="its failurePolicy is not Fail" if is_passed_over(webhook) else "")


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
def _shipped() -> JsonObject:
    [webhook] = items(shipped_configuration(), "webhooks")
    return webhook


def _conditions() -> dict[str, str]:
    """Return the expressions of this release's conditions by name."""
    return {text(one, "name"): text(one, "expression") for one in items(_shipped(), "matchConditions")}


def is_passed_over(webhook: JsonObject) -> bool:
    """Return whether an API server goes on without a webhook that does not answer."""
    return text(webhook, "failurePolicy") != "Fail"
