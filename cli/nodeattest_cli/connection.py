"""The kubeconfig that a command was given; a list in KUBECONFIG is merged, as kubectl merges it.

``UserError`` with one line for everything that is wrong with it or with the answer of its server. Where a ClusterRole
of ours would allow what was refused, the line names it.
Source: kubernetes staging/src/k8s.io/apiserver/pkg/endpoints/handlers/responsewriters/errors.go (forbiddenMessage).
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable
from functools import cached_property
from typing import Final, TypeVar

from nodeattest_cli.errors import UserError, api_error
from nodeattest_cli.operator_kubeconfig import read_operator_kubeconfig
from nodeattest_controller import manifests
from nodeattest_kube.client import ApiClient
from nodeattest_kube.errors import ApiError, Forbidden, KubeconfigError
from nodeattest_kube.kubeconfig import ApiEndpoint
from nodeattest_parsing.objects import items, strings, text

T = TypeVar("T")

DEFAULT_KUBECONFIG: Final = "~/.kube/config"
_REFUSED: Final = re.compile(r'cannot (\w+) resource "([^"]+)" in API group "([^"]*)"')
_NAMED: Final = re.compile(r'"([^"]+)" is forbidden')
_KUBECONFIG: Final = re.compile(r'secrets "([^"]+)-kubeconfig" is forbidden')
_FOR_PEOPLE: Final = (("ClusterRole", "nodeattest:operator"), ("Role", "nodeattest:doctor"))
"""Roles of manifests/rbac that people get."""


class Connection:
    """Which cluster to ask, as whom."""

    def __init__(self, kubeconfig: str | None, context: str | None) -> None:
        self._paths = kubeconfig or DEFAULT_KUBECONFIG
        self.context = context

    @cached_property
    def endpoint(self) -> ApiEndpoint:
        """Where the cluster is and whom the kubeconfig trusts, read once: the file may be a pipe."""
        try:
            return read_operator_kubeconfig(self._paths, self.context)
        except KubeconfigError as error:
            raise UserError(str(error)) from None

    def namespace(self, given: str | None) -> str:
        """Return the namespace that is given, else the context's, else ``default``; raises ``UserError``."""
        return given or self.endpoint.namespace or "default"

    def client(self) -> ApiClient:
        """Make a client; raises ``UserError``."""
        endpoint = self.endpoint
        try:
            return ApiClient.from_endpoint(endpoint)
        except KubeconfigError as error:
            raise UserError(str(error)) from None


def run(connection: Connection, question: Callable[[ApiClient], Awaitable[T]]) -> T:
    """Ask a cluster; its refusal is a ``UserError``."""

    async def _ask() -> T:
        async with connection.client() as client:
            return await question(client)

    try:
        return asyncio.run(_ask())
    except ApiError as error:
        raise explained(error) from None


def explained(error: ApiError) -> UserError:
    """Make the error for an API server's answer; of a 403 it names the role that would allow the request."""
    return api_error(error, role_for(error.message) if isinstance(error, Forbidden) else "")


def role_for(message: str) -> str:
    """Name what to bind after a refusal; empty where no role of ours allows the request."""
    secret = _KUBECONFIG.search(message)
    if secret is not None:
        return (
            f"its holder is cluster-admin of the workload cluster, so no ClusterRole of ours allows it: grant get on "
            f"the one Secret {secret[1]}-kubeconfig to those who are that already (manifests/rbac/operator.yaml)"
        )
    refused, named = _REFUSED.search(message), _NAMED.search(message)
    if refused is None:
        return ""
    verb, resource, group = refused.groups()
    for role in manifests.objects("rbac"):
        kind, name = text(role, "kind"), text(role, "metadata", "name")
        if (kind, name) in _FOR_PEOPLE and any(
            verb in strings(rule, "verbs")
            and resource in strings(rule, "resources")
            and group in strings(rule, "apiGroups")
            and (not strings(rule, "resourceNames") or (named and named[1] in strings(rule, "resourceNames")))
            for rule in items(role, "rules")
        ):
            return f"the {kind} {name} (manifests/rbac) allows it: bind it to this user"
    return ""
