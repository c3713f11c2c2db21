"""``nodeattest version``."""

from __future__ import annotations

from importlib import metadata

import click

__all__ = ["version"]


@click.command()
def version() -> None:
    """Print the version."""
    click.echo(metadata.version("nodeattest"))
