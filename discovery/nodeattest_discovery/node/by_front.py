"""Discovery by a front (proposal 000): a question that the token signs, an answer that the same token signs.

Promises: the front sees a JWT that is good for a minute or two and for reading only, never the token; what it answers
counts only under the token's signature over the very bytes, and with pins only as far as the cluster's own server,
verified by pinned CAs alone, bears it out: one that a person named, where one was. The front's own certificate proves
nothing and is not looked at: a pin is of the cluster's CA, and the answer proves itself.
Leaves to others: asking again, and falling back to the servers themselves (``by_token``), for which every front that
does not answer is ``Unavailable``. An old answer that the token signed passes for a new one as long as the token lives;
what it may say is bounded by the pins.
Source: companion proposal 000, "Implementation Flow"; docs/decisions.md.
"""

from __future__ import annotations

import http
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from nodeattest_discovery import clusterinfo, jwt
from nodeattest_discovery import jwt as jws
from nodeattest_discovery.node import client, https
from nodeattest_discovery.node import credential as configmap
from nodeattest_discovery.node.address import cluster_info_path, parse_endpoint, parse_server
from nodeattest_discovery.node.client import Found
from nodeattest_discovery.node.clock import Deadline
from nodeattest_discovery.node.discovery_file import Environment
from nodeattest_discovery.node.https import Response
from nodeattest_discovery.tls import CaPin, require_pins, select_pinned
from nodeattest_discovery.token import BootstrapToken
from nodeattest_parsing.endpoint import Endpoint
from nodeattest_providers.checks import Checks
from nodeattest_providers.errors import Reason, Unavailable

_SECTION: Final = "companion proposal 000, JWS content signing"
_SIGNATURE: Final = "x-kubernetes-jws"
_UNPINNED: Final = "no CA was pinned: anyone who knows the token could have answered in the front's place"
_NOT_FOR_ALL: Final = frozenset({http.HTTPStatus.UNAUTHORIZED, http.HTTPStatus.FORBIDDEN})


def by_front(
    front: str,
    token: BootstrapToken,
    pins: frozenset[CaPin] | None,
    environment: Environment,
    *,
    servers: Sequence[str] = (),
) -> Found:
    """Find the cluster that a front (``host:port`` or https URL) stands for; asks once.

    ``servers``: API servers that the caller knows; where there are any, they bear the answer out, and not the one that
    it names: the holder of a leaked token chooses that, and every certificate of the cluster's CA for any name would
    do. ``pins=None`` leaves out whether the server is the cluster's own: an explicit wish of the caller. Raises
    ``Unavailable`` for a front that is away, knows no such token or does not sign, ``Denied`` for an answer that no
    waiting mends. ``Found.asked`` is the cluster's server, never the front.
    """
    server, known = parse_endpoint(front), tuple(parse_endpoint(one) for one in servers)
    require_pins(pins)
    return _Question(server, token, pins, environment.deadline(), known).found()


