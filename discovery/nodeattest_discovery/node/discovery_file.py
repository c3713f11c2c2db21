"""A discovery file taken apart: a kubeconfig of which one cluster, and perhaps one user, is meant.

Promises: text gives one cluster or ``Denied``; nothing in it skips verification, goes through a proxy, speaks plain
http or runs a command; no credential but a token, and that only if the caller allows it; other files are named only by
a local file. Two readers cannot choose different clusters: where kubeadm and client-go would, the file is refused.
Source: client-go tools/clientcmd/api/v1 and validation.go; kubeadm app/util/kubeconfig.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Final

from nodeattest_discovery import clusterinfo
from nodeattest_discovery.clusterinfo import check_server
from nodeattest_providers.errors import Denied, Reason
from nodeattest_providers.identifiers import is_dns_name
from nodeattest_providers.node_interface import JsonObject, JsonValue

AUTHENTICATOR: Final = "kubelet-authenticator"
"""The one command that a discovery file may name; nobody runs it because of that."""
_TOKENS: Final = frozenset({"token", "tokenFile"})
_TOKEN: Final = re.compile(r"[\x21-\x7e]{1,65536}", re.ASCII)
"""What may be in a header."""
_CLUSTER_FIELDS: Final = frozenset(
    {
        "server",
        "certificate-authority",
        "certificate-authority-data",
        "tls-server-name",
        "disable-compression",
        "extensions",
    }
)


@dataclass(frozen=True, slots=True)
class FileReference:
    """Something that is in another local file."""

    path: str


Stored = bytes | FileReference | None


@dataclass(frozen=True, slots=True, kw_only=True)
class DiscoveryFile:
    """The cluster that the file means."""

    server: str
    tls_server_name: str | None = None
    ca: Stored = field(default=None, repr=False)
    token: str | FileReference | None = field(default=None, repr=False)
    """A bearer token, where credentials are allowed."""
    runs_authenticator: bool = False
    """The file's user runs ``kubelet-authenticator``: a node that attests needs no other credential."""


def parse(text: str, *, local: bool, allow_credentials: bool) -> DiscoveryFile:
    """Read the file; raises ``Denied``.

    1. Strict YAML, a kubeconfig with known fields only, no name twice.
    2. No user in it, whether meant or not, holds what is not allowed.
    3. The current context's cluster is meant; without one the unnamed, or the only one.
    4. That cluster is spoken to over https, verified, and directly.
    5. The current context's user is meant, and has a token or runs the agent, not both.
    """
    # 1
    document = clusterinfo.parse_kubeconfig_document(text, malformed)
    clusters = _named(document, "clusters", "cluster")
    contexts = _named(document, "contexts", "context")
    users = _named(document, "users", "user")
    # 2
    for user in users.values():
        _check_user(user, local=local, allow_credentials=allow_credentials)
    # 3
    context = _current(document, contexts)
    cluster = _meant(clusters, context)
    # 4
    _check_cluster(cluster)
    # 5
    name = _text(context, "user")
    if name is not None and name not in users:
        raise malformed("the current context's user", "none of that name")
    user = users[name] if name is not None else {}
    if "exec" in user and user.keys() & _TOKENS:
        raise malformed("one kind of credential", "several")
    return DiscoveryFile(
        server=check_server(_text(cluster, "server") or ""),
        tls_server_name=_server_name(cluster),
        ca=_ca(cluster, local=local),
        token=_token(user, local=local),
        runs_authenticator="exec" in user,
    )


def checked_token(text: str) -> str:
    """Return a bearer token that a header can hold; raises ``Denied``."""
    if _TOKEN.fullmatch(text) is None:
        raise malformed("a token of visible ASCII characters", f"{len(text)} characters")
    return text


def malformed(expected: str, got: str) -> Denied:
    """Report that the file is no such kubeconfig."""
    remedy = "make one: nodeattest cluster-info show -o kubeconfig"
    return Denied(Reason.CLUSTER_INFO_MALFORMED, expected=expected, got=got, remedy=remedy)


def not_allowed(expected: str, got: str, remedy: str) -> Denied:
    """Report that the file holds what it must not."""
    return Denied(Reason.DISCOVERY_FILE_NOT_ALLOWED, expected=expected, got=got, remedy=remedy)


