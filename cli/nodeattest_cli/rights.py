"""Which of our roles allows what an API server refused with 403.

Promises: only roles that are made for people are named, never the controller's. Pure but for the shipped manifests.
Source: kubernetes staging/src/k8s.io/apiserver/pkg/endpoints/handlers/responsewriters/errors.go (forbiddenMessage).
"""

from __future__ import annotations

import re
from typing import Final

from nodeattest_controller import manifests
from nodeattest_controller.model.objects import items, strings, text

__all__ = ["role_for"]

_REFUSED: Final = re.compile(r'cannot (\w+) resource "([^"]+)" in API group "([^"]*)"')
_FOR_PEOPLE: Final = {"rbac": (("ClusterRole", "nodeattest:operator"), ("Role", "nodeattest:doctor"))}
"""Folder of the manifests, and the roles in it that people get."""
_NAMED: Final = re.compile(r'"([^"]+)" is forbidden')
_KUBECONFIG: Final = re.compile(r'secrets "([^"]+)-kubeconfig" is forbidden')


def role_for(message: str) -> str:
    """Say what to bind for a refusal; empty where no role of ours allows it."""
    secret = _KUBECONFIG.search(message)
    if secret is not None:
        return (
            f"its holder is cluster-admin of the workload cluster, so no ClusterRole of ours allows it: grant get on "
            f"the one Secret {secret[1]}-kubeconfig to those who are that already (manifests/rbac/operator.yaml)"
        )
    refused = _REFUSED.search(message)
    if refused is None:
        return ""
    named = _NAMED.search(message)
    asked = (*refused.groups(), named[1] if named else "")
    found = [
        f"{kind} {name} (manifests/{folder})"
        for folder, roles in _FOR_PEOPLE.items()
        for kind, name in roles
        if _allows(folder, (kind, name), asked)
    ]
    return f"the {found[0]} allows it: bind it to this user" if found else ""


def _allows(folder: str, wanted: tuple[str, str], asked: tuple[str, ...]) -> bool:
    """Tell whether a shipped role allows a verb, resource and group, of an object of this name or of any."""
    verb, resource, group, named = asked
    role = next(
        one for one in manifests.objects(folder) if (text(one, "kind"), text(one, "metadata", "name")) == wanted
    )
    return any(
        verb in strings(rule, "verbs")
        and resource in strings(rule, "resources")
        and group in strings(rule, "apiGroups")
        and (not strings(rule, "resourceNames") or named in strings(rule, "resourceNames"))
        for rule in items(role, "rules")
    )
