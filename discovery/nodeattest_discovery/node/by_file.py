"""Discovery by file: a kubeconfig from a trusted source, by path, https URL or standard input.

Before any request, a file is refused if it skips verification, uses a proxy or plain http, or runs a command. The
server that it names is verified by the file's CA. Only then it may receive a token of the file, if the caller allows
one. A file in which kubeadm and client-go would choose different clusters is refused.
Source: kubeadm discovery/file/file.go, discovery/https and app/util/kubeconfig; client-go tools/clientcmd/api/v1 and
validation.go.
"""

from __future__ import annotations

import http
import re
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePosixPath
from typing import Final
from urllib.parse import urlsplit

from nodeattest_discovery import clusterinfo
from nodeattest_discovery.clusterinfo import ClusterInfo, check_server
from nodeattest_discovery.node import client, https
from nodeattest_discovery.node.client import Environment, Found, first_valid, parse_server
from nodeattest_discovery.node.clock import Deadline
from nodeattest_parsing.endpoint import Endpoint
from nodeattest_providers.errors import Denied, Reason, Unavailable
from nodeattest_providers.identifiers import is_dns_name, printable
from nodeattest_providers.node_interface import JsonObject, JsonValue

AUTHENTICATOR: Final = "kubelet-authenticator"
"""The only command that a discovery file may name. Discovery does not run it."""
_TOKENS: Final = frozenset({"token", "tokenFile"})
_TOKEN: Final = re.compile(r"[\x21-\x7e]{1,65536}", re.ASCII)
"""A token that a header can hold."""
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
    """Content in another local file."""

    path: str


Stored = bytes | FileReference | None


@dataclass(frozen=True, slots=True, kw_only=True)
class DiscoveryFile:
    """The cluster and user that a discovery file selects."""

    server: str
    tls_server_name: str | None = None
    ca: Stored = field(default=None, repr=False)
    token: str | FileReference | None = field(default=None, repr=False)
    """A bearer token, if credentials are allowed."""
    runs_authenticator: bool = False
    """Whether the user runs ``kubelet-authenticator``, so that the node needs no other credential."""