@dataclass(frozen=True, slots=True)
class _Question:
    front: Endpoint
    token: BootstrapToken
    pins: frozenset[CaPin] | None
    deadline: Deadline
    known: tuple[Endpoint, ...]

    def found(self) -> Found:
        """Ask the front, and check what it says.

        1. Ask, unverified, with a JWT; only status 200 is an answer.
        2. Exactly one header holds exactly the signature that this token makes over the body.
        3. The body is the ConfigMap cluster-info, and a sound kubeconfig is in it.
        4. CAs that are pinned themselves, and valid, are in that.
        5. A server of the cluster, vouched for by one of these, says the same, byte for byte: one that is known, else
           the one that the kubeconfig names. Where it refuses to say, only these CAs and the server that was asked are
           found: what a token signed, and no server of the cluster, may contain untrusted CAs.
        """
        # 1
        answer = self._asked()
        # 2
        self._check_signature(answer)
        # 3
        text = configmap.parse(answer.body).text()
        info = clusterinfo.parse(text)
        cluster = parse_server(info.server)
        if self.pins is None:
            client.anchors(info.ca_certificates, self.deadline.clock)
            return Found(kubeconfig=text, info=info, ca_pem=info.ca_pem, asked=cluster.url, notes=(_UNPINNED,))
        # 4
        pinned = select_pinned(info.ca_certificates, self.pins)
        anchors = client.anchors(pinned, self.deadline.clock)
        # 5
        trust = https.Verified(ca_pem=anchors, server_name=None if self.known else info.tls_server_name)
        asked, shown = self._confirm(self.known or (cluster,), trust, text)
        notes = () if asked == cluster else (f"the cluster names {info.server} as its server, not {asked.url}",)
        if shown:
            return Found(kubeconfig=text, info=info, ca_pem=info.ca_pem, asked=asked.url, notes=notes)
        note = f"{asked.url} does not show cluster-info: only the pinned CAs of the front's answer are trusted"
        believed = replace(info, ca_certificates=pinned)
        if self.known:
            believed = replace(believed, server=asked.url, tls_server_name=None)
        return Found(kubeconfig=text, info=believed, ca_pem=anchors, asked=asked.url, notes=(note, *notes))

    def _asked(self) -> Response:
        question = jwt.mint(self.token, self.deadline.clock.now())
        answer = client.get(
            self.front,
            cluster_info_path(self.front),
            https.UNVERIFIED,
            self.deadline,
            headers={"Authorization": f"Bearer {question}"},
        )
        if answer.status != http.HTTPStatus.OK:
            hint = " (it does not know the token, or this machine's clock is wrong)"
            raise Unavailable(
                Reason.API_UNAVAILABLE,
                f"the discovery front {self.front.url} answered with HTTP status {answer.status}"
                + (hint if answer.status == http.HTTPStatus.UNAUTHORIZED else ""),
                remedy="see that the token exists and may sign and authenticate: kubeadm token list",
            )
        return answer

    def _check_signature(self, answer: Response) -> None:
        """Refuse an answer that this token did not sign.

        The header is compared whole: a JWT has another header (``typ``), and a signature of cluster-info's text is
        one over other bytes, so neither passes here.
        """
        signatures = [value for name, value in answer.headers if name == _SIGNATURE]
        if not signatures:
            raise Unavailable(
                Reason.CLUSTER_INFO_UNSIGNED,
                f"{self.front.url} does not sign its answers",
                remedy="name a discovery front, not an API server, as the front",
            )
        Checks().require(
            len(signatures) == 1 and jws.is_valid(signatures[0], answer.body, self.token),
            "the answer is signed with this token",
            section=_SECTION,
            reason=Reason.CLUSTER_INFO_SIGNATURE_INVALID,
            expected=f"one signature of the token {self.token.id} over the answer",
            got="another signature" if len(signatures) == 1 else f"{len(signatures)} signatures",
            remedy="compare the token's secret; if it is right, this is not the cluster's front",
        )

    def _confirm(self, servers: Sequence[Endpoint], trust: https.Verified, text: str) -> tuple[Endpoint, bool]:
        """Ask servers in turn; return the one that answered, and whether it showed cluster-info.

        Raises ``Denied``, ``Unavailable``.
        """
        away = Unavailable(Reason.API_UNAVAILABLE, "no server to ask", remedy="name one")
        for server in servers:
            try:
                return server, self._is_confirmed(server, trust, text)
            except Unavailable as unavailable:
                away = unavailable
        raise away

    def _is_confirmed(self, cluster: Endpoint, trust: https.Verified, text: str) -> bool:
        """Ask the cluster itself; False where it refuses to show cluster-info. Raises ``Denied``, ``Unavailable``."""
        try:
            confirmed = client.fetch_cluster_info(cluster, trust, self.deadline).kubeconfig
        except client.RefusedError as refused:
            if refused.status not in _NOT_FOR_ALL:
                raise
            return False
        Checks().require(
            confirmed == text,
            "the verified server says the same",
            section=_SECTION,
            reason=Reason.CLUSTER_INFO_CHANGED,
            expected="the front's answer, byte for byte, from the cluster's own server",
            got="another text" if confirmed else "none",
            remedy="try again if the cluster was being changed; else the front's answer was old, or another cluster's",
        )
        return True
