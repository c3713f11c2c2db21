"""``nodeattest issuer serve``: the documents of one issuer or of a fleet's, over HTTPS, for anybody.

Promises: a wrong setting is one line and exit code 2, before anything listens; SIGTERM and SIGINT end it in order with
exit code 0. Everything else is ``nodeattest_identity.serve``.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Final

import click

from nodeattest_cli import flags as flags_of
from nodeattest_cli.errors import UserError
from nodeattest_controller import logs
from nodeattest_controller.main import serve as serve_until_signal
from nodeattest_controller.settings import LOG_FORMATS, LOG_LEVELS
from nodeattest_identity.issuer.documents import MAX_AGE
from nodeattest_identity.issuer.urls import UrlError, issuer_url
from nodeattest_identity.serve import app
from nodeattest_identity.serve.routes import IssuerPaths, issuer_paths
from nodeattest_identity.serve.settings import (
    ApiServerSource,
    CertificateFiles,
    FileSource,
    KubeconfigSecretsSource,
    ServeSettings,
)
from nodeattest_kube.addresses import POD_IPS, AddressRules, parse_network, parse_pod_ips
from nodeattest_kube.client import ApiClient, KubeconfigError
from nodeattest_serving.settings import SettingsError, parse_address

__all__ = ["serve"]

_FILE: Final = click.Path(path_type=Path)


@click.command()
@click.option(
    "--service-account-key-file",
    "files",
    type=_FILE,
    multiple=True,
    metavar="FILE",
    help="PEM with public keys, certificates, or private keys of which the public half is taken; may be repeated.",
)
@click.option(
    "--service-account-issuer",
    "issuers",
    multiple=True,
    metavar="URL",
    help="Whose documents are served; may be repeated for issuers whose tokens still live.",
)
@click.option("--service-account-jwks-uri", "jwks_uri", metavar="URL", help="The first issuer's jwks_uri.")
@click.option(
    "--kubeconfig",
    type=_FILE,
    help="The workload cluster whose keys are read, or with --clusters-base-url the management cluster.",
)
@click.option("--in-cluster", is_flag=True, help="The same, by the service account of the pod that we run in.")
@click.option(
    "--clusters-base-url",
    metavar="URL",
    help="Serve every workload cluster of a management cluster: C in namespace N is the issuer URL/N/C.",
)
@click.option("--namespace", help="Look for the clusters' kubeconfig Secrets there only.")
@click.option(
    "--kubeconfig-secret-suffix",
    default="-kubeconfig",
    show_default=True,
    help="How the Secrets' names end: have narrow kubeconfigs under another ending.",
)
@click.option(
    "--allowed-addresses",
    help="Networks, separated by commas, that these kubeconfigs may lead to although they are loopback, link-local, "
    "a cloud's own or of the pod (environment variable POD_IPS).",
)
@click.option("--bind-address", default=":8443", show_default=True, help="host:port of the documents.")
@click.option("--tls-cert-file", type=_FILE, help="Serving certificate; read again when it changes.")
@click.option("--tls-private-key-file", type=_FILE, help="Its key.")
@click.option("--health-bind-address", help="host:port of /healthz, /readyz and /metrics, over plain HTTP.")
@click.option("--max-age", default=MAX_AGE, show_default=True, help="Seconds that others may keep a document.")
@click.option("--period", default=60.0, show_default=True, help="Seconds between two readings of an API server.")
@click.option(
    "--max-stale", default=86400.0, show_default=True, help="Seconds that keys are served that cannot be read again."
)
@click.option("--log-level", type=click.Choice(LOG_LEVELS), default="info", show_default=True, help="What is logged.")
@click.option("--log-format", type=click.Choice(LOG_FORMATS), default="json", show_default=True, help="How.")
def serve(*, log_level: str, log_format: str, **flags: object) -> int:
    """Serve OpenID configuration and key set of service accounts' issuers.

    Keys come from files, from one API server, or from those of all workload clusters. Every client gets them: they are
    public, and an issuer's tokens can be verified by them without asking its API server.
    """
    try:
        settings = _settings(flags)
        logs.configure(level=log_level, log_format=log_format, stream=sys.stderr)
        return serve_until_signal(_serve(settings, _kubeconfig(flags)))
    except (SettingsError, KubeconfigError, UrlError) as error:
        raise UserError(str(error)) from None


async def _serve(settings: ServeSettings, kubeconfig: Path | None) -> int:
    def connect() -> ApiClient:
        return ApiClient.from_kubeconfig_file(kubeconfig) if kubeconfig else ApiClient.in_cluster(os.environ)

    await app.run(settings, connect, started=lambda _: None)
    return 0


def _settings(flags: dict[str, object]) -> ServeSettings:
    """Make the settings; raises ``SettingsError`` and ``UrlError``."""
    certificate, key, health = flags_of.path(flags, "tls_cert_file"), flags_of.path(flags, "tls_private_key_file"), None
    if (certificate is None) != (key is None):
        raise SettingsError("expected --tls-cert-file and --tls-private-key-file together, got one of them")
    if _text(flags, "health_bind_address"):
        health = parse_address(_text(flags, "health_bind_address"), "--health-bind-address")
    return ServeSettings(
        address=parse_address(_text(flags, "bind_address"), "--bind-address"),
        source=_source(flags),
        certificate=None if certificate is None or key is None else CertificateFiles(certificate=certificate, key=key),
        health=health,
        max_age=int(_number(flags, "max_age")),
        period=_number(flags, "period", least=1.0),
        max_stale=_number(flags, "max_stale"),
    )


def _source(flags: dict[str, object]) -> FileSource | ApiServerSource | KubeconfigSecretsSource:
    """Tell where the keys come from; raises ``SettingsError`` and ``UrlError``."""
    files = tuple(path for path in _many(flags, "files") if isinstance(path, Path))
    asks = _kubeconfig(flags) is not None or flags["in_cluster"] is True
    if bool(files) == asks or (_kubeconfig(flags) is not None and flags["in_cluster"] is True):
        raise SettingsError(
            "expected one source of keys: --service-account-key-file, --kubeconfig or --in-cluster, got none or several"
        )
    base = _text(flags, "clusters_base_url")
    if not base:
        issuers = _places(flags)
        return FileSource(issuers=issuers, files=files) if files else ApiServerSource(issuers=issuers)
    if files or _many(flags, "issuers") or _text(flags, "jwks_uri"):
        raise SettingsError(
            "--clusters-base-url: expected --kubeconfig or --in-cluster beside it, and no issuer, key set or key file: "
            "each cluster's issuer is URL/NAMESPACE/NAME"
        )
    return KubeconfigSecretsSource(
        base_url=issuer_url(base.removesuffix("/")),
        namespace=_text(flags, "namespace") or None,
        secret_suffix=_text(flags, "kubeconfig_secret_suffix"),
        addresses=_addresses(_text(flags, "allowed_addresses")),
    )


def _addresses(allowed: str) -> AddressRules:
    words = [word.strip() for word in allowed.split(",") if word.strip()]
    pod_ips = os.environ.get(POD_IPS, "")
    try:
        own = parse_pod_ips(pod_ips)
    except ValueError:
        raise SettingsError(f"{POD_IPS}: expected IP addresses separated by commas, got {pod_ips!r}") from None
    try:
        return AddressRules(tuple(parse_network(word) for word in words), own)
    except ValueError as error:
        raise SettingsError(
            f"--allowed-addresses: expected IP addresses and networks such as 127.0.0.0/8, got: {error}"
        ) from None


def _places(flags: dict[str, object]) -> tuple[IssuerPaths, ...]:
    issuers = [issuer for issuer in _many(flags, "issuers") if isinstance(issuer, str)]
    if not issuers:
        raise SettingsError("expected --service-account-issuer, the URL of the issuer in its tokens, got none")
    first = issuer_paths(issuers[0], _text(flags, "jwks_uri") or None)
    return first, *(issuer_paths(issuer) for issuer in issuers[1:])


def _kubeconfig(flags: dict[str, object]) -> Path | None:
    return flags_of.path(flags, "kubeconfig")


def _many(flags: dict[str, object], name: str) -> tuple[object, ...]:
    value = flags[name]
    return tuple(value) if isinstance(value, tuple) else ()  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType] - click's


def _text(flags: dict[str, object], name: str) -> str:
    value = flags[name]
    return value if isinstance(value, str) else ""


def _number(flags: dict[str, object], name: str, least: float = 0.0) -> float:
    value = flags[name]
    if not isinstance(value, int | float) or not least <= value < float("inf"):
        raise SettingsError(f"--{name.replace('_', '-')}: expected {least:g} or more, got {value}")
    return float(value)
