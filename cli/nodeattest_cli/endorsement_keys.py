"""``nodeattest endorsement-keys import``: print the objects that register the keys of a CSV or JSON file.

The command needs no cluster. ``kubectl apply --server-side`` writes what it prints.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from typing import Final

import click
import yaml
from cryptography import x509
from cryptography.hazmat.primitives.serialization import load_pem_public_key

from nodeattest_cli.documents import MAX_FILE, read_text
from nodeattest_cli.output import ExitCode, UserError, print_exactly, user_errors
from nodeattest_parsing import strict_json
from nodeattest_parsing.values import JsonObject, ParseError
from nodeattest_providers.certificate_chain import X509_ERRORS
from nodeattest_providers.identifiers import ANNOTATION_TPM_ENDORSEMENT_KEY, is_dns_name, printable, provider_id
from nodeattest_providers.keys import (
    ENDORSEMENT_FINGERPRINT,
    FINGERPRINT_FORM,
    check_key_type,
    endorsement_fingerprint,
)

COLUMNS: Final = ("host", "providerID", "endorsementKey", "nodeName", "description")
"""A row has either ``host`` or ``providerID``. The last two columns are for a provider ID only."""
HOST_KINDS: Final[Mapping[str, str]] = {
    "BareMetalHost": "metal3.io/v1alpha1",
    "Hardware": "tinkerbell.org/v1alpha1",
    "HetznerBareMetalHost": "infrastructure.cluster.x-k8s.io/v1beta1",
    "PooledRemoteMachine": "infrastructure.cluster.x-k8s.io/v1beta1",
    "MachineRecord": "attestation.cluster.x-k8s.io/v1alpha1",
}
"""The kinds of ``host``, each with its apiVersion."""
_OWN_VERSION: Final = HOST_KINDS["MachineRecord"]
_MAX_ROWS: Final = 10_000
"""As many as ``spec.tpm.endorsementKeys`` of a policy can have."""


@click.command("import")
@click.argument("path", metavar="FILE")
@click.option("--policy", metavar="NAME", help="Policy that gets the rows with a providerID.")
@click.option("-n", "--namespace", default="default", show_default=True, help="Namespace of the policy.")
def import_keys(*, path: str, policy: str | None, namespace: str) -> int:
    """Print the objects that register the endorsement keys of FILE (CSV, or a JSON list; - is standard input).

    Apply the output with `kubectl apply --server-side -f -`. Each row has a host (Kind/namespace/name) or a
    providerID, and an endorsementKey: a fingerprint, or a certificate or public key in PEM. A host object gets an
    annotation, a MachineRecord its spec.endorsementKeyHash, and a providerID an entry in the policy.
    """
    name = "standard input" if path == "-" else path
    objects: list[JsonObject] = []
    entries: list[JsonObject] = []
    seen: dict[str, int] = {}
    for number, row in enumerate(_rows(read_text(path, "CSV or JSON"), name), start=1):
        try:
            machine, fingerprint = _machine(row), read_key(row.get("endorsementKey", ""))
            _check_is_new(machine, number, seen)
            _check_is_new(fingerprint, number, seen)
            if row.get("host"):
                objects.append(_host(machine, fingerprint))
            else:
                entries.append(_entry(row, fingerprint))
        except UserError as error:
            raise UserError(f"{name}: row {number}: {error}") from None
    if bool(entries) != (policy is not None):
        problem = "no row has a providerID" if policy else "set it, because a row has a providerID"
        raise UserError(f"--policy: {problem}")
    if entries:
        spec: JsonObject = {"tpm": {"endorsementKeys": [*entries]}}
        objects.append(_object("NodeAttestationPolicy", namespace, policy or "", spec=spec))
    print_exactly(yaml.safe_dump_all(objects, sort_keys=False, allow_unicode=True))
    return ExitCode.DONE


def read_key(text: str) -> str:
    """Return the fingerprint of an endorsement key. Raises UserError."""
    text = text.strip()
    if ENDORSEMENT_FINGERPRINT.fullmatch(text):
        return text
    try:
        if text.startswith("-----BEGIN CERTIFICATE-----"):
            key: object = x509.load_pem_x509_certificate(text.encode()).public_key()
        else:
            key = load_pem_public_key(text.encode())
        return endorsement_fingerprint(check_key_type(key))
    except X509_ERRORS as error:
        expected = f"{FINGERPRINT_FORM}, or a certificate or public key in PEM"
        first = text.partition("\n")[0]  # the others may be those of a private key
        raise UserError(
            f"endorsementKey: expected {expected}, got {printable(first)} ({error}); use the endorsementFingerprint "
            "that `kubelet-authenticator evidence --provider tpm` prints on the machine"
        ) from None


def _rows(text: str, name: str) -> Sequence[Mapping[str, str]]:
    """Return the rows by column. Raises UserError."""
    text = text.removeprefix("\ufeff")
    try:
        header: set[str] = set()
        if text.lstrip().startswith("["):
            found = _json_rows(text, name)
        else:
            reader = csv.DictReader(io.StringIO(text, newline=""), strict=True, restval="", restkey="")
            found = [{column: str(value) for column, value in row.items()} for row in reader]
            header.update(reader.fieldnames or ())  # a file without rows has them, too
        header.update(column for row in found for column in row)
    except (csv.Error, ParseError) as error:
        raise UserError(f"{name}: expected CSV or JSON, got {error}") from None
    unknown = sorted(header - set(COLUMNS))
    if unknown or "endorsementKey" not in header:
        got = f"the column {printable(unknown[0])}" if unknown else "no column endorsementKey"
        raise UserError(f"{name}: expected the columns {', '.join(COLUMNS)}, got {got}")
    if not 0 < len(found) <= _MAX_ROWS:
        raise UserError(f"{name}: expected 1 to {_MAX_ROWS} rows, got {len(found)}")
    return found


def _json_rows(text: str, name: str) -> list[dict[str, str]]:
    parsed = strict_json.parse(text.encode(), max_size=MAX_FILE, max_depth=2)
    found: list[dict[str, str]] = []
    for number, row in enumerate(parsed if isinstance(parsed, list) else (), start=1):
        columns = row if isinstance(row, dict) else {}
        texts = {column: value for column, value in columns.items() if isinstance(value, str)}
        if not texts or len(texts) < len(columns):
            raise UserError(f"{name}: row {number}: expected an object of strings")
        found.append(texts)
    return found


def _check_is_new(value: str, number: int, seen: dict[str, int]) -> None:
    if seen.setdefault(value, number) != number:
        raise UserError(f"{value} is already in row {seen[value]}; remove one of the rows")


def _machine(row: Mapping[str, str]) -> str:
    host, machine = row.get("host", ""), row.get("providerID", "")
    if bool(host) == bool(machine):
        raise UserError(f"expected either host or providerID, got {'both' if host else 'neither'}")
    if host and (row.get("nodeName") or row.get("description")):
        raise UserError("expected nodeName and description with a providerID only; remove them, or set the providerID")
    if machine:
        with user_errors("providerID"):
            return provider_id(machine)
    kind, _, rest = host.partition("/")
    namespace, _, name = rest.partition("/")
    if kind not in HOST_KINDS or not is_dns_name(namespace) or not is_dns_name(name):
        kinds = ", ".join(HOST_KINDS)
        raise UserError(f"host: expected Kind/namespace/name with a kind of {kinds}, got {printable(host)}")
    return host


def _host(host: str, fingerprint: str) -> JsonObject:
    kind, namespace, name = host.split("/")
    if kind == "MachineRecord":
        return _object(kind, namespace, name, spec={"endorsementKeyHash": fingerprint})
    return _object(kind, namespace, name, annotations={ANNOTATION_TPM_ENDORSEMENT_KEY: fingerprint})


def _entry(row: Mapping[str, str], fingerprint: str) -> JsonObject:
    node_name = row.get("nodeName", "")
    if node_name and not is_dns_name(node_name):
        raise UserError(f"nodeName: expected a DNS name in lower case, got {printable(node_name)}")
    entry: JsonObject = {"providerID": row["providerID"], "sha256": fingerprint}
    return entry | {column: row[column] for column in ("nodeName", "description") if row.get(column)}


def _object(
    kind: str, namespace: str, name: str, *, spec: JsonObject | None = None, annotations: JsonObject | None = None
) -> JsonObject:
    metadata: JsonObject = {"namespace": namespace, "name": name}
    if annotations is not None:
        metadata["annotations"] = annotations
    made: JsonObject = {"apiVersion": HOST_KINDS.get(kind, _OWN_VERSION), "kind": kind, "metadata": metadata}
    return made if spec is None else {**made, "spec": spec}
