"""``nodeattest machines adopt``: nodes that are not in the ledger, what to run for each, and opening one of them.

A Node counts as attested exactly as the controller ``hardening`` counts it. Listing changes nothing, and a cluster that
cannot be reached hides no other. ``--open`` opens one Machine without certificates, on record and in an Event; its
token is good for this Machine alone. What a workload cluster says of a Node is quoted unless it is one plain
word.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final

import click

from nodeattest_cli.connection import Connection, run
from nodeattest_cli.fleet import cluster_policy, index, list_objects, no_cluster, of_kind, read_fleet, workload_client
from nodeattest_cli.machines.records import change_record, check_reason, record_path
from nodeattest_cli.machines.rejoin import TOKEN_LIFETIME, RejoinToken, issue_token
from nodeattest_cli.options import cluster_option, connected, namespace_option, output_option
from nodeattest_cli.output import (
    ExitCode,
    StateError,
    UserError,
    is_confirmed,
    listed,
    print_document,
    print_lines,
    to_json,
)
from nodeattest_controller.controllers.auto_approval.decide import is_attested
from nodeattest_controller.model.attestation_object import new_for_adoption, parse_attestation, reset
from nodeattest_controller.model.machine_view import CLUSTER_KINDS, MachineView
from nodeattest_controller.runtime.indexes import ClusterKey, Inventory
from nodeattest_kube import paths
from nodeattest_kube.client import ApiClient
from nodeattest_kube.errors import ApiError, NotFound
from nodeattest_parsing.objects import condition, items, key_of, text
from nodeattest_parsing.values import JsonObject
from nodeattest_providers.errors import Denied, Unavailable
from nodeattest_providers.identifiers import MAX_PROVIDER_ID, NodeName, ProviderName, node_name, printable, provider_id
from nodeattest_providers.registry import INSECURE

_RESOURCES: Final = (
    *("clusterrecords", "clusters", "nodeattestationpolicies"),
    *("machinerecords", "machines", "machinepools", "machineattestations"),
)
_WORD: Final = re.compile(rf"[!-~]{{1,{MAX_PROVIDER_ID}}}")
"""What is shown as it is: ASCII without blanks, so that it can neither end a line nor be padded to look like one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Unattested:
    """One Node that is not in the ledger, and what to do about it."""

    cluster: ClusterKey
    node: str
    provider_id: str
    """The Node's own, or its Machine's where it has none."""
    ready: bool
    member: MachineView | None
    providers: tuple[ProviderName, ...]
    """Those that the policy names; empty where that is not known."""
    todo: str = "none"
    """``adopt``: its kubelet takes itself over. ``open``: an operator opens its Machine, because the policy's provider
    proves nothing. ``rejoin``: it joined attested. ``none``: no Machine is its own."""
    command: tuple[str, ...] = ()
    """On the machine itself to adopt it, else on the operator's; may be empty."""
    says: str

    @property
    def names(self) -> set[str]:
        """What an operator may call it."""
        return {self.node, self.provider_id, self.member.name if self.member else ""} - {""}

    def to_json(self) -> JsonObject:
        """Return the entry of ``nodes``."""
        return {
            "cluster": self.cluster,
            "node": self.node,
            "machine": self.member.name if self.member else None,
            "providerID": self.provider_id,
            "ready": self.ready,
            "todo": self.todo,
            "command": [*self.command],
            "says": self.says,
        }


@dataclass(slots=True)
class _Report:
    """All that was found."""

    unattested: list[_Unattested]
    attested: int
    unreachable: list[tuple[ClusterKey, str]]


