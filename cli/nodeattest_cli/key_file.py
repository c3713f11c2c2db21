"""The file of ``endorsement-keys import``: CSV (RFC 4180), a machine and its endorsement key on each row.

Any text gives rows in which no machine and no key occurs twice, or ``UserError`` with line, expected, got and remedy.
"""

from __future__ import annotations

import csv
import difflib
import io
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from nodeattest_cli.errors import UserError
from nodeattest_controller.model.machine_record import MACHINE_RECORD
from nodeattest_parsing.values import JsonObject
from nodeattest_providers.errors import Denied
from nodeattest_providers.identifiers import (
    ANNOTATION_TPM_ENDORSEMENT_KEY,
    ProviderID,
    is_dns_name,
    printable,
    provider_id,
)
from nodeattest_providers.tpm.endorsement_key import read_registered_key

MAX_ROWS: Final = 10_000
"""As many as ``spec.tpm.endorsementKeys`` of a policy takes."""
COLUMNS: Final = ("host", "providerID", "endorsementKey", "nodeName", "description")
_MAX_DESCRIPTION: Final = 256
_MAX_LABEL: Final = 63
_SHOWN: Final = 80
_BOM: Final = "\ufeff"
_HEADER: Final = f"{COLUMNS[0]} or {COLUMNS[1]}, and {COLUMNS[2]}; optional are {COLUMNS[3]} and {COLUMNS[4]}"


class HostKind(NamedTuple):
    """A kind of object that a machine's key is written to."""

    group: str
    version: str
    resource: str
    field: tuple[str, ...] = ("metadata", "annotations", ANNOTATION_TPM_ENDORSEMENT_KEY)
    """Where the fingerprint goes."""


_INFRASTRUCTURE: Final = "infrastructure.cluster.x-k8s.io"
HOST_KINDS: Final[Mapping[str, HostKind]] = {
    "BareMetalHost": HostKind("metal3.io", "v1alpha1", "baremetalhosts"),
    "Hardware": HostKind("tinkerbell.org", "v1alpha1", "hardware"),
    "HetznerBareMetalHost": HostKind(_INFRASTRUCTURE, "v1beta1", "hetznerbaremetalhosts"),
    "PooledRemoteMachine": HostKind(_INFRASTRUCTURE, "v1beta1", "pooledremotemachines"),
    MACHINE_RECORD: HostKind(
        "attestation.cluster.x-k8s.io", "v1alpha1", "machinerecords", ("spec", "endorsementKeyHash")
    ),
}
"""By kind. A MachineRecord has a field of its own for the key."""


class HostRef(NamedTuple):
    """One object of ``HOST_KINDS``."""

    kind: str
    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.kind} {self.namespace}/{self.name}"


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyRow:
    """A machine and its key."""

    position: str
    """``line 3``."""
    machine: HostRef | ProviderID
    fingerprint: str
    node_name: str = ""
    description: str = ""

    def entry(self) -> JsonObject:
        """Write the policy's entry; for a provider ID only."""
        optional = {"nodeName": self.node_name, "description": self.description}
        return {
            "providerID": str(self.machine),
            "sha256": self.fingerprint,
            **{name: value for name, value in optional.items() if value},
        }


def parse_key_file(text: str) -> tuple[KeyRow, ...]:
    """Read every row."""
    rows: list[KeyRow] = []
    seen: dict[HostRef | ProviderID | str, str] = {}
    for position, values in _csv_rows(text.removeprefix(_BOM)):
        if len(rows) == MAX_ROWS:
            raise _wrong(position, f"at most {MAX_ROWS} rows", "more", "split the file")
        row = _row(position, values)
        first = seen.setdefault(row.machine, position)
        if first != position:
            got = f"{row.machine} again, after {first}"
            raise _wrong(position, "a machine once", got, "keep the key that its agent uses")
        first = seen.setdefault(row.fingerprint, position)
        if first != position:
            remedy = "read each machine's own key: TPMs share none"
            raise _wrong(position, "a key of one machine", f"the key of {first}", remedy)
        rows.append(row)
    if not rows:
        raise UserError("expected at least one row after the header, got none; write one row for each machine")
    return tuple(rows)


