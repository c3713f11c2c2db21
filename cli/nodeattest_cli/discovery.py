"""``nodeattest discovery serve``: the discovery front of one workload cluster (``nodeattest_discovery.front``)."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import click

from nodeattest_cli.serving import COUNT, FILE, POSITIVE, Address, api_client, server, tls_options
from nodeattest_discovery.front import app
from nodeattest_discovery.front.service import FrontLimits, FrontSettings, WebhookSettings
from nodeattest_serving.bounded_server import BindAddress, SettingsError

_USUAL: Final = FrontLimits()


@click.command()
@click.option("--kubeconfig", type=FILE, help="Whose cluster-info is served; without it, the pod's service account's.")
@click.option("--bind-address", type=Address(), default=":9443", help="host:port of cluster-info, over TLS.")
@click.option("--audience", metavar="ID", help="The cluster's identifier: a question that names another is refused.")
@click.option(
    "--max-stale",
    type=POSITIVE,
    default=300.0,
    help="Seconds to answer while the API server is away, 120 or more.",
)
@click.option("--client-rate", type=POSITIVE, default=_USUAL.client_rate, help="Requests a second of one address.")
@click.option("--client-burst", type=COUNT, default=_USUAL.client_burst, help="Requests of it at once.")
@click.option("--token-rate", type=POSITIVE, default=_USUAL.token_rate, help="Answers a second for one token.")
@click.option("--token-burst", type=COUNT, default=_USUAL.token_burst, help="Answers for it at once.")
@click.option("--webhook-bind-address", type=Address(), help="host:port of the TokenReview webhook, over TLS.")
@click.option("--webhook-client-ca-file", type=FILE, help="Who may ask the webhook; without it, only this machine.")
@tls_options(required=True)
@server
async def serve(**flags: Any) -> None:  # noqa: ANN401 - click passes what the options' types make
    """Serve cluster-info of one workload cluster.

    A client proves knowledge of a bootstrap token by a JWT, and gets an answer that the same token signs.
    """
    webhook: BindAddress | None = flags["webhook_bind_address"]
    client_ca: Path | None = flags["webhook_client_ca_file"]
    if client_ca is not None and webhook is None:
        raise SettingsError("--webhook-client-ca-file: expected --webhook-bind-address beside it, got none")
    limits = {name: flags[name] for name in ("client_rate", "client_burst", "token_rate", "token_burst")}
    settings = FrontSettings(
        address=flags["bind_address"],
        certificate=flags["tls_cert_file"],
        key=flags["tls_private_key_file"],
        audience=flags["audience"],
        max_stale=flags["max_stale"],
        health=flags["health_bind_address"],
        webhook=WebhookSettings(address=webhook, client_ca=client_ca) if webhook is not None else None,
        limits=FrontLimits(**limits),
    )
    await app.run(settings, api_client(flags["kubeconfig"]), started=lambda _: None)