@click.command()
@click.argument("names", metavar="[MACHINE]...", nargs=-1)
@click.option("--all", "everything", is_flag=True, help="Every node that is not in the ledger.")
@click.option("--open", "opens", is_flag=True, help="Open one MACHINE whose node has no certificate any more.")
@click.option("--reason", help="With --open: why, for the record.")
@click.option("--ttl", type=TOKEN_LIFETIME, default="15m", help="With --open: how long its token is good; at most 24h.")
@click.option("--provider", help="With --open: how the machine proves itself, where the policy names several.")
@click.option("--yes", is_flag=True, help="With --open: do not ask.")
@click.option("--dry-run", is_flag=True, help="With --open: print what would be done, and do nothing.")
@output_option("text", "json")
@connected
@namespace_option
@cluster_option
def adopt(
    *,
    connection: Connection,
    names: tuple[str, ...],
    everything: bool,
    opens: bool,
    reason: str | None,
    ttl: timedelta,
    provider: str | None,
    yes: bool,
    dry_run: bool,
    output: str,
    namespace: str | None,
    cluster: str | None,
) -> int:
    """Say what to run for nodes that joined without attestation.

    MACHINE is a Machine's name, its node's or its provider ID. While such nodes are left, the controller hardening
    leaves the in-tree renewal open for them. With --open a Machine is opened for a node that has no valid certificate
    any more: it joins by a token that is good for it alone.
    """
    if everything == bool(names):
        raise UserError("expected names of Machines, or --all")
    if opens and len(names) != 1:
        raise UserError("--open opens one Machine: name it, and no other")
    why = check_reason(reason or "") if opens else ""
    where = connection.namespace(namespace)
    found = run(connection, lambda client: _survey(client, where, cluster))
    chosen = found.unattested if everything else _chosen(found, names)
    for key, said in found.unreachable:
        print_lines(f"nodeattest: {key} cannot be reached: {said}", err=True)
    if not opens:
        _print(chosen, found, output)
        return ExitCode.NO_ACCESS if found.unreachable else ExitCode.DONE
    [node] = chosen
    by = _provider(node, provider)
    print_lines(*_what_it_opens(node, by), err=output == "json")
    if dry_run:
        return ExitCode.DONE
    if not yes and not is_confirmed("Open it?"):
        print_lines("nothing was changed", err=output == "json")
        return ExitCode.REFUSED
    trail, made = run(connection, lambda client: _open(client, node, why, ttl))
    print_lines(trail, err=output == "json")
    made.show(output, provider=by, replaces_kubeconfig=True)
    return ExitCode.DONE


async def _survey(client: ApiClient, namespace: str, cluster: str | None) -> _Report:
    """Read the clusters of a namespace; raises ``UserError`` where there is none of that name."""
    now, report = datetime.now(UTC), _Report([], 0, [])
    documents = await read_fleet(client, namespace, *_RESOURCES)
    inventory = index(documents)
    clusters = [one for one in of_kind(documents, *CLUSTER_KINDS) if cluster in {None, text(one, "metadata", "name")}]
    if not clusters:
        raise no_cluster(cluster, namespace)
    for one in clusters:
        key = ClusterKey(key_of(one))
        try:
            async with await workload_client(client, namespace, text(one, "metadata", "name")) as workload:
                nodes = [node async for node in list_objects(workload, paths.core_path("nodes"))]
        except (ApiError, UserError) as error:
            report.unreachable.append((key, str(error)))
            continue
        try:
            providers = tuple(sorted(cluster_policy(one, documents, inventory, now).attestors))
        except (Denied, Unavailable):
            providers = ()
        outside = [node for node in nodes if not is_attested(node, key, inventory, now)]
        report.attested += len(nodes) - len(outside)
        report.unattested += [_unattested(node, key, inventory, providers) for node in outside]
    return report


def _unattested(
    node: JsonObject, key: ClusterKey, inventory: Inventory, providers: tuple[ProviderName, ...]
) -> _Unattested:
    """Say what to do about a node."""
    name, own_id = text(node, "metadata", "name"), text(node, "spec", "providerID")
    members = inventory.members(key, own_id)
    if not own_id:
        uid = text(node, "metadata", "uid")
        members = [one for one in inventory.members_by_node_name(key, name) if one.node_ref_uid == uid]
    member = members[0] if len(members) == 1 else None
    known_id = own_id or (member.provider_id if member else "")
    condition_ready = condition(items(node, "status", "conditions"), "Ready")
    ready = condition_ready is not None and condition_ready.get("status") == "True"

    def made(says: str, todo: str = "none", *command: str) -> _Unattested:
        return _Unattested(
            cluster=key,
            node=name,
            provider_id=known_id,
            ready=ready,
            member=member,
            providers=providers,
            todo=todo,
            command=command,
            says=says,
        )

    if member is None and not known_id:
        return made("it has no provider ID and is no Machine's nodeRef: set its provider ID, or delete the Node")
    if member is None:
        return made(f"no Machine has its provider ID {_word(known_id)}: make one, or delete the Node")
    namespace, _, cluster = key.partition("/")
    where = ("-n", namespace, "--cluster", cluster)
    record = inventory.attestation(key, member.provider_id)
    if record is not None and record.issued and record.node_name == NodeName(name):
        says = "it joined attested, and its certificate has expired"
        return made(says, "rejoin", "nodeattest", "machines", "rejoin", member.name, *where)
    todo = "open" if providers and set(providers) <= INSECURE else "adopt"
    if not _can_be_asked_for(name, known_id):
        wrong = _word(known_id or "(none)")
        return made(f"no machine can ask for its name with provider ID {wrong}: correct its Node and its Machine", todo)
    if todo == "open":
        says = "the policy's provider proves nothing, so a node cannot take itself over"
        return made(says, todo, "nodeattest", "machines", "adopt", member.name, "--open", "--reason", "WHY", *where)
    provider = providers[0] if len(providers) == 1 else "PROVIDER"
    command = ("kubelet-authenticator", "adopt", "--provider", provider, "--provider-id", known_id)
    return made(_how_to_adopt(providers, ready=ready), todo, *command)


