"""A person's kubeconfig, of which one cluster's server and CAs are replaced and nothing else.

Promises: users and their commands are never looked at; the file changes by one rename, under kubectl's own lock, and
keeps its mode and owner. Comments are lost, as with ``kubectl config``.
Source: client-go tools/clientcmd/config.go (lockFile, WriteToFile), api/v1/types.go.
"""

from __future__ import annotations

import base64
import os
import stat
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from nodeattest_authenticator.state.storage import write_atomically
from nodeattest_cli.documents import read_objects
from nodeattest_cli.errors import StateError, UserError, user_errors
from nodeattest_cli.output import to_yaml
from nodeattest_controller.model.objects import flag, items, mapping, text
from nodeattest_discovery.clusterinfo import parse_ca_bundle
from nodeattest_kube.jsontypes import JsonObject
from nodeattest_parsing.strict_base64 import decode_base64

__all__ = ["PersonalCluster", "read", "write"]

_LARGEST_CA: Final = 1 << 20
"""Bytes of a CA file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PersonalCluster:
    """What a kubeconfig knows of the cluster of its context."""

    name: str
    server: str
    ca_pem: bytes = field(repr=False)
    tls_server_name: str | None = None


def read(path: Path, context: str | None) -> PersonalCluster:
    """Read it; raises ``UserError``.

    1. The context names one cluster. 2. Its server is verified. 3. By CAs of its own.
    """
    # 1
    document = _document(path)
    chosen = context or text(document, "current-context")
    if not chosen:
        raise UserError(f"{path}: expected current-context, got none: set --context")
    name = text(_one(document, "contexts", chosen, "context", path), "cluster")
    cluster = _one(document, "clusters", name, "cluster", path)
    # 2
    if flag(cluster, "insecure-skip-tls-verify"):
        raise UserError(f"{path}: expected a server that is verified, got insecure-skip-tls-verify")
    # 3
    ca_pem = _ca(cluster, path)
    with user_errors(str(path)):
        parse_ca_bundle(ca_pem)
    return PersonalCluster(
        name=name,
        server=text(cluster, "server"),
        ca_pem=ca_pem,
        tls_server_name=text(cluster, "tls-server-name") or None,
    )


def write(path: Path, known: PersonalCluster, *, server: str, tls_server_name: str | None, ca_pem: bytes) -> None:
    """Put another server and other CAs there; raises ``UserError``, also if the cluster changed since it was read."""
    with _locked(path):
        document = _document(path)
        cluster = _one(document, "clusters", known.name, "cluster", path)
        if text(cluster, "server") != known.server or _ca(cluster, path) != known.ca_pem:
            raise StateError(f"{path}: changed meanwhile; try again")
        cluster["server"] = server
        cluster["certificate-authority-data"] = base64.b64encode(ca_pem).decode()
        cluster.pop("certificate-authority", None)
        cluster.pop("tls-server-name", None)
        if tls_server_name is not None:
            cluster["tls-server-name"] = tls_server_name
        try:
            target = path.resolve()
            if target.stat().st_uid != os.geteuid():
                raise UserError(f"{path}: belongs to another user, who would lose it: run this as that user")
            write_atomically(str(target), to_yaml(document).encode(), mode=stat.S_IMODE(target.stat().st_mode))
        except OSError as error:
            raise UserError(f"{path}: {error.strerror}") from None


def _document(path: Path) -> JsonObject:
    found = read_objects(str(path))
    if len(found) != 1:
        raise UserError(f"{path}: expected one kubeconfig, got {len(found)} documents")
    return found[0]


def _one(document: JsonObject, plural: str, name: str, singular: str, path: Path) -> JsonObject:
    found = [entry for entry in items(document, plural) if text(entry, "name") == name]
    if len(found) != 1:
        raise UserError(f"{path}: expected one {singular} {name[:80]!a}, got {len(found)}")
    return mapping(found[0], singular)


def _ca(cluster: JsonObject, path: Path) -> bytes:
    data, file = text(cluster, "certificate-authority-data"), text(cluster, "certificate-authority")
    try:
        if data:
            return decode_base64("".join(data.split()))
        if file:
            with (path.parent / file).open("rb") as opened:
                return opened.read(_LARGEST_CA)
    except ValueError:
        raise UserError(f"{path}: expected certificate-authority-data in base64, got something else") from None
    except OSError as error:
        raise UserError(f"{file}: {error.strerror}") from None
    raise UserError(f"{path}: expected CAs of the cluster to verify it by, got none; the system's are not refreshed")


@contextmanager
def _locked(path: Path) -> Generator[None]:
    lock = Path(f"{path}.lock")
    try:
        os.close(os.open(lock, os.O_CREAT | os.O_EXCL, 0))
    except FileExistsError:
        raise UserError(f"{lock} exists: another command writes the kubeconfig, or was killed; try again") from None
    except OSError as error:
        raise UserError(f"{lock}: {error.strerror}") from None
    try:
        yield
    finally:
        lock.unlink(missing_ok=True)
