"""``nodeattest cluster-info``: the ConfigMap that says where the cluster is, published, shown and verified.

``publish`` does what ``kubeadm init phase bootstrap-token`` does for cluster-info, byte for byte, and may be run again
at any time. It gives no rights to bootstrap tokens: those that kubeadm gives let the in-tree signer certify any name. A
bundle with anything but CA certificates in it, such as a private key, is not published. Another cluster's cluster-info
is not overwritten unless that is said, also if it came while this one wrote. ``verify`` makes the agent's own checks.
Source: kubernetes cmd/kubeadm/app/phases/bootstraptoken/clusterinfo; companion proposal 001.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from pathlib import Path
from typing import Final, TypeVar
from urllib.parse import quote

import click
from cryptography import x509

from nodeattest_cli import token as tokens_of
from nodeattest_cli.connection import Connection, run
from nodeattest_cli.errors import ExitCode, StateError, UserError, user_errors
from nodeattest_cli.options import Duration, connected, output_option
from nodeattest_cli.output import format_fields, print_exactly, print_lines
from nodeattest_discovery import jws, pins
from nodeattest_discovery.clusterinfo import (
    KUBECONFIG_KEY,
    NAME,
    NAMESPACE,
    PATH,
    SIGNATURE_PREFIX,
    ClusterInfo,
    build,
    check_server,
    parse,
)
from nodeattest_discovery.controllers.bootstrap_signer import current_signatures, find_signing_tokens
from nodeattest_discovery.node.by_token import by_token
from nodeattest_discovery.node.client import Environment, parse_endpoint
from nodeattest_discovery.node.clock import Clock
from nodeattest_discovery.pins import pin_of
from nodeattest_discovery.token import BootstrapToken
from nodeattest_kube import paths
from nodeattest_kube.client import ApiClient
from nodeattest_kube.errors import AlreadyExists, Conflict, Forbidden, NotFound
from nodeattest_parsing.objects import rfc3339, text
from nodeattest_parsing.values import JsonObject
from nodeattest_providers.errors import Denied, Unavailable

T = TypeVar("T")

_RBAC: Final = ("rbac.authorization.k8s.io", "v1")
_ROLE: Final = "kubeadm:bootstrap-signer-clusterinfo"
"""Role and RoleBinding bear kubeadm's name, so that a cluster has them once."""
_BLOCK: Final = re.compile(r"-----BEGIN ([^-\r\n]*)-----")
_LARGEST: Final = 1 << 20
"""Bytes of a CA file."""
_ATTEMPTS: Final = 5
_SHOWN: Final = 64
"""Characters of a key or a subject that somebody else wrote."""


@click.command()
@click.option("--server", metavar="URL", help="Where machines find the API server (the kubeconfig's).")
@click.option(
    "--ca-file", "ca_files", multiple=True, metavar="FILE", help="CAs to publish, PEM, repeatable (the kubeconfig's)."
)
@click.option("--no-anonymous", is_flag=True, help="Give nobody the right to read it without authentication.")
@click.option("--replace", is_flag=True, help="Also replace what names another server or other CAs.")
@connected
def publish(
    *,
    connection: Connection,
    server: str | None,
    ca_files: tuple[str, ...],
    no_anonymous: bool,
    replace: bool,
) -> None:
    """Publish where the cluster is and whom to trust, so that machines with a token can find it.

    Writes the ConfigMap cluster-info in kube-public, and lets everybody read it. Signatures come from a bootstrap
    signer, of kube-controller-manager or of this controller.
    """
    endpoint = connection.endpoint
    if server is None and endpoint.tls_server_name is not None:
        raise UserError("the kubeconfig has a tls-server-name, which machines would not know: set --server")
    ca_pem = "\n".join(map(_read_ca, ca_files)) if ca_files else endpoint.ca_pem
    if ca_pem is None:
        raise UserError("the kubeconfig: expected certificate-authority-data to publish, got none; set --ca-file")
    kubeconfig = _kubeconfig(endpoint.server if server is None else server, ca_pem)

    async def work(client: ApiClient) -> None:
        await _look(client, kubeconfig, replace=replace)  # refuses before anything is written
        print_lines("[bootstrap-token] Configuring cluster-info ConfigMap, RBAC Roles")
        with suppress(Forbidden):  # kube-apiserver makes it at its start; if it is not there, the next write fails
            namespace: JsonObject = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}}
            await _ensure(client, paths.core_path("namespaces"), namespace)
        await publish_kubeconfig(client, kubeconfig, replace=replace)
        if not no_anonymous:
            for resource, body in _rights():
                await _ensure(client, paths.collection_path(*_RBAC, resource, namespace=NAMESPACE), body)

    run(connection, work)


