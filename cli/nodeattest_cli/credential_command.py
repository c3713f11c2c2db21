"""The command that a user's own kubeconfig names for a credential, as ``aws eks get-token`` or ``kubelogin``.

Promises: only for a file of the user who started us, which kubectl would obey as well; ``KubeconfigError`` in one line
for whatever goes wrong. The official client runs the command; it has no time limit, as with kubectl.
Source: client-go plugin/pkg/client/auth/exec/exec.go, pkg/apis/clientauthentication/v1/types.go.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final, cast

from nodeattest_kube.errors import KubeconfigError
from nodeattest_parsing.printable import one_line
from nodeattest_parsing.values import JsonObject

__all__ = ["run_credential_command"]

_VERSIONS: Final = ("client.authentication.k8s.io/v1", "client.authentication.k8s.io/v1beta1")
_OTHER_VERSION: Final = (
    f"set it to {_VERSIONS[1]} if the program prints that, else upgrade the program and the tool that wrote the "
    "kubeconfig, then write it again (EKS: aws eks update-kubeconfig); kubectl 1.24 and newer refuse it, too"
)
_SHOWN: Final = 400
"""Characters of what a command wrote, in a message."""


def run_credential_command(folder: Path, command: JsonObject, cluster: JsonObject) -> JsonObject:
    """Run ``users[].user.exec``; returns the ``status`` of its ExecCredential; raises ``KubeconfigError``."""
    _check(command)
    program = str(command["command"])
    if "/" in program:
        program = str((folder / program).absolute())  # relative to the kubeconfig, as in client-go
    try:  # the import takes half a second: only who needs it waits for it
        from kubernetes.config.config_exception import ConfigException
        from kubernetes.config.exec_provider import ExecProvider
        from kubernetes.config.kube_config import ConfigNode
    except ImportError:
        remedy = "install requirements-cli.txt of the release (docs/install.md)"
        raise _error("the library kubernetes for users[].user.exec", "none", remedy) from None
    settings = ConfigNode("users[].user.exec", {**command, "command": program})
    try:
        client: Any = ExecProvider(settings, None, ConfigNode("clusters[].cluster", dict(cluster)))
        answer: object = client.run()
    except FileNotFoundError:
        hint = one_line(str(command.get("installHint") or ""), _SHOWN)
        raise _error(f"{one_line(program, _SHOWN)} on the PATH", "no such program", hint or "install it") from None
    except (ConfigException, OSError, ValueError, TypeError) as error:
        got = one_line(str(error), _SHOWN)
        raise _error(f"an ExecCredential of {one_line(program, _SHOWN)}", got, "run the command alone") from None
    if not isinstance(answer, dict):
        raise _error("an ExecCredential with a status", type(answer).__name__, "run the command alone")
    return cast("JsonObject", answer)


def _check(command: JsonObject) -> None:
    """Check the fields that the client takes as they are."""
    if not isinstance(command.get("command"), str) or not command["command"]:
        raise _error("users[].user.exec.command", "none", "name the program")
    version = command.get("apiVersion")
    if version not in _VERSIONS:
        got = one_line(str(version), _SHOWN)
        raise _error(f"users[].user.exec.apiVersion: {' or '.join(_VERSIONS)}", got, _OTHER_VERSION)
    arguments, variables = command.get("args") or [], command.get("env") or []
    if not isinstance(arguments, list) or not all(isinstance(one, str) for one in cast("list[object]", arguments)):
        raise _error("users[].user.exec.args: a list of strings", "something else", "put each in quotes")
    if not isinstance(variables, list) or not all(_is_variable(one) for one in cast("list[object]", variables)):
        raise _error("users[].user.exec.env: a list of name and value", "something else", "put each in quotes")


def _is_variable(entry: object) -> bool:
    if not isinstance(entry, dict):
        return False
    pair = cast("JsonObject", entry)
    return isinstance(pair.get("name"), str) and isinstance(pair.get("value"), str)


def _error(expected: str, got: str, remedy: str) -> KubeconfigError:
    return KubeconfigError(expected=expected, got=got, remedy=remedy)
