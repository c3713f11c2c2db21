"""``nodeattest completion``: the script that lets a shell complete our commands, as ``kubectl completion`` does.

The script calls ``nodeattest`` at each Tab; click answers it. Source: click.shell_completion.
"""

from __future__ import annotations

from typing import Final

import click
from click.shell_completion import ShellComplete, get_completion_class

from nodeattest_cli.errors import UserError
from nodeattest_parsing.printable import visible_lines

__all__ = ["completion"]

_SHELLS: Final = ("bash", "zsh", "fish")


@click.command()
@click.argument("shell", type=click.Choice(_SHELLS))
@click.pass_context
def completion(ctx: click.Context, *, shell: str) -> None:
    """Print a script that completes nodeattest's commands and options in SHELL.

    bash: source <(nodeattest completion bash). zsh: source <(nodeattest completion zsh), after compinit. fish:
    nodeattest completion fish | source.
    """
    found: type[ShellComplete] | None = get_completion_class(shell)
    if found is None:
        raise UserError(f"this version of click does not complete in {shell}")
    root = ctx.find_root()
    name = root.info_name or "nodeattest"
    script = found(root.command, {}, name, f"_{name.replace('-', '_').upper()}_COMPLETE").source()
    click.echo(visible_lines(*script.splitlines()), nl=False)