def parse_discovery_file(text: str, *, local: bool, allow_credentials: bool) -> DiscoveryFile:
    """Parse a discovery file. Raises ``Denied``.

    1. It is a kubeconfig in strict YAML with known fields only and unique names.
    2. No user, selected or not, holds anything that is not allowed.
    3. It selects the current context's cluster, else the unnamed or the only one.
    4. The cluster is reached over https, verified and without a proxy.
    5. It selects the current context's user, who has a token or runs the agent, not both.
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
    """Return a bearer token unchanged. Raises ``Denied`` if a header cannot hold it."""
    if _TOKEN.fullmatch(text) is None:
        raise malformed("a token of visible ASCII characters", f"{len(text)} characters")
    return text


def malformed(expected: str, got: str) -> Denied:
    """Return the refusal of an invalid file."""
    remedy = "make one: nodeattest cluster-info show -o kubeconfig"
    return Denied(Reason.CLUSTER_INFO_MALFORMED, expected=expected, got=got, remedy=remedy)


def not_allowed(expected: str, got: str, remedy: str) -> Denied:
    """Return the refusal of content that is not allowed."""
    return Denied(Reason.DISCOVERY_FILE_NOT_ALLOWED, expected=expected, got=got, remedy=remedy)


def _named(document: JsonObject, section: str, key: str) -> dict[str, JsonObject]:
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
        # kubeadm takes the CA of the unnamed cluster, and connects to the current context's.
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
    """Refuse credentials and commands that are not allowed. Messages name fields, never values."""
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


_STDIN: Final = "-"
_FILE_WITHOUT_CA: Final = (
    "the discovery file has no CA, so this machine's own root certificates were used: put the cluster's CA into the "
    "file, as certificate-authority-data"
)
_FILE_BY_URL: Final = (
    "this machine's own root certificates were used: install the CA of that server on this machine, or copy the "
    "discovery file here and give its path"
)


def by_file(
    source: str, environment: Environment, *, stdin: Callable[[], bytes], allow_credentials: bool = False
) -> Found:
    """Find the cluster that a file names. ``source``: a path, an https URL, or ``-`` for standard input.

    A server that forbids reading cluster-info (403) is accepted, as in kubeadm: its certificate passed, and the file is
    trusted. Raises ``Denied`` if a retry does not help, and ``Unavailable`` at the time limit.

    1. Read the file. 2. Parse it. 3. Read the files that it names. 4. Query its server.
    """
    deadline = environment.deadline()
    # 1
    data, folder = _read(source, environment, deadline, stdin)
    try:
        text = data.decode()
    except UnicodeDecodeError:
        raise malformed("a kubeconfig in YAML", "bytes that are not UTF-8") from None
    # 2
    parsed = parse_discovery_file(text, local=folder is not None, allow_credentials=allow_credentials)
    # 3
    base = folder or Path()
    pem = _local(base / parsed.ca.path) if isinstance(parsed.ca, FileReference) else parsed.ca
    certificates = clusterinfo.parse_ca_bundle(pem) if pem is not None else ()
    token = parsed.token
    if isinstance(token, FileReference):
        token = checked_token(_local(base / token.path).decode("ascii", "replace").strip())
    # 4
    info = ClusterInfo(server=parsed.server, ca_certificates=certificates, tls_server_name=parsed.tls_server_name)
    found = Found(info=info, asked="", token=token, runs_authenticator=parsed.runs_authenticator)
    return first_valid(
        [parse_server(info.server)],
        lambda server: _confirmed(server, found, deadline, environment.public_roots),
        deadline,
        environment.log,
    )


def _confirmed(server: Endpoint, found: Found, deadline: Deadline, public_roots: bytes | None) -> Found:
    """Query the server over a verified connection. Raises ``Unavailable`` or ``Denied``.

    1. Verify its certificate by the file's CAs, or this machine's if the file has none.
    2. Read cluster-info. If it is forbidden or invalid, the file counts.
    3. Keep the file's CAs, or take those of cluster-info if the file has none.
    """
    # 1
    certificates, notes = found.info.ca_certificates, found.notes
    roots = client.anchors(certificates, deadline.clock) if certificates else public_roots
    trust = https.Verified(ca_pem=roots, server_name=found.info.tls_server_name)
    # 2
    untrusted = client.UNTRUSTED if certificates else _FILE_WITHOUT_CA
    try:
        published = client.fetch_cluster_info(server, trust, deadline, token=found.token, untrusted=untrusted)
        cluster_info = clusterinfo.parse(published.kubeconfig or "")
        if parse_server(cluster_info.server) != server:
            notes += (f"the cluster names {cluster_info.server} as its server, not {server.url}, which the file names",)
        certificates = certificates or cluster_info.ca_certificates
    except client.RefusedError as refused:
        if refused.status != http.HTTPStatus.FORBIDDEN:
            raise
        notes += (f"{server.url} does not let us read cluster-info; its certificate passed, so the file counts",)
    except Denied as denied:
        notes += (f"cluster-info is not used: expected {denied.expected}, got {denied.got}",)
    # 3
    if not certificates:
        raise malformed("certificate-authority-data in the file or in cluster-info", "none")
    return replace(found, info=replace(found.info, ca_certificates=certificates), asked=server.url, notes=notes)


def _read(
    source: str, environment: Environment, deadline: Deadline, stdin: Callable[[], bytes]
) -> tuple[bytes, Path | None]:
    """Return a file's bytes, and for a local file its folder, to which paths in it are relative."""
    if source == _STDIN:
        return _bounded(stdin()), None
    if "://" not in source:
        return _local(Path(source)), Path(source).parent
    address, path = _url(source)
    trust = https.Verified(ca_pem=environment.public_roots)
    data = first_valid([address], lambda server: _download(server, path, trust, deadline), deadline, environment.log)
    return data, None


def _url(source: str) -> tuple[Endpoint, str]:
    """Split an https URL. Its query is never shown, because it may be a credential."""
    if not source.startswith("https://"):
        raise not_allowed("a path, an https URL, or -", "a URL of another scheme", "serve the file over https")
    parts = urlsplit(source)
    address = parse_server(f"https://{parts.netloc}")
    path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    if parts.fragment or not path.isascii() or not path.isprintable() or " " in path:
        raise not_allowed("an https URL", printable(source.partition("?")[0]), "write it as a browser would send it")
    return address, path


def _download(server: Endpoint, path: str, trust: https.Verified, deadline: Deadline) -> bytes:
    answer = client.get(server, path, trust, deadline, headers={"Accept": "*/*"}, untrusted=_FILE_BY_URL)
    if http.HTTPStatus.MULTIPLE_CHOICES <= answer.status < http.HTTPStatus.BAD_REQUEST:
        raise not_allowed("the file itself", "a redirect", "name the place where the file is")
    if answer.status != http.HTTPStatus.OK:
        remedy = "see that the file is there, and may be read"
        detail = f"{server.url} gave no discovery file: HTTP status {answer.status}"
        raise Unavailable(Reason.API_UNAVAILABLE, detail, remedy=remedy)
    return answer.body


def _local(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            return _bounded(file.read(https.LIMIT + 1))
    except (OSError, ValueError) as error:
        got = error.strerror if isinstance(error, OSError) else None
        remedy = "name a file that is there"
        raise not_allowed(f"a file to read at {printable(str(path))}", got or "no such name", remedy) from None


def _bounded(data: bytes) -> bytes:
    if len(data) > https.LIMIT:
        raise malformed(f"at most {https.LIMIT} bytes", "more")
    return data
