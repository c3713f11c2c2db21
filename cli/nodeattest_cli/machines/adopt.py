"""``nodeattest machines adopt``: nodes that are not in the ledger, what to run for each, and opening one of them.

Promises: listing changes nothing; ``--open`` opens one Machine at a time, after it was shown and agreed to, on record
in its attestation record and in an Event, and its token is good for this Machine alone. What a workload cluster says
of a Node is quoted where it is more than one plain word, and used in a command only as a whole and where a terminal
shows it as it is. Leaves to the machine: proving itself.
"""

from __future__ import annotations

import re
import secrets
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Final

import click

from nodeattest_cli.connection import Connection, kubeconfig_option, namespace_option, run
from nodeattest_cli.errors import ExitCode, StateError, UserError
from nodeattest_cli.machines.open import open_machine
from nodeattest_cli.machines.rejoin import RejoinToken, check_lifetime, print_token
from nodeattest_cli.machines.reset import ask_confirmation, check_reason
from nodeattest_cli.machines.unattested import Action, Report, Unattested, survey
from nodeattest_cli.output import output_option, print_document, print_lines, to_json
from nodeattest_kube.client import ApiClient
from nodeattest_kube.jsontypes import JsonObject, JsonValue
from nodeattest_providers.errors import Denied
from nodeattest_providers.identifiers import MAX_PROVIDER_ID, node_name, printable, provider_id
from nodeattest_providers.names import ProviderName

__all__ = ["adopt"]

_SHOWN: Final = 10
_WORD: Final = re.compile(rf"[!-~]{{1,{MAX_PROVIDER_ID}}}")
"""What is shown as it is: ASCII without blanks, so that it can neither end a line nor be padded to look like one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Opening:
    """The options of ``--open``."""

    reason: str
    lifetime: timedelta
    provider: str | None
    yes: bool
    dry_run: bool


@click.command()
@click.argument("names", metavar="[MACHINE]...", nargs=-1)
@click.option("--all", "everything", is_flag=True, help="Every node that is not in the ledger.")
@click.option("--open", "opens", is_flag=True, help="Open one MACHINE whose node has no certificate any more.")
@click.option("--reason", default="", help="With --open: why, for the record.")
@click.option("--ttl", default="15m", show_default=True, help="With --open: how long its token is good; at most 24h.")
@click.option("--provider", help="With --open: how the machine proves itself, where the policy names several.")
@click.option("--yes", is_flag=True, help="With --open: do not ask.")
@click.option("--dry-run", is_flag=True, help="With --open: print what would be done, and do nothing.")
@output_option("text", "json")
@kubeconfig_option
@click.option("--context", help="Context of the kubeconfig.")
@namespace_option
@click.option("--cluster", help="Of this workload cluster only.")
def adopt(
    *,
    names: tuple[str, ...],
    everything: bool,
    opens: bool,
    reason: str,
    ttl: str,
    provider: str | None,
    yes: bool,
    dry_run: bool,
    output: str,
    kubeconfig: str | None,
    context: str | None,
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
    opening = _opening(names, reason, ttl, provider, yes=yes, dry_run=dry_run) if opens else None
    connection, now = Connection(kubeconfig, context), datetime.now(UTC)
    where = connection.namespace(namespace)
    found = run(connection, lambda client: survey(client, namespace=where, cluster=cluster, now=now))
    chosen = found.unattested if everything else _chosen(found, names)
    for key, said in found.unreachable:
        print_lines(f"nodeattest: {key} cannot be reached: {said}", err=True)
    if opening is not None:
        [one] = chosen
        return _open(connection, one, opening, output, now)
    if output == "json":
        print_document(to_json(_document(chosen, found)))
    else:
        print_lines(*_lines(chosen, found))
    return ExitCode.NO_ACCESS if found.unreachable else ExitCode.DONE


def _opening(
    names: Sequence[str], reason: str, ttl: str, provider: str | None, *, yes: bool, dry_run: bool
) -> _Opening:
    if len(names) != 1:
        raise UserError("--open opens one Machine: name it, and no other")
    lifetime = check_lifetime(ttl)
    return _Opening(reason=check_reason(reason), lifetime=lifetime, provider=provider, yes=yes, dry_run=dry_run)


def _chosen(found: Report, names: Sequence[str]) -> tuple[Unattested, ...]:
    chosen: list[Unattested] = []
    for name in names:
        fits = [one for one in found.unattested if name in one.names()]
        if not fits:
            raise StateError(
                f"no node {name} is outside of the ledger: it is attested, is in another namespace or cluster, or its "
                "cluster is out of reach; nodeattest machines lists the ledger"
            )
        if len(fits) > 1:
            listed = "; ".join(f"{one.cluster} {_word(one.node)}" for one in fits[:_SHOWN])
            raise UserError(
                f"{name} is one of {len(fits)} nodes, set --cluster or name it by its provider ID: {listed}"
            )
        chosen += fits
    return tuple(chosen)


def command_for(one: Unattested) -> list[str]:
    """Return the command for a node: on the machine itself to adopt it, else on the operator's; may be empty."""
    namespace, _, cluster = one.cluster.partition("/")
    machine = one.member.name if one.member else ""
    where = ["-n", namespace, "--cluster", cluster]
    match one.todo:
        case Action.ADOPT | Action.OPEN if not _can_be_asked_for(one):
            return []
        case Action.ADOPT:
            provider = one.providers[0] if len(one.providers) == 1 else "PROVIDER"
            return ["kubelet-authenticator", "adopt", "--provider", provider, "--provider-id", one.provider_id]
        case Action.OPEN:
            return ["nodeattest", "machines", "adopt", machine, "--open", "--reason", "WHY", *where]
        case Action.REJOIN:
            return ["nodeattest", "machines", "rejoin", machine, *where]
        case Action.NO_MACHINE:
            return []


