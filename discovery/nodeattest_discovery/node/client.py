"""Asks several servers in turn, again and again, until one gives a valid answer or the time is over.

Promises: a server that was refused is not asked again, and does not keep the others from being asked; a server that is
away or not ready is asked again every five seconds, as kubeadm asks its only one. A request is for one file or object;
whatever another attempt may mend is ``Unavailable``: no connection, no permission yet, an answer that is no
cluster-info.
Source: kubeadm discovery/token (PollUntilContextTimeout: at once, then every five seconds, at most five minutes).
"""

from __future__ import annotations

import http
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Final, TypeVar

from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding

from nodeattest_discovery.clusterinfo import ClusterInfo
from nodeattest_discovery.node import configmap, https
from nodeattest_discovery.node.address import cluster_info_path
from nodeattest_discovery.node.clock import Clock, Deadline
from nodeattest_discovery.node.configmap import PublishedClusterInfo
from nodeattest_discovery.node.discovery_file import RETRY
from nodeattest_discovery.node.https import HttpsClient, HttpsError, KubeletServerError, Response, UntrustedServerError
from nodeattest_parsing.endpoint import Endpoint
from nodeattest_providers.errors import Denied, Reason, Unavailable


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """A cluster, and why it may be believed to be the right one."""

    kubeconfig: str = field(repr=False)
    """The exact text of cluster-info, or of the file."""
    info: ClusterInfo
    """The same, read: where the API server is."""
    ca_pem: bytes = field(repr=False)
    """The CAs that may be trusted from now on."""
    asked: str
    """URL of the server that answered: ``https://host:port``."""
    notes: tuple[str, ...] = ()
    """What a person must read: what was not checked, what is not as asked."""


T = TypeVar("T")


def first_valid(
    servers: Sequence[Endpoint], ask: Callable[[Endpoint], T], deadline: Deadline, log: Callable[[str], None]
) -> T:
    """Return the first valid answer.

    ``ask`` raises ``Denied`` for an answer that no waiting mends, ``Unavailable`` for one that it may. Raises the first
    refusal when every server was refused, else the last ``Unavailable`` when the time is over.
    """
    left = list(dict.fromkeys(servers))
    refused: list[Denied] = []
    deadline.waits_for("answer", f"an answer of {', '.join(server.url for server in left)}")
    while True:
        waiting: Unavailable | None = None
        for server in tuple(left):
            try:
                return ask(server)
            except Denied as denied:
                refused.append(denied)
                left.remove(server)
                log(f"{server.url} is refused: {denied}")
            except Unavailable as unavailable:
                waiting = unavailable
        if waiting is None:
            raise refused[0] if refused else Unavailable(Reason.API_UNAVAILABLE, "no server", remedy="name one")
        deadline.waits_for("another answer", f"another answer: {waiting.detail}")
        if not deadline.pause(RETRY):
            raise waiting


_UNTRUSTED: Final = (
    "if this machine's clock is right, this is not the cluster's server, or its certificate names it otherwise"
)
_SAID: Final[Mapping[int, str]] = {
    http.HTTPStatus.UNAUTHORIZED: "anonymous requests are refused (--anonymous-auth=false)",
    http.HTTPStatus.FORBIDDEN: "anonymous requests may not read it (kube-public has no role binding for them)",
    http.HTTPStatus.NOT_FOUND: "there is none",
}


class RefusedError(Unavailable):
    """A server that answered, and not with cluster-info."""

    def __init__(self, server: Endpoint, status: int) -> None:
        said = _SAID.get(status)
        super().__init__(
            Reason.API_UNAVAILABLE,
            f"{server.url} gave no cluster-info: HTTP status {status}" + (f", {said}" if said else ""),
            remedy="publish it where anonymous requests may read it: nodeattest cluster-info publish",
        )
        self.status = status


def fetch_cluster_info(
    server: Endpoint,
    trust: https.Verified | None,
    deadline: Deadline,
    *,
    authorization: str | None = None,
    untrusted: str | None = None,
) -> PublishedClusterInfo:
    """Ask for cluster-info, anonymously by default; raises ``Unavailable``, as ``get`` does."""
    headers = {"Authorization": authorization} if authorization and trust else {}
    answer = get(server, cluster_info_path(server), trust, deadline, headers=headers, untrusted=untrusted)
    if answer.status != http.HTTPStatus.OK:
        raise RefusedError(server, answer.status)
    try:
        return configmap.parse(answer.body)
    except Denied as denied:
        detail = f"{server.url} gave no cluster-info: expected {denied.expected}, got {denied.got}"
        raise Unavailable(Reason.API_UNAVAILABLE, detail, remedy=denied.remedy) from None


def anchors(certificates: Iterable[x509.Certificate], clock: Clock) -> bytes:
    """Return those CAs that are valid now, in PEM; raises ``Unavailable`` if none is: a clock may still be set."""
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


def get(
    server: Endpoint,
    path: str,
    trust: https.Verified | None,
    deadline: Deadline,
    *,
    headers: Mapping[str, str],
    untrusted: str | None = None,
) -> Response:
    """Ask once; raises ``Unavailable``.

    Its reason is ``ServerNotTrusted`` if the server's certificate does not pass; ``untrusted`` is the remedy then.
    """
    client = HttpsClient(server, trust, deadline, headers=headers)
    try:
        return client.request("GET", path)
    except KubeletServerError:
        raise Unavailable(
            Reason.SERVER_NOT_TRUSTED,
            f"the certificate of {server.url} is a kubelet's, not an API server's",
            remedy="name an API server; if nobody named this one, a node poses as the cluster: check its machine",
        ) from None
    except UntrustedServerError as error:
        raise Unavailable(
            Reason.SERVER_NOT_TRUSTED,
            f"the certificate of {server.url} does not pass: {error.detail}",
            remedy=untrusted or _UNTRUSTED,
        ) from None
    except HttpsError as error:
        remedy = "see that the address is right and that this machine can reach it"
        raise Unavailable(Reason.API_UNAVAILABLE, f"{server.url}: {error.detail}", remedy=remedy) from None
    finally:
        client.close()
