"""Refresh: which news a joined node believes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest
from lying_servers import QUIET, Ca, LyingServer, Reply, Says, VirtualTime, config_map, script, status

from nodeattest_discovery import clusterinfo
from nodeattest_discovery.node.by_token import refresh
from nodeattest_discovery.node.client import Found
from nodeattest_providers.errors import Denied, Reason, Unavailable

OLD, NEW, EVIL = Ca("old"), Ca("new"), Ca("evil")


class Servers:
    """Servers that stand until the test ends."""

    def __init__(self, stack: ExitStack) -> None:
        self.stack = stack
        self.time = VirtualTime()

    def stand(self, ca: Ca, says: Says | Reply | None = None) -> LyingServer:
        return self.stack.enter_context(LyingServer(ca.server(), says or status(404)))

    def ask(self, *servers: LyingServer, trusted: tuple[Ca, ...] = (OLD,)) -> Found | None:
        pem = b"".join(ca.pem for ca in trusted)
        return refresh([server.url for server in servers], pem, self.time.environment())

    def reason(self, *servers: LyingServer, trusted: tuple[Ca, ...] = (OLD,)) -> Reason:
        with pytest.raises((Denied, Unavailable)) as caught:
            self.ask(*servers, trusted=trusted)
        assert isinstance(caught.value, Denied | Unavailable)
        return caught.value.reason


@pytest.fixture
def servers() -> Iterator[Servers]:
    with ExitStack() as stack:
        yield Servers(stack)


def text(server: LyingServer, *authorities: Ca) -> str:
    return clusterinfo.build(server.url, b"".join(ca.pem for ca in authorities))


def published(content: str) -> Reply:
    return config_map({"kubeconfig": content})


def test_a_rotation_is_followed_from_old_to_both_to_new(servers: Servers) -> None:
    before, after = servers.stand(OLD), servers.stand(NEW)
    before.says = published(text(before, OLD, NEW))
    both = servers.ask(before)
    assert both is not None
    assert both.info.ca_pem == OLD.pem + NEW.pem
    after.says = published(text(after, NEW))
    done = servers.ask(after, trusted=(OLD, NEW))
    assert done is not None
    assert done.info.ca_pem == NEW.pem
    assert before.headers | after.headers <= QUIET


def test_a_server_that_moved_is_found(servers: Servers) -> None:
    here, there = servers.stand(OLD), servers.stand(OLD)
    here.says = there.says = published(text(there, OLD))
    found = servers.ask(here)
    assert found is not None
    assert found.info.server == there.url
    assert (len(here.seen), len(there.seen)) == (1, 1)
    assert there.headers <= QUIET


@pytest.mark.parametrize("code", [401, 403, 404])
def test_a_cluster_that_does_not_tell_changes_nothing_and_the_person_is_told(servers: Servers, code: int) -> None:
    assert servers.ask(servers.stand(OLD, status(code))) is None
    assert any(str(code) in line for line in servers.time.told)


def test_a_server_that_lies_does_not_keep_the_others_from_telling(servers: Servers) -> None:
    lies, here = servers.stand(OLD), servers.stand(OLD)
    lies.says = published(text(lies, EVIL))
    here.says = published(text(here, OLD))
    found = servers.ask(lies, here)
    assert found is not None
    assert found.asked == here.url


def test_a_node_that_keeps_its_server_follows_cas_though_the_named_one_is_out_of_reach(servers: Servers) -> None:
    """A person's way to the cluster, or a discovery file's, need not be the one that cluster-info names."""
    here = servers.stand(OLD)
    with LyingServer(OLD.server(), status(404)) as gone:
        here.says = published(text(gone, OLD, NEW))
    environment = servers.time.environment()
    found = refresh([here.url], OLD.pem, environment, pin_server=True)
    assert found is not None
    assert found.info.ca_pem == OLD.pem + NEW.pem
    assert here.headers <= QUIET
    with pytest.raises(Unavailable):
        refresh([here.url], OLD.pem, environment)


def test_a_node_that_keeps_its_server_lets_that_one_bear_out_which_cas_stay(servers: Servers) -> None:
    here, moved = servers.stand(OLD), servers.stand(NEW)
    here.says = moved.says = published(text(here, NEW))
    environment = servers.time.environment()
    with pytest.raises(Unavailable) as refused:
        refresh([here.url], OLD.pem + NEW.pem, environment, pin_server=True)
    assert refused.value.reason is Reason.SERVER_NOT_TRUSTED
    assert refresh([moved.url], OLD.pem + NEW.pem, environment, pin_server=True) is not None


# What must not be believed


def moved_to_a_server_without_it(servers: Servers) -> LyingServer:
    here, there = servers.stand(OLD), servers.stand(OLD, status(403))
    here.says = published(text(there, OLD))
    return here


def with_a_user(servers: Servers) -> LyingServer:
    server = servers.stand(OLD)
    user = "users:\n- name: a\n  user: {token: b}\n"
    server.says = published(text(server, OLD).replace("users: null\n", user))
    return server


def flapping(servers: Servers) -> LyingServer:
    server = servers.stand(OLD)
    server.says = script(published(text(server, OLD, NEW)), published(text(server, OLD)))
    return server


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (moved_to_a_server_without_it, Reason.API_UNAVAILABLE),
        (with_a_user, Reason.CLUSTER_INFO_MALFORMED),
        (flapping, Reason.CLUSTER_INFO_CHANGED),
    ],
)
def test_news_that_is_not_believed(servers: Servers, make: Callable[[Servers], LyingServer], reason: Reason) -> None:
    server = make(servers)
    assert servers.reason(server) == reason
    assert server.headers <= QUIET