def _read_ca(path: str) -> str:
    try:
        with Path(path).open(encoding="ascii") as file:
            content = file.read(_LARGEST + 1)
    except (OSError, ValueError) as error:
        raise UserError(f"{path}: {getattr(error, 'strerror', None) or 'expected PEM'}") from None
    if len(content) > _LARGEST:
        raise UserError(f"{path}: more than {_LARGEST} bytes")
    return content


def _kubeconfig(server: str, ca_pem: str) -> str:
    """Write the kubeconfig to publish; raises ``UserError`` for anything but CA certificates, and for no URL."""
    others = sorted(set(_BLOCK.findall(ca_pem)) - {"CERTIFICATE"})
    if others:
        raise UserError(f"the CA bundle: expected CERTIFICATE blocks only, got {ascii(others[0][:40])[1:-1]}")
    _check_server_option(server)
    with user_errors("the CA bundle"):
        return build(server, ca_pem.encode())


def _check_server_option(server: str) -> None:
    """Check the value of ``--server``; raises ``UserError``."""
    try:
        check_server(server)
    except Denied:
        raise UserError(f"--server: expected https://host:port, got {server[:80]!a}") from None


async def _look(client: ApiClient, kubeconfig: str, *, replace: bool) -> JsonObject | None:
    """Read cluster-info, None where there is none; another cluster's is refused unless it may be replaced."""
    try:
        found = await client.get(PATH)
    except NotFound:
        return None
    if not replace and not _is_same(found, kubeconfig):
        raise StateError(
            "cluster-info names another server or other CAs, or cannot be read: see nodeattest cluster-info show, "
            "and set --replace if it is to be replaced"
        )
    return found


def _is_same(found: JsonObject, wanted: str) -> bool:
    """Return whether cluster-info names the server and the CAs of a kubeconfig, however it is written."""

    def meaning(info: ClusterInfo) -> object:
        return info.server.rstrip("/"), info.tls_server_name, frozenset(info.ca_certificates)

    try:
        return meaning(parse(text(found, "data", KUBECONFIG_KEY))) == meaning(parse(wanted))
    except Denied:
        return False


async def publish_kubeconfig(client: ApiClient, kubeconfig: str, *, replace: bool) -> None:
    """Create or replace cluster-info; one that means the same stays, with its signatures.

    The patch drops signatures, which no longer fit, and names the version that was read: what another writer, such as a
    bootstrap signer, wrote meanwhile is read and checked before it is replaced.
    """

    async def write() -> str:
        found = await _look(client, kubeconfig, replace=replace)
        if found is None:
            await client.create(paths.core_path("configmaps", namespace=NAMESPACE), _config_map(kubeconfig))
            return f'Creating the "{NAME}" ConfigMap in the "{NAMESPACE}" namespace'
        if _is_same(found, kubeconfig):
            return f'The "{NAME}" ConfigMap in the "{NAMESPACE}" namespace says this already'
        patch: JsonObject = {
            "metadata": {"resourceVersion": text(found, "metadata", "resourceVersion")},
            "data": {KUBECONFIG_KEY: kubeconfig, **dict.fromkeys(current_signatures(found))},
        }
        await client.merge_patch(PATH, patch)
        return f'Replacing the "{NAME}" ConfigMap in the "{NAMESPACE}" namespace'

    print_lines(f"[bootstrap-token] {await _retry(write)}")


