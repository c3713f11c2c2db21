"""What discovery takes from its caller: a clock, somebody to report to, and how long it may take.

A discovery file taken apart: a kubeconfig of which one cluster, and perhaps one user, is meant.

Promises: text gives one cluster or ``Denied``; nothing in it skips verification, goes through a proxy, speaks plain
http or runs a command; credentials only if the caller allows them; other files are named only by a local file. Two
readers cannot choose different clusters: where kubeadm and client-go would, the file is refused.
Source: client-go tools/clientcmd/api/v1 and validation.go; kubeadm app/util/kubeconfig.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Final

from nodeattest_discovery import clusterinfo
from nodeattest_discovery.clusterinfo import check_server
from nodeattest_discovery.node.clock import Clock, Deadline
from nodeattest_providers.errors import Denied, Reason
from nodeattest_providers.identifiers import is_dns_name
from nodeattest_providers.node_interface import JsonObject, JsonValue

LIMIT: Final = 300.0
"""Seconds for a whole discovery (kubeadm constants.DiscoveryTimeout, its timeouts.discovery)."""
RETRY: Final = 5.0
"""Seconds between two attempts (kubeadm constants.DiscoveryRetryInterval)."""


def _tell_nobody(line: str) -> None:
    del line


@dataclass(frozen=True, slots=True, kw_only=True)
class Environment:
    """Arguments of every way of discovery."""

    clock: Clock = field(default_factory=Clock)
    log: Callable[[str], None] = _tell_nobody
    """Takes one line for the person who waits; never a secret."""
    limit: float = LIMIT
    """Seconds for the whole of one discovery."""
    public_roots: bytes | None = None
    """CAs in PEM for servers of public names (a discovery file by URL); None: those of this machine."""

    def deadline(self) -> Deadline:
        """Start the clock of one discovery."""
        return Deadline.after(self.clock, self.limit)


AUTHENTICATOR: Final = "kubelet-authenticator"
"""The one command that a discovery file may name; nobody runs it because of that."""
_STATIC: Final = frozenset(
    {
        "token",
        "tokenFile",
        "username",
        "password",
        "client-certificate",
        "client-certificate-data",
        "client-key",
        "client-key-data",
    }
)
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
class User:
    """Who the file says that the node shall be; nothing of it shows in a repr."""

    token: str | None = field(default=None, repr=False)
    token_file: FileReference | None = None
    username: str | None = field(default=None, repr=False)
    password: str | None = field(default=None, repr=False)
    certificate: Stored = field(default=None, repr=False)
    key: Stored = field(default=None, repr=False)
    runs_authenticator: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class DiscoveryFile:
    """The cluster that the file means."""

    server: str
    tls_server_name: str | None = None
    ca: Stored = field(default=None, repr=False)
    user: User = field(default_factory=User)


def parse(text: str, *, local: bool, allow_credentials: bool) -> DiscoveryFile:
    """Read the file; raises ``Denied``.

    1. Strict YAML, a kubeconfig with known fields only, no name twice.
    2. No user in it, whether meant or not, holds what is not allowed.
    3. The current context's cluster is meant; without one the unnamed, or the only one.
    4. That cluster is spoken to over https, verified, and directly.
    5. The current context's user is meant, and shows itself in one way.
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
    return DiscoveryFile(
        server=check_server(_text(cluster, "server") or ""),
        tls_server_name=_server_name(cluster),
        ca=_stored(cluster, "certificate-authority", local=local),
        user=_user(users[name], local=local) if name is not None else User(),
    )


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
    unknown = sorted(user.keys() - _STATIC - {"exec", "extensions"})
    if unknown:
        raise not_allowed(
            "users with a token, a password, a client certificate, or none of these",
            ascii(unknown[0][:40])[1:-1],
            "remove the user: a node attests instead",
        )
    static = sorted(user.keys() & _STATIC)
    if static and not allow_credentials:
        raise not_allowed(
            "a cluster and no credentials",
            ", ".join(static),
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


def _user(user: JsonObject, *, local: bool) -> User:
    token_file = _text(user, "tokenFile")
    found = User(
        token=_text(user, "token") if token_file is None else None,  # client-go prefers the file
        token_file=_in_file(token_file, local=local) if token_file is not None else None,
        username=_text(user, "username"),
        password=_text(user, "password"),
        certificate=_stored(user, "client-certificate", local=local),
        key=_stored(user, "client-key", local=local),
        runs_authenticator="exec" in user,
    )
    token = found.token is not None or found.token_file is not None
    basic = found.username is not None or found.password is not None
    certificate = found.certificate is not None or found.key is not None
    if token + basic + certificate + found.runs_authenticator > 1:
        raise malformed("one kind of credential", "several")
    if basic and (found.username is None or found.password is None):
        raise malformed("username and password", "one of them")
    if certificate and (found.certificate is None or found.key is None):
        raise malformed("a client certificate and its key", "one of them")
    return found


def _stored(holder: JsonObject, name: str, *, local: bool) -> Stored:
    """Read ``<name>-data``, which prevails, or else the file that ``<name>`` names."""
    data, path = _text(holder, name + "-data"), _text(holder, name)
    if data is not None:
        try:
            return clusterinfo.decode_data(data)
        except ValueError:
            raise malformed(f"{name}-data in base64", "something else") from None
    return _in_file(path, local=local) if path is not None else None


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
