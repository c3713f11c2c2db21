"""``nodeattest cluster-info verify``: what a machine that joins would make of it.

Promises: the checks are the agent's own (``nodeattest_discovery.node.by_token``); what a file cannot show is said.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import click

from nodeattest_cli.cluster_info.sources import from_file
from nodeattest_cli.cluster_info.view import subject_of
from nodeattest_cli.documents import file_option
from nodeattest_cli.errors import ExitCode, UserError, user_errors
from nodeattest_cli.output import print_lines
from nodeattest_cli.token.input import read_token
from nodeattest_controller.model.objects import text
from nodeattest_discovery import jws, pins
from nodeattest_discovery.clusterinfo import KUBECONFIG_KEY, SIGNATURE_PREFIX, ClusterInfo, parse
from nodeattest_discovery.node.address import parse_endpoint
from nodeattest_discovery.node.by_token import by_token
from nodeattest_discovery.node.clock import Clock
from nodeattest_discovery.node.environment import Environment
from nodeattest_discovery.pins import CaPin, pin_of, select_pinned
from nodeattest_discovery.token import BootstrapToken
from nodeattest_kube.jsontypes import JsonObject
from nodeattest_parsing.durations import SECOND, parse_duration
from nodeattest_parsing.errors import ParseError
from nodeattest_providers.errors import Denied, Reason, Unavailable

__all__ = ["verify"]

_FILE_NOTE: Final = "a file cannot show that a server holds the CA's key: ask a server, too"
_UNPINNED: Final = "no CA was pinned: anyone who knows the token could have written this"


@click.command()
@click.argument("server", nargs=-1)
@file_option("Verify the ConfigMap of a file instead; - is standard input.")
@click.option("--token-file", metavar="FILE", required=True, help="The token that signed; - is standard input.")
@click.option("--discovery-token-ca-cert-hash", "hashes", multiple=True, metavar="PIN", help="sha256:…, repeatable.")
@click.option("--discovery-token-unsafe-skip-ca-verification", "unsafe", is_flag=True, help="Do without a pin.")
@click.option("--timeout", default="10s", show_default=True, help="How long to ask servers.")
def verify(
    *, server: tuple[str, ...], path: str | None, token_file: str, hashes: tuple[str, ...], unsafe: bool, timeout: str
) -> int:
    """Verify cluster-info as a machine that joins does, with the token and the pins that it would have.

    SERVER is host:port, several are tried in turn; no kubeconfig is used. Exit code 1 when a machine would refuse it,
    3 when no server could be asked or none has a signature yet.
    """
    if bool(server) == (path is not None):
        raise UserError("expected servers (host:port) or --file, one of them")
    with user_errors("SERVER"):
        for one in server:
            parse_endpoint(one)
    if path is not None and path == token_file:
        raise UserError("expected cluster-info and the token in two places, got one")
    wanted = _pins(hashes, unsafe=unsafe)
    token = read_token(None, token_file)
    if token is None:
        raise UserError("--token-file: expected a token, got none")
    try:
        if path is None:
            found = by_token(server, token, wanted, _environment(timeout, several=len(server) > 1))
            print_lines(*_said(found.info, f"verified at {found.asked}", found.notes))
        else:
            print_lines(*_said(*_of_file(from_file(path), token, wanted)))
    except (Denied, Unavailable) as verdict:
        print_lines(f"nodeattest: {verdict}", err=True)
        return ExitCode.REFUSED if isinstance(verdict, Denied) else ExitCode.NO_ACCESS
    return ExitCode.DONE


def _pins(hashes: Sequence[str], *, unsafe: bool) -> frozenset[CaPin] | None:
    if bool(hashes) == unsafe:
        raise UserError(
            "expected --discovery-token-ca-cert-hash, or --discovery-token-unsafe-skip-ca-verification to do without"
        )
    with user_errors("--discovery-token-ca-cert-hash"):
        return frozenset(map(pins.parse, hashes)) or None


def _environment(timeout: str, *, several: bool) -> Environment:
    """Ask for so long; errors of one of several servers are reported, the only one's error is the result."""
    try:
        limit = parse_duration(timeout) / SECOND
    except ParseError as error:
        raise UserError(f"--timeout: {error}") from None
    if limit <= 0:
        raise UserError(f"--timeout: expected more than nothing, got {timeout}")
    clock = Clock(on_wait=lambda _kind, what, _until: _tell(f"waiting for {what}"))
    return Environment(clock=clock, log=_tell, limit=limit) if several else Environment(limit=limit)


def _tell(line: str) -> None:
    print_lines(f"nodeattest: {line}", err=True)


def _of_file(
    found: JsonObject, token: BootstrapToken, wanted: frozenset[CaPin] | None
) -> tuple[ClusterInfo, str, tuple[str, ...]]:
    """Verify what a file can show.

    1. The token has signed. 2. The signature is over this text. 3. The text is sound. 4. It holds a pinned CA.
    """
    kubeconfig = text(found, "data", KUBECONFIG_KEY)
    # 1
    signature = text(found, "data", SIGNATURE_PREFIX + token.id)
    if not signature:
        raise Denied(
            Reason.CLUSTER_INFO_UNSIGNED,
            expected=f"a signature of the token {token.id}",
            got="none",
            remedy="run a bootstrap signer, or: nodeattest cluster-info sign",
        )
    # 2
    if not jws.is_valid(signature, kubeconfig.encode(), token):
        raise Denied(
            Reason.CLUSTER_INFO_SIGNATURE_INVALID,
            expected=f"the signature of the token {token.id} over this text",
            got="another signature",
            remedy="compare the token's secret; if it is right, the text was changed after it was signed",
        )
    # 3
    info = parse(kubeconfig)
    # 4
    if wanted is not None:
        select_pinned(info.ca_certificates, wanted)
    return info, "the file is signed by the token", (*(() if wanted else (_UNPINNED,)), _FILE_NOTE)


def _said(info: ClusterInfo, how: str, notes: Sequence[str]) -> list[str]:
    lines = [how, f"server: {info.server}"]
    lines += [f"CA: {subject_of(one)}, {pin_of(one)}" for one in info.ca_certificates]
    return [*lines, *(f"note: {note}" for note in notes)]
