"""Whether API servers call the webhook for a namespace's bootstrap configuration, by its configuration. Pure.

Leaves to others: whether the webhook answers, and whether API servers believe its certificate (``nodeattest doctor``).
Source: kubernetes staging/src/k8s.io/apiserver/pkg/admission/plugin/webhook/predicates (namespace and rules).
"""

from __future__ import annotations

from typing import Final

from nodeattest_controller.model.objects import items, mapping, strings, text
from nodeattest_controller.model.policy import selector_holds
from nodeattest_kube.jsontypes import JsonObject

__all__ = ["WEBHOOK_NAME", "why_not_called"]

WEBHOOK_NAME: Final = "bootstrap-config.attestation.cluster.x-k8s.io"
_RENDERED: Final = (
    ("bootstrap.cluster.x-k8s.io", "kubeadmconfigs"),
    ("controlplane.cluster.x-k8s.io", "kubeadmcontrolplanes"),
)
"""What the webhook renders when it is created."""


def why_not_called(configuration: JsonObject | None, namespace: JsonObject) -> str:
    """Say why the webhook is not called for what is created in a namespace; empty where it is.

    ``configuration``: the MutatingWebhookConfiguration; None: there is none.
    """
    if configuration is None:
        return "its MutatingWebhookConfiguration is absent"
    found = [one for one in items(configuration, "webhooks") if text(one, "name") == WEBHOOK_NAME]
    if not found:
        return f"the MutatingWebhookConfiguration has no webhook {WEBHOOK_NAME}"
    labels = mapping(namespace, "metadata", "labels")
    called = [one for one in found if selector_holds(mapping(one, "namespaceSelector"), labels)]
    if not called:
        return "the MutatingWebhookConfiguration's namespaceSelector leaves this namespace out"
    left = [resource for group, resource in _RENDERED if not any(_has_rule(one, group, resource) for one in called)]
    return f"the MutatingWebhookConfiguration has no rule for {', '.join(left)} that are created" if left else ""


def _has_rule(webhook: JsonObject, group: str, resource: str) -> bool:
    return any(
        bool({"*", group} & set(strings(rule, "apiGroups")))
        and bool({"*", "*/*", resource} & set(strings(rule, "resources")))
        and bool({"*", "CREATE"} & set(strings(rule, "operations")))
        for rule in items(webhook, "rules")
    )
