"""``nodeattest version``."""

from __future__ import annotations

import click

from nodeattest_parsing.printable import visible_lines
from nodeattest_providers.version import describe

__all__ = ["version"]


@click.command()
def version() -> None:
    """Print version and commit, and which evidence is understood."""
    click.echo(visible_lines(*describe("nodeattest", "signer").splitlines()), nl=False)
