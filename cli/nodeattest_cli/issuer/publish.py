"""``nodeattest issuer publish``: keep a public location equal to an issuer's keys.

Promises: exit code 0 if the location holds them and the public sees it; 1 if the public URL shows something wrong, or
a key that was to be dropped is not there; 2 if nothing could be published, with one line why; 3 if it is not so yet: a
dry run would write, caches still show the older documents, or the store is busy. May be run again at any time.
Everything else is ``nodeattest_identity.publish``.
"""

from __future__ import annotations

import asyncio
import os
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

import click

from nodeattest_cli.options import Duration
from nodeattest_cli.output import ExitCode, UserError, format_table, print_lines
from nodeattest_identity.issuer.documents import MAX_AGE, UrlError, configuration_url, default_jwks_uri
from nodeattest_identity.issuer.keys import KeysError, read_key_file
from nodeattest_identity.publish.plan import Desired, Plan
from nodeattest_identity.publish.publisher import check_public, open_store
from nodeattest_identity.publish.publisher import dry_run as plan
from nodeattest_identity.publish.publisher import publish as publish_to
from nodeattest_identity.publish.store import (
    FORMS,
    ObjectStore,
    PublishError,
    StoreAccess,
    StoreUnavailableError,
    WriteConflictError,
    parse_location,
)
from nodeattest_identity.tokens.jwt import printable
from nodeattest_identity.tokens.relying_party import HttpsFetcher
from nodeattest_parsing.objects import rfc3339

_FILE: Final = click.Path(path_type=Path)
_CA_FILE: Final = click.Path(path_type=Path, exists=True, dir_okay=False)


@click.command()
@click.option("--service-account-issuer", "issuer", required=True, metavar="URL", help="As kube-apiserver's.")
@click.option("--service-account-jwks-uri", "jwks_uri", metavar="URL", help="Of its key set  [URL + /openid/v1/jwks]")
@click.option("--to", required=True, metavar="LOCATION", help=f"Where: {FORMS}.")
@click.option("--region", help="Of the S3 bucket  [AWS_REGION, the profile's]")
@click.option("--endpoint-url", metavar="URL", help="Of a store that is not the cloud's default one.")
@click.option(
    "--service-account-key-file",
    "key_files",
    type=_FILE,
    multiple=True,
    required=True,
    metavar="FILE",
    help="As kube-apiserver's, all of them; of a private key the public half is taken.",
)
@click.option(
    "--max-age",
    type=Duration(timedelta(seconds=1), timedelta(days=7)),
    default=f"{MAX_AGE}s",
    help="How long caches may hold the documents.",
)
@click.option(
    "--retire-after",
    type=Duration(),
    default="8761h",
    help="How long a key stays published after its file is no longer given.",
)
@click.option("--owner", default="nodeattest", help="Another owner's location is refused.")
@click.option("--adopt", is_flag=True, help="Take over documents of this issuer that have no state object of ours.")
@click.option("--drop-key", multiple=True, metavar="KID", help="Remove a leaked key at once, whatever it signed.")
@click.option("--dry-run", is_flag=True, help="Show what would be written, and write nothing.")
@click.option("--no-read-back", is_flag=True, help="Do not read the public URL afterwards.")
@click.option("--ca-file", type=_CA_FILE, help="The only CAs trusted for the public URL  [this machine's]")
def publish(**flags: Any) -> int:  # noqa: ANN401 - click passes what the options' types make
    """Publish an issuer's documents, and check that the public sees them.

    A key whose file is no longer given stays until the last token by it has expired. Credentials are the cloud's own:
    boto3's chain, azure-identity's or AZURE_STORAGE_KEY, Google's application default credentials. Exit code 1: the
    public URL is wrong; 3: not yet.
    """
    issuer: str = flags["issuer"]
    azure_key = os.environ.get("AZURE_STORAGE_KEY") or None
    access = StoreAccess(region=flags["region"], endpoint_url=flags["endpoint_url"], azure_key=azure_key)
    try:
        desired = Desired(
            issuer=issuer,
            jwks_uri=flags["jwks_uri"] or default_jwks_uri(issuer),
            keys=tuple(key for path in flags["key_files"] for key in read_key_file(path)),
            owner=flags["owner"],
            max_age=int(flags["max_age"].total_seconds()),
            retire_after=int(flags["retire_after"].total_seconds()),
            adopt=flags["adopt"],
            revoked=frozenset(flags["drop_key"]),
        )
        return asyncio.run(_publish(open_store(parse_location(flags["to"]), access), desired, flags))
    except (StoreUnavailableError, WriteConflictError) as error:
        print_lines(f"nodeattest: {error}; run it again", err=True)
        return ExitCode.NO_ACCESS
    except (PublishError, KeysError, UrlError) as error:
        raise UserError(str(error)) from None


async def _publish(store: ObjectStore, desired: Desired, flags: dict[str, Any]) -> ExitCode:
    dry_run: bool = flags["dry_run"]
    outcome = await (plan if dry_run else publish_to)(store, desired, clock=time.time)
    _show(store, desired, outcome, "would be written" if dry_run else "written")
    code = ExitCode.NO_ACCESS if dry_run and outcome.writes else ExitCode.DONE
    if not dry_run and not flags["no_read_back"]:
        https = HttpsFetcher(ca_file=flags["ca_file"])
        check = await check_public(https, outcome, max_age=desired.max_age, now=int(time.time()))
        said, code = "shows it", ExitCode.DONE
        if check.is_wrong:
            said, code = "is wrong", ExitCode.REFUSED
        elif check.until is not None:
            said, code = f"older until {_moment(check.until)} at the latest", ExitCode.NO_ACCESS
        print_lines(f"public: {configuration_url(desired.issuer)} {said}")
        print_lines(*(f"  {finding}" for finding in check.findings))
    return _code_of_unknown(outcome) or code


def _code_of_unknown(outcome: Plan) -> ExitCode:
    """Report keys to drop that are not published: a mistyped name leaves a leaked key public."""
    published = ", ".join(printable(key.kid) for key in outcome.state.keys)
    for kid in sorted(outcome.unknown):
        print_lines(
            f"nodeattest: --drop-key: expected the name of a published key, got {printable(kid)}: either that key is "
            f"removed already, or the name is wrong and nothing was dropped; published: {published}",
            err=True,
        )
    return ExitCode.REFUSED if outcome.unknown else ExitCode.DONE


def _show(store: ObjectStore, desired: Desired, outcome: Plan, done: str) -> None:
    """Print what was written, and the keys."""
    written = {write.path: write.why for write in reversed(outcome.writes)}
    lines = [f"  {path}: {why}, {done}" for path, why in written.items()] or ["  everything is there already"]
    print_lines(f"{desired.issuer} at {store.name}", *lines, *(f"  {note}" for note in outcome.notes))
    rows = [("KEY", "ALG", "STAYS UNTIL")]
    for key in outcome.state.keys:
        since = outcome.state.absent_since.get(key.kid)
        until = "-" if since is None else _moment(since + desired.retire_after)
        rows.append((printable(key.kid), key.alg, until))
    print_lines(*format_table(rows))


def _moment(at: int) -> str:
    return rfc3339(datetime.fromtimestamp(at, UTC))
