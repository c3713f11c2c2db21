"""The demo's liar is heard out by a node, whose fetch must read an answer that ends with its connection."""

from __future__ import annotations

from pathlib import Path

import pytest

from nodeattest_cli.demo.lying_server import LyingServer
from nodeattest_discovery import clusterinfo, jws, token
from nodeattest_discovery.node.by_token import by_token
from nodeattest_discovery.node.environment import Environment
from nodeattest_discovery.pins import CaPin
from nodeattest_providers.errors import Denied, Reason

ANOTHER = frozenset({CaPin(bytes(32))})


def test_an_answer_of_http_1_0_that_ends_with_its_connection_is_read_and_checked(tmp_path: Path) -> None:
    stolen = token.generate()
    with LyingServer(tmp_path / "server") as server:
        kubeconfig = clusterinfo.build(server.url, server.ca_pem)
        signature = jws.sign(kubeconfig.encode(), stolen)
        server.say({"kubeconfig": kubeconfig, f"jws-kubeconfig-{stolen.id}": signature})
        endpoint = server.url.removeprefix("https://")
        with pytest.raises(Denied) as refused:
            by_token([endpoint], stolen, ANOTHER, Environment(limit=2))
        assert refused.value.reason is Reason.CA_NOT_PINNED
        found = by_token([endpoint], stolen, None, Environment(limit=2))
        assert found.kubeconfig == kubeconfig
        assert server.credentials == []
