"""``nodeattest version``."""

from __future__ import annotations

import click

from nodeattest_providers.version import describe

__all__ = ["version"]


@click.command()
def version() -> None:
    """Print version and commit, and which evidence is understood."""
    click.echo(describe("nodeattest", "signer"))
