"""Which of our ClusterRoles allows what an API server refused with 403.

Promises: only roles that are made for people are named, never the controller's. Pure but for the shipped manifests.
Source: kubernetes staging/src/k8s.io/apiserver/pkg/endpoints/handlers/responsewriters/errors.go (forbiddenMessage).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from nodeattest_controller import manifests
from nodeattest_controller.model.objects import items, strings, text

__all__ = ["role_for"]

_REFUSED: Final = re.compile(r'cannot (\w+) resource "([^"]+)" in API group "([^"]*)"')
_FOR_PEOPLE: Final = {"rbac": ("nodeattest:operator",)}
"""Folder of the manifests, and the ClusterRoles in it that people get."""
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
    verb, resource, group = refused.groups()
    names = [
        f"{name} (manifests/{folder})" for folder, name in _roles() if _allows(folder, name, verb, resource, group)
    ]
    return f"the ClusterRole {names[0]} allows it: bind it to this user" if names else ""


def _roles() -> Iterator[tuple[str, str]]:
    for folder, names in _FOR_PEOPLE.items():
        for name in names:
            yield folder, name


def _allows(folder: str, name: str, verb: str, resource: str, group: str) -> bool:
    role = next(
        one
        for one in manifests.objects(folder)
        if (text(one, "kind"), text(one, "metadata", "name")) == ("ClusterRole", name)
    )
    return any(
        verb in strings(rule, "verbs")
        and resource in strings(rule, "resources")
        and group in strings(rule, "apiGroups")
        and not strings(rule, "resourceNames")
        for rule in items(role, "rules")
    )