def _can_be_asked_for(one: Unattested) -> bool:
    """Return whether the controller would read both names in a request."""
    try:
        node_name(one.node)
        provider_id(one.provider_id)
    except Denied:
        return False
    return True


def _word(text: str) -> str:
    """Show a text that a workload cluster chose."""
    return text if _WORD.fullmatch(text) else printable(text)


def _says(one: Unattested) -> str:
    match one.todo:
        case Action.ADOPT | Action.OPEN if not _can_be_asked_for(one):
            wrong = _word(one.provider_id or "(none)")
            return f"no machine can ask for its name with provider ID {wrong}: correct its Node and its Machine"
        case Action.ADOPT:
            return "on the machine, as root" + _by_what(one)
        case Action.OPEN:
            return "the policy's provider proves nothing, so a node cannot take itself over"
        case Action.REJOIN:
            return "it joined attested, and its certificate has ended"
        case Action.NO_MACHINE if not one.provider_id:
            return "it has no provider ID and is no Machine's nodeRef: set its provider ID, or delete the Node"
        case Action.NO_MACHINE:
            return f"no Machine has its provider ID {_word(one.provider_id)}: make one, or delete the Node"


def _by_what(one: Unattested) -> str:
    if not one.providers:
        return "; no usable policy selects its Cluster yet"
    if len(one.providers) > 1:
        return f"; PROVIDER is one of {', '.join(one.providers)}"
    return "" if one.ready else "; it is not Ready: if its certificate ended, --open"


def _document(chosen: Sequence[Unattested], found: Report) -> JsonObject:
    nodes: list[JsonValue] = []
    for one in chosen:
        command: list[JsonValue] = [*command_for(one)]
        nodes.append(
            {
                "cluster": one.cluster,
                "node": one.node,
                "machine": one.member.name if one.member else None,
                "providerID": one.provider_id,
                "ready": one.ready,
                "todo": str(one.todo),
                "command": command,
                "says": _says(one),
            }
        )
    unreachable: list[JsonValue] = [{"cluster": key, "error": said} for key, said in found.unreachable]
    return {"nodes": nodes, "attested": found.attested, "unreachable": unreachable}


def _lines(chosen: Sequence[Unattested], found: Report) -> list[str]:
    lines: list[str] = []
    for one in chosen:
        machine = f"{one.member.kind} {one.member.name}" if one.member else "no Machine"
        lines += [f"{one.cluster} node {_word(one.node)} ({machine}): {_says(one)}"]
        command = command_for(one)
        lines += [f"  {shlex.join(command)}"] if command else []
    nodes = found.attested + len(found.unattested)
    lines.append(f"{len(found.unattested)} of {nodes} nodes are not in the ledger")
    return lines


def _open(connection: Connection, one: Unattested, opening: _Opening, output: str, now: datetime) -> int:
    provider = _provider(one, opening.provider)
    print_lines(*_what_it_opens(one, provider), err=output == "json")
    if opening.dry_run:
        return 0
    if not opening.yes and not ask_confirmation("Open it?"):
        print_lines("nothing was changed", err=output == "json")
        return ExitCode.REFUSED

    async def _do(client: ApiClient) -> tuple[str, RejoinToken]:
        trail, made = await open_machine(
            client, one, reason=opening.reason, now=now, expires=now + opening.lifetime, choose=secrets.choice
        )
        return trail, replace(made, attestation=replace(made.attestation, provider=provider), replaces_kubeconfig=True)

    trail, made = run(connection, _do)
    print_lines(trail, err=output == "json")
    print_token(made, output)
    return 0


def _provider(one: Unattested, said: str | None) -> ProviderName:
    if said is not None and one.providers and said not in one.providers:
        raise UserError(f"--provider: expected one of the policy's {', '.join(one.providers)}, got {said}")
    if said is not None:
        return ProviderName(said)
    if len(one.providers) != 1:
        raise UserError(
            f"--provider: the policy names {', '.join(one.providers) or 'none that can be read'}; say which"
        )
    return one.providers[0]


def _what_it_opens(one: Unattested, provider: ProviderName) -> list[str]:
    if one.member is None or not (one.has_attestation or _can_be_asked_for(one)):
        raise StateError(f"node {_word(one.node)}: {_says(one)}")
    if one.has_attestation:
        raise StateError(f"node {_word(one.node)} {_says(one)}: {shlex.join(command_for(one))}")
    lines = [
        f"{one.member.kind} {one.member.name} of {one.cluster} ({_word(one.provider_id)}), node {_word(one.node)}",
        f"  then a machine with this provider ID may join by {provider} with a bootstrap token, though it has a node",
    ]
    if one.todo is Action.OPEN:
        lines.append(
            "  the insecure provider proves nothing: until it has joined, its token can become it, and where "
            "tokenBinding is Preferred or Off any bootstrap token"
        )
    return lines
