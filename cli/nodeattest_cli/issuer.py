"""``nodeattest issuer publish`` and ``issuer verify``: keys of an issuer kept public, and what a token proves by them.

``publish`` ends with 0 if the location holds the keys and the public sees it, 1 if the public URL is wrong or a key to
drop is not there, 2 if nothing could be published, 3 if it is not so yet. ``verify`` ends with 0 and the claims, 1 and
the refusal, or 3 where the issuer could not be asked; of a token without a proved signature only its kid is told.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

import click

from nodeattest_cli.options import Duration, output_option
from nodeattest_cli.output import ExitCode, UserError, format_fields, format_table, print_document, print_lines, to_json
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
from nodeattest_identity.tokens.jwks_cache import key_file_cache, read_trusted_keys
from nodeattest_identity.tokens.jwt import MAX_SIZE, Claims, Expected, printable
from nodeattest_identity.tokens.relying_party import HttpsFetcher, RelyingParty
from nodeattest_parsing.objects import rfc3339
from nodeattest_parsing.values import JsonObject
from nodeattest_providers.errors import Denied, Unavailable

_FILE: Final = click.Path(path_type=Path)
_EXISTING: Final = click.Path(path_type=Path, exists=True, dir_okay=False)


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
@click.option("--ca-file", type=_EXISTING, help="The only CAs trusted for the public URL  [this machine's]")
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


# Verify

_ON_COMMAND_LINE: Final = (
    "nodeattest: this token was an argument, which everybody on this machine can read in the list of processes, and "
    "which your shell keeps: give it by --token-file, or - and standard input"
)


@click.command()
@click.argument("token", required=False)
@click.option("--token-file", type=_EXISTING, help="A file with the token, such as a projected volume's.")
@click.option("--issuer", required=True, metavar="URL", help="Who must have issued it, exactly as its claim `iss`.")
@click.option("--audience", "audiences", required=True, multiple=True, help="For whom it must be; one of several.")
@click.option("--ca-file", type=_EXISTING, help="The only CAs that vouch for the issuer's server  [this machine's]")
@click.option(
    "--jwks-file", "key_files", type=_EXISTING, multiple=True, help="Keys, as a key set or PEM: nobody is asked then."
)
@output_option("table", "json")
def verify(
    *,
    token: str | None,
    token_file: Path | None,
    issuer: str,
    audiences: tuple[str, ...],
    ca_file: Path | None,
    key_files: tuple[Path, ...],
    output: str,
) -> int:
    """Verify a token of a service account, or any JWT of an issuer, as a strict relying party.

    TOKEN is - for standard input. The issuer's keys are fetched by its OpenID configuration; --jwks-file does without.
    Exit code 1: the token is refused; 3: the issuer could not be asked.
    """
    try:
        expected = Expected(issuer=issuer, audiences=frozenset(audiences))
        if key_files:
            read_trusted_keys(key_files)
            party = RelyingParty(expected, key_file_cache(key_files, monotonic=time.monotonic))
        else:
            party = RelyingParty.at(expected, HttpsFetcher(ca_file=ca_file))
    except UrlError as error:
        raise UserError(f"--issuer: {error}; with --jwks-file it may be any text") from None
    except (KeysError, ValueError) as error:
        raise UserError(str(error)) from None
    data = _read(token, token_file)
    try:
        claims = asyncio.run(party.verify(data))
    except Denied as denied:
        lines = [("expected", denied.expected), ("got", denied.got), ("do", denied.remedy)]
        print_lines(f"nodeattest: refused: {denied.reason}", *format_fields(lines), err=True)
        return ExitCode.REFUSED
    except Unavailable as unavailable:
        print_lines(f"nodeattest: {unavailable}", err=True)
        return ExitCode.NO_ACCESS
    if output == "json":
        print_document(to_json(_members(claims), indent=None))
    else:
        print_lines(*_table(claims))
    return 0


def _read(token: str | None, token_file: Path | None) -> bytes:
    """Read the token; files and pipes end with a line end, which is none of it."""
    if (token is None) == (token_file is None):
        raise UserError("expected one token: --token-file, or - and the token on standard input")
    if token_file is not None:
        with token_file.open("rb") as file:
            return file.read(2 * MAX_SIZE).strip()
    if token == "-":
        return sys.stdin.buffer.read(2 * MAX_SIZE).strip()
    print_lines(_ON_COMMAND_LINE, err=True)
    return (token or "").encode("utf-8", "surrogateescape")


def _members(claims: Claims) -> JsonObject:
    """Write the claims under their registered names (RFC 7519 §4.1)."""
    known: JsonObject = {
        "iss": claims.issuer,
        "sub": claims.subject,
        "aud": [*claims.audiences],
        "exp": claims.expires,
        "iat": claims.issued_at,
        "nbf": claims.not_before,
        "jti": claims.jwt_id,
    }
    return {name: value for name, value in known.items() if value is not None} | claims.extra


def _table(claims: Claims) -> list[str]:
    since = ("issued", claims.issued_at), ("valid from", claims.not_before)
    rows = [
        ("subject", printable(claims.subject)),
        ("issuer", printable(claims.issuer)),
        ("audience", ", ".join(map(printable, claims.audiences))),
        ("expires", f"{_moment(claims.expires)} (in {claims.expires - time.time():.0f} s)"),
        *((name, _moment(each)) for name, each in since if each is not None),
        ("key", f"{printable(claims.key_id)} ({claims.algorithm})"),
        *((printable(name), to_json(value, indent=None)) for name, value in claims.extra.items()),
    ]
    return format_fields(rows)


def _moment(seconds: float) -> str:
    """Write a time; one beyond the calendar is left as it is."""
    try:
        return rfc3339(datetime.fromtimestamp(seconds, UTC))
    except (ValueError, OverflowError, OSError):
        return f"{seconds:.0f}"
