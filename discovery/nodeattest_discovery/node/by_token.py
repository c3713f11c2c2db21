"""Discovery by bootstrap token: cluster-info that the token signs, from API servers or from a discovery front.

The token itself is never sent. With pins, the verified connection trusts pinned certificates only, even if the signed
bundle holds others. (kubeadm trusts the whole bundle, so the holder of a leaked token could add a CA.)

A front (proposal 000) gets a JWT that is valid for two minutes and for reading only. Its answer must be signed by the
token. With pins, a server of the cluster must confirm it. The front's certificate proves nothing. An old signed answer
can be replayed while the token lives, but only with pinned CAs.

``refresh`` follows rotated CAs and moved servers. A change is read over a connection that the trusted CAs authenticate.
It is accepted only if one of these CAs stays. If it changes CAs or server, the server that it names must authenticate
itself by a CA that stays. So a writer of cluster-info without a key of the cluster's CA cannot redirect nodes, not even
by adding first a CA and then a server.
Source: kubeadm discovery/token/token.go; companion proposals 000 and 001; docs/decisions.md; Kubernetes "Manual
Rotation of CA Certificates" (old, then old and new, then new).
"""

from __future__ import annotations

import http
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from cryptography import x509

from nodeattest_discovery import clusterinfo, jws, jwt
from nodeattest_discovery.clusterinfo import ClusterInfo
from nodeattest_discovery.node import client, https
from nodeattest_discovery.node.client import Environment, Found, first_valid, parse_endpoint, parse_server
from nodeattest_discovery.node.clock import Deadline
from nodeattest_discovery.pins import CaPin, pin_of, require_pins, select_pinned
from nodeattest_discovery.token import BootstrapToken
from nodeattest_parsing.endpoint import Endpoint
from nodeattest_providers.errors import Denied, Reason, Unavailable

_SIGNATURE: Final = "x-kubernetes-jws"
_NOT_FOR_ALL: Final = frozenset({http.HTTPStatus.UNAUTHORIZED, http.HTTPStatus.FORBIDDEN})


