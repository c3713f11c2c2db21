"""Follows the ConfigMap by which kube-apiserver tells aggregated servers whom to believe.

Promises: a change counts at the next handshake and the next request; a ConfigMap that went, or that cannot be believed,
lets nobody in any more, and the log says why, once. While the API server is away the last one stays good: who asks
comes through that API server.
Leaves to others: what it means (``frontproxy``), TLS (``tls``).
Source: apiserver pkg/server/dynamiccertificates/configmap_cafile_content.go (the same ConfigMap, watched).
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Final

from nodeattest_identity.addon.gateway.front_proxy import CONFIG_MAP, NAMESPACE, FrontProxyTrust, TrustError, read_trust
from nodeattest_kube import paths
from nodeattest_kube.client import ApiClient
from nodeattest_kube.jsontypes import JsonObject
from nodeattest_kube.reflector import Reflector

__all__ = ["FrontProxyWatcher"]

_MOST_BYTES: Final = 4 << 20

_log = logging.getLogger(__name__)


class FrontProxyWatcher:
    """Whom to believe now."""

    def __init__(
        self,
        client: ApiClient,
        believe: Callable[[FrontProxyTrust | None], None],
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """``believe`` is told of every change, for TLS."""
        self.current: FrontProxyTrust | None = None
        self._believe = believe
        self._said = ""
        self._reflector = Reflector(
            client,
            paths.core_path("configmaps", namespace=NAMESPACE),
            on_change=self._changed,
            query={"fieldSelector": f"metadata.name={CONFIG_MAP}"},
            max_bytes=_MOST_BYTES,
            clock=clock,
        )

    async def run(self) -> None:
        """Follow it until cancelled."""
        await self._reflector.run()

    def trouble(self) -> str | None:
        """Tell why nobody is believed; None if somebody is."""
        if self.current is not None:
            return None
        error = self._reflector.last_error
        if error is not None:
            return f"cannot read ConfigMap {NAMESPACE}/{CONFIG_MAP}: {error}"
        return self._said or f"ConfigMap {NAMESPACE}/{CONFIG_MAP} was not read yet"

    def _changed(self, _key: str, item: JsonObject | None) -> None:
        said = ""
        try:
            self.current = read_trust(item)
        except TrustError as error:
            self.current, said = None, str(error)
        if said and said != self._said:
            _log.error("nobody is believed: %s", said)
        elif not said:
            _log.info("believing front proxies of %d CAs", len(self.current.authorities) if self.current else 0)
        self._said = said
        self._believe(self.current)
