"""The kubeconfig that a command was given: of several in KUBECONFIG the first that exists, as a whole.

Promises: ``UserError`` with one clear line for everything that is wrong with it or with the answer of its server.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final, TypeVar

import click

from nodeattest_cli.errors import UserError
from nodeattest_kube.client import ApiClient, ApiError, KubeconfigError

__all__ = ["Connection", "ask", "kubeconfig_option"]

T = TypeVar("T")

_DEFAULT: Final = "~/.kube/config"


class Connection:
    """Which cluster to ask, as whom."""

    def __init__(self, kubeconfig: str | None, context: str | None) -> None:
        paths = [Path(path).expanduser() for path in (kubeconfig or _DEFAULT).split(os.pathsep) if path]
        self._path = next((path for path in paths if path.is_file()), paths[0] if paths else Path(_DEFAULT))
        self._context = context

    def client(self) -> ApiClient:
        """Make a client; raises ``UserError``."""
        if not self._path.is_file():
            raise UserError(f"no kubeconfig at {self._path}: say --kubeconfig, or set KUBECONFIG")
        try:
            return ApiClient.from_kubeconfig_file(self._path, context=self._context, trust_env=True)
        except KubeconfigError as error:
            raise UserError(str(error)) from None


def ask(connection: Connection, question: Callable[[ApiClient], Awaitable[T]]) -> T:
    """Ask a cluster; its refusal is a ``UserError``."""

    async def _ask() -> T:
        async with connection.client() as client:
            return await question(client)

    try:
        return asyncio.run(_ask())
    except ApiError as error:
        raise UserError(str(error)) from None


kubeconfig_option = click.option(
    "--kubeconfig", envvar="KUBECONFIG", show_envvar=True, metavar="FILE", help=f"Whose cluster to ask ({_DEFAULT})."
)
