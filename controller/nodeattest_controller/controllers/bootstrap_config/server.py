"""The webhook of one replica: listens whether it leads or not, because API servers call any.

It listens before its replica is ready, and stops with the process. Its certificate is in files that are renewed while
it serves, such as a mounted Secret of type ``kubernetes.io/tls``. An expired certificate makes the replica unhealthy
and does not end the process.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, Self

from cryptography import x509

from nodeattest_controller.controllers.bootstrap_config.facts import FactReader
from nodeattest_controller.controllers.bootstrap_config.handler import AdmissionHandler, is_api_server
from nodeattest_controller.controllers.bootstrap_config.refusal_reporter import RefusalReporter
from nodeattest_controller.controllers.bootstrap_config.renderer import PolicyRenderer
from nodeattest_controller.metrics import Metrics
from nodeattest_controller.settings import COMPONENT, Settings
from nodeattest_kube.addresses import parse_network
from nodeattest_kube.client import ApiClient
from nodeattest_kube.events import EventRecorder
from nodeattest_providers.certificate_chain import X509_ERRORS
from nodeattest_serving import bounded_server as serving
from nodeattest_serving.bounded_server import SettingsError, UnauthenticatedLimits
from nodeattest_serving.http_server import Listener
from nodeattest_serving.tls import ServingCertificate


class FileCertificate:
    """``tls.crt`` and ``tls.key`` of a folder."""

    def __init__(self, folder: Path, client_ca: Path | None = None, *, now: Callable[[], datetime]) -> None:
        """Read the files; raises the listener's ``SettingsError``."""
        self._certificate = folder / "tls.crt"
        self._now = now
        self.context: Final = ServingCertificate(self._certificate, folder / "tls.key", client_ca).context

    def trouble(self) -> str | None:
        """Return what is wrong with the certificate, or None."""
        try:
            certificate = x509.load_pem_x509_certificate(self._certificate.read_bytes())
        except OSError as error:
            return f"{self._certificate} cannot be read: {error.strerror}"
        except X509_ERRORS:
            return f"{self._certificate} holds no certificate in PEM"
        begin, end = certificate.not_valid_before_utc, certificate.not_valid_after_utc
        if begin <= self._now() < end:
            return None
        times = f"from {begin:%Y-%m-%dT%H:%MZ} to {end:%Y-%m-%dT%H:%MZ}"
        return f"{self._certificate} is valid {times}: check why its issuer does not renew it"


_LIMITS: Final = serving.ConnectionLimits(
    connections=128, connections_of_client=128, replaces_oldest=True, connection_seconds=5.0
)
"""All API servers may come from one address (kube-proxy), and each review is a connection; API servers wait for five
seconds."""
_MOST_UNAUTHENTICATED: Final = 128
"""Connections, and handshakes that begin in a second: 1.6 s for one of each of 200 addresses."""


class WebhookServer:
    """Serves controller ``bootstrap-config``; does nothing where that is off."""

    def __init__(self, settings: Settings, client: ApiClient, metrics: Metrics) -> None:
        self._address = settings.webhook_address if settings.has_webhook else None
        self._settings = settings
        self._client = client
        self._metrics = metrics
        self._listener: Listener | None = None
        self._certificate: FileCertificate | None = None
        # Not the controllers' recorder: a standby writes these, too, and callers of the webhook, who may be anybody,
        # must not use up what Events about machines may take.
        events = EventRecorder(client, component=COMPONENT, instance=settings.identity, now=_now)
        self._reporter = RefusalReporter(client, events=events, now=_now, clock=time.monotonic)

    @property
    def is_on(self) -> bool:
        """Whether there is a webhook at all."""
        return self._address is not None

    @property
    def port(self) -> int:
        """Where it listens; the chosen one where 0 was asked for."""
        return self._listener.port if self._listener else 0

    def unhealthy(self) -> str | None:
        """Return what keeps API servers from calling it, or None."""
        return self._certificate.trouble() if self._certificate else None

    async def __aenter__(self) -> Self:
        """Listen; raises ``SettingsError`` where the address or the files cannot be used."""
        if self._address is None:
            return self
        settings = self._settings
        client_ca, names = settings.webhook_client_ca_file, settings.webhook_client_names
        handler = AdmissionHandler(
            FactReader(self._client, namespace=settings.watch_namespace, now=_now),
            PolicyRenderer(),
            self._metrics,
            clock=time.monotonic,
            reporter=self._reporter,
            verifies_clients=client_ca is not None,
            client_names=names,
        )
        try:
            self._certificate = FileCertificate(Path(settings.webhook_cert_dir or ""), client_ca, now=_now)
            self._listener = Listener(
                handler.handle,
                self._address,
                self._certificate.context,
                _LIMITS,
                unauthenticated=None if client_ca is None else unauthenticated_limits(names),
                allowed=tuple(map(parse_network, settings.webhook_allowed_cidrs)),
            )
            await self._listener.start()
        except SettingsError as error:
            raise SettingsError(f"webhook: {error}") from None
        return self

    async def __aexit__(self, *_: object) -> None:
        """Stop listening; what is being answered is answered."""
        if self._listener is not None:
            await self._listener.stop()
        await self._reporter.drain()


def unauthenticated_limits(names: Collection[str]) -> UnauthenticatedLimits:
    """Return the limits of clients whose certificate is no API server's; ``names``: its common names, empty: any."""
    return UnauthenticatedLimits(
        is_unauthenticated=lambda transport: not is_api_server(transport, names),
        connections=_MOST_UNAUTHENTICATED,
        handshakes=_MOST_UNAUTHENTICATED,
    )


def _now() -> datetime:
    return datetime.now(UTC)
