"""``nodeattest cluster-info``: publish and show the ConfigMap by which machines find the cluster and trust it.

``publish`` writes what ``kubeadm init phase bootstrap-token`` writes, byte for byte. It gives bootstrap tokens no
rights: those that kubeadm gives let the in-tree signer certify any name.
Source: kubernetes cmd/kubeadm/app/phases/bootstraptoken/clusterinfo; companion proposal 001.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import Final

import click
from cryptography import x509

from nodeattest_cli.connection import Connection, run
from nodeattest_cli.documents import read_text
from nodeattest_cli.fleet import list_objects
from nodeattest_cli.options import connected, output_option
from nodeattest_cli.output import (
    ExitCode,
    StateError,
    UserError,
    format_fields,
    print_exactly,
    print_lines,
    user_errors,
)
from nodeattest_discovery import jws, secret
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
from nodeattest_discovery.controllers.bootstrap_signer import find_signing_tokens
from nodeattest_discovery.pins import pin_of
from nodeattest_discovery.token import BootstrapToken
from nodeattest_kube import paths
from nodeattest_kube.client import ApiClient
from nodeattest_kube.errors import AlreadyExists, Forbidden, NotFound
from nodeattest_parsing.objects import mapping, rfc3339, text
from nodeattest_parsing.values import JsonObject
from nodeattest_providers.errors import Denied

_RBAC: Final = ("rbac.authorization.k8s.io", "v1")
_ROLE: Final = "kubeadm:bootstrap-signer-clusterinfo"
"""Role and RoleBinding bear kubeadm's name, so that a cluster has them once."""
_BLOCK: Final = re.compile(r"-----BEGIN ([^-\r\n]*)-----")
_LARGEST: Final = 1 << 20
"""Bytes of a CA file."""
_SHOWN: Final = 64
"""Characters of a key or a subject that somebody else wrote."""
_VALID: Final = "valid"
_UNCHECKED: Final = "not checked: the tokens cannot be read"
"""Both are what a signature is worth to machines."""


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
    ca_pem = (
        "\n".join(read_text(path, "PEM", limit=_LARGEST, encoding="ascii") for path in ca_files)
        if ca_files
        else endpoint.ca_pem
    )
    if ca_pem is None:
        raise UserError("the kubeconfig: expected certificate-authority-data to publish, got none; set --ca-file")
    kubeconfig = _kubeconfig(endpoint.server if server is None else server, ca_pem)

    async def work(client: ApiClient) -> None:
        await publish_kubeconfig(client, kubeconfig, replace=replace)
        for resource, body in () if no_anonymous else _rights():
            await _put(client, paths.collection_path(*_RBAC, resource, namespace=NAMESPACE), body)

    run(connection, work)


def _kubeconfig(server: str, ca_pem: str) -> str:
    """Write the kubeconfig to publish; raises ``UserError`` for anything but CA certificates, and for no URL."""
    others = sorted(set(_BLOCK.findall(ca_pem)) - {"CERTIFICATE"})
    if others:
        raise UserError(f"the CA bundle: expected CERTIFICATE blocks only, got {ascii(others[0][:40])[1:-1]}")
    try:
        check_server(server)
    except Denied:
        raise UserError(f"--server: expected https://host:port, got {server[:80]!a}") from None
    with user_errors("the CA bundle"):
        return build(server, ca_pem.encode())


async def publish_kubeconfig(client: ApiClient, kubeconfig: str, *, replace: bool) -> None:
    """Create or replace cluster-info; one that means the same stays, with its signatures.

    A patch drops signatures, which no longer fit. It is a compare-and-swap on the version that was read.
    """
    try:
        found = await client.get(PATH)
    except NotFound:
        metadata: JsonObject = {"name": NAME, "namespace": NAMESPACE}
        body: JsonObject = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata}
        await client.create(
            paths.core_path("configmaps", namespace=NAMESPACE), {**body, "data": {KUBECONFIG_KEY: kubeconfig}}
        )
        print_lines(f'Created the "{NAME}" ConfigMap in the "{NAMESPACE}" namespace')
        return
    if _is_same(found, kubeconfig):
        print_lines(f'The "{NAME}" ConfigMap in the "{NAMESPACE}" namespace says this already')
        return
    if not replace:
        raise StateError(
            "cluster-info names another server or other CAs, or cannot be read: see nodeattest cluster-info show, "
            "and set --replace if it is to be replaced"
        )
    patch: JsonObject = {
        "metadata": {"resourceVersion": text(found, "metadata", "resourceVersion")},
        "data": {KUBECONFIG_KEY: kubeconfig, **dict.fromkeys(_signature_keys(found))},
    }
    await client.merge_patch(PATH, patch)
    print_lines(f'Replaced the "{NAME}" ConfigMap in the "{NAMESPACE}" namespace')


def _is_same(found: JsonObject, wanted: str) -> bool:
    """Return whether cluster-info names the server and the CAs of a kubeconfig, however it is written."""

    def meaning(info: ClusterInfo) -> object:
        return info.server.rstrip("/"), info.tls_server_name, frozenset(info.ca_certificates)

    try:
        return meaning(parse(text(found, "data", KUBECONFIG_KEY))) == meaning(parse(wanted))
    except Denied:
        return False


