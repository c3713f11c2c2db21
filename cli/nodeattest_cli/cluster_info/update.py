"""Writing the ConfigMap cluster-info while others, such as a bootstrap signer, write it too.

Promises: what another writer wrote meanwhile is read and checked before it is replaced; after ``_ATTEMPTS``
conflicts the API server's error is the result.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

from nodeattest_cli.cluster_info.publication import config_map, replacement, same_cluster
from nodeattest_cli.errors import StateError
from nodeattest_cli.output import print_lines
from nodeattest_controller.model.objects import text
from nodeattest_discovery.clusterinfo import KUBECONFIG_KEY, NAME, NAMESPACE, PATH
from nodeattest_kube import paths
from nodeattest_kube.client import AlreadyExists, ApiClient, Conflict, NotFound
from nodeattest_kube.jsontypes import JsonObject

__all__ = ["Publication", "retry_on_conflict"]

T = TypeVar("T")

_ATTEMPTS: Final = 5


class Publication:
    """The kubeconfig that is to be in cluster-info, and what is there."""

    def __init__(self, client: ApiClient, kubeconfig: str, *, replace: bool) -> None:
        self._client = client
        self._kubeconfig = kubeconfig
        self._replace = replace
        self._found: JsonObject | None = None

    async def look(self) -> None:
        """Read what is there; another cluster's is refused unless it may be replaced."""
        try:
            self._found = await self._client.get(PATH)
        except NotFound:
            self._found = None
        if self._found is not None and not self._replace and not self._is_there(self._found):
            raise StateError(
                "cluster-info names another server or other CAs, or cannot be read: see nodeattest cluster-info show, "
                "and set --replace if it is to be replaced"
            )

    async def write(self) -> None:
        """Create or replace it as it was read; one that means the same stays, with its signatures."""
        print_lines(self._intent())
        await retry_on_conflict(self._write, again=self.look)

    def _intent(self) -> str:
        if self._found is None:
            return f'[bootstrap-token] Creating the "{NAME}" ConfigMap in the "{NAMESPACE}" namespace'
        if self._is_there(self._found):
            return f'[bootstrap-token] The "{NAME}" ConfigMap in the "{NAMESPACE}" namespace says this already'
        return f'[bootstrap-token] Replacing the "{NAME}" ConfigMap in the "{NAMESPACE}" namespace'

    async def _write(self) -> None:
        if self._found is None:
            await self._client.create(paths.core_path("configmaps", namespace=NAMESPACE), config_map(self._kubeconfig))
        elif not self._is_there(self._found):
            await self._client.merge_patch(PATH, replacement(self._found, self._kubeconfig))

    def _is_there(self, found: JsonObject) -> bool:
        return same_cluster(text(found, "data", KUBECONFIG_KEY), self._kubeconfig)


async def retry_on_conflict(
    write: Callable[[], Awaitable[T]], *, again: Callable[[], Awaitable[None]] | None = None
) -> T:
    """Write; after a conflict call ``again``, which reads the present state, and retry."""
    for _ in range(_ATTEMPTS - 1):
        try:
            return await write()
        except (AlreadyExists, Conflict):
            if again is not None:
                await again()
    return await write()
