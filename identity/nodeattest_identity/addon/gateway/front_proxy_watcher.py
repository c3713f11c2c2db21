"""Watches the ConfigMap that says which front proxy aggregated API servers trust.

Promises: a change counts from the next handshake and the next request. If the ConfigMap is deleted or unusable, no
caller is authenticated any more; the reason is logged once. While the API server is unreachable the last version stays
in force: every caller comes through that API server.
Leaves to others: its meaning (``front_proxy``), TLS (``tls``).
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

_MAX_BYTES: Final = 4 << 20

_log = logging.getLogger(__name__)


class FrontProxyWatcher:
    """The front proxy that is trusted now."""

    def __init__(
        self,
        client: ApiClient,
        set_trust: Callable[[FrontProxyTrust | None], None],
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """``set_trust`` is called with every change, for TLS."""
        self.current: FrontProxyTrust | None = None
        self._believe = set_trust
        self._last_message = ""
        self._reflector = Reflector(
            client,
            paths.core_path("configmaps", namespace=NAMESPACE),
            on_change=self._changed,
            query={"fieldSelector": f"metadata.name={CONFIG_MAP}"},
            max_bytes=_MAX_BYTES,
            clock=clock,
        )

    async def run(self) -> None:
        """Watch until cancelled."""
        await self._reflector.run()

    def unready_reason(self) -> str | None:
        """Why no caller can be authenticated; None if callers can."""
        if self.current is not None:
            return None
        error = self._reflector.last_error
        if error is not None:
            return f"cannot read ConfigMap {NAMESPACE}/{CONFIG_MAP}: {error}"
        return self._last_message or f"ConfigMap {NAMESPACE}/{CONFIG_MAP} was not read yet"

    def _changed(self, _key: str, item: JsonObject | None) -> None:
        message = ""
        try:
            self.current = read_trust(item)
        except TrustError as error:
            self.current, message = None, str(error)
        if message and message != self._last_message:
            _log.error("no front proxy is trusted: %s", message)
        elif not message:
            _log.info("trusting front proxies of %d CAs", len(self.current.authorities) if self.current else 0)
        self._last_message = message
        self._believe(self.current)
