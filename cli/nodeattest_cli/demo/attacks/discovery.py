"""Attackers between a node and its cluster, with a stolen token: each answers in the cluster's place.

The victim boots at last, with the address of a server that somebody else runs. That somebody has the victim's token
(and may sign with it); what is missing is the key of the cluster's CA.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final

from nodeattest_cli.demo.attacker import CsrOutcome
from nodeattest_cli.demo.attacks.context import Attack, AttackContext, new_name
from nodeattest_cli.demo.fleet import run_join
from nodeattest_cli.demo.join_info import join_info_with_pin
from nodeattest_cli.demo.lying_server import LyingServer
from nodeattest_discovery import clusterinfo, jws, token
from nodeattest_discovery.token import BootstrapToken
from nodeattest_providers.errors import Reason

__all__ = ["ATTACKS"]

_FOOLED: Final = "Fooled"
_DISCOVERY_TIMEOUT: Final = "3"
"""Seconds that the node keeps asking; by default it would for five minutes."""

Lie = Callable[[AttackContext, LyingServer, BootstrapToken], dict[str, str]]


def _answer(context: AttackContext, *, lie: Lie) -> CsrOutcome:
    """Let the victim ask a server that lies; tell what the node said, and whether a credential reached the server."""
    stolen = token.parse(context.victim.token)
    root = context.directory / new_name()
    with LyingServer(root / "server") as server:
        server.say(lie(context, server, stolen))
        ended = run_join(
            context.world,
            context.children,
            context.agent,
            root,
            identity=context.victim.identity,
            attestor=context.victim.attestor,
            token=context.victim.token,
            join_info=join_info_with_pin(server.url, context.world.join_info.pin),
            more=(f"--discovery-timeout={_DISCOVERY_TIMEOUT}",),
        )
        if server.credentials:
            return CsrOutcome(_FOOLED, "the node sent its token to the attacker")
    if not ended.code:
        return CsrOutcome(_FOOLED, "the node joined the attacker's cluster")
    reason, _, message = ended.last_line.removeprefix("kubelet-authenticator: ").partition(": ")
    return CsrOutcome(reason, message)


def _own_ca(_context: AttackContext, server: LyingServer, stolen: BootstrapToken) -> dict[str, str]:
    return _signed(clusterinfo.build(server.url, server.ca_pem), stolen)


def _both_cas(context: AttackContext, server: LyingServer, stolen: BootstrapToken) -> dict[str, str]:
    """Mix the genuine CA into the bundle: one certificate matches the pin, another one signed this server."""
    bundle = context.world.workload.ca_certificate.read_bytes() + server.ca_pem
    return _signed(clusterinfo.build(server.url, bundle), stolen)


def _other_token(context: AttackContext, server: LyingServer, stolen: BootstrapToken) -> dict[str, str]:
    genuine = context.world.workload.ca_certificate.read_bytes()
    kubeconfig = clusterinfo.build(server.url, genuine)
    signature = jws.sign(kubeconfig.encode(), BootstrapToken(stolen.id, token.generate().secret))
    return _data(kubeconfig, stolen, signature)


def _signed(kubeconfig: str, by: BootstrapToken) -> dict[str, str]:
    return _data(kubeconfig, by, jws.sign(kubeconfig.encode(), by))


def _data(kubeconfig: str, by: BootstrapToken, signature: str) -> dict[str, str]:
    return {clusterinfo.KUBECONFIG_KEY: kubeconfig, clusterinfo.SIGNATURE_PREFIX + by.id: signature}


ATTACKS: Final = (
    Attack(
        name="a server that stole the token, its own CA",
        expected=(Reason.CA_NOT_PINNED,),
        run=partial(_answer, lie=_own_ca),
    ),
    Attack(
        name="a server that stole the token, both CAs in one bundle",
        expected=(Reason.SERVER_NOT_TRUSTED,),
        run=partial(_answer, lie=_both_cas),
    ),
    Attack(
        name="a server that knows the token's id only",
        expected=(Reason.CLUSTER_INFO_SIGNATURE_INVALID,),
        run=partial(_answer, lie=_other_token),
    ),
)
