"""``nodeattest discovery serve``: the discovery front of one workload cluster.

Promises: a wrong setting is one line and exit code 2, before anything listens; SIGTERM and SIGINT end it in order with
exit code 0. Everything else is ``nodeattest_discovery.front``.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Final

import click

from nodeattest_cli import flags as flags_of
from nodeattest_cli.errors import UserError
from nodeattest_cli.lazy import LazyGroup
from nodeattest_controller import logs
from nodeattest_controller.main import serve as serve_until_signal
from nodeattest_controller.settings import LOG_FORMATS, LOG_LEVELS
from nodeattest_discovery.front import app
from nodeattest_discovery.front.settings import FrontLimits, FrontSettings, WebhookSettings
from nodeattest_kube.client import ApiClient, KubeconfigError
from nodeattest_serving.settings import SettingsError, parse_address

__all__ = ["discovery", "serve"]

_FILE: Final = click.Path(path_type=Path)
_USUAL: Final = FrontLimits()
_COMMANDS: Final = {"serve": ("nodeattest_cli.discovery:serve", "Serve cluster-info of one workload cluster.")}


@click.group(cls=LazyGroup, lazy=_COMMANDS)
def discovery() -> None:
    """Serve cluster-info to nodes that prove to know a bootstrap token."""


@click.command()
@click.option("--kubeconfig", type=_FILE, help="Whose cluster-info is served; without it, the pod's service account's.")
@click.option("--bind-address", default=":9443", show_default=True, help="host:port of cluster-info, over TLS.")
@click.option("--tls-cert-file", type=_FILE, required=True, help="Serving certificate; read again when it changes.")
@click.option("--tls-private-key-file", type=_FILE, required=True, help="Its key.")
@click.option("--audience", metavar="ID", help="The cluster's identifier: a question that names another is refused.")
@click.option(
    "--max-stale", default=300.0, show_default=True, help="Seconds to answer while the API server is away, 120 or more."
)
@click.option("--client-rate", default=_USUAL.client_rate, show_default=True, help="Requests a second of one address.")
@click.option("--client-burst", default=_USUAL.client_burst, show_default=True, help="Requests of it at once.")
@click.option("--token-rate", default=_USUAL.token_rate, show_default=True, help="Answers a second for one token.")
@click.option("--token-burst", default=_USUAL.token_burst, show_default=True, help="Answers for it at once.")
@click.option("--health-bind-address", help="host:port of /healthz, /readyz and /metrics, over plain HTTP.")
@click.option("--webhook-bind-address", help="host:port of the TokenReview webhook, over TLS.")
@click.option("--webhook-client-ca-file", type=_FILE, help="Who may ask the webhook; without it, only this machine.")
@click.option("--log-level", type=click.Choice(LOG_LEVELS), default="info", show_default=True, help="What is logged.")
@click.option("--log-format", type=click.Choice(LOG_FORMATS), default="json", show_default=True, help="How.")
def serve(*, kubeconfig: Path | None, log_level: str, log_format: str, **flags: object) -> int:
    """Serve cluster-info of one workload cluster.

    A client proves knowledge of a bootstrap token by a JWT, and gets an answer that the same token signs.
    """
    try:
        settings = _settings(flags)
        logs.configure(level=log_level, log_format=log_format, stream=sys.stderr)
        return serve_until_signal(_serve(settings, kubeconfig))
    except (SettingsError, KubeconfigError) as error:
        raise UserError(str(error)) from None


async def _serve(settings: FrontSettings, kubeconfig: Path | None) -> int:
    client = ApiClient.from_kubeconfig_file(kubeconfig) if kubeconfig else ApiClient.in_cluster(os.environ)
    await app.run(settings, client, started=lambda _: None)
    return 0


def _settings(flags: dict[str, object]) -> FrontSettings:
    """Make the settings; raises ``SettingsError``."""
    webhook, client_ca = flags_of.text(flags, "webhook_bind_address"), flags_of.path(flags, "webhook_client_ca_file")
    if client_ca is not None and webhook is None:
        raise SettingsError("--webhook-client-ca-file: expected --webhook-bind-address beside it, got none")
    health = flags_of.text(flags, "health_bind_address")
    return FrontSettings(
        address=parse_address(flags_of.text(flags, "bind_address") or "", "--bind-address"),
        certificate=flags_of.path(flags, "tls_cert_file") or Path(),
        key=flags_of.path(flags, "tls_private_key_file") or Path(),
        audience=flags_of.text(flags, "audience"),
        max_stale=flags_of.positive(flags, "max_stale"),
        health=None if health is None else parse_address(health, "--health-bind-address"),
        webhook=None if webhook is None else _webhook(webhook, client_ca),
        limits=FrontLimits(
            client_rate=flags_of.positive(flags, "client_rate"),
            client_burst=round(flags_of.positive(flags, "client_burst")),
            token_rate=flags_of.positive(flags, "token_rate"),
            token_burst=round(flags_of.positive(flags, "token_burst")),
        ),
    )


def _webhook(address: str, client_ca: Path | None) -> WebhookSettings:
    return WebhookSettings(address=parse_address(address, "--webhook-bind-address"), client_ca=client_ca)
