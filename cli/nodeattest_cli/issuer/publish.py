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
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import click

from nodeattest_cli.durations import seconds
from nodeattest_cli.errors import ExitCode, UserError
from nodeattest_cli.output import format_table, output_option, print_document, print_lines, to_json
from nodeattest_identity.issuer.documents import MAX_AGE
from nodeattest_identity.issuer.keys import MAX_SIZE, KeysError, VerifyingKey, read_pem
from nodeattest_identity.issuer.urls import UrlError, configuration_url, default_jwks_uri
from nodeattest_identity.publish.location import FORMS, open_store, parse_location
from nodeattest_identity.publish.plan import Plan, Write
from nodeattest_identity.publish.publisher import PublishResult, dry_run
from nodeattest_identity.publish.publisher import publish as publish_to
from nodeattest_identity.publish.state import Desired, IssuerState
from nodeattest_identity.publish.store import (
    ObjectStore,
    PublishError,
    StoreAccess,
    StoreUnavailableError,
    WriteConflictError,
)
from nodeattest_identity.publish.verify_public import PublicCheck, PublicStatus, check_public
from nodeattest_identity.tokens.jwt import printable
from nodeattest_identity.tokens.oidc_http import HttpsFetcher
from nodeattest_kube.jsontypes import JsonObject

__all__ = ["publish", "read_keys"]

_FILE: Final = click.Path(path_type=Path)
_CA_FILE: Final = click.Path(path_type=Path, exists=True, dir_okay=False)
_READ_INTERVAL: Final = 5.0
"""Seconds between two reads of the public URL."""
_LONGEST_MAX_AGE: Final = 7 * 86_400


@dataclass(frozen=True, slots=True, kw_only=True)
class _Public:
    """Whether and how the public URL is read back."""

    skipped: bool
    ca_file: Path | None
    wait: int


@dataclass(frozen=True, slots=True, kw_only=True)
class _Report:
    """What is shown."""

    location: str
    writes: Sequence[Write]
    notes: Sequence[str]
    state: IssuerState
    retire_after: int
    check: PublicCheck | None


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
@click.option("--max-age", default=f"{MAX_AGE}s", show_default=True, help="How long caches may hold the documents.")
@click.option(
    "--retire-after",
    default="8761h",
    show_default=True,
    help="How long a key stays published after its file is no longer given.",
)
@click.option("--owner", default="nodeattest", show_default=True, help="Another owner's location is refused.")
@click.option("--adopt", is_flag=True, help="Take over documents of this issuer that have no state object of ours.")
@click.option("--drop-key", multiple=True, metavar="KID", help="Remove a leaked key at once, whatever it signed.")
@click.option("--dry-run", is_flag=True, help="Show what would be written, and write nothing.")
@click.option("--no-read-back", is_flag=True, help="Do not read the public URL afterwards.")
@click.option("--ca-file", type=_CA_FILE, help="The only CAs trusted for the public URL  [this machine's]")
@click.option("--wait", default="0s", show_default=True, help="How long to wait until the public URL shows it.")
@output_option("text", "json")
def publish(
    *,
    service_account_issuer: str,
    service_account_jwks_uri: str | None,
    to: str,
    region: str | None,
    endpoint_url: str | None,
    key_files: tuple[Path, ...],
    max_age: str,
    retire_after: str,
    owner: str,
    adopt: bool,
    drop_key: tuple[str, ...],
    dry_run: bool,
    no_read_back: bool,
    ca_file: Path | None,
    wait: str,
    output: str,
) -> int:
    """Publish an issuer's documents, and check that the public sees them.

    A key whose file is no longer given stays until the last token by it has expired. Credentials are the cloud's own:
    boto3's chain, azure-identity's or AZURE_STORAGE_KEY, Google's application default credentials. Exit code 1: the
    public URL is wrong; 3: not yet.
    """
    desired = Desired(
        issuer=service_account_issuer,
        jwks_uri=service_account_jwks_uri or default_jwks_uri(service_account_issuer),
        keys=read_keys(key_files),
        owner=owner,
        max_age=seconds("--max-age", max_age),
        retire_after=seconds("--retire-after", retire_after),
        adopt=adopt,
        revoked=frozenset(drop_key),
    )
    if not 0 < desired.max_age <= _LONGEST_MAX_AGE:
        raise UserError(f"--max-age: expected 1s to 168h, got {max_age}")
    public = _Public(skipped=no_read_back, ca_file=ca_file, wait=seconds("--wait", wait))
    access = StoreAccess(
        region=region, endpoint_url=endpoint_url, azure_key=os.environ.get("AZURE_STORAGE_KEY") or None
    )
    try:
        store = open_store(parse_location(to), access)
        return asyncio.run(_preview(store, desired, output) if dry_run else _publish(store, desired, public, output))
    except (StoreUnavailableError, WriteConflictError) as error:
        print_lines(f"nodeattest: {error}; run it again", err=True)
        return ExitCode.NO_ACCESS
    except (PublishError, KeysError, UrlError) as error:
        raise UserError(str(error)) from None


