"""Discovery by token: which servers are believed, and what they get to see; the peer is kubeadm itself."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from discovery_cases import CASES, TOKEN, World, standing
from kubernetes_assets import join_configuration
from lying_servers import CLUSTER_INFO, QUIET, Ca, LyingServer, VirtualTime, config_map, script, signed, status

from nodeattest_discovery import clusterinfo
from nodeattest_discovery.node.by_token import by_token
from nodeattest_discovery.node.client import Found
from nodeattest_discovery.pins import CaPin
from nodeattest_providers.errors import Denied, Reason, Unavailable
from nodeattest_sandbox.apiserver.jsonvalue import JsonMap
from nodeattest_sandbox.control_plane import kubeadm


@pytest.fixture(scope="module")
def world() -> World:
    return World()


def find(
    *servers: LyingServer | str, pins: frozenset[CaPin] | None, time: VirtualTime | None = None, limit: float = 12
) -> Found:
    endpoints = [server if isinstance(server, str) else server.endpoint for server in servers]
    return by_token(endpoints, TOKEN, pins, (time or VirtualTime()).environment(limit=limit))


def reason(action: Callable[[], object]) -> Reason | None:
    try:
        action()
    except (Denied, Unavailable) as error:
        return error.reason
    return None


@pytest.mark.parametrize("name", CASES)
def test_each_server_meets_its_verdict_and_sees_no_credential(name: str, world: World) -> None:
    with standing(CASES[name], world) as (server, other):
        assert reason(lambda: find(server, pins=frozenset({world.real.pin}))) == CASES[name].ours
        assert set(server.paths) == {CLUSTER_INFO}
        assert server.headers <= QUIET
        assert not other.seen


@pytest.mark.conformance
@pytest.mark.parametrize("name", CASES)
def test_kubeadm_gives_the_verdict_that_the_table_says(name: str, world: World, assets: Path, tmp_path: Path) -> None:
    with standing(CASES[name], world) as (server, other):
        discovery: JsonMap = {
            "bootstrapToken": {
                "token": TOKEN.reveal(),
                "apiServerEndpoint": server.endpoint,
                "caCertHashes": [str(world.real.pin)],
            },
        }
        (tmp_path / "join.yaml").write_text(join_configuration(discovery, seconds=3))
        words = ["join", "phase", "preflight", "--config", str(tmp_path / "join.yaml"), "--ignore-preflight-errors=all"]
        done = kubeadm(assets, *words)
        asked = [seen for seen in (*server.seen, *other.seen) if "/kubeadm-config" in seen.path]
        assert bool(asked) == CASES[name].kubeadm_joins, done.stderr
        assert all(("authorization", f"Bearer {TOKEN.reveal()}") in seen.headers for seen in asked)


# What a server is asked, and how often


def test_what_is_found_is_the_exact_text_and_the_whole_bundle(world: World) -> None:
    with LyingServer(world.real.server(), status(404)) as server:
        text = world.text(server, world.evil, world.real)
        server.says = signed(text, TOKEN)
        found = find(server, pins=frozenset({world.real.pin}))
    assert (found.kubeconfig, found.asked, found.info.server) == (text, server.url, server.url)
    assert found.ca_pem == world.evil.pem + world.real.pem
    assert "not pinned" in found.notes[0]
    assert len(server.seen) == 2


def test_without_pins_there_is_one_question_and_a_warning(world: World) -> None:
    with standing(CASES["good"], world) as (server, _):
        found = find(server, pins=None)
        assert server.paths == [CLUSTER_INFO]
    assert "no CA was pinned" in found.notes[0]


def test_it_waits_for_the_signer_at_once_and_every_five_seconds(world: World) -> None:
    time = VirtualTime()
    with LyingServer(world.real.server(), status(404)) as server:
        text = world.text(server)
        unsigned = config_map({"kubeconfig": text, "jws-kubeconfig-ffffff": "x"})
        server.says = script(status(404), status(403), unsigned, signed(text, TOKEN))
        find(server, pins=frozenset({world.real.pin}), time=time, limit=300)
    assert time.moment == 15
    assert len(server.seen) == 5


# Several servers


def test_a_refused_server_is_not_asked_again_while_another_comes_up(world: World) -> None:
    with standing(CASES["bad_sig"], world) as (bad, _), LyingServer(world.real.server(), status(404)) as late:
        late.says = script(status(503), status(503), signed(world.text(late), TOKEN))
        time = VirtualTime()
        assert find(bad, late, pins=frozenset({world.real.pin}), time=time).asked == late.url
        assert len(bad.seen) == 1
        assert any(bad.url in line and "SignatureInvalid" in line for line in time.told)


# What nobody is asked for


@pytest.mark.parametrize("endpoints", [[], ["127.0.0.1"], ["https://127.0.0.1:1/path"], ["127.0.0.1:1", ""]])
def test_endpoints_are_read_before_any_is_asked(world: World, endpoints: list[str]) -> None:
    pins = frozenset({world.real.pin})
    assert reason(lambda: find(*endpoints, pins=pins)) == Reason.DISCOVERY_ENDPOINT_MALFORMED


# Other servers that must not be believed


@pytest.mark.parametrize(("starts", "lasts"), [(-600, -300), (300, 600)])
def test_a_ca_must_be_valid_pinned_or_not(starts: float, lasts: float) -> None:
    ca = Ca("real", starts=starts, lasts=lasts)
    with LyingServer(ca.server(), status(404)) as server:
        server.says = signed(clusterinfo.build(server.url, ca.pem), TOKEN)
        for pins in (frozenset({ca.pin}), None):
            assert reason(lambda pins=pins: find(server, pins=pins)) == Reason.SERVER_NOT_TRUSTED
