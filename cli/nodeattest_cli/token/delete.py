"""``nodeattest token delete``.

Promises: every argument is tried; the exit code says whether all of them are gone.
"""

from __future__ import annotations

from collections.abc import Sequence

import click

from nodeattest_cli.connection import Connection, cluster_options, explained, run
from nodeattest_cli.errors import ExitCode, UserError, user_errors
from nodeattest_cli.output import print_lines
from nodeattest_cli.token.factory import secret_path
from nodeattest_cli.token.input import read_token_text
from nodeattest_discovery.token import parse_id
from nodeattest_kube.client import ApiClient, ApiError, NotFound

__all__ = ["delete"]


@click.command()
@click.argument("token", nargs=-1)
@click.option("--ignore-not-found", is_flag=True, help="A token that does not exist counts as deleted.")
@click.option("--dry-run", is_flag=True, help="See whether they exist, and delete nothing.")
@cluster_options
def delete(
    *, token: tuple[str, ...], ignore_not_found: bool, dry_run: bool, kubeconfig: str | None, context: str | None
) -> int:
    """Delete bootstrap tokens.

    TOKEN is a token's id, a whole token, or - for one on standard input. API servers take a deleted token for some
    more seconds: they remember that it was good. Exit code 1 when one does not exist, 3 when one
    could not be deleted.
    """
    if not token:
        raise UserError("expected a token, or its id: six lower-case letters or digits")
    ids = [_id(word) for word in token]
    return run(
        Connection(kubeconfig, context),
        lambda client: _delete(client, ids, ignore_not_found=ignore_not_found, dry_run=dry_run),
    )


def _id(word: str) -> str:
    with user_errors("the token"):
        return parse_id(read_token_text(word, None) or "")


async def _delete(client: ApiClient, ids: Sequence[str], *, ignore_not_found: bool, dry_run: bool) -> ExitCode:
    """Delete tokens one after the other; return the exit code."""
    ended = ExitCode.DONE
    for token_id in ids:
        try:
            if dry_run:
                await client.get(secret_path(token_id))
            else:
                await client.delete(secret_path(token_id))
        except NotFound:
            if ignore_not_found:
                print_lines(f'bootstrap token "{token_id}" not found')
                continue
            ended = max(ended, ExitCode.REFUSED)
            print_lines(f'nodeattest: there is no bootstrap token "{token_id}"', err=True)
        except ApiError as error:
            failure = explained(error)
            ended = max(ended, failure.code)
            print_lines(f'nodeattest: bootstrap token "{token_id}" is not deleted: {failure}', err=True)
        else:
            print_lines(f'bootstrap token "{token_id}" {"would be deleted" if dry_run else "deleted"}')
    return ended