def read_keys(paths: tuple[Path, ...]) -> tuple[VerifyingKey, ...]:
    """Read key files as kube-apiserver does; raises ``UserError``."""
    keys: list[VerifyingKey] = []
    for path in paths:
        try:
            with path.open("rb") as file:
                keys += read_pem(file.read(MAX_SIZE + 1))
        except OSError as error:
            got = os.strerror(error.errno) if error.errno else "an error without a number"
            raise UserError(
                f"{path}: expected a readable file with keys, got {got!r}; give the path of a file, its public half "
                "is enough"
            ) from None
        except KeysError as error:
            raise UserError(f"{path}: {error}") from None
    return tuple(keys)


async def _preview(store: ObjectStore, desired: Desired, output: str) -> int:
    ahead = await dry_run(store, desired, clock=time.time)
    _show(_report(store, ahead, desired), output, done="would be written")
    if _report_unknown(ahead.unknown, ahead.state):
        return ExitCode.REFUSED
    return ExitCode.NO_ACCESS if ahead.writes else 0


async def _publish(store: ObjectStore, desired: Desired, public: _Public, output: str) -> int:
    published = await publish_to(store, desired, clock=time.time)
    check = None if public.skipped else await _read_back(published, desired, public)
    _show(_report(store, published, desired, check), output, done="written")
    if _report_unknown(published.unknown, published.state):
        return ExitCode.REFUSED
    if check is None or check.status is PublicStatus.EQUAL:
        return 0
    return ExitCode.NO_ACCESS if check.status is PublicStatus.OLDER else ExitCode.REFUSED


def _report(
    store: ObjectStore, outcome: Plan | PublishResult, desired: Desired, check: PublicCheck | None = None
) -> _Report:
    return _Report(
        location=store.name,
        writes=outcome.writes,
        notes=outcome.notes,
        state=outcome.state,
        retire_after=desired.retire_after,
        check=check,
    )


def _report_unknown(unknown: frozenset[str], state: IssuerState) -> bool:
    """Report keys to drop that are not published: a mistyped name leaves a leaked key public."""
    published = ", ".join(printable(record.key.kid) for record in state.keys)
    for kid in sorted(unknown):
        print_lines(
            f"nodeattest: --drop-key: expected the name of a published key, got {printable(kid)}: either that key is "
            f"removed already, or the name is wrong and nothing was dropped; published: {published}",
            err=True,
        )
    return bool(unknown)


async def _read_back(published: PublishResult, desired: Desired, public: _Public) -> PublicCheck:
    """Read the public URL until it is as published, or the time is over."""
    https = HttpsFetcher(ca_file=public.ca_file)
    until = time.monotonic() + public.wait
    while True:
        check = await check_public(https, published, max_age=desired.max_age, now=int(time.time()))
        if check.status is PublicStatus.EQUAL or time.monotonic() + _READ_INTERVAL > until:
            return check
        await asyncio.sleep(_READ_INTERVAL)


def _show(report: _Report, output: str, *, done: str) -> None:
    if output == "json":
        print_document(to_json(_members(report), indent=None))
        return
    print_lines(f"{report.state.issuer} at {report.location}")
    for path, why in {write.path: write.why for write in reversed(report.writes)}.items():
        print_lines(f"  {path}: {why}, {done}")
    if not report.writes:
        print_lines("  everything is there already")
    for note in report.notes:
        print_lines(f"  {note}")
    rows = [("KEY", "ALG", "STAYS UNTIL")]
    rows += [(printable(kid), alg, until or "-") for kid, alg, until in _keys(report)]
    print_lines(*format_table(rows, gap=2))
    check = report.check
    if check is None:
        return
    words = {
        PublicStatus.EQUAL: "shows it",
        PublicStatus.OLDER: f"older until {_moment(check.until)} at the latest",
        PublicStatus.WRONG: "is wrong",
    }
    print_lines(f"public: {configuration_url(report.state.issuer)} {words[check.status]}")
    for finding in check.findings:
        print_lines(f"  {finding}")


def _keys(report: _Report) -> list[tuple[str, str, str | None]]:
    """Return name and algorithm of each key, and until when it stays if it is absent."""
    return [
        (
            record.key.kid,
            record.key.alg,
            None if record.absent_since is None else _moment(record.absent_since + report.retire_after),
        )
        for record in report.state.keys
    ]


def _members(report: _Report) -> JsonObject:
    keys: list[JsonObject] = [{"kid": kid, "alg": alg, "staysUntil": until} for kid, alg, until in _keys(report)]
    public: JsonObject | None = None
    if report.check is not None:
        check = report.check
        public = {
            "seen": str(check.status),
            "findings": [*check.findings],
            "until": None if check.until is None else _moment(check.until),
        }
    return {
        "issuer": report.state.issuer,
        "location": report.location,
        "writes": [{"path": write.path, "why": write.why} for write in report.writes],
        "notes": [*report.notes],
        "keys": [*keys],
        "public": public,
    }


def _moment(at: int | None) -> str:
    return "" if at is None else datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
