"""Write docs/commands.md from the commands themselves: ``python -m tools.cli_reference FILE``."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import click

from nodeattest_cli.main import cli
from tools.markdown_tables import rewrite

_LINE: Final = 120
"""Columns of a page's lines."""
_WIDTH: Final = 110
"""Columns of usage lines."""
_NAME: Final = "nodeattest"


@dataclass(frozen=True, slots=True)
class Page:
    """One command as its own help shows it."""

    words: tuple[str, ...]
    usage: str
    text: tuple[str, ...]
    """Paragraphs."""
    options: tuple[tuple[str, str], ...]

    @property
    def title(self) -> str:
        """How it is called."""
        return " ".join((_NAME, *self.words))


def pages(group: click.Group = cli, words: tuple[str, ...] = ()) -> Iterator[Page]:
    """Yield every command that does something, in the order of ``--help``."""
    parent = click.Context(group, info_name=" ".join((_NAME, *words)), terminal_width=_WIDTH)
    for name in group.list_commands(parent):
        _, command, _ = group.resolve_command(parent, [name])
        if isinstance(command, click.Group):
            yield from pages(command, (*words, name))
        elif command is not None:
            yield _page(command, (*words, name))


def _page(command: click.Command, words: tuple[str, ...]) -> Page:
    context = click.Context(command, info_name=" ".join((_NAME, *words)), terminal_width=_WIDTH, show_default=True)
    paragraphs = tuple(" ".join(part.split()) for part in re.split(r"\n\s*\n", (command.help or "").strip()))
    records = (param.get_help_record(context) for param in command.params if isinstance(param, click.Option))
    usage = " ".join(command.get_usage(context).removeprefix("Usage: ").split())
    options = tuple((names, " ".join(text.split())) for names, text in filter(None, records))
    return Page(words, usage, paragraphs, options)


def markdown(before: str) -> str:
    """Write the page of the documentation anew; what is before the first command stays."""
    parts = [before.partition(f"\n## {_NAME}")[0].rstrip()]
    for page in pages():
        parts.append(f"## {page.title}\n\n```text\n{page.usage}\n```")
        parts += [_wrapped(_escaped(text)) for text in page.text]
        if page.options:
            rows = [f"| `{_cell(names)}` | {_cell(_escaped(text))} |" for names, text in page.options]
            parts.append("\n".join(["| option | |", "|---|---|", *rows]))
    return "\n\n".join(parts) + "\n"


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def _escaped(text: str) -> str:
    return text.replace("*", "\\*").replace("<", "\\<")


def _wrapped(text: str) -> str:
    return textwrap.fill(text, _LINE, break_long_words=False, break_on_hyphens=False)


if __name__ == "__main__":
    rewrite(markdown, __doc__)
