"""``nodeattest machines rejoin``: a short bootstrap token for one machine that outlived its certificate.

Promises: the token is good for this machine alone (``nodeattest_controller.model.bound_tokens``), for authentication
only, for a day at most; it is shown once and kept nowhere here. Leaves to the controller: letting the machine in,
which has to prove itself as ever. Reaches the workload cluster by a kubeconfig that is given, or as the controller
does, by the Secret ``<cluster>-kubeconfig``.
"""

from __future__ import annotations

import secrets
import shlex
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Final

import click

from nodeattest_cli.connection import Connection, kubeconfig_option, namespace_option, run
from nodeattest_cli.errors import AccessError, StateError, UserError
from nodeattest_cli.machines.attestations import find_attestation, title
from nodeattest_cli.output import output_option, print_document, print_lines, to_json
from nodeattest_cli.token.factory import store
from nodeattest_controller.model.attestation import Attestation, owner_of, parse_attestation
from nodeattest_controller.model.bound_tokens import bound_group
from nodeattest_controller.model.machine_kinds import machine_views
from nodeattest_controller.model.machine_view import RESOURCES
from nodeattest_controller.model.objects import rfc3339, text
from nodeattest_controller.runtime.workload_client import BOOTSTRAP_BINDING
from nodeattest_discovery.secret import DEFAULT_GROUP, TokenSecret, Usage
from nodeattest_discovery.token import generate
from nodeattest_kube import paths
from nodeattest_kube.client import ApiClient, Forbidden, KubeconfigError, NotFound
from nodeattest_kube.jsontypes import JsonObject, JsonValue
from nodeattest_kube.kubeconfig import ApiEndpoint, parse_kubeconfig
from nodeattest_parsing.durations import parse_seconds
from nodeattest_parsing.errors import ParseError
from nodeattest_parsing.strict_base64 import decode_base64
from nodeattest_providers.registry import BUILT_IN

__all__ = [
    "RejoinToken",
    "check_lifetime",
    "issue_token",
    "print_token",
    "rejoin",
    "workload_client",
    "workload_endpoint",
]

LONGEST: Final = timedelta(hours=24)
SHORTEST: Final = timedelta(minutes=1)
_KUBEADM_APPROVES: Final = "kubeadm:node-autoapprove-bootstrap"
_BINDINGS: Final = ("rbac.authorization.k8s.io", "v1", "clusterrolebindings")
_ONCE: Final = frozenset(name for name, row in BUILT_IN.items() if row.attests_once)
_KUBEADM_CA: Final = "/etc/kubernetes/pki/ca.crt"


@dataclass(frozen=True, slots=True, kw_only=True)
class RejoinToken:
    """What the operator gets."""

    token: str = field(repr=False)
    machine: str
    expires: datetime
    server: str
    attestation: Attestation
    automatic_approval: bool
    """Whether the cluster's in-tree signer takes this token for any name."""
    replaces_kubeconfig: bool = False
    """Whether kubelet's kubeconfig on the machine is another's, such as kubeadm's."""

    def command(self) -> list[str]:
        """Return the command to run on the machine."""
        words = [
            "kubelet-authenticator",
            "join",
            "--server",
            self.server,
            "--ca-file",
            _KUBEADM_CA,
            "--token-file",
            "-",
        ]
        words += ["--provider", self.attestation.provider, "--node-name", self.attestation.node_name]
        words += ["--provider-id", self.attestation.provider_id]
        return [*words, "--replace-kubeconfig"] if self.replaces_kubeconfig else words


@click.command()
@click.argument("name")
@click.option("--ttl", default="15m", show_default=True, help="How long the token is good; at most 24h.")
@output_option("text", "json")
@kubeconfig_option
@click.option("--context", help="Context of the kubeconfig.")
@namespace_option
@click.option("--cluster", help="Of this workload cluster only.")
@click.option(
    "--workload-kubeconfig",
    metavar="FILE",
    help="Who makes the token in the workload cluster  [the Secret <cluster>-kubeconfig]",
)
def rejoin(
    *,
    name: str,
    ttl: str,
    output: str,
    kubeconfig: str | None,
    context: str | None,
    namespace: str | None,
    cluster: str | None,
    workload_kubeconfig: str | None,
) -> None:
    """Make a short token for a machine that was off for longer than its certificate.

    NAME is the name of the Machine, of its node or of its attestation, or its provider ID. The token is good for this
    machine alone, which proves itself as ever when it uses it.
    """
    lifetime, connection = check_lifetime(ttl), Connection(kubeconfig, context)
    where = connection.namespace(namespace)
    workload = Connection(workload_kubeconfig, None).client if workload_kubeconfig is not None else None

    async def _issue(client: ApiClient) -> RejoinToken:
        found = await find_attestation(client, name, namespace=where, cluster=cluster)
        expires = datetime.now(UTC) + lifetime
        return await issue_token(client, found, expires=expires, choose=secrets.choice, workload=workload)

    made = run(connection, _issue)
    print_token(made, output)
    if made.automatic_approval:
        print_lines(
            f"nodeattest: the cluster has the ClusterRoleBinding {_KUBEADM_APPROVES}, so the in-tree signer takes this "
            "token for any node's name; delete it",
            err=True,
        )


