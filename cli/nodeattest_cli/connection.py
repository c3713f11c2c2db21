"""The cluster that a command talks to, by an operator's own kubeconfig: merged, and its command run, as by kubectl.

``UserError`` with one line for everything that is wrong with it or with the answer of its server. Where a ClusterRole
of ours would allow what was refused, the line names it. The official client merges the files and runs the command
(``users[].user.exec``, as ``aws eks get-token``), which has no time limit, as with kubectl. No key is written anywhere.
Source: kubernetes staging/src/k8s.io/apiserver/pkg/endpoints/handlers/responsewriters/errors.go (forbiddenMessage);
client-go tools/clientcmd/loader.go, plugin/pkg/client/auth/exec/exec.go, pkg/apis/clientauthentication/v1.
"""

from __future__ import annotations

import asyncio
import base64
import os
import re
from collections.abc import Awaitable, Callable
from functools import cached_property
from pathlib import Path
from typing import Any, Final, Protocol, TypeVar, cast

from nodeattest_cli.output import UserError, api_error
from nodeattest_controller import manifests
from nodeattest_kube.client import ApiClient
from nodeattest_kube.errors import ApiError, Forbidden, KubeconfigError
from nodeattest_kube.kubeconfig import ApiEndpoint, make_endpoint, select_entries
from nodeattest_parsing.objects import items, strings, text
from nodeattest_parsing.values import JsonObject, one_line

T = TypeVar("T")

DEFAULT_KUBECONFIG: Final = "~/.kube/config"
_REFUSED: Final = re.compile(r'cannot (\w+) resource "([^"]+)" in API group "([^"]*)"')
_NAMED: Final = re.compile(r'"([^"]+)" is forbidden')
_KUBECONFIG: Final = re.compile(r'secrets "([^"]+)-kubeconfig" is forbidden')
_VERSIONS: Final = ("client.authentication.k8s.io/v1", "client.authentication.k8s.io/v1beta1")
_OTHER_VERSION: Final = (
    f"set it to {_VERSIONS[1]} if the program prints that, else upgrade the program and the tool that wrote the "
    "kubeconfig, then write it again (EKS: aws eks update-kubeconfig); kubectl 1.24 and newer refuse it, too"
)
_SHOWN: Final = 400
"""Characters of what a command or a parser wrote, in a message."""
_REFERENCES: Final = frozenset({"certificate-authority", "client-certificate", "client-key", "tokenFile"})
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


# Kubeconfigs


class _Node(Protocol):
    """A named entry (kubernetes.config.kube_config.ConfigNode)."""

    path: str
    value: JsonObject


def read_operator_kubeconfig(paths: str, context: str | None) -> ApiEndpoint:
    """Read the files of a list such as KUBECONFIG's; raises ``KubeconfigError``.

    Of each name the first file's entry counts, and of current-context. Files that do not exist are left out.
    """
    names, cluster, user = select_entries(_merged(paths), context)
    if isinstance(user.get("exec"), dict):
        user = _with_credential(user, _run_command(cast("JsonObject", user["exec"]), cluster))
    return make_endpoint(names, cluster, user, base=Path())


def _merged(paths: str) -> JsonObject:
    # The import takes half a second: only who talks to a cluster waits for it.
    from kubernetes.config.config_exception import ConfigException
    from kubernetes.config.kube_config import KubeConfigMerger
    from yaml import YAMLError

    try:
        merger: Any = KubeConfigMerger(os.pathsep.join(filter(_has_content, paths.split(os.pathsep))) or paths)
        if merger.config is None:
            raise _error(f"a kubeconfig at {paths}", "none", "set --kubeconfig or KUBECONFIG")
        merged: JsonObject = {
            plural: [_entry(node, plural.removesuffix("s")) for node in merger.config.value[plural]]
            for plural in ("clusters", "contexts", "users")
        }
        # The library takes the last file's current-context.
        chosen = (each.get("current-context") for each in merger.config_files.values())
        merged["current-context"] = next((each for each in chosen if each), None)
    except (ConfigException, YAMLError, OSError, ValueError, TypeError, LookupError, AttributeError) as error:
        if isinstance(error, KubeconfigError):
            raise
        raise _error("a kubeconfig", one_line(str(error), _SHOWN), f"try kubectl config view with {paths}") from None
    return merged


