"""``nodeattest machines reset``: let a machine bind itself anew, on record.

Promises: nothing is written before it was shown and agreed to; one compare-and-swap on what was shown, tried again only
while the pins are still those; who, when and why are in the ledger and in an Event. What a reset means:
``nodeattest_controller.model.attestation_reset``.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Final

import click

from nodeattest_cli.connection import Connection, kubeconfig_option, namespace_option, run
from nodeattest_cli.errors import ExitCode, StateError, UserError
from nodeattest_cli.machines.attestations import attestation_path, find_attestation, title
from nodeattest_cli.output import print_lines
from nodeattest_controller.model.attestation import Attestation, owner_of, parse_attestation
from nodeattest_controller.model.attestation_reset import MAX_REASON, reset
from nodeattest_controller.model.objects import rfc3339, text
from nodeattest_kube import paths
from nodeattest_kube.client import ApiClient, ApiError, Conflict
from nodeattest_kube.events import ObjectRef, event_document
from nodeattest_kube.jsontypes import JsonObject

__all__ = ["ask_confirmation", "check_reason", "cleared_by_reset", "operator", "record_event", "reset_machine"]

_TRIES: Final = 5
RESET: Final = "AttestationReset"
_REVIEW: Final = ("authentication.k8s.io", "v1", "selfsubjectreviews")


@click.command("reset")
@click.argument("name")
@click.option("--reason", required=True, help="Why, for the record: a ticket, new hardware, a cleared TPM.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@kubeconfig_option
@click.option("--context", help="Context of the kubeconfig.")
@namespace_option
@click.option("--cluster", help="Of this workload cluster only.")
def reset_machine(
    *,
    name: str,
    reason: str,
    yes: bool,
    kubeconfig: str | None,
    context: str | None,
    namespace: str | None,
    cluster: str | None,
) -> int:
    """Forget what a machine is pinned to, so that it can bind itself anew.

    For replaced hardware, a cleared TPM, a lost secret. NAME is the name of the Machine, of its node or of its
    attestation, or its provider ID.
    The policy then decides as for a new machine. Keys that were certified are never certified again. Certificates are
    not revoked: the old one serves until it ends.
    """
    why = check_reason(reason)
    connection = Connection(kubeconfig, context)
    where = connection.namespace(namespace)
    found = run(connection, lambda client: find_attestation(client, name, namespace=where, cluster=cluster))
    print_lines(*cleared_by_reset(found))
    if not yes and not ask_confirmation("Reset it?"):
        print_lines("nothing was changed")
        return ExitCode.REFUSED
    now = datetime.now(UTC)
    print_lines(run(connection, lambda client: _reset(client, found, why, now)))
    return 0


def ask_confirmation(question: str) -> bool:
    """Ask; raises ``UserError`` where nobody answers."""
    try:
        return click.confirm(question, default=False)
    except click.Abort:
        raise UserError("no answer; without a terminal, set --yes") from None


def cleared_by_reset(attestation: JsonObject) -> list[str]:
    """Say what a reset of this attestation record forgets, and what it cannot take back."""
    known = parse_attestation(attestation)
    lines = [title(attestation), f"  node {known.node_name or '(none)'}, provider {known.provider or '(none)'}"]
    lines += [f"  forgets {kind} {value}" for kind, value in sorted(known.fingerprints.items())]
    if known.boot is not None:
        lines.append(f"  forgets the TPM's clock: reset {known.boot.reset_count}, {known.boot.clock} ms")
    if known.issued:
        newest = known.issued[-1]
        keys = "1 key" if len(known.issued) == 1 else f"{len(known.issued)} keys"
        lines.append(f"  retires {keys}; certificate {newest.serial} is not revoked, it serves until")
        lines.append(f"  {rfc3339(newest.not_after)}")
    if len(lines) == len(("title", "node")):
        lines.append("  forgets nothing: it has no pins and no certificates")
    lines.append(_who_comes_next(known))
    return lines


def _who_comes_next(known: Attestation) -> str:
    if known.provider == "insecure":
        return "  then any holder of a bootstrap token can become this machine: the insecure provider proves nothing"
    return (
        "  then any machine that satisfies the policy with this provider ID becomes it; a node that still has its\n"
        "  certificate may ask with it, at once by kubelet-authenticator join --renew, another with a bootstrap token"
    )


def check_reason(reason: str) -> str:
    """Return a reason for the record; raises ``UserError`` for none."""
    said = " ".join(reason.split())
    if not said or not said.isprintable() or len(said) > MAX_REASON:
        raise UserError(f"--reason: expected 1 to {MAX_REASON} printable characters, got {len(said)}")
    return said


async def _reset(client: ApiClient, found: JsonObject, reason: str, now: datetime) -> str:
    by = await operator(client)
    written = await _write(client, found, by=by, reason=reason, now=now)
    reported = await record_event(client, written, f"reset by {by}: {reason}", now)
    return f"reset by {by}, on record in spec.resets" + (
        f" and in an Event on {text(owner_of(written), 'kind')} {text(owner_of(written), 'name')}" if reported else ""
    )


async def operator(client: ApiClient) -> str:
    """Ask the API server for our user name; raises ApiError."""
    group, version, resource = _REVIEW
    asked: JsonObject = {"apiVersion": f"{group}/{version}", "kind": "SelfSubjectReview"}
    answer = await client.create(paths.collection_path(group, version, resource), asked)
    return text(answer, "status", "userInfo", "username")


async def _write(client: ApiClient, found: JsonObject, *, by: str, reason: str, now: datetime) -> JsonObject:
    path, current = attestation_path(found), found
    for _ in range(_TRIES):
        try:
            return await client.replace(path, reset(current, by=by, reason=reason, now=now))
        except Conflict:
            current = await client.get(path)
            if _pins(current) != _pins(found):
                raise StateError("the machine was bound anew meanwhile; check it and reset again") from None
    raise StateError("the ledger is written all the time; try again")


def _pins(attestation: JsonObject) -> tuple[str, dict[str, str]]:
    return text(attestation, "metadata", "uid"), parse_attestation(attestation).fingerprints


async def record_event(
    client: ApiClient, attestation: JsonObject, message: str, now: datetime, *, reason: str = RESET
) -> bool:
    """Write the Event; a reset that is done is not undone because this is not allowed."""
    owner, namespace = owner_of(attestation), text(attestation, "metadata", "namespace")
    if not owner:
        return False
    subject = ObjectRef(
        api_version=text(owner, "apiVersion"),
        kind=text(owner, "kind"),
        namespace=namespace,
        name=text(owner, "name"),
        uid=text(owner, "uid"),
    )
    document = event_document(
        subject,
        kind="Warning",
        reason=reason,
        message=message,
        now=now,
        component="nodeattest",
        instance="nodeattest",
    )
    try:
        await client.create(paths.core_path("events", namespace=namespace), document)
    except ApiError as error:
        print_lines(f"nodeattest: the Event could not be written: {error}", err=True)
        return False
    return True
