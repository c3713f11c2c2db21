"""Requests for cluster-info, sent to several servers in turn until one gives a valid answer or the time is over.

A server whose answer was refused is not queried again. A server that is unreachable or not ready is queried again every
five seconds, as in kubeadm; this is ``Unavailable``. JSON with duplicate keys is refused, because parsers disagree.
Source: kubeadm discovery/token (PollUntilContextTimeout) and app/util/endpoint.go (ParseHostPort); Kubernetes API,
core/v1 ConfigMap; RFC 3986 §3.2.2 (brackets around IPv6).
"""

from __future__ import annotations

import http
import ipaddress
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Final, TypeVar
from urllib.parse import urlsplit

from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding

from nodeattest_discovery.clusterinfo import (
    KUBECONFIG_KEY,
    NAME,
    NAMESPACE,
    PATH,
    SIGNATURE_PREFIX,
    ClusterInfo,
    check_server,
)
from nodeattest_discovery.node import https
from nodeattest_discovery.node.clock import Clock, Deadline
from nodeattest_discovery.node.https import HttpsClient, HttpsError, Response, UntrustedServerError
from nodeattest_parsing import strict_json
from nodeattest_parsing.endpoint import Endpoint
from nodeattest_parsing.objects import mapping
from nodeattest_parsing.values import ParseError
from nodeattest_providers.errors import Denied, Reason, Unavailable
from nodeattest_providers.identifiers import printable

T = TypeVar("T")

_LIMIT: Final = 300.0
"""Seconds for a whole discovery (kubeadm constants.DiscoveryTimeout, its timeouts.discovery)."""
_RETRY: Final = 5.0
"""Seconds between two attempts (kubeadm constants.DiscoveryRetryInterval)."""
_HTTPS: Final = "https://"
_HTTPS_PORT: Final = 443
_PORT: Final = re.compile(r":[0-9]+\Z", re.ASCII)
_MAX_SIZE: Final = 1 << 20
"""Bytes; etcd's limit of an object."""
_MAX_VALUES: Final = 50_000
"""JSON values of the ConfigMap, among them a signature for each token."""
UNTRUSTED: Final = (
    "if this machine's clock is right, this is not the cluster's server, or its certificate names it otherwise"
)
_EXPLANATIONS: Final[Mapping[int, str]] = {
    http.HTTPStatus.UNAUTHORIZED: ", anonymous requests are refused (--anonymous-auth=false)",
    http.HTTPStatus.FORBIDDEN: ", anonymous requests may not read it (kube-public has no role binding for them)",
    http.HTTPStatus.NOT_FOUND: ", there is none",
}


def _ignore_line(line: str) -> None:
    del line


@dataclass(frozen=True, slots=True, kw_only=True)
class Environment:
    """Arguments of each kind of discovery."""

    clock: Clock = field(default_factory=Clock)
    log: Callable[[str], None] = _ignore_line
    """Takes one line for the user, without secrets."""
    limit: float = _LIMIT
    """Seconds for a whole discovery."""
    public_roots: bytes | None = None
    """CAs in PEM for the server of a discovery file. None: this machine's."""

    def deadline(self) -> Deadline:
        """Return the deadline of a discovery that starts now."""
        return Deadline.after(self.clock, self.limit)


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """A verified cluster."""

    info: ClusterInfo
    """The API server and the CAs to trust from now on."""
    asked: str
    """URL of the server that answered: ``https://host:port``."""
    notes: tuple[str, ...] = ()
    """Notes for the user: what was not checked, and what differs from the request."""
    token: str | None = field(default=None, repr=False)
    """The bearer token of a discovery file."""
    runs_authenticator: bool = False
    """Whether the discovery file's user runs ``kubelet-authenticator``."""