def _csv_rows(text: str) -> Iterator[tuple[str, Mapping[str, str]]]:
    """Yield the line on which each record begins, and its cells by column; blank lines are skipped."""
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)
    columns: Sequence[str] = ()
    line = 1
    try:
        for cells in reader:
            position, line = f"line {line}", reader.line_num + 1
            if not any(cells):
                continue
            if not columns:
                columns = _header(position, [cell.strip() for cell in cells])
                continue
            if len(cells) != len(columns):
                remedy = "put quotes around a cell with a comma or a line break"
                raise _wrong(position, f"{len(columns)} cells, as in the header", str(len(cells)), remedy)
            yield position, dict(zip(columns, (cell.strip() for cell in cells), strict=True))
    except csv.Error as error:
        raise _wrong(f"line {line}", "CSV by RFC 4180", str(error), "close quotes, and double those inside") from None


def _header(position: str, names: Sequence[str]) -> Sequence[str]:
    unknown = next((name for name in names if name not in COLUMNS), None)
    if unknown is not None:
        nearest = difflib.get_close_matches(unknown, COLUMNS, n=1)
        remedy = f"did you mean {nearest[0]}?" if nearest else "remove it"
        raise _wrong(position, f"columns {_HEADER}", printable(unknown[:_SHOWN]) or "an empty name", remedy)
    if len(set(names)) != len(names) or "endorsementKey" not in names or not {"host", "providerID"} & set(names):
        got = ",".join(names)[:_SHOWN]
        raise _wrong(position, f"a header with each column once: {_HEADER}", got, "write the header as the first line")
    return names


def _row(position: str, values: Mapping[str, str]) -> KeyRow:
    host, machine = values.get("host", ""), values.get("providerID", "")
    if bool(host) == bool(machine):
        got = "both" if host else "neither"
        raise _wrong(position, "either a host or a providerID", got, "name the machine by one of the two")
    node_name, description = values.get("nodeName", ""), values.get("description", "")
    if node_name and (host or not is_dns_name(node_name)):
        got = "one with a host" if host else printable(node_name[:_SHOWN])
        raise _wrong(
            position, "a nodeName beside a providerID: an RFC 1123 subdomain in lower case", got, "correct or remove it"
        )
    if len(description) > _MAX_DESCRIPTION or not description.isprintable():
        expected = f"a description of at most {_MAX_DESCRIPTION} printable characters"
        raise _wrong(position, expected, f"{len(description)} characters", "shorten it")
    try:
        return KeyRow(
            position=position,
            machine=_host(position, host) if host else provider_id(machine),
            fingerprint=read_registered_key(values.get("endorsementKey", "")),
            node_name=node_name,
            description=description,
        )
    except Denied as denied:
        raise _wrong(position, denied.expected, denied.got, denied.remedy) from None


def _host(position: str, text: str) -> HostRef:
    kind, _, rest = text.partition("/")
    namespace, _, name = rest.partition("/")
    if kind not in HOST_KINDS or not _is_label(namespace) or not is_dns_name(name):
        expected = f"Kind/namespace/name, of the kinds {', '.join(HOST_KINDS)}"
        got = printable(text[:_SHOWN])
        raise _wrong(position, expected, got, "write such as BareMetalHost/metal3/rack-1-node-7")
    return HostRef(kind, namespace, name)


def _is_label(text: str) -> bool:
    return len(text) <= _MAX_LABEL and "." not in text and is_dns_name(text)


def _wrong(position: str, expected: str, got: str, remedy: str) -> UserError:
    return UserError(f"{position}: expected {expected}, got {got}; {remedy}")