def by_token(
    endpoints: Sequence[str], token: BootstrapToken, pins: frozenset[CaPin] | None, environment: Environment
) -> Found:
    """Find the cluster of these servers (``host:port`` or https URL). ``pins=None`` skips CA verification.

    As in kubeadm, a server is final if its signature is wrong, its text is not cluster-info, its CA is not pinned, or
    its second answer differs. It is queried again if it does not answer, forbids reading, has no signature of this
    token, or has an untrusted certificate. Raises ``Denied`` if a retry does not help, else ``Unavailable``.
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
    asker = _Asker(token, pins, environment.deadline())
    return first_valid(servers, asker.ask_server, asker.deadline, environment.log)


def by_front(
    front: str,
    token: BootstrapToken,
    pins: frozenset[CaPin] | None,
    environment: Environment,
    *,
    servers: Sequence[str] = (),
) -> Found:
    """Find the cluster of a front (``host:port`` or https URL) by one request.

    ``servers``: API servers that the caller knows. If there are any, they confirm the answer instead of the server that
    it names, because the holder of a leaked token chooses that one. ``Found.asked`` is the cluster's server, never the
    front. Raises ``Unavailable`` if the front is unreachable, does not know the token or does not sign, and ``Denied``
    if a retry does not help.
    """
    server, known = parse_endpoint(front), tuple(parse_endpoint(one) for one in servers)
    require_pins(pins)
    return _Asker(token, pins, environment.deadline()).ask_front(server, known)


@dataclass(frozen=True, slots=True)
class _Asker:
    token: BootstrapToken
    pins: frozenset[CaPin] | None
    deadline: Deadline

    def ask_server(self, server: Endpoint) -> Found:
        """Query one API server and check its answer.

        1. Read cluster-info unverified and without credentials. It has a signature of this token.
        2. The signature is valid for the exact text, which is valid cluster-info.
        3. It holds CAs that are pinned and valid now.
        4. The server, verified by these CAs, returns the same text.
        """
        # 1
        published = client.fetch_cluster_info(server, https.UNVERIFIED, self.deadline)
        signature = published.signatures.get(self.token.id)
        if signature is None:
            raise Unavailable(
                Reason.CLUSTER_INFO_UNSIGNED,
                f"{server.url} has no signature of the token {self.token.id}",
                remedy="see that the token exists and may sign (kubeadm token list), and that a signer runs",
            )
        text = published.text()
        # 2
        if not jws.is_valid(signature, text.encode(), self.token):
            raise _not_signed(f"a signature of the token {self.token.id} over cluster-info", "another signature")
        info = clusterinfo.parse(text)
        if self.pins is None:
            return self._unpinned(info, server)
        # 3
        pinned = select_pinned(info.ca_certificates, self.pins)
        trust = client.verified(pinned, self.deadline.clock)
        # 4
        _, refused = self._confirm((server,), trust, text)
        if refused is not None:
            raise refused
        notes = _elsewhere(info, server)
        if beside := len(info.ca_certificates) - len(pinned):
            note = f"{beside} of the cluster's CAs not pinned: trusted, since a server under a pinned CA says so"
            notes = (note, *notes)
        return Found(info=info, asked=server.url, notes=notes)

    def ask_front(self, front: Endpoint, known: tuple[Endpoint, ...]) -> Found:
        """Query a front and check its answer.

        1. Send a JWT unverified. Only status 200 is an answer.
        2. Exactly one header holds this token's signature of the body.
        3. The body is the ConfigMap cluster-info with a valid kubeconfig.
        4. It holds CAs that are pinned and valid now.
        5. A known server, or the one that the kubeconfig names, verified by these CAs, returns the same text. If it
           forbids reading, only these CAs and this server are trusted, because nobody confirmed the others.
        """
        # 1, 2
        text = client.parse_config_map(self._ask_signed(front)).text()
        # 3
        info = clusterinfo.parse(text)
        cluster = parse_server(info.server)
        if self.pins is None:
            return self._unpinned(info, cluster)
        # 4
        pinned = select_pinned(info.ca_certificates, self.pins)
        trust = client.verified(pinned, self.deadline.clock, None if known else info.tls_server_name)
        # 5
        asked, refused = self._confirm(known or (cluster,), trust, text)
        notes = _elsewhere(info, asked)
        if refused is None:
            return Found(info=info, asked=asked.url, notes=notes)
        note = f"{asked.url} does not show cluster-info: only the pinned CAs of the front's answer are trusted"
        believed = replace(info, ca_certificates=pinned)
        if known:
            believed = replace(believed, server=asked.url, tls_server_name=None)
        return Found(info=believed, asked=asked.url, notes=(note, *notes))

    def _ask_signed(self, front: Endpoint) -> bytes:
        """Return a front's answer, signed by this token.

        A JWT has another header (``typ``), and a signature of cluster-info's text covers other bytes: neither passes.
        """
        headers = {"Authorization": f"Bearer {jwt.mint(self.token, self.deadline.clock.now())}"}
        answer = client.get(front, client.cluster_info_path(front), https.UNVERIFIED, self.deadline, headers=headers)
        if answer.status != http.HTTPStatus.OK:
            hint = " (it does not know the token, or this machine's clock is wrong)"
            raise Unavailable(
                Reason.API_UNAVAILABLE,
                f"the discovery front {front.url} answered with HTTP status {answer.status}"
                + (hint if answer.status == http.HTTPStatus.UNAUTHORIZED else ""),
                remedy="see that the token exists and may sign and authenticate: kubeadm token list",
            )
        signatures = [value for name, value in answer.headers if name == _SIGNATURE]
        if not signatures:
            raise Unavailable(
                Reason.CLUSTER_INFO_UNSIGNED,
                f"{front.url} does not sign its answers",
                remedy="name a discovery front, not an API server, as the front",
            )
        if len(signatures) != 1 or not jws.is_valid(signatures[0], answer.body, self.token):
            got = "another signature" if len(signatures) == 1 else f"{len(signatures)} signatures"
            raise _not_signed(f"one signature of the token {self.token.id} over the answer", got)
        return answer.body

    def _unpinned(self, info: ClusterInfo, asked: Endpoint) -> Found:
        client.anchors(info.ca_certificates, self.deadline.clock)
        note = f"no CA was pinned: anyone who knows the token could have answered in the place of {asked.url}"
        notes = (note, *_elsewhere(info, asked))
        return Found(info=info, asked=asked.url, notes=notes)

    def _confirm(
        self, servers: Sequence[Endpoint], trust: https.Verified, text: str
    ) -> tuple[Endpoint, client.RefusedError | None]:
        """Query servers in turn. Return the one that returns this text, or the first that forbids reading.

        Raises ``Denied`` for another text, and ``Unavailable`` if none answers.
        """
        away = Unavailable(Reason.API_UNAVAILABLE, "no server to ask", remedy="name one")
        for server in servers:
            try:
                confirmed = client.fetch_cluster_info(server, trust, self.deadline).kubeconfig
            except Unavailable as unavailable:
                if isinstance(unavailable, client.RefusedError) and unavailable.status in _NOT_FOR_ALL:
                    return server, unavailable
                away = unavailable
                continue
            if confirmed == text:
                return server, None
            raise Denied(
                Reason.CLUSTER_INFO_CHANGED,
                expected="the same cluster-info, byte for byte, from the cluster's own server over the verified "
                "connection",
                got="another text" if confirmed else "none",
                remedy="try again if the cluster was being changed; else the first answer was old or not the cluster's",
            )
        raise away


def _not_signed(expected: str, got: str) -> Denied:
    remedy = "compare the token's secret; if it is right, this is not the cluster, or the text was changed"
    return Denied(Reason.CLUSTER_INFO_SIGNATURE_INVALID, expected=expected, got=got, remedy=remedy)


def _elsewhere(info: ClusterInfo, asked: Endpoint) -> tuple[str, ...]:
    if parse_server(info.server) == asked:
        return ()
    return (f"the cluster names {info.server} as its server, not {asked.url}, which was asked",)


_NOT_FOR_US: Final = _NOT_FOR_ALL | {http.HTTPStatus.NOT_FOUND}


def refresh(
    servers: Sequence[str],
    trusted_ca_pem: bytes,
    environment: Environment,
    *,
    tls_server_name: str | None = None,
    pin_server: bool = False,
) -> Found | None:
    """Read cluster-info from these servers (https URLs) in turn. Return None if the cluster does not publish it.

    ``tls_server_name``: the name in the servers' certificates, if it is not their host. ``pin_server``: follow CAs
    only. Then the server that answers must confirm its own change, because the one that it names may be unreachable.
    Raises ``Denied`` if all changes were refused, and ``Unavailable`` if no server answers.
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
        """Query one server and check what changed.

        1. It answers over a connection that the trusted CAs verify.
        2. The text is valid cluster-info.
        3. It keeps the key of at least one trusted CA.
        4. If CAs, server or server name changed, the new server returns the same text, verified by a CA that was kept
           and that also verifies the queried server. With ``pin_server`` the queried server does.
        """
        # 1
        trust = client.verified(self.trusted, self.deadline.clock, self.tls_server_name)
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
        """Return the CAs that verify the queried server, without others of the bundle."""
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
            trust = client.verified((authority,), self.deadline.clock, self.tls_server_name)
            client.fetch_cluster_info(server, trust, self.deadline)
        except Unavailable as unavailable:
            if unavailable.reason is not Reason.SERVER_NOT_TRUSTED:
                raise
            return False
        return True

    def _confirm(self, place: Endpoint, name: str | None, text: str, kept: tuple[x509.Certificate, ...]) -> None:
        trust = client.verified(kept, self.deadline.clock, name)
        try:
            answer = client.fetch_cluster_info(place, trust, self.deadline).kubeconfig
        except client.RefusedError as error:  # it says nothing about the queried server
            raise Unavailable(Reason.API_UNAVAILABLE, error.detail, remedy=error.remedy) from None
        if answer != text:
            raise Denied(
                Reason.CLUSTER_INFO_CHANGED,
                expected=f"the same cluster-info at {place.url}",
                got="another text" if answer else "none",
                remedy="see that this server belongs to the cluster; wait until a change is complete",
            )