def parse_endpoint(text: str) -> Endpoint:
    """Parse a server that a user named: ``host:port`` or ``https://host[:port]`` without a path. Raises ``Denied``."""
    is_url = text.startswith(_HTTPS)
    named = text.removeprefix(_HTTPS).removesuffix("/") if is_url else text
    if "/" not in named and (is_url or _PORT.search(named)):
        with suppress(Denied):
            return parse_server(_HTTPS + named)
    raise Denied(
        Reason.DISCOVERY_ENDPOINT_MALFORMED,
        expected="host:port, [IPv6]:port or https://host:port, without a path",
        got=printable(text),
        remedy="say host and port, such as 10.0.0.1:6443, as nodeattest token create --print-join-command does",
    )


def parse_server(url: str) -> Endpoint:
    """Parse a server's URL of a kubeconfig, in canonical form. Raises ``Denied``."""
    parts = urlsplit(check_server(url))
    host = (parts.hostname or "").lower()
    with suppress(ValueError):
        host = str(ipaddress.ip_address(host))
    return Endpoint(host, parts.port or _HTTPS_PORT, parts.path.rstrip("/"))


@dataclass(frozen=True, slots=True)
class PublishedClusterInfo:
    """The ConfigMap ``kube-public/cluster-info``, not verified yet."""

    kubeconfig: str | None = field(repr=False)
    signatures: dict[str, str] = field(repr=False)
    """Detached signatures by token ID."""

    def text(self) -> str:
        """Return the kubeconfig. Raises ``Denied`` if there is none."""
        if self.kubeconfig:
            return self.kubeconfig
        raise Denied(
            Reason.CLUSTER_INFO_MALFORMED,
            expected=f"the key {KUBECONFIG_KEY} in cluster-info",
            got="none",
            remedy="publish it: nodeattest cluster-info publish",
        )


def parse_config_map(body: bytes) -> PublishedClusterInfo:
    """Parse the ConfigMap. Raises ``Denied``.

    1. It is a JSON object of bounded size without duplicate keys. 2. It is this ConfigMap. 3. Its data is text.
    """
    # 1
    try:
        document = strict_json.parse_object(body, max_size=_MAX_SIZE, max_values=_MAX_VALUES, floats=True)
    except ParseError as error:
        raise _malformed("a JSON object of UTF-8", error.found) from None
    # 2
    metadata, data = mapping(document, "metadata"), document.get("data")
    identity = (document.get("apiVersion"), document.get("kind"), metadata.get("namespace"), metadata.get("name"))
    if identity != ("v1", "ConfigMap", NAMESPACE, NAME):
        raise _malformed(f"the ConfigMap {NAMESPACE}/{NAME}", "another object, or none")
    # 3
    entries = data if isinstance(data, dict) else {}
    texts = {key: value for key, value in entries.items() if isinstance(value, str)}
    if len(texts) != len(entries) or not isinstance(data, dict | None):
        raise _malformed("data to be text", "something else")
    signatures = {
        key.removeprefix(SIGNATURE_PREFIX): value for key, value in texts.items() if key.startswith(SIGNATURE_PREFIX)
    }
    return PublishedClusterInfo(texts.get(KUBECONFIG_KEY), signatures)


def first_valid(
    servers: Sequence[Endpoint], ask: Callable[[Endpoint], T], deadline: Deadline, log: Callable[[str], None]
) -> T:
    """Return the first valid answer.

    ``ask`` raises ``Denied`` if a retry does not help, else ``Unavailable``. Raises the first ``Denied`` if all servers
    were refused, or the last ``Unavailable`` at the deadline.
    """
    left = list(dict.fromkeys(servers))
    refused: Denied | None = None
    deadline.waits_for("answer", f"an answer of {', '.join(server.url for server in left)}")
    while True:
        waiting: Unavailable | None = None
        for server in tuple(left):
            try:
                return ask(server)
            except Denied as denied:
                refused = refused or denied
                left.remove(server)
                log(f"{server.url} is refused: {denied}")
            except Unavailable as unavailable:
                waiting = unavailable
        if waiting is None:
            raise refused or Unavailable(Reason.API_UNAVAILABLE, "no server", remedy="name one")
        deadline.waits_for("another answer", f"another answer: {waiting.detail}")
        if not deadline.pause(_RETRY):
            raise waiting