async def _retry(write: Callable[[], Awaitable[T]]) -> T:
    """Read and write, again after a conflict."""
    for _ in range(_ATTEMPTS - 1):
        with suppress(AlreadyExists, Conflict):
            return await write()
    return await write()


def _rights() -> Iterator[tuple[str, JsonObject]]:
    """Yield the right to read cluster-info and nothing else, for unauthenticated users: others need no discovery."""
    api = _RBAC[0]
    head: JsonObject = {"apiVersion": "/".join(_RBAC), "metadata": {"name": _ROLE, "namespace": NAMESPACE}}
    rule: JsonObject = {"apiGroups": [""], "resources": ["configmaps"], "resourceNames": [NAME], "verbs": ["get"]}
    yield "roles", {**head, "kind": "Role", "rules": [rule]}
    reference: JsonObject = {"apiGroup": api, "kind": "Role", "name": _ROLE}
    subject: JsonObject = {"apiGroup": api, "kind": "User", "name": "system:anonymous"}
    yield "rolebindings", {**head, "kind": "RoleBinding", "roleRef": reference, "subjects": [subject]}


async def _ensure(client: ApiClient, collection: str, body: JsonObject) -> None:
    """Create an object; one that gives other rights is replaced."""
    try:
        await client.create(collection, body)
    except AlreadyExists:
        path = f"{collection}/{quote(text(body, 'metadata', 'name'), safe='')}"
        found = await client.get(path)
        if any(found.get(field) != body[field] for field in body.keys() & {"rules", "roleRef", "subjects"}):
            await client.replace(path, body)


class SignatureState(StrEnum):
    """What a signature is worth."""

    VALID = "valid"
    INVALID = "invalid: not this token's over this text"
    NO_TOKEN = "no token signs by this id"
    UNCHECKED = "not checked: the tokens cannot be read"
    MISSING = "missing: no bootstrap signer has been there"


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """What there is to see of cluster-info, sound or not."""

    info: ClusterInfo | None
    problem: str
    """Why the kubeconfig cannot be used; empty if it can."""
    signatures: tuple[tuple[str, SignatureState], ...]
    """Token ids with their states."""

    @property
    def is_sound(self) -> bool:
        """Whether machines can use it: the kubeconfig is sound, and no signature is wrong or missing."""
        good = {SignatureState.VALID, SignatureState.UNCHECKED}
        return self.info is not None and all(state in good for _, state in self.signatures)

    def lines(self, now: datetime) -> list[str]:
        """Return a few lines."""
        fields = [("unusable", self.problem)] if self.info is None else [("server", self.info.server)]
        if self.info is not None and self.info.tls_server_name:
            fields.append(("name", self.info.tls_server_name))
        for ca in self.info.ca_certificates if self.info else ():
            expired = " (expired)" if ca.not_valid_after_utc <= now else ""
            until = f"{rfc3339(ca.not_valid_after_utc)}{expired}"
            fields += [("CA", _certificate_subject(ca)), ("  until", until), ("  pin", str(pin_of(ca)))]
        fields += [("signature", f"{token}  {state}") for token, state in self.signatures] or [("signature", "none")]
        return format_fields([(f"{name}:", value) for name, value in fields], indent=0)


@click.command()
@output_option("text", "kubeconfig")
@connected
def show(*, connection: Connection, output: str) -> int:
    """Show where machines find the cluster, which CAs they trust there, and who signed that.

    Signatures are checked where the tokens may be read. -o kubeconfig prints the signed text as it is. Exit code 1 when
    machines cannot use it: it is malformed, or a signature is wrong or missing.
    """

    async def both(client: ApiClient) -> tuple[JsonObject, Sequence[BootstrapToken] | None]:
        return await _from_cluster(client), await _signing_tokens(client)

    found, tokens = run(connection, both)
    if output == "kubeconfig":
        print_exactly(text(found, "data", KUBECONFIG_KEY))
        return ExitCode.DONE
    seen = view_of(found, tokens)
    print_lines(*seen.lines(datetime.now(UTC)))
    return ExitCode.DONE if seen.is_sound else ExitCode.REFUSED