def _named(document: JsonObject, section: str, key: str) -> dict[str, JsonObject]:
    """Read a list of named things; two of one name are refused, as in client-go."""
    rows = document.get(section) or []
    found: dict[str, JsonObject] = {}
    for row in rows if isinstance(rows, list) else [rows]:
        name = (row.get("name") or "") if isinstance(row, dict) else None
        value = (row.get(key) or {}) if isinstance(row, dict) else None
        if not isinstance(name, str) or not isinstance(value, dict) or name in found:
            raise malformed(f"{section} with a name and a {key} each, no name twice", "something else")
        found[name] = {field: held for field, held in value.items() if held not in (None, "", False, [], {})}
    return found


def _current(document: JsonObject, contexts: dict[str, JsonObject]) -> JsonObject:
    name = document.get("current-context") or ""
    if not isinstance(name, str) or (name and name not in contexts):
        raise malformed("the current context among the contexts", "none of that name")
    return contexts.get(name, {})


def _meant(clusters: dict[str, JsonObject], context: JsonObject) -> JsonObject:
    name = _text(context, "cluster")
    if name is None:
        name = next(iter(clusters), "") if len(clusters) == 1 else ""
    elif name and "" in clusters:
        # kubeadm takes the unnamed cluster, and connects to the current context's.
        raise malformed("one cluster that is meant", "the current context's, and an unnamed one besides")
    if name not in clusters:
        raise malformed("a current context with a cluster, an unnamed cluster, or only one", str(len(clusters)))
    return clusters[name]


def _check_cluster(cluster: JsonObject) -> None:
    remedy = "remove it: the server must prove by its certificate that it is the cluster's"
    if "insecure-skip-tls-verify" in cluster:
        raise not_allowed("a server that is verified", "insecure-skip-tls-verify", remedy)
    if (_text(cluster, "server") or "").lower().startswith("http:"):
        raise not_allowed("an https server", "a server over plain http", "write https:// and the CA of its certificate")
    clusterinfo.check_fields(cluster, _CLUSTER_FIELDS, "clusters[].cluster.", malformed)


def _server_name(cluster: JsonObject) -> str | None:
    name = _text(cluster, "tls-server-name")
    if name is not None and not is_dns_name(name.lower()):
        raise malformed("tls-server-name: a DNS name", f"{len(name)} characters")
    return name


def _check_user(user: JsonObject, *, local: bool, allow_credentials: bool) -> None:
    """Refuse power that a discovery file must not carry; fields are named, values never."""
    others = sorted(user.keys() - _TOKENS - {"exec", "extensions"})
    if others:
        remedy = "remove the user: a node attests instead"
        raise not_allowed("users with a token or none", ascii(others[0][:40])[1:-1], remedy)
    tokens = sorted(user.keys() & _TOKENS)
    if tokens and not allow_credentials:
        raise not_allowed(
            "a cluster and no credentials",
            ", ".join(tokens),
            "remove the user; if the node must ask with these, allow them: --discovery-file-allow-credentials",
        )
    if "exec" in user:
        _check_command(user["exec"], local=local)


def _check_command(plugin: JsonValue, *, local: bool) -> None:
    command = plugin.get("command") if isinstance(plugin, dict) else None
    remedy = f"remove the user, or let it run {AUTHENTICATOR}"
    if not local:
        raise not_allowed("commands in a local file only", "a command from elsewhere", remedy)
    if not isinstance(command, str) or PurePosixPath(command).name != AUTHENTICATOR:
        raise not_allowed(f"no other command than {AUTHENTICATOR}", "another command", remedy)


def _token(user: JsonObject, *, local: bool) -> str | FileReference | None:
    path, token = _text(user, "tokenFile"), _text(user, "token")
    if path is not None:  # client-go prefers the file
        return _in_file(path, local=local)
    return None if token is None else checked_token(token)


def _ca(cluster: JsonObject, *, local: bool) -> Stored:
    """Read ``certificate-authority-data``, which prevails, or else the file that ``certificate-authority`` names."""
    data, path = _text(cluster, "certificate-authority-data"), _text(cluster, "certificate-authority")
    if data is None:
        return _in_file(path, local=local) if path is not None else None
    try:
        return clusterinfo.decode_data(data)
    except ValueError:
        raise malformed("certificate-authority-data in base64", "something else") from None


def _in_file(path: str, *, local: bool) -> FileReference:
    if not local or "\0" in path:
        raise not_allowed(
            "a file that stands for itself", "one that names other files of this machine", "embed them: …-data"
        )
    return FileReference(path)


def _text(holder: JsonObject, name: str) -> str | None:
    value = holder.get(name)
    if value is not None and not isinstance(value, str):
        raise malformed(f"{name} to be text", type(value).__name__)
    return value
