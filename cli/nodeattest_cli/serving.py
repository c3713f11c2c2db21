"""``nodeattest discovery serve`` and ``issuer serve``, and what the commands that serve share.

A wrong setting is one line and exit code 2, before anything listens. SIGTERM and SIGINT end a server in order with exit
code 0.
"""

from __future__ import annotations

import functools
import math
import os
import sys
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, Final

import click

from nodeattest_cli.options import option_name
from nodeattest_cli.output import UserError
from nodeattest_controller import logs
from nodeattest_controller.main import serve
from nodeattest_controller.settings import LOG_FORMATS, LOG_LEVELS
from nodeattest_discovery.front import FrontLimits, FrontSettings, run_front
from nodeattest_identity import serve as issuer_server
from nodeattest_identity.issuer.documents import MAX_AGE, UrlError
from nodeattest_identity.serve import ServeSettings
from nodeattest_kube.client import ApiClient
from nodeattest_kube.errors import KubeconfigError
from nodeattest_kube.kubeconfig import in_cluster_endpoint, read_kubeconfig
from nodeattest_serving.bounded_server import BindAddress, SettingsError, parse_bind_address

FILE: Final = click.Path(path_type=Path)
COUNT: Final = click.IntRange(min=1)


class Address(click.ParamType[BindAddress]):
    """``host:port`` to listen on."""

    name = "host:port"

    def convert(
        self, value: str | BindAddress, param: click.Parameter | None, ctx: click.Context | None
    ) -> BindAddress:
        """Parse it; the error names the option."""
        try:
            return value if isinstance(value, BindAddress) else parse_bind_address(value, option_name(param))
        except SettingsError as error:
            raise UserError(str(error)) from None


class _Finite(click.FloatRange):
    """A number of a range that is one: not NaN."""

    def convert(self, value: str | float, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Parse it; the error names the option."""
        found: float = super().convert(value, param, ctx)  # pyright: ignore[reportArgumentType] - click parses text
        if math.isnan(found):
            self.fail("expected a number, got nan", param, ctx)
        return found


POSITIVE: Final = _Finite(min=0, min_open=True, max=1e9)


def tls_options(*, required: bool) -> Callable[[Callable[..., int]], Callable[..., int]]:
    """Add the files of the serving certificate."""

    def add(command: Callable[..., int]) -> Callable[..., int]:
        key = click.option("--tls-private-key-file", type=FILE, required=required, help="Its key.")(command)
        said = "Serving certificate; read again when it changes."
        return click.option("--tls-cert-file", type=FILE, required=required, help=said)(key)

    return add


def server(command: Callable[..., Coroutine[object, object, None]]) -> Callable[..., int]:
    """Add the options of every server to a coroutine function, and run it until a signal."""

    @click.option(
        "--health-bind-address", type=Address(), help="host:port of /healthz, /readyz and /metrics, over plain HTTP."
    )
    @click.option("--log-level", type=click.Choice(LOG_LEVELS), default="info", help="What is logged.")
    @click.option("--log-format", type=click.Choice(LOG_FORMATS), default="json", help="How.")
    @functools.wraps(command)
    def call(*, log_level: str, log_format: str, **flags: object) -> int:
        async def work() -> int:
            await command(**flags)
            return 0

        logs.configure(level=log_level, log_format=log_format, stream=sys.stderr)
        try:
            return serve(work())
        except (SettingsError, KubeconfigError, UrlError) as error:
            raise UserError(str(error)) from None

    return call


def api_client(kubeconfig: Path | None) -> ApiClient:
    """Make a client of a kubeconfig's cluster, else of the pod's own; raises ``KubeconfigError``."""
    return ApiClient(read_kubeconfig(kubeconfig) if kubeconfig else in_cluster_endpoint(os.environ))


_USUAL: Final = FrontLimits()


@click.command("serve")
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
@tls_options(required=True)
@server
async def serve_discovery(**flags: Any) -> None:  # noqa: ANN401 - click passes what the options' types make
    """Serve cluster-info of one workload cluster.

    A client proves knowledge of a bootstrap token by a JWT, and gets an answer that the same token signs.
    """
    limits = {name: flags[name] for name in ("client_rate", "client_burst", "token_rate", "token_burst")}
    settings = FrontSettings(
        address=flags["bind_address"],
        certificate=flags["tls_cert_file"],
        key=flags["tls_private_key_file"],
        audience=flags["audience"],
        max_stale=flags["max_stale"],
        health=flags["health_bind_address"],
        limits=FrontLimits(**limits),
    )
    await run_front(settings, api_client(flags["kubeconfig"]))


@click.command("serve")
@click.option(
    "--dir",
    "directory",
    type=FILE,
    required=True,
    metavar="FOLDER",
    help="Where `issuer publish --to dir:FOLDER` or the controller `issuer` writes.",
)
@click.option(
    "--issuer-base",
    metavar="URL",
    required=True,
    help="URL of the folder: the issuer URL/N/C has its documents in N/C.",
)
@click.option("--bind-address", type=Address(), default=":8443", help="host:port of the documents.")
@click.option("--max-age", type=int, default=MAX_AGE, help="Seconds that caches may hold a document.")
@tls_options(required=False)
@server
async def serve_issuer(**flags: Any) -> None:  # noqa: ANN401 - click passes what the options' types make
    """Serve OpenID configurations and key sets of service accounts' issuers.

    The documents come from a folder; a change counts at the next request. Every client gets them: they are public, and
    an issuer's tokens can be verified by them without asking its API server. Any other file is not served.
    """
    settings = ServeSettings(
        address=flags["bind_address"],
        directory=flags["directory"],
        issuer_base=flags["issuer_base"],
        certificate=flags["tls_cert_file"],
        key=flags["tls_private_key_file"],
        health=flags["health_bind_address"],
        max_age=flags["max_age"],
    )
    await issuer_server.run(settings)
