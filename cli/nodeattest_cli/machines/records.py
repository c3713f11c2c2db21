"""``nodeattest machines reset``, and the one place that finds and writes attestation records for an operator.

A write is a compare-and-swap on what was shown. Who, when and why are in the record and in an Event. What a reset
means: ``nodeattest_controller.model.attestation``.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import Final

import click

from nodeattest_cli.connection import Connection, run
from nodeattest_cli.fleet import OWN, read_fleet
from nodeattest_cli.options import cluster_option, connected, namespace_option
from nodeattest_cli.output import ExitCode, StateError, UserError, is_confirmed, listed, print_lines
from nodeattest_controller.model.attestation_object import MAX_REASON, owner_of, parse_attestation, reset
from nodeattest_kube import paths
from nodeattest_kube.client import ApiClient
from nodeattest_kube.errors import AlreadyExists, ApiError, Conflict
from nodeattest_kube.events import ObjectRef, event_document
from nodeattest_parsing.objects import metadata, rfc3339, text
from nodeattest_parsing.values import JsonObject

_ATTESTATIONS: Final = "machineattestations"
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
    why, where = check_reason(reason), connection.namespace(namespace)
    found = run(connection, lambda client: find_record(client, name, namespace=where, cluster=cluster))
    print_lines(*_cleared_by_reset(found))
    if not yes and not is_confirmed("Reset it?"):
        print_lines("nothing was changed")
        return ExitCode.REFUSED

    async def write(client: ApiClient) -> str:
        async def replace(by: str, now: datetime) -> JsonObject:
            return await client.replace(record_path(found), reset(found, by=by, reason=why, now=now))

        _, trail = await change_record(client, replace, verb="reset", reason=why, event="AttestationReset")
        return trail

    print_lines(run(connection, write))
    return ExitCode.DONE


def _cleared_by_reset(record: JsonObject) -> list[str]:
    """Say what a reset forgets, and what it cannot take back."""
    known = parse_attestation(record)
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
        title(record),
        f"  node {known.node_name or '(none)'}, provider {known.provider or '(none)'}",
        *(forgets or ["  forgets nothing: it has no pins and no certificates"]),
        *after,
    ]


# Records


async def find_record(client: ApiClient, name: str, *, namespace: str, cluster: str | None) -> JsonObject:
    """Find the one record by the name of its Machine or node, its own, or the provider ID; raises ``UserError``."""
    records = await read_fleet(client, namespace, _ATTESTATIONS, cluster=cluster)
    found = [one for one in records if name in _names(one) and cluster in {None, text(one, "spec", "clusterName")}]
    if not found:
        where = f"namespace {namespace}" + (f", cluster {cluster}" if cluster else "")
        raise StateError(
            f"no machine {name} has a MachineAttestation in {where}: it never joined attested, or set -n and "
            "--cluster; nodeattest machines list -A lists all"
        )
    if len(found) > 1:
        names = listed((f"{title(one)}, {text(one, 'metadata', 'name')}" for one in found), between="; ")
        how = "name it by its provider ID or MachineAttestation"
        raise UserError(f"{name} is one of {len(found)} machines, {how}: {names}")
    return found[0]


def _names(record: JsonObject) -> set[str]:
    names = {text(record, "spec", field) for field in ("machineName", "nodeName", "providerID")}
    return (names | {text(record, "metadata", "name")}) - {""}


def record_path(record: JsonObject) -> str:
    """Return the path of a record's object."""
    meta = metadata(record)
    return paths.object_path(*OWN, _ATTESTATIONS, text(meta, "name"), namespace=text(meta, "namespace"))


def title(record: JsonObject) -> str:
    """Name a record's machine in a message."""
    machine, cluster = text(record, "spec", "machineName"), text(record, "spec", "clusterName")
    namespace, provider_id = text(record, "metadata", "namespace"), text(record, "spec", "providerID")
    return f"{machine or '(no name)'} of {namespace}/{cluster} ({provider_id})"


def check_reason(reason: str) -> str:
    """Return a reason for the record; raises ``UserError`` for none."""
    said = " ".join(reason.split())
    if not said or not said.isprintable() or len(said) > MAX_REASON:
        raise UserError(f"--reason: expected 1 to {MAX_REASON} printable characters, got {len(said)}")
    return said


async def change_record(
    client: ApiClient,
    write: Callable[[str, datetime], Awaitable[JsonObject]],
    *,
    verb: str,
    reason: str,
    event: str,
) -> tuple[JsonObject, str]:
    """Write a record as this user, and the Event; returns the record and who did what. Raises ``StateError``.

    ``write`` takes the user's name and the time. ``verb`` is what was done, ``event`` the Event's reason.
    """
    api_version = "/".join(_REVIEW[:2])
    review: JsonObject = {"apiVersion": api_version, "kind": "SelfSubjectReview"}
    answer = await client.create(paths.collection_path(*_REVIEW), review)
    by, now = text(answer, "status", "userInfo", "username"), datetime.now(UTC)
    try:
        written = await write(by, now)
    except (AlreadyExists, Conflict):
        raise StateError("its MachineAttestation changed meanwhile: check it and try again") from None
    trail, owner = f"{verb} by {by}, on record in spec.resets", owner_of(written)
    if owner and await _record_event(client, written, f"{verb} by {by}: {reason}", now, event):
        trail += f" and in an Event on {text(owner, 'kind')} {text(owner, 'name')}"
    return written, trail


async def _record_event(client: ApiClient, record: JsonObject, message: str, now: datetime, reason: str) -> bool:
    """Write the Event on the record's owner; what is done is not undone because this is not allowed."""
    owner, namespace = owner_of(record), text(record, "metadata", "namespace")
    subject = ObjectRef(
        api_version=text(owner, "apiVersion"),
        kind=text(owner, "kind"),
        namespace=namespace,
        name=text(owner, "name"),
        uid=text(owner, "uid"),
    )
    source = {"component": "nodeattest", "instance": "nodeattest"}
    document = event_document(subject, kind="Warning", reason=reason, message=message, now=now, **source)
    try:
        await client.create(paths.core_path("events", namespace=namespace), document)
    except ApiError as error:
        print_lines(f"nodeattest: the Event could not be written: {error}", err=True)
        return False
    return True
