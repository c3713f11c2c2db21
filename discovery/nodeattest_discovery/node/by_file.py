"""Discovery by file: a kubeconfig that somebody trusted put there, by path, https URL or standard input.

Promises: the file is bounded in size and time and comes over https or from this machine; what it may not hold is
refused before anything is asked; the server that it names proves itself by the file's own CA before it is believed,
and only then may see a token of the file, if the caller allows one at all. Commands in it are never run.
Source: kubeadm discovery/file/file.go and discovery/https.
"""

from __future__ import annotations

import http
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from nodeattest_discovery import clusterinfo
from nodeattest_discovery.clusterinfo import ClusterInfo
from nodeattest_discovery.node import client, discovery_file, https
from nodeattest_discovery.node.client import Environment, Found, first_valid, parse_server
from nodeattest_discovery.node.clock import Deadline
from nodeattest_discovery.node.discovery_file import FileReference, checked_token, malformed, not_allowed
from nodeattest_parsing.endpoint import Endpoint
from nodeattest_providers.errors import Denied, Reason, Unavailable
from nodeattest_providers.identifiers import printable

_STDIN: Final = "-"
_FILE_WITHOUT_CA: Final = (
    "the discovery file has no CA, so this machine's own root certificates were used: put the cluster's CA into the "
    "file, as certificate-authority-data"
)
_FILE_BY_URL: Final = (
    "this machine's own root certificates were used: install the CA of that server on this machine, or copy the "
    "discovery file here and give its path"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class FileFound(Found):
    """What a file says: the cluster, and perhaps who the node shall be."""

    token: str | None = field(default=None, repr=False)
    runs_authenticator: bool = False
    """The file's user runs ``kubelet-authenticator``: a node that attests needs no other credential."""


def by_file(
    source: str, environment: Environment, *, stdin: Callable[[], bytes], allow_credentials: bool = False
) -> FileFound:
    """Find the cluster that a file names: a path, an https URL, or ``-`` for standard input.

    Raises ``Denied`` for what no waiting mends, ``Unavailable`` when the time is over. A server that may not be asked
    (403) is enough, as in kubeadm: its certificate passed, and the file is what is trusted.

    1. Read the file. 2. Take it apart. 3. Read what it names beside itself. 4. Ask the server that it names.
    """
    deadline = environment.deadline()
    # 1
    data, folder = _read(source, environment, deadline, stdin)
    try:
        text = data.decode()
    except UnicodeDecodeError:
        raise malformed("a kubeconfig in YAML", "bytes that are not UTF-8") from None
    # 2
    parsed = discovery_file.parse(text, local=folder is not None, allow_credentials=allow_credentials)
    # 3
    base = folder or Path()
    pem = _local(base / parsed.ca.path) if isinstance(parsed.ca, FileReference) else parsed.ca
    certificates = clusterinfo.parse_ca_bundle(pem) if pem is not None else ()
    token = parsed.token
    if isinstance(token, FileReference):
        token = checked_token(_local(base / token.path).decode("ascii", "replace").strip())
    # 4
    info = ClusterInfo(server=parsed.server, ca_certificates=certificates, tls_server_name=parsed.tls_server_name)
    found = FileFound(info=info, asked="", token=token, runs_authenticator=parsed.runs_authenticator)
    return first_valid(
        [parse_server(info.server)],
        lambda server: _confirmed(server, found, deadline, environment.public_roots),
        deadline,
        environment.log,
    )


def _confirmed(server: Endpoint, found: FileFound, deadline: Deadline, public_roots: bytes | None) -> FileFound:
    """Ask the server over a verified connection; raises ``Unavailable`` or ``Denied``.

    1. Its certificate passes under the file's CAs; without any, under those of this machine.
    2. It serves cluster-info, or says that it may not. One that is unsound changes nothing.
    3. The file's CAs stay; if there are none, those of cluster-info are taken.
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
    """Return a file's bytes, and for a local file the folder to which its paths are relative."""
    if source == _STDIN:
        return _bounded(stdin()), None
    if "://" not in source:
        return _local(Path(source)), Path(source).parent
    address, path = _url(source)
    trust = https.Verified(ca_pem=environment.public_roots)
    data = first_valid([address], lambda server: _download(server, path, trust, deadline), deadline, environment.log)
    return data, None


def _url(source: str) -> tuple[Endpoint, str]:
    """Take an https URL apart; it may hold a query, which is shown nowhere: it may be a permission."""
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
