"""Asking one server for cluster-info.

Promises: what was published, ``Unavailable`` for everything that a later question may mend: no connection, no
permission yet, an answer that is no cluster-info. kubeadm asks again for all of these, too.
"""

from __future__ import annotations

import http
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding

from nodeattest_discovery.node import configmap, fetch
from nodeattest_discovery.node.address import Address
from nodeattest_discovery.node.configmap import Published
from nodeattest_discovery.node.surroundings import Patience
from nodeattest_providers.errors import Denied, Reason, Unavailable

__all__ = ["RefusedError", "anchors", "cluster_info"]

_SAID: Final[Mapping[int, str]] = {
    http.HTTPStatus.UNAUTHORIZED: "anonymous requests are not let in (--anonymous-auth=false)",
    http.HTTPStatus.FORBIDDEN: "anonymous requests may not read it (kube-public has no role binding for them)",
    http.HTTPStatus.NOT_FOUND: "there is none",
}


class RefusedError(Unavailable):
    """A server that answered, and not with cluster-info."""

    def __init__(self, server: Address, status: int) -> None:
        said = _SAID.get(status)
        super().__init__(
            Reason.API_UNAVAILABLE,
            f"{server.url} gave no cluster-info: HTTP status {status}" + (f", {said}" if said else ""),
            remedy="publish it where anonymous requests may read it: nodeattest cluster-info publish",
        )
        self.status = status


def cluster_info(
    server: Address, trust: fetch.Verified | None, patience: Patience, *, authorization: str | None = None
) -> Published:
    """Ask for cluster-info, anonymously unless told otherwise; raises ``Unavailable``."""
    headers = {"Authorization": authorization} if authorization and trust else {}
    answer = fetch.get(server, server.cluster_info, trust, patience, headers=headers)
    if answer.status != http.HTTPStatus.OK:
        raise RefusedError(server, answer.status)
    try:
        return configmap.parse(answer.body)
    except Denied as denied:
        detail = f"{server.url} gave no cluster-info: expected {denied.expected}, got {denied.got}"
        raise Unavailable(Reason.API_UNAVAILABLE, detail, remedy=denied.remedy) from None


def anchors(certificates: Iterable[x509.Certificate], patience: Patience) -> bytes:
    """Return those CAs that are valid now, in PEM; raises ``Unavailable`` if none is: a clock may still be set."""
    now = datetime.fromtimestamp(patience.around.now(), UTC)
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
