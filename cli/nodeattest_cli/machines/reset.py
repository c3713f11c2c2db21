"""``nodeattest machines reset``: let a machine bind itself anew, on record.

Nothing is written before it was shown and agreed to. The write is a compare-and-swap on what was shown. Who, when and
why are in the ledger and in an Event. What a reset means: ``nodeattest_controller.model.attestation``.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Final

import click

from nodeattest_cli.connection import Connection, run
from nodeattest_cli.errors import ExitCode, StateError, UserError
from nodeattest_cli.fleet import attestation_path, find_attestation, title
from nodeattest_cli.options import cluster_option, connected, namespace_option
from nodeattest_cli.output import print_lines
from nodeattest_controller.model.attestation import MAX_REASON, owner_of, parse_attestation, reset
from nodeattest_kube import paths
from nodeattest_kube.client import ApiClient
from nodeattest_kube.errors import ApiError, Conflict
from nodeattest_kube.events import ObjectRef, event_document
from nodeattest_parsing.objects import rfc3339, text
from nodeattest_parsing.values import JsonObject

_REVIEW: Final = ("authentication.k8s.io", "v1", "selfsubjectreviews")


@click.command("reset")
@click.argument("name")
@click.option("--reason", required=True, help="Why, for the record: a ticket, new hardware, a cleared TPM.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@connected
@namespace_option
@cluster_option
def reset_machine(
    *, connection: Connection, name: str, reason: str, yes: bool, namespace: str | None, cluster: str | None
) -> int:
    """Forget what a machine is pinned to, so that it can bind itself anew.

    For replaced hardware, a cleared TPM, a lost secret. NAME is the name of the Machine, of its node or of its
    attestation, or its provider ID.
    The policy then decides as for a new machine. Keys that were certified are never certified again. Certificates are
    not revoked: the old one serves until it expires.
    """
    why = check_reason(reason)
    where = connection.namespace(namespace)
    found = run(connection, lambda client: find_attestation(client, name, namespace=where, cluster=cluster))
    print_lines(*cleared_by_reset(found))
    if not yes and not ask_confirmation("Reset it?"):
        print_lines("nothing was changed")
        return ExitCode.REFUSED

    async def write(client: ApiClient) -> str:
        now, by = datetime.now(UTC), await operator(client)
        try:
            written = await client.replace(attestation_path(found), reset(found, by=by, reason=why, now=now))
        except Conflict:
            raise StateError("its MachineAttestation changed meanwhile: check it and reset again") from None
        said = f"reset by {by}: {why}"
        reported = await record_event(client, written, said, now, reason="AttestationReset")
        owner = owner_of(written)
        event = f" and in an Event on {text(owner, 'kind')} {text(owner, 'name')}" if reported else ""
        return f"reset by {by}, on record in spec.resets{event}"

    print_lines(run(connection, write))
    return ExitCode.DONE


def ask_confirmation(question: str) -> bool:
    """Ask; raises ``UserError`` where nobody answers."""
    try:
        return click.confirm(question, default=False)
    except click.Abort:
        raise UserError("no answer; without a terminal, set --yes") from None


def cleared_by_reset(attestation: JsonObject) -> list[str]:
    """Say what a reset of this attestation record forgets, and what it cannot take back."""
    known = parse_attestation(attestation)
    forgets = [f"  forgets {kind} {value}" for kind, value in sorted(known.fingerprints.items())]
    if known.boot is not None:
        forgets.append(f"  forgets the TPM's clock: reset {known.boot.reset_count}, {known.boot.clock} ms")
    if known.issued:
        newest = known.issued[-1]
        keys = "1 key" if len(known.issued) == 1 else f"{len(known.issued)} keys"
        until = rfc3339(newest.not_after)
        forgets.append(f"  retires {keys}; certificate {newest.serial} is not revoked, it serves until {until}")
    after = [
        "  then any machine that satisfies the policy with this provider ID becomes it; a node that still has its",
        "  certificate may ask with it, at once by kubelet-authenticator join --renew, another with a bootstrap token",
    ]
    if known.provider == "insecure":
        after = ["  then any holder of a bootstrap token can become this machine: the insecure provider proves nothing"]
    return [
        title(attestation),
        f"  node {known.node_name or '(none)'}, provider {known.provider or '(none)'}",
        *(forgets or ["  forgets nothing: it has no pins and no certificates"]),
        *after,
    ]


def check_reason(reason: str) -> str:
    """Return a reason for the record; raises ``UserError`` for none."""
    said = " ".join(reason.split())
    if not said or not said.isprintable() or len(said) > MAX_REASON:
        raise UserError(f"--reason: expected 1 to {MAX_REASON} printable characters, got {len(said)}")
    return said


async def operator(client: ApiClient) -> str:
    """Ask the API server for our user name; raises ApiError."""
    group, version, _ = _REVIEW
    asked: JsonObject = {"apiVersion": f"{group}/{version}", "kind": "SelfSubjectReview"}
    answer = await client.create(paths.collection_path(*_REVIEW), asked)
    return text(answer, "status", "userInfo", "username")


async def record_event(client: ApiClient, attestation: JsonObject, message: str, now: datetime, *, reason: str) -> bool:
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
