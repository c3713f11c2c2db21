"""Settings of an issuer server: one frozen value that the command builds."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from nodeattest_identity.issuer.documents import MAX_AGE
from nodeattest_identity.serve.service import IssuerPaths
from nodeattest_kube.addresses import TENANT_ADDRESSES, AddressRules
from nodeattest_serving.bounded_server import BindAddress, ConnectionLimits, SettingsError

_MAX_AGE: Final = 7 * 24 * 3600
_MIN_STALE: Final = 60.0
DEFAULT_LIMITS: Final = ConnectionLimits(
    connections=512, connections_of_client=256, connection_seconds=600.0, idle_seconds=30.0
)
"""A cache in front opens many connections from few addresses; each costs some 300 KiB with TLS."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CertificateFiles:
    """Files of the serving certificate; read again when they change."""

    certificate: Path
    key: Path


@dataclass(frozen=True, slots=True, kw_only=True)
class FileSource:
    """Keys in files."""

    issuers: tuple[IssuerPaths, ...]
    """Issuers whose tokens these keys verify: the current one, and earlier ones whose tokens still live."""
    files: tuple[Path, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiServerSource:
    """Keys of one workload cluster, as its API server has them."""

    issuers: tuple[IssuerPaths, ...]
    """The first is the API server's own issuer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KubeconfigSecretsSource:
    """Keys of every workload cluster whose kubeconfig is in a Secret of the management cluster."""

    base_url: str
    """The cluster ``C`` of the namespace ``N`` is the issuer ``<base_url>/N/C``; without a slash at the end."""
    namespace: str | None = None
    """Of the Secrets; None for all namespaces."""
    secret_suffix: str = "-kubeconfig"
    addresses: AddressRules = TENANT_ADDRESSES
    """What the kubeconfigs may lead to."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeSettings:
    """All settings."""

    address: BindAddress
    source: FileSource | ApiServerSource | KubeconfigSecretsSource
    certificate: CertificateFiles | None = None
    """None: plain HTTP, on a loopback address."""
    health: BindAddress | None = None
    max_age: int = MAX_AGE
    """Seconds that caches may hold a document: a new key must be published so long before it signs."""
    period: float = 60.0
    """Seconds between two reads of an API server."""
    max_stale: float = 24 * 3600.0
    """Seconds that keys of an API server stay served after its last read."""
    limits: ConnectionLimits = field(default=DEFAULT_LIMITS)

    def __post_init__(self) -> None:
        if self.certificate is None and not self.address.is_loopback:
            raise SettingsError(
                f"expected --tls-cert-file and --tls-private-key-file, or a --bind-address that only this machine "
                f"reaches, such as 127.0.0.1:8080 behind a front that ends TLS, got {self.address} alone"
            )
        if not 0 <= self.max_age <= _MAX_AGE:
            raise SettingsError(f"--max-age: expected 0 to {_MAX_AGE} seconds, got {self.max_age}")
        if self.max_stale < max(_MIN_STALE, self.period):
            raise SettingsError(
                f"--max-stale: expected at least --period and {_MIN_STALE:.0f} seconds, got {self.max_stale:g}"
            )
