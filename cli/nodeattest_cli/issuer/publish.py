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
from typing import Final

import click

from nodeattest_cli.errors import ExitCode, UserError
from nodeattest_cli.options import Duration, output_option
from nodeattest_cli.output import format_table, print_document, print_lines, to_json
from nodeattest_identity.issuer.documents import MAX_AGE, UrlError, configuration_url, default_jwks_uri
from nodeattest_identity.issuer.keys import KeysError, read_key_file
from nodeattest_identity.publish.plan import Desired, Plan
from nodeattest_identity.publish.publisher import PublicCheck, PublicStatus, check_public, open_store
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
from nodeattest_parsing.values import JsonObject

_FILE: Final = click.Path(path_type=Path)
_CA_FILE: Final = click.Path(path_type=Path, exists=True, dir_okay=False)
_READ_INTERVAL: Final = 5.0
"""Seconds between two reads of the public URL."""
_SECOND: Final = timedelta(seconds=1)
_CODES: Final = {
    PublicStatus.EQUAL: ExitCode.DONE,
    PublicStatus.OLDER: ExitCode.NO_ACCESS,
    PublicStatus.WRONG: ExitCode.REFUSED,
}


@click.command()
@click.option("--service-account-issuer", required=True, metavar="URL", help="The issuer, as kube-apiserver's.")
@click.option("--service-account-jwks-uri", metavar="URL", help="Its key set  [the issuer's URL + /openid/v1/jwks]")
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
    type=Duration(_SECOND, timedelta(days=7)),
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
@click.option("--wait", type=Duration(), default="0s", help="How long to wait until the public URL shows it.")
@output_option("text", "json")
def publish(
    *,
    service_account_issuer: str,
    service_account_jwks_uri: str | None,
    to: str,
    region: str | None,
    endpoint_url: str | None,
    key_files: tuple[Path, ...],
    max_age: timedelta,
    retire_after: timedelta,
    owner: str,
    adopt: bool,
    drop_key: tuple[str, ...],
    dry_run: bool,
    no_read_back: bool,
    ca_file: Path | None,
    wait: timedelta,
    output: str,
) -> int:
    """Publish an issuer's documents, and check that the public sees them.

    A key whose file is no longer given stays until the last token by it has expired. Credentials are the cloud's own:
    boto3's chain, azure-identity's or AZURE_STORAGE_KEY, Google's application default credentials. Exit code 1: the
    public URL is wrong; 3: not yet.
    """
    try:
        keys = tuple(key for path in key_files for key in read_key_file(path))
    except KeysError as error:
        raise UserError(str(error)) from None
    desired = Desired(
        issuer=service_account_issuer,
        jwks_uri=service_account_jwks_uri or default_jwks_uri(service_account_issuer),
        keys=keys,
        owner=owner,
        max_age=int(max_age.total_seconds()),
        retire_after=int(retire_after.total_seconds()),
        adopt=adopt,
        revoked=frozenset(drop_key),
    )
    access = StoreAccess(
        region=region, endpoint_url=endpoint_url, azure_key=os.environ.get("AZURE_STORAGE_KEY") or None
    )

    async def work(store: ObjectStore) -> ExitCode:
        if dry_run:
            outcome = await plan(store, desired, clock=time.time)
            _show(store, desired, outcome, None, output, done="would be written")
            return _code_of_unknown(outcome) or (ExitCode.NO_ACCESS if outcome.writes else ExitCode.DONE)
        published = await publish_to(store, desired, clock=time.time)
        check = None if no_read_back else await _read_back(published, desired, ca_file, wait)
        _show(store, desired, published, check, output, done="written")
        return _code_of_unknown(published) or (_CODES[check.status] if check is not None else ExitCode.DONE)

    try:
        return asyncio.run(work(open_store(parse_location(to), access)))
    except (StoreUnavailableError, WriteConflictError) as error:
        print_lines(f"nodeattest: {error}; run it again", err=True)
        return ExitCode.NO_ACCESS
    except (PublishError, KeysError, UrlError) as error:
        raise UserError(str(error)) from None


def _code_of_unknown(outcome: Plan) -> ExitCode:
    """Report keys to drop that are not published: a mistyped name leaves a leaked key public."""
    published = ", ".join(printable(record.key.kid) for record in outcome.state.keys)
    for kid in sorted(outcome.unknown):
        print_lines(
            f"nodeattest: --drop-key: expected the name of a published key, got {printable(kid)}: either that key is "
            f"removed already, or the name is wrong and nothing was dropped; published: {published}",
            err=True,
        )
    return ExitCode.REFUSED if outcome.unknown else ExitCode.DONE


async def _read_back(published: Plan, desired: Desired, ca_file: Path | None, wait: timedelta) -> PublicCheck:
    """Read the public URL until it is as published, or the time is over."""
    https = HttpsFetcher(ca_file=ca_file)
    until = time.monotonic() + wait.total_seconds()
    while True:
        check = await check_public(https, published, max_age=desired.max_age, now=int(time.time()))
        if check.status is PublicStatus.EQUAL or time.monotonic() + _READ_INTERVAL > until:
            return check
        await asyncio.sleep(_READ_INTERVAL)


def _show(
    store: ObjectStore,
    desired: Desired,
    outcome: Plan,
    check: PublicCheck | None,
    output: str,
    *,
    done: str,
) -> None:
    """Print what was written, the keys, and what the public URL shows."""
    state = outcome.state
    keys = [
        (
            one.key.kid,
            one.key.alg,
            None if one.absent_since is None else _moment(one.absent_since + desired.retire_after),
        )
        for one in state.keys
    ]
    if output == "json":
        public: JsonObject | None = None
        if check is not None:
            until = None if check.until is None else _moment(check.until)
            public = {"seen": str(check.status), "findings": [*check.findings], "until": until}
        document: JsonObject = {
            "issuer": state.issuer,
            "location": store.name,
            "writes": [{"path": write.path, "why": write.why} for write in outcome.writes],
            "notes": [*outcome.notes],
            "keys": [{"kid": kid, "alg": alg, "staysUntil": until} for kid, alg, until in keys],
            "public": public,
        }
        print_document(to_json(document, indent=None))
        return
    written = {write.path: write.why for write in reversed(outcome.writes)}
    lines = [f"  {path}: {why}, {done}" for path, why in written.items()] or ["  everything is there already"]
    print_lines(f"{state.issuer} at {store.name}", *lines, *(f"  {note}" for note in outcome.notes))
    rows = [("KEY", "ALG", "STAYS UNTIL"), *((printable(kid), alg, until or "-") for kid, alg, until in keys)]
    print_lines(*format_table(rows))
    if check is not None:
        words = {
            PublicStatus.EQUAL: "shows it",
            PublicStatus.OLDER: f"older until {_moment(check.until or 0)} at the latest",
            PublicStatus.WRONG: "is wrong",
        }
        print_lines(f"public: {configuration_url(state.issuer)} {words[check.status]}")
        print_lines(*(f"  {finding}" for finding in check.findings))


def _moment(at: int) -> str:
    return rfc3339(datetime.fromtimestamp(at, UTC))