class RefusedError(Unavailable):
    """A server answered with an error status."""

    def __init__(self, server: Endpoint, status: int) -> None:
        super().__init__(
            Reason.API_UNAVAILABLE,
            f"{server.url} gave no cluster-info: HTTP status {status}{_EXPLANATIONS.get(status, '')}",
            remedy="publish it where anonymous requests may read it: nodeattest cluster-info publish",
        )
        self.status = status


def cluster_info_path(server: Endpoint) -> str:
    """Return the path of cluster-info on a server, with the server's time limit."""
    return f"{server.prefix}{PATH}?timeout=10s"


def fetch_cluster_info(
    server: Endpoint,
    trust: https.Verified | None,
    deadline: Deadline,
    *,
    token: str | None = None,
    untrusted: str = UNTRUSTED,
) -> PublishedClusterInfo:
    """Read cluster-info, anonymously if ``token`` is None. Raises ``Unavailable``, as ``get`` does."""
    headers = {"Authorization": f"Bearer {token}"} if token and trust else {}
    answer = get(server, cluster_info_path(server), trust, deadline, headers=headers, untrusted=untrusted)
    if answer.status != http.HTTPStatus.OK:
        raise RefusedError(server, answer.status)
    try:
        return parse_config_map(answer.body)
    except Denied as denied:
        detail = f"{server.url} gave no cluster-info: expected {denied.expected}, got {denied.got}"
        raise Unavailable(Reason.API_UNAVAILABLE, detail, remedy=denied.remedy) from None


def anchors(certificates: Iterable[x509.Certificate], clock: Clock) -> bytes:
    """Return the CAs that are valid now, in PEM. Raises ``Unavailable`` if none is: the clock may still be wrong."""
    now = datetime.fromtimestamp(clock.now(), UTC)
    found = tuple(certificates)
    valid = [one for one in found if one.not_valid_before_utc <= now <= one.not_valid_after_utc]
    if not valid:
        spans = ", ".join(sorted({f"{one.not_valid_before_utc:%F} to {one.not_valid_after_utc:%F}" for one in found}))
        raise Unavailable(
            Reason.SERVER_NOT_TRUSTED,
            f"no CA is valid at {now:%F %T} UTC, but from {spans or 'never'}",
            remedy="set this machine's clock, or renew the cluster's CA",
        )
    return b"".join(certificate.public_bytes(Encoding.PEM) for certificate in valid)


def verified(certificates: Iterable[x509.Certificate], clock: Clock, server_name: str | None = None) -> https.Verified:
    """Return the verification of a server by the CAs that are valid now. Raises ``Unavailable`` if none is."""
    return https.Verified(ca_pem=anchors(certificates, clock), server_name=server_name)


def get(
    server: Endpoint,
    path: str,
    trust: https.Verified | None,
    deadline: Deadline,
    *,
    headers: Mapping[str, str],
    untrusted: str = UNTRUSTED,
) -> Response:
    """Send one request. Raises ``Unavailable``.

    ``untrusted``: the remedy if the server's certificate is not trusted (reason ``ServerNotTrusted``).
    """
    client = HttpsClient(server, trust, deadline, headers=headers)
    try:
        return client.request("GET", path)
    except UntrustedServerError as error:
        detail = f"the certificate of {server.url} does not pass: {error}"
        raise Unavailable(Reason.SERVER_NOT_TRUSTED, detail, remedy=untrusted) from None
    except HttpsError as error:
        remedy = "see that the address is right and that this machine can reach it"
        raise Unavailable(Reason.API_UNAVAILABLE, f"{server.url}: {error}", remedy=remedy) from None
    finally:
        client.close()


def _malformed(expected: str, got: str) -> Denied:
    return Denied(
        Reason.CLUSTER_INFO_MALFORMED,
        expected=expected,
        got=got,
        remedy="see that the address is an API server's, and what it serves: nodeattest cluster-info show",
    )
