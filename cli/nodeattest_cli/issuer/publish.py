"""``nodeattest issuer publish``: keep a public place equal to what is wanted.

Promises: exit code 0 where the place holds it and the public sees it; 1 where the public URL shows something wrong, or
a key that was to be dropped is not there; 2 where nothing could be published, with one line why; 3 where it is not so
yet: a dry run would write, caches still show the older documents, or the store is busy. May be run again at any time.
Everything else is ``nodeattest_identity.publish``.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import click

from nodeattest_cli.durations import seconds
from nodeattest_cli.errors import ExitCode, UserError
from nodeattest_cli.issuer.options import Place, moment, place_options, read_keys
from nodeattest_cli.output import format_table, output_option, print_document, print_lines, to_json
from nodeattest_identity.issuer.documents import MAX_AGE
from nodeattest_identity.issuer.keys import KeysError
from nodeattest_identity.issuer.urls import UrlError, configuration_url
from nodeattest_identity.publish.plan import Write
from nodeattest_identity.publish.publisher import PublishResult, dry_run
from nodeattest_identity.publish.publisher import publish as publish_to
from nodeattest_identity.publish.rotation import may_sign_from
from nodeattest_identity.publish.state import Desired, IssuerState
from nodeattest_identity.publish.store import PublishError, StoreUnavailableError, WriteConflictError
from nodeattest_identity.publish.verify_public import PublicCheck, PublicReader, PublicStatus
from nodeattest_identity.tokens.jwt import printable
from nodeattest_kube.jsontypes import JsonObject

__all__ = ["publish"]

_FILE: Final = click.Path(path_type=Path)
_AGAIN: Final = 5.0
"""Seconds between two reads of the public URL."""
_LONGEST_MAX_AGE: Final = 7 * 86_400


@dataclass(frozen=True, slots=True, kw_only=True)
class _Public:
    """Whether and how the public URL is read back."""

    skipped: bool
    ca_file: Path | None
    wait: int


@click.command()
@place_options
@click.option(
    "--service-account-key-file",
    "key_files",
    type=_FILE,
    multiple=True,
    required=True,
    metavar="FILE",
    help="As kube-apiserver's, all of them; of a private key the public half is taken.",
)
@click.option("--max-age", default=f"{MAX_AGE}s", show_default=True, help="How long others may keep the documents.")
@click.option(
    "--retire-after",
    default="8761h",
    show_default=True,
    help="How long a key stays after its file is not given any more.",
)
@click.option("--owner", default="nodeattest", show_default=True, help="Whose place it is: another owner's is refused.")
@click.option("--adopt", is_flag=True, help="Take over documents of this issuer that bear no mark of ours.")
@click.option("--drop-key", multiple=True, metavar="KID", help="Take a leaked key away at once, whatever it signed.")
@click.option("--dry-run", is_flag=True, help="Show what would be written, and write nothing.")
@click.option("--no-read-back", is_flag=True, help="Do not read the public URL afterwards.")
@click.option("--ca-file", type=_FILE, help="The only CAs that vouch for the public URL  [this machine's]")
@click.option("--wait", default="0s", show_default=True, help="How long to wait for the public URL to show it.")
@output_option("text", "json")
def publish(
    *,
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
    **flags: object,
) -> int:
    """Publish an issuer's documents, and check that the public sees them.

    Keys whose files are not given any more stay until the last token by them has expired. Credentials are the clouds'
    own: boto3's chain, azure-identity's or AZURE_STORAGE_KEY. Exit code 1: the public URL is wrong; 3: not yet.
    """
    place = Place.of(flags)
    wanted = Desired(
        issuer=place.issuer,
        jwks_uri=place.jwks_uri,
        keys=read_keys(key_files),
        owner=owner,
        max_age=seconds("--max-age", max_age),
        retire_after=seconds("--retire-after", retire_after),
        adopt=adopt,
        revoked=frozenset(drop_key),
    )
    if not 0 < wanted.max_age <= _LONGEST_MAX_AGE:
        raise UserError(f"--max-age: expected 1s to 168h, got {max_age}")
    public = _Public(skipped=no_read_back, ca_file=ca_file, wait=seconds("--wait", wait))
    try:
        return asyncio.run(_foreseen(place, wanted, output) if dry_run else _publish(place, wanted, public, output))
    except (StoreUnavailableError, WriteConflictError) as error:
        print_lines(f"nodeattest: {error}; run it again", err=True)
        return ExitCode.NO_ACCESS
    except (PublishError, KeysError, UrlError) as error:
        raise UserError(str(error)) from None


async def _foreseen(place: Place, wanted: Desired, output: str) -> int:
    async with place.opened() as store:
        ahead = await dry_run(store, wanted, clock=time.time)
        _show(store.name, ahead.writes, ahead.notes, ahead.state, output, done="would be written", found=None)
    if _undropped(ahead.unknown, ahead.state):
        return ExitCode.REFUSED
    return ExitCode.NO_ACCESS if ahead.writes else 0


async def _publish(place: Place, wanted: Desired, public: _Public, output: str) -> int:
    async with place.opened() as store:
        published = await publish_to(store, wanted, clock=time.time)
        name = store.name
    found = None if public.skipped else await _read_back(published, public)
    _show(name, published.writes, published.notes, published.state, output, done="written", found=found)
    if _undropped(published.unknown, published.state):
        return ExitCode.REFUSED
    if found is None or found.status is PublicStatus.EQUAL:
        return 0
    return ExitCode.NO_ACCESS if found.status is PublicStatus.OLDER else ExitCode.REFUSED


def _undropped(unknown: frozenset[str], state: IssuerState) -> bool:
    """Tell of keys that were to be dropped and are not there: a name that is mistyped leaves a leaked key public."""
    there = ", ".join(printable(each.key.kid) for each in state.keys)
    for kid in sorted(unknown):
        print_lines(
            f"nodeattest: --drop-key: expected the name of a published key, got {printable(kid)}: either that key is "
            f"gone already, or the name is wrong and nothing was dropped; published: {there}",
            err=True,
        )
    return bool(unknown)


async def _read_back(published: PublishResult, public: _Public) -> PublicCheck:
    """Read the public URL until it is as published, or the time is over."""
    try:
        reader = PublicReader(ca_file=public.ca_file)
    except OSError as error:
        raise UserError(f"--ca-file: {public.ca_file}: {error.strerror or 'expected CAs in PEM'}") from None
    until = time.monotonic() + public.wait
    async with reader:
        while True:
            found = await reader.check(published, now=int(time.time()))
            if found.status is PublicStatus.EQUAL or time.monotonic() + _AGAIN > until:
                return found
            await asyncio.sleep(_AGAIN)


def _show(
    place: str,
    writes: Sequence[Write],
    notes: Sequence[str],
    state: IssuerState,
    output: str,
    *,
    done: str,
    found: PublicCheck | None,
) -> None:
    if output == "json":
        print_document(to_json(_members(place, writes, notes, state, found), indent=None))
        return
    print_lines(f"{state.issuer} at {place}")
    for path, why in {write.path: write.why for write in reversed(writes)}.items():
        print_lines(f"  {path}: {why}, {done}")
    if not writes:
        print_lines("  everything is there already")
    for note in notes:
        print_lines(f"  {note}")
    print_lines(*_keys(state))
    if found is None:
        return
    url = configuration_url(state.issuer)
    words = {
        PublicStatus.EQUAL: "shows it",
        PublicStatus.OLDER: f"older until {moment(found.until)} at the latest",
        PublicStatus.WRONG: "is wrong",
    }
    print_lines(f"public: {url} {words[found.status]}")
    for finding in found.findings:
        print_lines(f"  {finding}")


def _keys(state: IssuerState) -> list[str]:
    """Write a table of the keys."""
    rows = [("KEY", "ALG", "PUBLISHED", "MAY SIGN FROM", "STAYS UNTIL")]
    rows += [
        (
            printable(each.key.kid),
            each.key.alg,
            moment(each.published),
            moment(may_sign_from(each)),
            moment(each.retire) or "-",
        )
        for each in state.keys
    ]
    return format_table(rows, gap=2)


def _members(
    place: str, writes: Sequence[Write], notes: Sequence[str], state: IssuerState, found: PublicCheck | None
) -> JsonObject:
    keys: list[JsonObject] = [
        {
            "kid": each.key.kid,
            "alg": each.key.alg,
            "published": moment(each.published) or None,
            "maySignFrom": moment(may_sign_from(each)) or None,
            "staysUntil": moment(each.retire) or None,
        }
        for each in state.keys
    ]
    public: JsonObject | None = None
    if found is not None:
        public = {"seen": str(found.status), "findings": [*found.findings], "until": moment(found.until) or None}
    return {
        "issuer": state.issuer,
        "jwksUri": state.jwks_uri,
        "place": place,
        "writes": [{"path": write.path, "why": write.why} for write in writes],
        "notes": [*notes],
        "keys": [*keys],
        "public": public,
    }
