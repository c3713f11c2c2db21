"""``nodeattest token generate``: no cluster is asked, and no client of one imported."""

from __future__ import annotations

import click

from nodeattest_discovery.token import generate
from nodeattest_parsing.printable import visible_lines

__all__ = ["generate_token"]


@click.command("generate")
def generate_token() -> None:
    """Print a random token, and create nothing."""
    click.echo(visible_lines(generate().reveal()), nl=False)
