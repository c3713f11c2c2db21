"""``nodeattest cluster-info verify`` and ``refresh``: what a machine, or a person's kubeconfig, believes of it.

``verify`` makes the agent's own checks (``nodeattest_discovery.node.by_token``).
``refresh`` believes news by the agent's own rules (``nodeattest_discovery.node.refresh``): over a connection that the
kubeconfig's CAs vouch for, and only if one of them stays; no credential is sent. Of the kubeconfig one cluster's server
and CAs change and nothing else, by one rename, under kubectl's own lock, with its mode and owner. Comments are lost.
Source: client-go tools/clientcmd/config.go (lockFile, WriteToFile), api/v1/types.go.
"""

from __future__ import annotations

import base64
import os
import stat
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Final

import click

from nodeattest_authenticator.state.storage import write_atomically
from nodeattest_cli.cluster_info import certificate_subject, check_server_option
from nodeattest_cli.connection import Connection
from nodeattest_cli.documents import read_objects
from nodeattest_cli.errors import AccessError, ExitCode, StateError, UserError, user_errors
from nodeattest_cli.options import Duration, connected
from nodeattest_cli.output import print_lines, to_yaml
from nodeattest_cli.token import read_token
from nodeattest_discovery import tls as pins
from nodeattest_discovery.clusterinfo import ClusterInfo, parse_ca_bundle
from nodeattest_discovery.node.address import parse_endpoint
from nodeattest_discovery.node.by_token import by_token
from nodeattest_discovery.node.clock import Clock
from nodeattest_discovery.node.discovery_file import Environment
from nodeattest_discovery.node.refresh import refresh as ask_for_news
from nodeattest_discovery.tls import pin_of
from nodeattest_parsing.objects import flag, items, mapping, text
from nodeattest_parsing.strict_base64 import decode_base64
from nodeattest_parsing.values import JsonObject
from nodeattest_providers.errors import Denied, Unavailable

_REFRESH_LIMIT: Final = 30.0
"""Seconds."""
_LARGEST_CA: Final = 1 << 20
"""Bytes of a CA file."""


@click.command()
@click.argument("server", nargs=-1, required=True)
@click.option("--token-file", metavar="FILE", required=True, help="The token that signed; - is standard input.")
@click.option("--discovery-token-ca-cert-hash", "hashes", multiple=True, metavar="PIN", help="sha256:…, repeatable.")
@click.option("--discovery-token-unsafe-skip-ca-verification", "unsafe", is_flag=True, help="Do without a pin.")
@click.option("--timeout", type=Duration(timedelta(milliseconds=1)), default="10s", help="How long to ask servers.")
def verify(
    *,
    server: tuple[str, ...],
    token_file: str,
    hashes: tuple[str, ...],
    unsafe: bool,
    timeout: timedelta,
) -> int:
    """Verify cluster-info as a machine that joins does, with the token and the pins that it would have.

    SERVER is host:port, several are tried in turn; no kubeconfig is used. Exit code 1 when a machine would refuse it,
    3 when no server could be asked or none has a signature yet.
    """
    with user_errors("SERVER"):
        for each in server:
            parse_endpoint(each)
    if bool(hashes) == unsafe:
        raise UserError(
            "expected --discovery-token-ca-cert-hash, or --discovery-token-unsafe-skip-ca-verification to do without"
        )
    with user_errors("--discovery-token-ca-cert-hash"):
        wanted = frozenset(map(pins.parse, hashes)) or None
    token = read_token(None, token_file)
    if token is None:
        raise UserError("--token-file: expected a token, got none")
    try:
        found = by_token(server, token, wanted, _environment(timeout, several=len(server) > 1))
    except (Denied, Unavailable) as error:
        print_lines(f"nodeattest: {error}", err=True)
        return ExitCode.REFUSED if isinstance(error, Denied) else ExitCode.NO_ACCESS
    info, notes = found.info, (f"note: {note}" for note in found.notes)
    authorities = (f"CA: {certificate_subject(ca)}, {pin_of(ca)}" for ca in info.ca_certificates)
    print_lines(f"verified at {found.asked}", f"server: {info.server}", *authorities, *notes)
    return ExitCode.DONE


def _environment(timeout: timedelta, *, several: bool) -> Environment:
    """Report the errors of one of several servers; the only server's error is the result."""

    def tell(line: str) -> None:
        print_lines(f"nodeattest: {line}", err=True)

    limit = timeout.total_seconds()
    clock = Clock(on_wait=lambda _kind, what, _until: tell(f"waiting for {what}"))
    return Environment(clock=clock, log=tell, limit=limit) if several else Environment(limit=limit)


@dataclass(frozen=True, slots=True, kw_only=True)
class _PersonalCluster:
    """What a kubeconfig knows of the cluster of its context."""

    name: str
    server: str
    ca_pem: bytes = field(repr=False)
    tls_server_name: str | None


@click.command()
@click.option("--server", metavar="URL", help="Ask this server, where the kubeconfig's is gone.")
@click.option("--take-server", is_flag=True, help="Also take over the server that cluster-info names.")
@click.option("--dry-run", is_flag=True, help="Say what would change, and change nothing.")
@connected
def refresh(*, connection: Connection, server: str | None, take_server: bool, dry_run: bool) -> None:
    """Bring a kubeconfig's CAs up to date with cluster-info, before the old ones expire.

    Asks over a connection that the kubeconfig's present CAs vouch for, without credentials. The server stays, since a
    person's may be another way to the same cluster, unless --take-server is said.
    """
    if server is not None:
        check_server_option(server)
    path = connection.path
    known = _read(path, connection.context)
    found = _news(known, server, take_server=take_server)
    changes = list(_changes(known, found, take_server=take_server))
    print_lines(*(changes or [f"{path} is up to date"]))
    if not take_server and found.server.rstrip("/") != known.server.rstrip("/"):
        print_lines(f"nodeattest: cluster-info names the server {found.server}; --take-server takes it over", err=True)
    if changes and not dry_run:
        _write(path, known, found, take_server=take_server)
        print_lines(f"{path} is written")


