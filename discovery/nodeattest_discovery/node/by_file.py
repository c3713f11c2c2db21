"""Discovery by file: a kubeconfig that somebody trusted put there, by path, https URL or standard input.

Promises: the file is bounded in size and time and comes over https or from this machine; what it may not hold is
refused before anything is asked; the server that it names proves itself by the file's own CA before it is believed,
and only then may see a credential of the file, if the caller allows one at all. Commands in it are never run.
Source: kubeadm discovery/file/file.go and discovery/https.
"""

from __future__ import annotations

import http
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from nodeattest_discovery import clusterinfo
from nodeattest_discovery.clusterinfo import ClusterInfo
from nodeattest_discovery.node import client, discovery_file, https
from nodeattest_discovery.node.address import parse_server
from nodeattest_discovery.node.client import Found, first_valid
from nodeattest_discovery.node.clock import Deadline
from nodeattest_discovery.node.configmap import PublishedClusterInfo
from nodeattest_discovery.node.credential import (
    BasicCredential,
    FileCredential,
    TokenCredential,
    authorization,
    of_user,
)
from nodeattest_discovery.node.discovery_file import DiscoveryFile, Environment, FileReference, malformed, not_allowed
from nodeattest_discovery.tls import ClientCertificate
from nodeattest_parsing.endpoint import Endpoint
from nodeattest_providers.errors import Denied, Reason, Unavailable
from nodeattest_providers.identifiers import printable

__all__ = ["BasicCredential", "ClientCertificate", "FileCredential", "FileFound", "TokenCredential", "by_file"]

_STDIN: Final = "-"
_LIMIT: Final = https.LIMIT
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

    credential: FileCredential | None = None
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
    info = _cluster(parsed, base)
    credential = of_user(parsed.user, lambda stored: _local(base / stored.path))
    # 4
    wanted = _Wanted(text, info, credential, parsed.user.runs_authenticator, deadline, environment.public_roots)
    return first_valid([parse_server(info.server)], wanted.confirmed, deadline, environment.log)


@dataclass(frozen=True, slots=True)
class _Wanted:
    text: str
    info: ClusterInfo
    credential: FileCredential | None
    runs_authenticator: bool
    deadline: Deadline
    public_roots: bytes | None

    def confirmed(self, server: Endpoint) -> FileFound:
        """Ask the server over a verified connection; raises ``Unavailable`` or ``Denied``.

        1. Its certificate passes under the file's CAs; without any, under those of this machine.
        2. It serves cluster-info, or says that it may not.
        3. The file's CAs stay; if there are none, those of cluster-info are taken.
        """
        # 1
        held = self.info.ca_certificates
        roots = client.anchors(held, self.deadline.clock) if held else self.public_roots
        shown_as = self.credential if isinstance(self.credential, ClientCertificate) else None
        trust = https.Verified(ca_pem=roots, server_name=self.info.tls_server_name, client=shown_as)
        # 2
        published, notes = self._published(server, trust)
        found, more = _from_cluster(published)
        notes += more
        if found is not None and parse_server(found.server) != server:
            notes += (f"the cluster names {found.server} as its server, not {server.url}, which the file names",)
        # 3
        certificates = held or (found.ca_certificates if found is not None else ())
        if not certificates:
            raise malformed("certificate-authority-data in the file or in cluster-info", "none")
        info = ClusterInfo(
            server=self.info.server, ca_certificates=certificates, tls_server_name=self.info.tls_server_name
        )
        return FileFound(
            kubeconfig=self.text,
            info=info,
            ca_pem=info.ca_pem,
            asked=server.url,
            notes=notes,
            credential=self.credential,
            runs_authenticator=self.runs_authenticator,
        )

    def _published(
        self, server: Endpoint, trust: https.Verified
    ) -> tuple[PublishedClusterInfo | None, tuple[str, ...]]:
        remedy = None if self.info.ca_certificates else _FILE_WITHOUT_CA
        try:
            shown_as = authorization(self.credential)
            return client.fetch_cluster_info(server, trust, self.deadline, authorization=shown_as, untrusted=remedy), ()
        except client.RefusedError as refused:
            if refused.status != http.HTTPStatus.FORBIDDEN:
                raise
            return None, (
                f"{server.url} does not let us read cluster-info; its certificate passed, so the file counts",
            )


def _from_cluster(published: PublishedClusterInfo | None) -> tuple[ClusterInfo | None, tuple[str, ...]]:
    """Read cluster-info; one that is unsound changes nothing, since the file is what is trusted."""
    if published is None:
        return None, ()
    try:
        return clusterinfo.parse(published.kubeconfig or ""), ()
    except Denied as denied:
        return None, (f"cluster-info is not used: expected {denied.expected}, got {denied.got}",)


def _cluster(parsed: DiscoveryFile, base: Path) -> ClusterInfo:
    pem = _local(base / parsed.ca.path) if isinstance(parsed.ca, FileReference) else parsed.ca
    certificates = clusterinfo.parse_ca_bundle(pem) if pem is not None else ()
    return ClusterInfo(server=parsed.server, ca_certificates=certificates, tls_server_name=parsed.tls_server_name)


def _read(
    source: str, environment: Environment, deadline: Deadline, stdin: Callable[[], bytes]
) -> tuple[bytes, Path | None]:
    """Return a file's bytes, and for a local file the folder to which its paths are relative."""
    if source == _STDIN:
        return _bounded(stdin()), None
    if "://" in source:
        address, path = _url(source)
        return _downloaded(address, path, environment, deadline), None
    return _local(Path(source)), Path(source).parent


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


def _downloaded(address: Endpoint, path: str, environment: Environment, deadline: Deadline) -> bytes:
    trust = https.Verified(ca_pem=environment.public_roots)
    return first_valid([address], lambda server: _download(server, path, trust, deadline), deadline, environment.log)


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
            return _bounded(file.read(_LIMIT + 1))
    except (OSError, ValueError) as error:
        got = error.strerror if isinstance(error, OSError) else None
        raise not_allowed(
            f"a file to read at {printable(str(path))}", got or "no such name", "name a file that is there"
        ) from None


def _bounded(data: bytes) -> bytes:
    if len(data) > _LIMIT:
        raise malformed(f"at most {_LIMIT} bytes", "more")
    return data
