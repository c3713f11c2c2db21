"""``nodeattest version``."""

from __future__ import annotations

import click

from nodeattest_providers import __version__

__all__ = ["version"]


@click.command()
def version() -> None:
    """Print the version."""
    click.echo(__version__)