def _news(known: _PersonalCluster, server: str | None, *, take_server: bool) -> ClusterInfo:
    """Ask, and believe only what the agent would."""
    said: list[str] = []
    with user_errors("cluster-info", found=True):
        found = ask_for_news(
            [server or known.server],
            known.ca_pem,
            None,
            Environment(log=said.append, limit=_REFRESH_LIMIT),
            tls_server_name=None if server else known.tls_server_name,
            pin_server=not take_server,
        )
    if found is None:
        raise AccessError("; ".join(said) or "the cluster does not publish what is new")
    return found.info


def _changes(known: _PersonalCluster, found: ClusterInfo, *, take_server: bool) -> Iterator[str]:
    """Say what is not as it was, one line each."""
    before = {str(pin_of(ca)): ca for ca in parse_ca_bundle(known.ca_pem)}
    after = {str(pin_of(ca)): ca for ca in found.ca_certificates}
    yield from (f"new CA: {pin}" for pin in sorted(after.keys() - before.keys()))
    yield from (f"CA that is no more: {pin}" for pin in sorted(before.keys() - after.keys()))
    if before.keys() == after.keys() and set(before.values()) != set(after.values()):
        yield "the CA's certificate was renewed, its key stays"
    if take_server and found.server != known.server:
        yield f"server: {known.server} becomes {found.server}"


def _read(path: Path, context: str | None) -> _PersonalCluster:
    """Read the kubeconfig; raises ``UserError``.

    1. The context names one cluster. 2. Its server is verified. 3. By CAs of its own.
    """
    # 1
    document = _document(path)
    chosen = context or text(document, "current-context")
    if not chosen:
        raise UserError(f"{path}: expected current-context, got none: set --context")
    name = text(_entry(document, "contexts", chosen, path), "cluster")
    cluster = _entry(document, "clusters", name, path)
    # 2
    if flag(cluster, "insecure-skip-tls-verify"):
        raise UserError(f"{path}: expected a server that is verified, got insecure-skip-tls-verify")
    # 3
    ca_pem = _ca(cluster, path)
    with user_errors(str(path)):
        parse_ca_bundle(ca_pem)
    name_of_server = text(cluster, "tls-server-name") or None
    return _PersonalCluster(name=name, server=text(cluster, "server"), ca_pem=ca_pem, tls_server_name=name_of_server)


def _write(path: Path, known: _PersonalCluster, found: ClusterInfo, *, take_server: bool) -> None:
    """Put the new CAs there, and the server; raises ``UserError``, also if the cluster changed since it was read."""
    with _locked(path):
        document = _document(path)
        cluster = _entry(document, "clusters", known.name, path)
        if text(cluster, "server") != known.server or _ca(cluster, path) != known.ca_pem:
            raise StateError(f"{path}: changed meanwhile; try again")
        cluster["certificate-authority-data"] = base64.b64encode(found.ca_pem).decode()
        cluster.pop("certificate-authority", None)
        if take_server:
            cluster["server"] = found.server
            cluster.pop("tls-server-name", None)
            cluster |= {"tls-server-name": found.tls_server_name} if found.tls_server_name is not None else {}
        try:
            target = path.resolve()
            if target.stat().st_uid != os.geteuid():
                raise UserError(f"{path}: belongs to another user, who would lose it: run this as that user")
            write_atomically(str(target), to_yaml(document).encode(), mode=stat.S_IMODE(target.stat().st_mode))
        except OSError as error:
            raise UserError(f"{path}: {error.strerror}") from None


def _document(path: Path) -> JsonObject:
    found: Sequence[JsonObject] = read_objects(str(path))
    if len(found) != 1:
        raise UserError(f"{path}: expected one kubeconfig, got {len(found)} documents")
    return found[0]


def _entry(document: JsonObject, plural: str, name: str, path: Path) -> JsonObject:
    found = [entry for entry in items(document, plural) if text(entry, "name") == name]
    singular = plural.removesuffix("s")
    if len(found) != 1:
        raise UserError(f"{path}: expected one {singular} {name[:80]!a}, got {len(found)}")
    return mapping(found[0], singular)


def _ca(cluster: JsonObject, path: Path) -> bytes:
    data, file = text(cluster, "certificate-authority-data"), text(cluster, "certificate-authority")
    try:
        if data:
            return decode_base64("".join(data.split()))
        if file:
            with (path.parent / file).open("rb") as opened:
                return opened.read(_LARGEST_CA)
    except ValueError:
        raise UserError(f"{path}: expected certificate-authority-data in base64, got something else") from None
    except OSError as error:
        raise UserError(f"{file}: {error.strerror}") from None
    raise UserError(f"{path}: expected CAs of the cluster to verify it by, got none; the system's are not refreshed")


@contextmanager
def _locked(path: Path) -> Generator[None]:
    lock = Path(f"{path}.lock")
    try:
        os.close(os.open(lock, os.O_CREAT | os.O_EXCL, 0))
    except FileExistsError:
        raise UserError(f"{lock} exists: another command writes the kubeconfig, or was killed; try again") from None
    except OSError as error:
        raise UserError(f"{lock}: {error.strerror}") from None
    try:
        yield
    finally:
        lock.unlink(missing_ok=True)
