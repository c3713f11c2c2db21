"""The label by which a namespace says whether the webhook renders its machines' bootstrap configuration. Pure.

It is what a MutatingWebhookConfiguration can select by (``namespaceSelector``). Without it the webhook is called for no
bootstrap configuration of the namespace, so its outage delays no cluster there.
"""

from __future__ import annotations

from typing import Final

from nodeattest_controller.model.objects import mapping, text
from nodeattest_parsing.values import JsonObject

__all__ = ["EXPECTED", "LABEL", "is_decided", "is_disabled", "label_command", "needs_webhook"]

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