def _has_content(path: str) -> bool:
    """Return whether a file of a list may hold something: kubectl passes over an empty one."""
    file = Path(path).expanduser()
    return bool(path) and not (file.is_file() and file.stat().st_size == 0)


def _entry(node: _Node, singular: str) -> JsonObject:
    """Return a named entry; what it refers to is relative to its file, as its command with a slash is."""
    folder, entry = Path(node.path).parent.absolute(), cast("JsonObject", node.value.get(singular) or {})
    held = {
        name: str(folder / value) if name in _REFERENCES and isinstance(value, str) and value else value
        for name, value in entry.items()
    }
    command = held.get("exec")
    program = command.get("command") if isinstance(command, dict) else None
    if isinstance(command, dict) and isinstance(program, str) and "/" in program:
        held["exec"] = {**command, "command": str(folder / program)}
    return {"name": node.value["name"], singular: held}


def _run_command(command: JsonObject, cluster: JsonObject) -> JsonObject:
    """Run ``users[].user.exec``; returns the ``status`` of its ExecCredential; raises ``KubeconfigError``."""
    from kubernetes.config.config_exception import ConfigException
    from kubernetes.config.exec_provider import ExecProvider
    from kubernetes.config.kube_config import ConfigNode

    _check(command)
    program = one_line(str(command["command"]), _SHOWN)
    settings = ConfigNode("users[].user.exec", dict(command))
    try:
        client: Any = ExecProvider(settings, None, ConfigNode("clusters[].cluster", dict(cluster)))
        answer: object = client.run()
    except FileNotFoundError:
        hint = one_line(str(command.get("installHint") or ""), _SHOWN)
        raise _error(f"{program} on the PATH", "no such program", hint or "install it") from None
    except (ConfigException, OSError, ValueError, TypeError, LookupError, AttributeError) as error:
        got = one_line(str(error), _SHOWN)
        raise _error(f"an ExecCredential of {program}", got, "run the command alone") from None
    if not isinstance(answer, dict):
        raise _error("an ExecCredential with a status", type(answer).__name__, "run the command alone")
    return cast("JsonObject", answer)


def _with_credential(user: JsonObject, status: JsonObject) -> JsonObject:
    """Put what a command answered in place of the credentials that the file has."""
    pair = [status.get("clientCertificateData"), status.get("clientKeyData")]
    if not status.get("token") and not pair[0]:
        expected = "a token or a client certificate in the answer of users[].user.exec"
        raise _error(expected, "neither", "run the command alone")
    certificate, key = (base64.b64encode(each.encode()).decode() if isinstance(each, str) else each for each in pair)
    others = {name: value for name, value in user.items() if name not in {"exec", "tokenFile"}}
    given: JsonObject = {"client-certificate-data": certificate, "client-key-data": key, "token": status.get("token")}
    return {**others, **given}


def _check(command: JsonObject) -> None:
    """Check the fields that the client takes as they are."""
    if not isinstance(command.get("command"), str) or not command["command"]:
        raise _error("users[].user.exec.command", "none", "name the program")
    version = command.get("apiVersion")
    if version not in _VERSIONS:
        got = one_line(str(version), _SHOWN)
        raise _error(f"users[].user.exec.apiVersion: {' or '.join(_VERSIONS)}", got, _OTHER_VERSION)
    if not isinstance(command.get("args") or [], list):
        raise _error("users[].user.exec.args: a list of strings", "something else", "put each in quotes")


def _error(expected: str, got: str, remedy: str) -> KubeconfigError:
    return KubeconfigError(expected=expected, got=got, remedy=remedy)