def _rights() -> Iterator[tuple[str, JsonObject]]:
    """Yield the right to read cluster-info and nothing else, for unauthenticated users: others need no discovery."""
    api = _RBAC[0]
    head: JsonObject = {"apiVersion": "/".join(_RBAC), "metadata": {"name": _ROLE, "namespace": NAMESPACE}}
    rule: JsonObject = {"apiGroups": [""], "resources": ["configmaps"], "resourceNames": [NAME], "verbs": ["get"]}
    yield "roles", {**head, "kind": "Role", "rules": [rule]}
    reference: JsonObject = {"apiGroup": api, "kind": "Role", "name": _ROLE}
    subject: JsonObject = {"apiGroup": api, "kind": "User", "name": "system:anonymous"}
    yield "rolebindings", {**head, "kind": "RoleBinding", "roleRef": reference, "subjects": [subject]}


async def _put(client: ApiClient, collection: str, body: JsonObject) -> None:
    """Create an object, or replace the one of its name, which may give other rights."""
    try:
        await client.create(collection, body)
    except AlreadyExists:
        await client.replace(f"{collection}/{_ROLE}", body)


@click.command()
@output_option("text", "kubeconfig")
@connected
def show(*, connection: Connection, output: str) -> int:
    """Show where machines find the cluster, which CAs they trust there, and who signed that.

    Signatures are checked where the tokens may be read. -o kubeconfig prints the signed text as it is. Exit code 1 when
    machines cannot use it: it is malformed, or a signature is wrong or missing.
    """

    async def read(client: ApiClient) -> tuple[JsonObject, Sequence[BootstrapToken] | None]:
        try:
            found = await client.get(PATH)
        except NotFound:
            raise StateError("there is no cluster-info: write it with nodeattest cluster-info publish") from None
        path = paths.core_path("secrets", namespace=secret.NAMESPACE)
        try:
            secrets = [one async for one in list_objects(client, path, {"fieldSelector": f"type={secret.SECRET_TYPE}"})]
        except Forbidden:
            return found, None
        return found, find_signing_tokens(secrets, datetime.now(UTC))[0]

    found, tokens = run(connection, read)
    if output == "kubeconfig":
        print_exactly(text(found, "data", KUBECONFIG_KEY))
        return ExitCode.DONE
    is_sound, lines = view(found, tokens, datetime.now(UTC))
    print_lines(*lines)
    return ExitCode.DONE if is_sound else ExitCode.REFUSED


def view(config_map: JsonObject, tokens: Sequence[BootstrapToken] | None, now: datetime) -> tuple[bool, list[str]]:
    """Return whether machines can use cluster-info, and what there is to see of it.

    ``tokens`` are those that sign now, None where nobody may read them.
    """
    kubeconfig = text(config_map, "data", KUBECONFIG_KEY)
    states = _signatures(config_map, tokens)
    is_sound = all(state in {_VALID, _UNCHECKED} for state in states.values())
    fields: list[tuple[str, str]] = []
    try:
        info = parse(kubeconfig)
        fields += [("server:", info.server), *([("name:", info.tls_server_name)] if info.tls_server_name else [])]
        for ca in info.ca_certificates:
            expired = " (expired)" if ca.not_valid_after_utc <= now else ""
            until = f"{rfc3339(ca.not_valid_after_utc)}{expired}"
            fields += [("CA:", _certificate_subject(ca)), ("  until:", until), ("  pin:", str(pin_of(ca)))]
    except Denied as denied:
        is_sound = False
        fields.append(("unusable:", f"expected {denied.expected}, got {denied.got}"))
    fields += [("signature:", f"{token}  {state}") for token, state in states.items()] or [("signature:", "none")]
    return is_sound, format_fields(fields, indent=0)


def _signature_keys(config_map: JsonObject) -> list[str]:
    return [key for key in mapping(config_map, "data") if key.startswith(SIGNATURE_PREFIX)]


def _signatures(config_map: JsonObject, tokens: Sequence[BootstrapToken] | None) -> dict[str, str]:
    """Tell by token id what each signature is worth, and which are missing."""
    signed = text(config_map, "data", KUBECONFIG_KEY).encode()
    found = {key.removeprefix(SIGNATURE_PREFIX): key for key in _signature_keys(config_map)}
    known = {token.id: token for token in tokens or ()}
    states: dict[str, str] = {}
    for token_id in sorted(found.keys() | known.keys()):
        token = known.get(token_id)
        if token_id not in found:
            state = "missing: no bootstrap signer has been there"
        elif token is None:
            state = _UNCHECKED if tokens is None else "no token signs by this id"
        else:
            valid = jws.is_valid(text(config_map, "data", found[token_id]), signed, token)
            state = _VALID if valid else "invalid: not this token's over this text"
        states[ascii(token_id[:_SHOWN])[1:-1]] = state
    return states


def _certificate_subject(certificate: x509.Certificate) -> str:
    """Name a certificate, in printable characters."""
    try:
        name = certificate.subject.rfc4514_string()
    except ValueError:
        return "(unreadable)"
    return ascii(name[:_SHOWN])[1:-1] or "(no name)"
