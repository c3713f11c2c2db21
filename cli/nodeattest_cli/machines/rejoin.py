"""``nodeattest machines rejoin``: a short bootstrap token for one machine that outlived its certificate.

The token is good for this machine alone (``model.kubeadm_config``), for authentication only, for a
day at most; it is shown once and kept nowhere here. The controller lets the machine in, which has to prove itself as
ever. The workload cluster is reached by a kubeconfig that is given, or as the controller does, by the Secret
``<cluster>-kubeconfig``.
"""

from __future__ import annotations

import shlex
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Final

import click

from nodeattest_cli.connection import Connection, run
from nodeattest_cli.fleet import workload_client
from nodeattest_cli.machines.records import find_record, title
from nodeattest_cli.options import (
    Duration,
    cluster_option,
    connected,
    namespace_option,
    output_option,
    workload_option,
)
from nodeattest_cli.output import AccessError, StateError, print_document, print_lines, to_json
from nodeattest_cli.token import store
from nodeattest_controller.model.attestation import Attestation
from nodeattest_controller.model.attestation_object import owner_of, parse_attestation
from nodeattest_controller.model.kubeadm_config import bound_group
from nodeattest_controller.model.machine_view import RESOURCES, machine_views
from nodeattest_controller.runtime.workload_client import BOOTSTRAP_BINDING
from nodeattest_discovery.secret import DEFAULT_GROUP, TokenSecret, Usage
from nodeattest_discovery.token import generate
from nodeattest_kube import paths
from nodeattest_kube.client import ApiClient
from nodeattest_kube.errors import Forbidden, NotFound
from nodeattest_parsing.objects import rfc3339, text
from nodeattest_parsing.values import JsonObject
from nodeattest_providers.identifiers import ProviderName
from nodeattest_providers.registry import BUILT_IN

TOKEN_LIFETIME: Final = Duration(timedelta(minutes=1), timedelta(hours=24))
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

    def show(self, output: str, *, provider: ProviderName | None = None, replaces_kubeconfig: bool = False) -> None:
        """Print what the machine needs, as JSON or for people.

        ``provider``: by which it proves itself, where no record says so. ``replaces_kubeconfig``: kubelet's kubeconfig
        on the machine is another's, such as kubeadm's.
        """
        known = self.attestation
        command = [
            *("kubelet-authenticator", "join", "--server", self.server, "--ca-file", _KUBEADM_CA, "--token-file", "-"),
            *("--provider", provider or known.provider, "--node-name", known.node_name),
            *("--provider-id", known.provider_id),
            *(("--replace-kubeconfig",) if replaces_kubeconfig else ()),
        ]
        if output == "json":
            document: JsonObject = {"machine": self.machine, "token": self.token, "expires": rfc3339(self.expires)}
            print_document(to_json({**document, "command": [*command]}))
            return
        print_lines(
            f"bootstrap token for {self.machine} alone, until {rfc3339(self.expires)}; it is not shown again:",
            *("", f"  {self.token}", ""),
            "on the machine, as root (paste the token, then Ctrl-D; --tcti, --set and --ca-file as at its first join):",
            *("", f"  {shlex.join(command)}"),
        )


@click.command()
@click.argument("name")
@click.option("--ttl", type=TOKEN_LIFETIME, default="15m", help="How long the token is good; at most 24h.")
@output_option("text", "json")
@connected
@namespace_option
@cluster_option
@workload_option
def rejoin(
    *,
    connection: Connection,
    name: str,
    ttl: timedelta,
    output: str,
    namespace: str | None,
    cluster: str | None,
    workload: Connection | None,
) -> None:
    """Make a short token for a machine that was off for longer than its certificate.

    NAME is the name of the Machine, of its node or of its attestation, or its provider ID. The token is good for this
    machine alone, which proves itself as ever when it uses it.
    """
    where = connection.namespace(namespace)

    async def work(client: ApiClient) -> RejoinToken:
        found = await find_record(client, name, namespace=where, cluster=cluster)
        return await issue_token(client, found, ttl, workload)

    made = run(connection, work)
    made.show(output)
    if made.automatic_approval:
        print_lines(
            f"nodeattest: the cluster has the ClusterRoleBinding {_KUBEADM_APPROVES}, so the in-tree signer takes this "
            "token for any node's name; delete it",
            err=True,
        )


async def issue_token(
    management: ApiClient, found: JsonObject, lifetime: timedelta, workload: Connection | None = None
) -> RejoinToken:
    """Make the token; raises ``UserError`` for a machine that it would be of no use to.

    ``workload``: to the workload cluster; without it, the Secret ``<cluster>-kubeconfig`` is used.
    """
    attestation = parse_attestation(found)
    if attestation.issued and attestation.provider in _ONCE:
        raise StateError(
            f"{title(found)} joined by {attestation.provider}, with which a machine joins once: first "
            "nodeattest machines reset, knowing that it is this machine that asks"
        )
    await _check_machine(management, attestation, found)
    namespace, cluster = attestation.namespace, attestation.cluster_name
    client = workload.client() if workload else await workload_client(management, namespace, cluster)
    try:
        async with client:
            return await _make(client, attestation, title(found), lifetime)
    except Forbidden as refused:
        raise AccessError(
            f"{namespace}/{cluster}: {refused}; where the Secret {cluster}-kubeconfig is the controller's own, which "
            "may make no tokens, give --workload-kubeconfig of who may"
        ) from None


async def _make(workload: ApiClient, attestation: Attestation, machine: str, lifetime: timedelta) -> RejoinToken:
    groups = [bound_group(f"{attestation.namespace}/{attestation.cluster_name}", attestation.provider_id)]
    automatic_approval = False
    if not await _exists(workload, BOOTSTRAP_BINDING):
        groups.append(DEFAULT_GROUP)
        automatic_approval = await _exists(workload, _KUBEADM_APPROVES)
    expires = datetime.now(UTC) + lifetime
    made = TokenSecret(
        token=generate(),
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
    if not any(
        view.uid == attestation.owner_uid and view.provider_id in {attestation.provider_id, ""} and not view.deleting
        for view in machine_views(machine, kind)
    ):
        raise gone


async def _exists(workload: ApiClient, binding: str) -> bool:
    try:
        await workload.get(paths.object_path(*_BINDINGS, binding))
    except NotFound:
        return False
    return True