def _how_to_adopt(providers: Sequence[ProviderName], *, ready: bool) -> str:
    if not providers:
        return "on the machine, as root; no usable policy selects its Cluster yet"
    if len(providers) > 1:
        return f"on the machine, as root; PROVIDER is one of {', '.join(providers)}"
    return "on the machine, as root" + ("" if ready else "; it is not Ready: if its certificate expired, --open")


def _can_be_asked_for(name: str, machine: str) -> bool:
    """Return whether the controller would read both names in a request."""
    try:
        node_name(name)
        provider_id(machine)
    except Denied:
        return False
    return True


def _chosen(found: _Report, names: Sequence[str]) -> list[_Unattested]:
    chosen: list[_Unattested] = []
    for name in names:
        fits = [one for one in found.unattested if name in one.names]
        if not fits:
            raise StateError(
                f"no node {name} is outside of the ledger: it is attested, is in another namespace or cluster, or its "
                "cluster is out of reach; nodeattest machines list shows the ledger"
            )
        if len(fits) > 1:
            nodes = listed((f"{one.cluster} {_word(one.node)}" for one in fits), between="; ")
            raise UserError(f"{name} is one of {len(fits)} nodes, set --cluster or name it by its provider ID: {nodes}")
        chosen += fits
    return chosen


def _word(said: str) -> str:
    """Show a text that a workload cluster chose."""
    return said if _WORD.fullmatch(said) else printable(said)


def _print(chosen: Sequence[_Unattested], found: _Report, output: str) -> None:
    if output == "json":
        unreachable: list[JsonObject] = [{"cluster": key, "error": said} for key, said in found.unreachable]
        nodes = [one.to_json() for one in chosen]
        print_document(to_json({"nodes": [*nodes], "attested": found.attested, "unreachable": [*unreachable]}))
        return
    for one in chosen:
        machine = f"{one.member.kind} {one.member.name}" if one.member else "no Machine"
        print_lines(f"{one.cluster} node {_word(one.node)} ({machine}): {one.says}")
        print_lines(*([f"  {shlex.join(one.command)}"] if one.command else []))
    nodes_in_all = found.attested + len(found.unattested)
    print_lines(f"{len(found.unattested)} of {nodes_in_all} nodes are not in the ledger")


# Opening


def _provider(one: _Unattested, said: str | None) -> ProviderName:
    known = ", ".join(one.providers)
    if said is not None and one.providers and said not in one.providers:
        raise UserError(f"--provider: expected one of the policy's {known}, got {said}")
    if said is None and len(one.providers) != 1:
        raise UserError(f"--provider: the policy names {known or 'none that can be read'}; set one")
    return ProviderName(said) if said is not None else one.providers[0]


def _what_it_opens(one: _Unattested, provider: ProviderName) -> list[str]:
    if one.member is None or one.todo not in {"adopt", "open"} or not one.command:
        command = f": {shlex.join(one.command)}" if one.command else ""
        raise StateError(f"node {_word(one.node)}: {one.says}{command}")
    lines = [
        f"{one.member.kind} {one.member.name} of {one.cluster} ({_word(one.provider_id)}), node {_word(one.node)}",
        f"  then a machine with this provider ID may join by {provider} with a bootstrap token, though it has a node",
    ]
    if one.todo == "open":
        lines.append(
            "  the insecure provider proves nothing: until it has joined, its token can become it, and where "
            "tokenBinding is Preferred or Off any bootstrap token"
        )
    return lines


async def _open(client: ApiClient, node: _Unattested, reason: str, lifetime: timedelta) -> tuple[str, RejoinToken]:
    """Write record and Event, and make the token; returns a log of that, and the token. Raises ``StateError``."""
    member = node.member
    if member is None:
        raise StateError(f"node {node.node} has no Machine")

    async def write(by: str, now: datetime) -> JsonObject:
        """Create the record, or reset the one that exists without certificates."""
        fresh = new_for_adoption(member, NodeName(node.node), by=by, reason=reason, now=now)
        path = record_path(fresh)
        try:
            known = await client.get(path)
        except NotFound:
            return await client.create(path.rpartition("/")[0], fresh)
        if parse_attestation(known).issued:
            raise StateError(f"{text(known, 'metadata', 'name')} has certificates by now: list the nodes again")
        return await client.replace(path, reset(known, by=by, reason=reason, now=now))

    written, trail = await change_record(client, write, verb="opened", reason=reason, event="AttestationOpened")
    return trail, await issue_token(client, written, lifetime)
