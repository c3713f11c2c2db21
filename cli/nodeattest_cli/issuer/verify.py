"""``nodeattest issuer verify``: what a token proves to somebody who trusts its issuer.

Promises: exit code 0 and the claims, or 1 and the refusal with expected, got and remedy, or 3 where the issuer could
not be asked; of a token whose signature is not proved nothing but its kid is told.
Everything else is ``nodeattest_identity.tokens``.
"""

from __future__ import annotations

import asyncio
import sys
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import click

from nodeattest_cli.options import output_option
from nodeattest_cli.output import ExitCode, UserError, format_fields, print_document, print_lines, to_json
from nodeattest_identity.issuer.documents import UrlError
from nodeattest_identity.issuer.keys import KeysError
from nodeattest_identity.tokens.jwks_cache import key_file_cache, read_trusted_keys
from nodeattest_identity.tokens.jwt import MAX_SIZE, Claims, Expected, printable
from nodeattest_identity.tokens.relying_party import HttpsFetcher, RelyingParty
from nodeattest_parsing.objects import rfc3339
from nodeattest_parsing.values import JsonObject
from nodeattest_providers.errors import Denied, Unavailable

_FILE: Final = click.Path(path_type=Path, exists=True, dir_okay=False)
_ON_COMMAND_LINE: Final = (
    "nodeattest: this token was an argument, which everybody on this machine can read in the list of processes, and "
    "which your shell keeps: give it by --token-file, or - and standard input"
)


@click.command()
@click.argument("token", required=False)
@click.option("--token-file", type=_FILE, help="A file with the token, such as a projected volume's.")
@click.option("--issuer", required=True, metavar="URL", help="Who must have issued it, exactly as its claim `iss`.")
@click.option("--audience", "audiences", required=True, multiple=True, help="For whom it must be; one of several.")
@click.option("--ca-file", type=_FILE, help="The only CAs that vouch for the issuer's server  [this machine's]")
@click.option(
    "--jwks-file", "key_files", type=_FILE, multiple=True, help="Keys, as a key set or PEM: nobody is asked then."
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
    """Write a time; one beyond the calendar as it stands."""
    try:
        return rfc3339(datetime.fromtimestamp(seconds, UTC))
    except (ValueError, OverflowError, OSError):
        return f"{seconds:.0f}"
