"""Refreshing what a joined node knows of its cluster: CAs are rotated, servers move.

Promises: a change is read over a connection that the presently trusted CAs authenticate. It is accepted only if one of
them stays, and, where it changes CAs or server, only if the server that it names authenticates itself under a CA that
was trusted before and still is. So a writer of cluster-info without a key of the cluster's CA cannot lead
nodes to another server, not even by adding first a CA and then an address: as long as the cluster's own server shows
no certificate of that CA, nothing moves. No credential is sent.
Source: docs/decisions.md; Kubernetes "Manual Rotation of CA Certificates" (old, then old and new, then new).
"""

from __future__ import annotations

import http
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from cryptography import x509

from nodeattest_discovery import clusterinfo
from nodeattest_discovery.node import client, https
from nodeattest_discovery.node.client import Environment, Found, parse_server
from nodeattest_discovery.node.clock import Deadline
from nodeattest_discovery.pins import pin_of
from nodeattest_parsing.endpoint import Endpoint
from nodeattest_providers.errors import Denied, Reason, Unavailable

_NOT_FOR_US: Final = frozenset({http.HTTPStatus.UNAUTHORIZED, http.HTTPStatus.FORBIDDEN, http.HTTPStatus.NOT_FOUND})


def refresh(
    servers: Sequence[str],
    trusted_ca_pem: bytes,
    environment: Environment,
    *,
    tls_server_name: str | None = None,
    pin_server: bool = False,
) -> Found | None:
    """Ask these servers (https URLs) in turn for cluster-info; None if the cluster does not tell.

    ``tls_server_name`` is the name in the servers' certificates where it is not their host. ``pin_server``: only CAs
    are of interest; the server that news names is not asked, since no way from here may lead there, and the one that
    answers must confirm its own news. Raises ``Denied`` for news that cannot be believed and that no other server
    mends, ``Unavailable`` when no server answers.
    """
    deadline = environment.deadline()
    addresses = list(dict.fromkeys(parse_server(server) for server in servers))
    trusted = clusterinfo.parse_ca_bundle(trusted_ca_pem)
    question = _Question(addresses, trusted, tls_server_name, pin_server, deadline)
    refused: Denied | None = None
    away = Unavailable(Reason.API_UNAVAILABLE, "no server is known", remedy="join again")
    for address in addresses:
        try:
            return question.news(address)
        except client.RefusedError as error:
            if error.status in _NOT_FOR_US:
                environment.log(f"{error.detail}; what this node knows of its cluster stays as it is")
                return None
            away = error
        except Unavailable as error:
            away = error
        except Denied as error:
            environment.log(f"{address.url}: {error}")
            refused = refused or error
    raise refused or away


@dataclass(frozen=True, slots=True)
class _Question:
    known_servers: Sequence[Endpoint]
    trusted: tuple[x509.Certificate, ...]
    tls_server_name: str | None
    pin_server: bool
    deadline: Deadline

    def news(self, server: Endpoint) -> Found:
        """Ask one server, and check what is new.

        1. It answers over a connection that the trusted CAs vouch for.
        2. The text is a sound cluster-info.
        3. It keeps at least one key of the trusted CAs.
        4. If its CAs, its server or that server's name are not the known ones, the server proves itself under a CA that
           was kept and vouches for the one that was asked, and says the same; or the one that was asked does.
        """
        # 1
        trust = https.Verified(
            ca_pem=client.anchors(self.trusted, self.deadline.clock), server_name=self.tls_server_name
        )
        text = client.fetch_cluster_info(server, trust, self.deadline).kubeconfig or ""
        # 2
        info = clusterinfo.parse(text)
        # 3
        pins = {pin_of(certificate) for certificate in self.trusted}
        kept = tuple(certificate for certificate in info.ca_certificates if pin_of(certificate) in pins)
        if not kept:
            raise Denied(
                Reason.CLUSTER_INFO_CHANGED,
                expected="cluster-info with at least one of the CAs that this node trusts",
                got="other CAs only",
                remedy="publish old and new CAs together until every node has refreshed, or join the node again",
            )
        # 4
        named = (parse_server(info.server), info.tls_server_name)
        known = named[0] in self.known_servers and named[1] == self.tls_server_name
        place, name = (server, self.tls_server_name) if self.pin_server else named
        if not (known or self.pin_server):
            self._confirm(place, name, text, self._vouching(kept, server))
        elif set(info.ca_certificates) != set(self.trusted):
            self._confirm(place, name, text, kept)
        return Found(info=info, asked=server.url)

    def _vouching(self, kept: tuple[x509.Certificate, ...], server: Endpoint) -> tuple[x509.Certificate, ...]:
        """Return the CAs that verify the server that was asked, without others that are only listed beside them."""
        if len(kept) == 1 and len(self.trusted) == 1:
            return kept
        found = tuple(one for one in kept if self._vouches(one, server))
        if not found:
            raise Unavailable(
                Reason.SERVER_NOT_TRUSTED,
                f"none of the CAs that cluster-info keeps verifies {server.url}, which answered",
                remedy="let the servers have certificates of a CA that stays, before cluster-info moves or drops one",
            )
        return found

    def _vouches(self, authority: x509.Certificate, server: Endpoint) -> bool:
        try:
            trust = https.Verified(
                ca_pem=client.anchors((authority,), self.deadline.clock), server_name=self.tls_server_name
            )
            client.fetch_cluster_info(server, trust, self.deadline)
        except Unavailable as unavailable:
            if unavailable.reason is not Reason.SERVER_NOT_TRUSTED:
                raise
            return False
        return True

    def _confirm(self, place: Endpoint, name: str | None, text: str, kept: tuple[x509.Certificate, ...]) -> None:
        trust = https.Verified(ca_pem=client.anchors(kept, self.deadline.clock), server_name=name)
        try:
            answer = client.fetch_cluster_info(place, trust, self.deadline).kubeconfig
        except client.RefusedError as error:  # that another server may not be asked says nothing about this one
            raise Unavailable(Reason.API_UNAVAILABLE, error.detail, remedy=error.remedy) from None
        if answer != text:
            raise Denied(
                Reason.CLUSTER_INFO_CHANGED,
                expected=f"the same cluster-info at {place.url}",
                got="another text" if answer else "none",
                remedy="see that this server belongs to the cluster; wait until a change is complete",
            )
