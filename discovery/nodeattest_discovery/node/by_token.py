"""Discovery by bootstrap token: cluster-info that the token signs, from a server that a pinned CA vouches for.

Promises: the token itself is sent nowhere; the second connection trusts pinned certificates only, however many others
are beside them in a signed bundle (kubeadm trusts them all: the holder of a leaked token without the CA's key can
sign a bundle of the real CA and its own, and is believed). An answer is believed whole or not at all.
Leaves to others: using what was found; asking the cluster whether the token may join.
Source: kubeadm discovery/token/token.go; docs/decisions.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from nodeattest_discovery import clusterinfo
from nodeattest_discovery import jwt as jws
from nodeattest_discovery.clusterinfo import ClusterInfo
from nodeattest_discovery.node import client, https
from nodeattest_discovery.node.address import parse_endpoint, parse_server
from nodeattest_discovery.node.client import Found, first_valid
from nodeattest_discovery.node.clock import Deadline
from nodeattest_discovery.node.credential import PublishedClusterInfo
from nodeattest_discovery.node.discovery_file import Environment
from nodeattest_discovery.tls import CaPin, require_pins, select_pinned
from nodeattest_discovery.token import BootstrapToken
from nodeattest_parsing.endpoint import Endpoint
from nodeattest_providers.checks import Checks
from nodeattest_providers.errors import Denied, Reason, Unavailable

_SECTION = "companion proposal 001, join"


def by_token(
    endpoints: Sequence[str], token: BootstrapToken, pins: frozenset[CaPin] | None, environment: Environment
) -> Found:
    """Find the cluster that one of these servers (``host:port`` or https URL) belongs to.

    ``pins=None`` leaves out whether the server is the cluster's own: an explicit wish of the caller. Raises
    ``Denied`` for what no waiting mends, ``Unavailable`` when the time is over. What is final and what is asked again
    is as in kubeadm: a wrong signature, a text that is no cluster-info, a CA that is not pinned and a second answer
    that differs are final for the server that gave them; no answer, no permission, no signature of this token yet and
    a certificate that does not pass are asked again, since clusters start, clocks are set, and signers take a moment.
    """
    servers = [parse_endpoint(endpoint) for endpoint in endpoints]
    if not servers:
        raise Denied(
            Reason.DISCOVERY_ENDPOINT_MALFORMED,
            expected="at least one API server",
            got="none",
            remedy="name one: host:port",
        )
    require_pins(pins)
    deadline = environment.deadline()
    return first_valid(
        servers, lambda server: _Question(server, token, pins, deadline).found(), deadline, environment.log
    )


@dataclass(frozen=True, slots=True)
class _Question:
    server: Endpoint
    token: BootstrapToken
    pins: frozenset[CaPin] | None
    deadline: Deadline

    def found(self) -> Found:
        """Ask one server, and check what it says.

        1. First look: unverified, and without credentials; it holds a signature of this token.
        2. The signature is this token's over the exact text, which is a sound cluster-info.
        3. CAs that are pinned themselves, and valid, are in it.
        4. A server that one of these vouches for, at the same address, says the same, byte for byte.
        """
        checks = Checks()
        # 1
        text, signature = self._signed(client.fetch_cluster_info(self.server, https.UNVERIFIED, self.deadline))
        # 2
        checks.require(
            jws.is_valid(signature, text.encode(), self.token),
            "cluster-info is signed with this token",
            section=_SECTION,
            reason=Reason.CLUSTER_INFO_SIGNATURE_INVALID,
            expected=f"a signature of the token {self.token.id} over cluster-info",
            got="another signature",
            remedy="compare the token's secret; if it is right, this is not the cluster, or the text was changed",
        )
        info = clusterinfo.parse(text)
        if self.pins is None:
            client.anchors(info.ca_certificates, self.deadline.clock)
            return self._as_found(text, info, (_unpinned(self.server),))
        # 3
        pinned = select_pinned(info.ca_certificates, self.pins)
        trust = https.Verified(ca_pem=client.anchors(pinned, self.deadline.clock))
        # 4
        second = client.fetch_cluster_info(self.server, trust, self.deadline).kubeconfig
        checks.require(
            second == text,
            "the verified server says the same",
            section=_SECTION,
            reason=Reason.CLUSTER_INFO_CHANGED,
            expected="the first answer, byte for byte, over the verified connection",
            got="another text" if second else "none",
            remedy="try again if the cluster was being changed; else somebody answered in the cluster's place at first",
        )
        return self._as_found(text, info, _beside(len(info.ca_certificates) - len(pinned)))

    def _signed(self, published: PublishedClusterInfo) -> tuple[str, str]:
        """Return text and signature; raises ``Unavailable`` as long as the signer has not been there."""
        signature = published.signatures.get(self.token.id)
        if signature is None:
            raise Unavailable(
                Reason.CLUSTER_INFO_UNSIGNED,
                f"{self.server.url} has no signature of the token {self.token.id}",
                remedy="see that the token exists and may sign (kubeadm token list), and that a signer runs",
            )
        return published.text(), signature

    def _as_found(self, text: str, info: ClusterInfo, notes: tuple[str, ...]) -> Found:
        if parse_server(info.server) != self.server:
            notes += (f"the cluster names {info.server} as its server, not {self.server.url}, which was asked",)
        return Found(kubeconfig=text, info=info, ca_pem=info.ca_pem, asked=self.server.url, notes=notes)


def _unpinned(server: Endpoint) -> str:
    return f"no CA was pinned: anyone who knows the token could have answered as {server.url} in the cluster's place"


def _beside(count: int) -> tuple[str, ...]:
    if not count:
        return ()
    return (f"{count} of the cluster's CAs not pinned: trusted, since the server that a pinned CA vouches for says so",)
