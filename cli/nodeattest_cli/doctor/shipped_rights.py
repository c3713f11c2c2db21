"""The rights that the shipped manifests give to the controller, one by one.

Promises: the manifests are the only list; a role counts where a binding gives it to the controller's ServiceAccount.
Source: kubernetes staging/src/k8s.io/api/authorization/v1/types.go (ResourceAttributes).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from nodeattest_controller import manifests
from nodeattest_controller.model.objects import items, strings, text
from nodeattest_kube.access_review import ResourceAttributes
from nodeattest_kube.jsontypes import JsonObject

__all__ = ["ShippedRight", "shipped_rights"]

_ACCOUNT: Final = "node-attestation-controller"
_NAMESPACE: Final = "nodeattest-system"
"""The controller's, as the manifests have it."""


@dataclass(frozen=True, slots=True, order=True, kw_only=True)
class ShippedRight:
    """One verb on one resource, perhaps of one name."""

    folder: str
    """Of the manifests: what to apply where it is missing."""
    namespace: str
    """Empty: everywhere."""
    group: str
    resource: str
    subresource: str
    verb: str
    name: str
    """Empty: any."""

    def attributes(self, namespace: str = "") -> ResourceAttributes:
        """Return how an API server is asked for it; ``namespace`` stands in for none."""
        return ResourceAttributes(
            verb=self.verb,
            group=self.group,
            resource=self.resource,
            subresource=self.subresource,
            name=self.name,
            namespace=self.namespace or namespace,
        )

    def __str__(self) -> str:
        """Say it as ``kubectl auth can-i`` is asked."""
        resource = f"{self.resource}/{self.subresource}" if self.subresource else self.resource
        named = f" {self.name}" if self.name else ""
        where = f" -n {self.namespace}" if self.namespace else ""
        return f"{self.verb} {resource}{'.' if self.group else ''}{self.group}{named}{where}"


def shipped_rights(folders: Sequence[str], *, namespace: str = _NAMESPACE) -> list[ShippedRight]:
    """List what these folders give, in order; ``namespace``: where the controller is, instead of the manifests' own."""
    return sorted({right for folder in folders for right in _of_folder(folder, namespace)})


def _of_folder(folder: str, namespace: str) -> Iterator[ShippedRight]:
    documents = manifests.objects(folder)
    roles = {(text(one, "kind"), text(one, "metadata", "name")): one for one in documents}
    for binding in documents:
        if not any(text(subject, "name") == _ACCOUNT for subject in items(binding, "subjects")):
            continue
        role = roles.get((text(binding, "roleRef", "kind"), text(binding, "roleRef", "name")))
        where = text(binding, "metadata", "namespace")
        for rule in items(role or {}, "rules"):
            yield from _of_rule(folder, rule, namespace if where == _NAMESPACE else where)


def _of_rule(folder: str, rule: JsonObject, namespace: str) -> Iterator[ShippedRight]:
    for group in strings(rule, "apiGroups"):
        for whole in strings(rule, "resources"):
            resource, _, subresource = whole.partition("/")
            for verb in strings(rule, "verbs"):
                for name in strings(rule, "resourceNames") or ("",):
                    yield ShippedRight(
                        folder=folder,
                        namespace=namespace,
                        group=group,
                        resource=resource,
                        subresource=subresource,
                        verb=verb,
                        name=name,
                    )
