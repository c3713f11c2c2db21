"""``nodeattest addon-auth gateway``: the aggregated API server that passes on to add-ons who calls.

Promises: a wrong setting is one line and exit code 2, before anything listens; SIGTERM and SIGINT end it in order with
exit code 0. Everything else is ``nodeattest_identity.addon.gateway``.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Final

import click

from nodeattest_cli.errors import UserError
from nodeattest_controller import logs
from nodeattest_controller.main import serve as serve_until_signal
from nodeattest_controller.settings import LOG_FORMATS, LOG_LEVELS
from nodeattest_identity.addon.gateway import app
from nodeattest_identity.addon.gateway.keyset import Algorithm, RotationSchedule
from nodeattest_identity.addon.gateway.settings import DEFAULT_PROXY, GatewaySettings, UserLimits
from nodeattest_identity.proxy.limits import ProxyLimits
from nodeattest_kube.client import ApiClient, KubeconfigError
from nodeattest_serving.settings import SettingsError, parse_address

__all__ = ["gateway"]

_FILE: Final = click.Path(path_type=Path)
_USUAL: Final = UserLimits()
_DAY: Final = 86_400.0
_POSITIVE: Final = click.FloatRange(min=0, min_open=True)
_COUNT: Final = click.IntRange(min=1)


@click.command()
@click.option("--kubeconfig", type=_FILE, help="The cluster whose users are served; without it, the pod's own.")
@click.option("--bind-address", default=":9443", show_default=True, help="host:port, over TLS.")
@click.option("--tls-cert-file", type=_FILE, required=True, help="Serving certificate; read again when it changes.")
@click.option("--tls-private-key-file", type=_FILE, required=True, help="Its key.")
@click.option("--issuer", metavar="URL", required=True, help="iss of the tokens; their keys are served below it.")
@click.option("--namespace", required=True, help="Where the Secret with the signing keys is kept.")
@click.option(
    "--signing-algorithm",
    type=click.Choice(["ES256", "RS256"]),
    default="ES256",
    show_default=True,
    help="Of new keys.",
)
@click.option("--key-period", type=_POSITIVE, default=30.0, show_default=True, help="Days that a key signs.")
@click.option("--backend-ca-file", type=_FILE, help="Who certifies https: services; without it, the system's roots.")
@click.option("--user-rate", type=_POSITIVE, default=_USUAL.user_rate, show_default=True, help="Requests a second.")
@click.option("--user-burst", type=_COUNT, default=_USUAL.user_burst, show_default=True, help="Requests in a burst.")
@click.option("--user-requests", type=_COUNT, default=_USUAL.user_requests, show_default=True, help="Requests at once.")
@click.option(
    "--max-connections",
    type=_COUNT,
    default=DEFAULT_PROXY.connections,
    show_default=True,
    help="From kube-apiserver at once, and as many to services: 2.2 MiB each at most.",
)
@click.option(
    "--max-request-duration",
    type=_POSITIVE,
    default=DEFAULT_PROXY.request_seconds,
    show_default=True,
    help="Seconds after which an answer or a websocket ends.",
)
@click.option("--health-bind-address", help="host:port of /healthz, /readyz and /metrics, over plain HTTP.")
@click.option("--log-level", type=click.Choice(LOG_LEVELS), default="info", show_default=True, help="What is logged.")
@click.option("--log-format", type=click.Choice(LOG_FORMATS), default="json", show_default=True, help="How.")
def gateway(
    *,
    kubeconfig: Path | None,
    bind_address: str,
    tls_cert_file: Path,
    tls_private_key_file: Path,
    issuer: str,
    namespace: str,
    signing_algorithm: Algorithm,
    key_period: float,
    backend_ca_file: Path | None,
    user_rate: float,
    user_burst: int,
    user_requests: int,
    max_connections: int,
    max_request_duration: float,
    health_bind_address: str | None,
    log_level: str,
    log_format: str,
) -> int:
    """Forward users' requests to add-ons, with a token that names the caller.

    kube-apiserver sends requests for /apis/addonauth.nodeattest.x-k8s.io here, once the APIService of
    manifests/addon-gateway is applied.
    """
    try:
        settings = GatewaySettings(
            address=parse_address(bind_address, "--bind-address"),
            certificate=tls_cert_file,
            key=tls_private_key_file,
            issuer=issuer,
            namespace=namespace,
            backend_ca=backend_ca_file,
            health=None if health_bind_address is None else parse_address(health_bind_address, "--health-bind-address"),
            algorithm=signing_algorithm,
            schedule=RotationSchedule(period=key_period * _DAY),
            limits=UserLimits(user_rate=user_rate, user_burst=user_burst, user_requests=user_requests),
            proxy=ProxyLimits(
                connections=max_connections, upstream_connections=max_connections, request_seconds=max_request_duration
            ),
        )
        logs.configure(level=log_level, log_format=log_format, stream=sys.stderr)
        return serve_until_signal(_serve(settings, kubeconfig))
    except (SettingsError, KubeconfigError) as error:
        raise UserError(str(error)) from None


async def _serve(settings: GatewaySettings, kubeconfig: Path | None) -> int:
    client = ApiClient.from_kubeconfig_file(kubeconfig) if kubeconfig else ApiClient.in_cluster(os.environ)
    await app.run(settings, client, started=lambda _: None)
    return 0