def check_lifetime(ttl: str) -> timedelta:
    """Read how long a token is to be good; raises ``UserError``."""
    try:
        lifetime = timedelta(seconds=parse_seconds(ttl))
    except ParseError:
        raise UserError(f"--ttl: expected a duration such as 15m or 2h, got {ttl!r}") from None
    if not SHORTEST <= lifetime <= LONGEST:
        raise UserError(f"--ttl: expected 1m to 24h, got {ttl}")
    return lifetime


async def issue_token(
    management: ApiClient,
    found: JsonObject,
    *,
    expires: datetime,
    choose: Callable[[str], str],
    workload: Callable[[], ApiClient] | None = None,
) -> RejoinToken:
    """Make the token; raises ``UserError`` for a machine that it would be of no use to.

    ``workload`` makes a client for the workload cluster; without it that of the Secret ``<cluster>-kubeconfig`` is.
    """
    attestation = parse_attestation(found)
    _check_may_return(attestation, found)
    await _check_machine(management, attestation, found)
    namespace, cluster = attestation.namespace, attestation.cluster_name
    client = workload() if workload else await workload_client(management, namespace, cluster)
    try:
        async with client:
            return await _make(client, attestation, title(found), expires=expires, choose=choose)
    except Forbidden as refused:
        raise AccessError(
            f"{namespace}/{cluster}: {refused}; where the Secret {cluster}-kubeconfig is the controller's own, which "
            "may make no tokens, give --workload-kubeconfig of who may"
        ) from None


async def _make(
    workload: ApiClient, attestation: Attestation, machine: str, *, expires: datetime, choose: Callable[[str], str]
) -> RejoinToken:
    groups = [bound_group(f"{attestation.namespace}/{attestation.cluster_name}", attestation.provider_id)]
    automatic_approval = False
    if not await _exists(workload, BOOTSTRAP_BINDING):
        groups.append(DEFAULT_GROUP)
        automatic_approval = await _exists(workload, _KUBEADM_APPROVES)
    made = TokenSecret(
        token=generate(choose),
        usages=frozenset({Usage.AUTHENTICATION}),
        groups=tuple(groups),
        expires=expires,
        description=f"nodeattest machines rejoin {machine}",
    )
    await store(workload, made)
    return RejoinToken(
        token=made.token.reveal(),
        machine=machine,
        expires=expires,
        server=workload.server,
        attestation=attestation,
        automatic_approval=automatic_approval,
    )


def _check_may_return(attestation: Attestation, found: JsonObject) -> None:
    if attestation.issued and attestation.provider in _ONCE:
        raise StateError(
            f"{title(found)} joined by {attestation.provider}, with which a machine joins once: first "
            "nodeattest machines reset, knowing that it is this machine that asks"
        )


async def _check_machine(management: ApiClient, attestation: Attestation, found: JsonObject) -> None:
    """See that the Machine stays: nobody else gets a token."""
    owner = owner_of(found)
    group, _, version = text(owner, "apiVersion").partition("/")
    kind = text(owner, "kind")
    gone = StateError(f"{title(found)}: its Machine is gone or being deleted, so it may not join again")
    if not group or not version or kind not in RESOURCES:
        raise gone
    try:
        path = paths.object_path(group, version, RESOURCES[kind], text(owner, "name"), namespace=attestation.namespace)
        machine = await management.get(path)
    except NotFound:
        raise gone from None
    members = machine_views(machine, kind)
    if not any(
        one.uid == attestation.owner_uid and one.provider_id in {attestation.provider_id, ""} and not one.deleting
        for one in members
    ):
        raise gone


async def workload_client(management: ApiClient, namespace: str, cluster: str) -> ApiClient:
    """Make a client for a workload cluster, as the controller reaches it; raises ``UserError``."""
    return ApiClient.from_endpoint(await workload_endpoint(management, namespace, cluster), trust_env=True)


async def workload_endpoint(management: ApiClient, namespace: str, cluster: str) -> ApiEndpoint:
    """Read where a workload cluster is, out of its Secret; raises ``UserError``."""
    name = f"{cluster}-kubeconfig"
    try:
        secret = await management.get(paths.core_path("secrets", name, namespace=namespace))
        document = decode_base64(text(secret, "data", "value"))
        return parse_kubeconfig(document)
    except NotFound:
        raise AccessError(f"the Secret {namespace}/{name} is not there, so the cluster is out of reach") from None
    except ValueError as error:
        said = str(error) if isinstance(error, KubeconfigError) else "no base64"
        raise AccessError(f"the Secret {namespace}/{name}: {said}") from None


async def _exists(workload: ApiClient, binding: str) -> bool:
    try:
        await workload.get(paths.object_path(*_BINDINGS, binding))
    except NotFound:
        return False
    return True


def print_token(made: RejoinToken, output: str) -> None:
    """Print what the machine needs, as JSON or for people."""
    if output == "json":
        print_document(to_json(_document(made)))
    else:
        print_lines(*_lines(made))


def _document(made: RejoinToken) -> JsonObject:
    command: list[JsonValue] = [*made.command()]
    document: JsonObject = {
        "machine": made.machine,
        "token": made.token,
        "expires": rfc3339(made.expires),
        "command": command,
    }
    return document


def _lines(made: RejoinToken) -> tuple[str, ...]:
    return (
        f"bootstrap token for {made.machine} alone, until {rfc3339(made.expires)}; it is not shown again:",
        "",
        f"  {made.token}",
        "",
        "on the machine, as root (paste the token, then Ctrl-D; --tcti, --set and --ca-file as at its first join):",
        "",
        f"  {shlex.join(made.command())}",
    )
