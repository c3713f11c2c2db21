"""The kubeconfig that a command was given; a list in KUBECONFIG is merged, as kubectl merges it.

Promises: ``UserError`` with one clear line for everything that is wrong with it or with the answer of its server; where
a ClusterRole of ours would allow what was refused, the line names it.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final, TypeVar

import click

from nodeattest_cli.errors import UserError, api_error
from nodeattest_cli.operator_kubeconfig import read_operator_kubeconfig
from nodeattest_kube.client import ApiClient, ApiError, Forbidden, KubeconfigError
from nodeattest_kube.kubeconfig import ApiEndpoint

__all__ = ["Connection", "cluster_options", "explained", "kubeconfig_option", "namespace_option", "run"]

T = TypeVar("T")

_DEFAULT: Final = "~/.kube/config"


class Connection:
    """Which cluster to ask, as whom."""

    def __init__(self, kubeconfig: str | None, context: str | None) -> None:
        self._paths = kubeconfig or _DEFAULT
        self._context = context
        self._endpoint: ApiEndpoint | None = None

    @property
    def path(self) -> Path:
        """The one file, which need not exist; raises ``UserError`` for a list."""
        if os.pathsep in self._paths:
            raise UserError(f"expected one kubeconfig, got the list {self._paths}: set --kubeconfig")
        return Path(self._paths).expanduser()

    def namespace(self, given: str | None) -> str:
        """Return the namespace that is given, else the context's, else ``default``; raises ``UserError``."""
        return given or self.endpoint().namespace or "default"

    def client(self) -> ApiClient:
        """Make a client; raises ``UserError``."""
        endpoint = self.endpoint()
        return self._user_errors(lambda: ApiClient.from_endpoint(endpoint, trust_env=True))

    def endpoint(self) -> ApiEndpoint:
        """Read where the cluster is and whom the kubeconfig trusts, without asking; raises ``UserError``."""
        if self._endpoint is None:  # read once: the file may be a pipe
            self._endpoint = self._user_errors(lambda: read_operator_kubeconfig(self._paths, self._context))
        return self._endpoint

    @staticmethod
    def _user_errors(work: Callable[[], T]) -> T:
        try:
            return work()
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
    """Make the error for an API server's answer; of a 403 it says which role would allow it."""
    if not isinstance(error, Forbidden):
        return api_error(error)
    from nodeattest_cli.rights import role_for

    return api_error(error, role_for(error.message))


kubeconfig_option = click.option(
    "--kubeconfig", envvar="KUBECONFIG", show_envvar=True, metavar="FILE", help=f"Whose cluster to ask ({_DEFAULT})."
)


namespace_option = click.option("-n", "--namespace", help="Namespace of the Cluster  [the context's; default]")


def cluster_options(command: Callable[..., T]) -> Callable[..., T]:
    """Add ``--kubeconfig`` and ``--context`` to a command."""
    return kubeconfig_option(click.option("--context", help="Context of the kubeconfig.")(command))
