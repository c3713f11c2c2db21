"""``nodeattest issuer serve``: the documents of a folder, over HTTPS, for anybody."""

from __future__ import annotations

from typing import Any

import click

from nodeattest_cli.serving import FILE, Address, server, tls_options
from nodeattest_identity import serve as issuer_server
from nodeattest_identity.issuer.documents import MAX_AGE
from nodeattest_identity.serve import ServeSettings


@click.command()
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
async def serve(**flags: Any) -> None:  # noqa: ANN401 - click passes what the options' types make
    """Serve OpenID configurations and key sets of service accounts' issuers.

    The documents come from a folder, which is read for each request. Every client gets them: they are public, and an
    issuer's tokens can be verified by them without asking its API server. Any other file is not served.
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