def view_of(config_map: JsonObject, tokens: Sequence[BootstrapToken] | None) -> View:
    """Evaluate a ConfigMap; ``tokens`` are those that sign now, None where nobody may read them."""
    kubeconfig = text(config_map, "data", KUBECONFIG_KEY)
    info, problem = None, ""
    try:
        info = parse(kubeconfig)
    except Denied as denied:
        problem = f"expected {denied.expected}, got {denied.got}"
    found = {key.removeprefix(SIGNATURE_PREFIX): key for key in current_signatures(config_map)}
    known = {token.id: token for token in tokens or ()}
    states: list[tuple[str, SignatureState]] = []
    for token_id in sorted(found.keys() | known.keys()):
        token = known.get(token_id)
        if token_id not in found:
            state = SignatureState.MISSING
        elif token is None:
            state = SignatureState.UNCHECKED if tokens is None else SignatureState.NO_TOKEN
        else:
            valid = jws.is_valid(text(config_map, "data", found[token_id]), kubeconfig.encode(), token)
            state = SignatureState.VALID if valid else SignatureState.INVALID
        states.append((ascii(token_id[:_SHOWN])[1:-1], state))
    return View(info=info, problem=problem, signatures=tuple(states))


def _certificate_subject(certificate: x509.Certificate) -> str:
    """Name a certificate, in printable characters."""
    try:
        name = certificate.subject.rfc4514_string()
    except ValueError:
        return "(unreadable)"
    return ascii(name[:_SHOWN])[1:-1] or "(no name)"


async def _from_cluster(client: ApiClient) -> JsonObject:
    try:
        return await client.get(PATH)
    except NotFound:
        raise StateError("there is no cluster-info: write it with nodeattest cluster-info publish") from None


def _config_map(kubeconfig: str) -> JsonObject:
    metadata: JsonObject = {"name": NAME, "namespace": NAMESPACE}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {KUBECONFIG_KEY: kubeconfig}}


async def _signing_tokens(client: ApiClient) -> tuple[BootstrapToken, ...] | None:
    """Read the tokens that sign now; None where we may not."""
    try:
        secrets = await tokens_of.token_secrets(client)
    except Forbidden:
        return None
    return find_signing_tokens(secrets, datetime.now(UTC)).tokens


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
    token = tokens_of.read_token(None, token_file)
    if token is None:
        raise UserError("--token-file: expected a token, got none")
    try:
        found = by_token(server, token, wanted, _environment(timeout, several=len(server) > 1))
    except (Denied, Unavailable) as error:
        print_lines(f"nodeattest: {error}", err=True)
        return ExitCode.REFUSED if isinstance(error, Denied) else ExitCode.NO_ACCESS
    info, notes = found.info, (f"note: {note}" for note in found.notes)
    authorities = (f"CA: {_certificate_subject(ca)}, {pin_of(ca)}" for ca in info.ca_certificates)
    print_lines(f"verified at {found.asked}", f"server: {info.server}", *authorities, *notes)
    return ExitCode.DONE


def _environment(timeout: timedelta, *, several: bool) -> Environment:
    """Report the errors of one of several servers; the only server's error is the result."""

    def tell(line: str) -> None:
        print_lines(f"nodeattest: {line}", err=True)

    limit = timeout.total_seconds()
    clock = Clock(on_wait=lambda _kind, what, _until: tell(f"waiting for {what}"))
    return Environment(clock=clock, log=tell, limit=limit) if several else Environment(limit=limit)
