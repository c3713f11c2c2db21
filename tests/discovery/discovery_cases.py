"""Eleven servers that a joining node may meet; kubeadm 1.36.2 accepts five of them, two of which we refuse."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Callable, Generator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field

from lying_servers import Ca, LyingServer, Reply, config_map, script, signed, status

from nodeattest_discovery import clusterinfo
from nodeattest_discovery.token import BootstrapToken
from nodeattest_parsing.strict_base64 import encode_base64url
from nodeattest_providers.errors import Reason

TOKEN = BootstrapToken("abcdef", "0123456789abcdef")


@dataclass(frozen=True, slots=True)
class World:
    """The cluster's CA, the attacker's, and the server that the case is about."""

    real: Ca = field(default_factory=Ca)
    evil: Ca = field(default_factory=lambda: Ca("evil"))

    def text(self, server: LyingServer, *authorities: Ca) -> str:
        bundle = b"".join(one.pem for one in authorities or (self.real,))
        return clusterinfo.build(server.url, bundle)


@dataclass(frozen=True, slots=True)
class Case:
    """A server, what kubeadm does with it, and what we do."""

    says: Callable[[World, LyingServer, LyingServer], Callable[[int], Reply]]
    """The world, the server itself, and another one."""
    kubeadm_joins: bool
    ours: Reason | None
    evil_certificate: bool = False


def once(
    make: Callable[[World, LyingServer], Reply],
) -> Callable[[World, LyingServer, LyingServer], Callable[[int], Reply]]:
    return lambda world, server, _: script(make(world, server))


def header(text: str) -> Callable[[World, LyingServer], Reply]:
    """Sign under another header than kube-controller-manager's, with a sound MAC."""

    def make(world: World, server: LyingServer) -> Reply:
        content = world.text(server)
        first = encode_base64url(text.encode())
        mac = hmac.digest(
            TOKEN.secret.encode(), f"{first}.{encode_base64url(content.encode())}".encode(), hashlib.sha256
        )
        return signed(content, TOKEN, f"{first}..{encode_base64url(mac)}")

    return make


def no_kubeconfig(world: World, server: LyingServer) -> Reply:
    del world, server
    return config_map({"jws-kubeconfig-abcdef": "h..s"})


def second_differs(world: World, server: LyingServer, other: LyingServer) -> Callable[[int], Reply]:
    return script(signed(world.text(server), TOKEN), signed(world.text(other), TOKEN))


CASES = {
    "good": Case(once(lambda world, server: signed(world.text(server), TOKEN)), kubeadm_joins=True, ours=None),
    "typ_header": Case(
        once(header('{"alg":"HS256","kid":"abcdef","typ":"JWT"}')),
        kubeadm_joins=False,
        ours=Reason.CLUSTER_INFO_SIGNATURE_INVALID,
    ),
    "swapped_header_order": Case(
        once(header('{"kid":"abcdef","alg":"HS256"}')),
        kubeadm_joins=False,
        ours=Reason.CLUSTER_INFO_SIGNATURE_INVALID,
    ),
    "evil_bundle_plus_real": Case(
        once(lambda world, server: signed(world.text(server, world.real, world.evil), TOKEN)),
        kubeadm_joins=True,
        ours=Reason.SERVER_NOT_TRUSTED,
        evil_certificate=True,
    ),
    "evil_first_then_real": Case(
        once(lambda world, server: signed(world.text(server, world.evil, world.real), TOKEN)),
        kubeadm_joins=True,
        ours=Reason.SERVER_NOT_TRUSTED,
        evil_certificate=True,
    ),
    "evil_only": Case(
        once(lambda world, server: signed(world.text(server, world.evil), TOKEN)),
        kubeadm_joins=False,
        ours=Reason.CA_NOT_PINNED,
        evil_certificate=True,
    ),
    "pinned_but_served_by_evil": Case(
        once(lambda world, server: signed(world.text(server), TOKEN)),
        kubeadm_joins=False,
        ours=Reason.SERVER_NOT_TRUSTED,
        evil_certificate=True,
    ),
    "second_fetch_differs": Case(second_differs, kubeadm_joins=False, ours=Reason.CLUSTER_INFO_CHANGED),
    "no_kubeconfig": Case(once(no_kubeconfig), kubeadm_joins=False, ours=Reason.CLUSTER_INFO_MALFORMED),
    "bad_sig": Case(
        once(lambda world, server: signed(world.text(server), TOKEN, "eyJhbGciOiJIUzI1NiIsImtpZCI6ImFiY2RlZiJ9..AAAA")),
        kubeadm_joins=False,
        ours=Reason.CLUSTER_INFO_SIGNATURE_INVALID,
    ),
    "server_elsewhere": Case(
        lambda world, _, other: script(signed(world.text(other), TOKEN)), kubeadm_joins=True, ours=None
    ),
}


@contextmanager
def standing(case: Case, world: World) -> Generator[tuple[LyingServer, LyingServer]]:
    """Let a case's server stand, and another of the same cluster."""
    with ExitStack() as stack:
        authority = world.evil if case.evil_certificate else world.real
        server = stack.enter_context(LyingServer(authority.server(), status(404)))
        other = stack.enter_context(LyingServer(world.real.server(), status(404)))
        says = case.says(world, server, other)
        infos = iter(range(1 << 20))

        def reply(number: int) -> Reply:
            info = server.seen[number].path.startswith(clusterinfo.PATH)
            return says(next(infos)) if info else status(404, "NotFound")

        server.says = reply
        yield server, other
