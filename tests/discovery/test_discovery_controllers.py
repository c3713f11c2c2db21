"""The bootstrap token controllers in virtual time: what they write and delete, when, and what they never do."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

import pytest
from fake_api import FakeApi
from hypothesis import given
from hypothesis import strategies as st
from virtual import advance, now, virtually

from nodeattest_discovery import jws
from nodeattest_discovery.clusterinfo import KUBECONFIG_KEY, PATH, SIGNATURE_PREFIX
from nodeattest_discovery.controllers import bootstrap_signer
from nodeattest_discovery.controllers.bootstrap_signer import ControllerDeps, TokenController
from nodeattest_discovery.controllers.token_controllers import TokenControllers
from nodeattest_discovery.secret import SECRET_TYPE, secret_name
from nodeattest_discovery.token import BootstrapToken
from nodeattest_kube.errors import ApiError, Conflict
from nodeattest_parsing.objects import dig, mapping
from nodeattest_parsing.values import JsonObject

SECRETS = "/api/v1/namespaces/kube-system/secrets"
SECRET = "0123456789abcdef"
KUBECONFIG = "apiVersion: v1\nkind: Config\n# any text is signed as it is, here ünd there\n"
SIGNER = frozenset({TokenController.SIGNER})
CLEANER = frozenset({TokenController.CLEANER})
BOTH = SIGNER | CLEANER
START = datetime(2026, 6, 1, tzinfo=UTC)
PAST, FUTURE = "2020-01-01T00:00:00Z", "2999-01-01T00:00:00Z"


def signature(token: BootstrapToken, content: str = KUBECONFIG) -> str:
    return jws.sign(content.encode(), token)


# What cluster-info must hold, decided without an API server


ONE, OTHER = BootstrapToken("abc123", SECRET), BootstrapToken("def456", SECRET)
KEYS = st.one_of(
    st.text(alphabet="ab-.", min_size=1, max_size=8),
    st.just(KUBECONFIG_KEY),
    st.text(alphabet="abc123", max_size=6).map(SIGNATURE_PREFIX.__add__),
)


@given(st.dictionaries(KEYS, st.text(max_size=20)), st.sets(st.sampled_from([ONE, OTHER])))
def test_signing_is_done_once_and_touches_signatures_only(data: dict[str, str], tokens: set[BootstrapToken]) -> None:
    others: JsonObject = {"metadata": {"name": "cluster-info", "strange": [1]}, "binaryData": {"b": "AA=="}}
    before: JsonObject = {**others, "data": {**data}}
    signatures = {token: signature(token, data.get(KUBECONFIG_KEY, "")) for token in tokens}
    after = bootstrap_signer.desired_cluster_info(before, signatures) or before
    assert bootstrap_signer.desired_cluster_info(after, signatures) is None
    assert {key: value for key, value in after.items() if key != "data"} == others
    kept = {key: value for key, value in data.items() if not key.startswith(SIGNATURE_PREFIX)}
    signed = data.get(KUBECONFIG_KEY)
    wanted = {} if signed is None else {SIGNATURE_PREFIX + token.id: signature(token, signed) for token in tokens}
    assert dig(after, "data") == {**kept, **wanted}


MEBIBYTE = 1 << 20
TOKENS = [BootstrapToken(f"many{number:02d}", SECRET) for number in range(10)]


@pytest.mark.parametrize(("size", "turns"), [(MEBIBYTE, len(TOKENS)), (MEBIBYTE // 5, 2), (100, 0)])
async def test_others_are_served_between_two_slices(size: int, turns: int) -> None:
    served: list[None] = []
    done = asyncio.Event()

    async def others() -> None:
        while not done.is_set():
            await asyncio.sleep(0)
            served.append(None)

    async def sign() -> None:
        content = b"x" * (size + 1)
        signatures = await bootstrap_signer.sign_all(content, TOKENS, {})
        assert await bootstrap_signer.sign_all(content, TOKENS, signatures) == signatures  # made once
        done.set()

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(sign())
        tasks.create_task(others())
    assert abs(len(served) - turns) <= 1


# At work


@dataclass
class Told:
    """What the controllers said (``Observer``)."""

    signings: list[int] = field(default_factory=list[int])
    names: list[str] = field(default_factory=list[str])
    failures: list[ApiError] = field(default_factory=list[ApiError])

    def signed(self, tokens: int, seconds: float) -> None:
        assert 0 <= seconds < 600
        self.signings.append(tokens)

    def cleaned(self, name: str) -> None:
        self.names.append(name)

    def failed(self, controller: TokenController, error: ApiError, delay: float) -> None:
        assert controller
        assert delay > 0
        self.failures.append(error)


@dataclass
class Cluster(Told):
    """A cluster with cluster-info and tokens, and its controllers."""

    api: FakeApi = field(default_factory=FakeApi)
    ahead: float = 0.0
    """Seconds by which the controllers' clock is ahead of the API server's."""
    slowness: float = 0.0
    """Seconds that each look at all tokens takes."""

    def __post_init__(self) -> None:
        self.publish()

    def publish(self, **data: str) -> None:
        """Create cluster-info, or replace it."""
        self.api.put(PATH, {"data": {KUBECONFIG_KEY: KUBECONFIG, **data}})

    def edit(self, **data: str | None) -> None:
        """Change keys of cluster-info; None removes one."""
        changed: JsonObject = {key: value for key, value in {**self.info(), **data}.items() if value is not None}
        self.api.put(PATH, {**self.api.objects[PATH], "data": changed})

    def info(self) -> JsonObject:
        return mapping(self.api.objects[PATH], "data")

    def signed_ids(self) -> set[str]:
        return {key.removeprefix(SIGNATURE_PREFIX) for key in self.info() if key.startswith(SIGNATURE_PREFIX)}

    def add(
        self, token_id: str, *, expiration: str = "", kind: str = SECRET_TYPE, name: str = "", **metadata: str
    ) -> BootstrapToken:
        """Create a token that signs, or replace it."""
        entries = {"token-id": token_id, "token-secret": SECRET, "usage-bootstrap-signing": "true"}
        entries |= {"expiration": expiration} if expiration else {}
        data: JsonObject = {key: base64.b64encode(text.encode()).decode() for key, text in entries.items()}
        self.api.put(
            f"{SECRETS}/{name or secret_name(token_id)}", {"type": kind, "data": data, "metadata": {**metadata}}
        )
        return BootstrapToken(token_id, SECRET)

    def remove(self, token_id: str) -> None:
        self.api.remove(f"{SECRETS}/{secret_name(token_id)}")

    def has(self, token_id: str) -> bool:
        return f"{SECRETS}/{secret_name(token_id)}" in self.api.objects

    @asynccontextmanager
    async def working(self, enabled: frozenset[TokenController], *, late: float = 0) -> AsyncGenerator[None]:
        """Let controllers work, and catch up. ``late``: seconds after the informer that they start."""
        spent = [0.0]

        def wall() -> datetime:
            spent[0] += self.slowness
            return START + timedelta(seconds=now() + self.ahead)

        async def supervise(_name: str, run: Callable[[], Awaitable[None]]) -> None:
            await asyncio.sleep(late)
            await run()

        self.api.date = lambda: START + timedelta(seconds=now())
        deps = ControllerDeps(now=wall, clock=lambda: now() + spent[0], random=lambda: 0.0)
        controllers = TokenControllers(self.api, enabled, observer=self, deps=deps, supervise=supervise)
        running = asyncio.create_task(controllers.run())
        await advance(1)
        try:
            yield
        finally:
            running.cancel()
            await asyncio.wait([running])

    def before(self, method: str, change: Callable[[], object]) -> None:
        """Do something as somebody else, before the first call of a method reaches the server."""

        async def on_call(called: str, _path: str) -> None:
            if called == method:
                self.api.on_call = None
                change()

        self.api.on_call = on_call


# The signer


@virtually
async def test_a_token_s_signature_comes_and_goes_with_it_one_write_each() -> None:
    cluster = Cluster()
    async with cluster.working(SIGNER):
        token = cluster.add("sgn001")
        await advance(1)
        assert cluster.info() == {KUBECONFIG_KEY: KUBECONFIG, "jws-kubeconfig-sgn001": signature(token)}
        cluster.remove("sgn001")
        await advance(1)
    assert cluster.info() == {KUBECONFIG_KEY: KUBECONFIG}
    assert cluster.signings == [1, 0]
    assert cluster.api.count("PUT", PATH) == 2
    assert {method for method, _ in cluster.api.calls} == {"LIST", "WATCH", "PUT"}


@virtually
async def test_a_signature_that_somebody_spoils_comes_back_and_ever_more_slowly() -> None:
    cluster = Cluster()
    token = cluster.add("sgn010")
    async with cluster.working(SIGNER):
        for spoilt in (None, "somebody's", None, "somebody's"):
            assert cluster.info().get("jws-kubeconfig-sgn010") == signature(token)
            cluster.edit(**{"jws-kubeconfig-sgn010": spoilt})
            await advance(1)
        assert len(cluster.signings) == 4
        await advance(30)
        assert cluster.info()["jws-kubeconfig-sgn010"] == signature(token)


@virtually
async def test_signatures_of_nobody_go_and_everything_else_stays() -> None:
    cluster, nobody = Cluster(), ("", "not-a-token", "zzzzzz")
    kept = {"jws-other": "y", "jws-kubeconfig": "y", "note": "y"}
    cluster.publish(**{f"jws-kubeconfig-{name}": "x" for name in nobody}, **kept)
    cluster.api.put(PATH, {**cluster.api.objects[PATH], "metadata": {"labels": {"a": "b"}}})
    token = cluster.add("sgn007")
    async with cluster.working(SIGNER):
        pass
    assert cluster.info() == {KUBECONFIG_KEY: KUBECONFIG, "jws-kubeconfig-sgn007": signature(token), **kept}
    assert dig(cluster.api.objects[PATH], "metadata", "labels") == {"a": "b"}


@virtually
async def test_signatures_that_stand_are_not_taken_away_before_the_tokens_are_known() -> None:
    cluster, release = Cluster(), asyncio.Event()
    tokens = [cluster.add(f"sgn1{number:02d}") for number in range(5)]
    cluster.publish(**{f"jws-kubeconfig-{token.id}": signature(token) for token in tokens})

    async def hold(_method: str, path: str) -> None:
        if path == SECRETS:
            await release.wait()

    cluster.api.on_call = hold
    async with cluster.working(SIGNER):
        assert cluster.api.count("WATCH", "configmaps") == 1
        assert not cluster.api.writes()
        cluster.remove("sgn100")
        release.set()
        await advance(1)
    assert len(cluster.signed_ids()) == 4
    assert cluster.api.count("PUT") == 1


@virtually
async def test_a_changed_kubeconfig_is_signed_anew_as_the_exact_string() -> None:
    cluster, other = Cluster(), "no: kubeconfig\r\n\t at all\n\n"
    token = cluster.add("sgn006")
    async with cluster.working(SIGNER):
        cluster.edit(kubeconfig=other)
        await advance(1)
    assert cluster.info() == {KUBECONFIG_KEY: other, "jws-kubeconfig-sgn006": signature(token, other)}


@virtually
async def test_a_token_s_end_takes_its_signature_at_that_moment_without_the_cleaner() -> None:
    cluster = Cluster()
    cluster.add("sgn011", expiration="2026-06-01T12:00:00Z")
    cluster.add("sgn012", expiration="2026-06-01T13:00:00Z")
    async with cluster.working(SIGNER):
        await advance(12 * 3600 - 2)
        assert cluster.signed_ids() == {"sgn011", "sgn012"}
        assert len(cluster.signings) == 1
        await advance(2)
        assert cluster.signed_ids() == {"sgn012"}
        await advance(3600)
    assert not cluster.signed_ids()
    assert cluster.has("sgn011")
    assert cluster.api.count("PUT") == 3


@virtually
async def test_a_lost_race_for_cluster_info_is_run_again_on_what_stands_there_now() -> None:
    cluster = Cluster()
    cluster.add("flt002")
    cluster.before("PUT", lambda: cluster.edit(note="written in between"))
    async with cluster.working(SIGNER):
        pass
    assert cluster.signed_ids() == {"flt002"}
    assert cluster.info()["note"] == "written in between"
    assert [type(error) for error in cluster.failures] == [Conflict]
    assert cluster.api.count("PUT") == 2


@virtually
async def test_looking_at_the_tokens_takes_a_tenth_of_the_time_at_most() -> None:
    cluster = Cluster(slowness=1)
    cluster.add("sgn020")
    async with cluster.working(SIGNER):
        cluster.add("sgn021")
        await advance(6)
        assert cluster.signed_ids() == {"sgn020"}
        await advance(4)
        assert cluster.signed_ids() == {"sgn020", "sgn021"}


@virtually
async def test_a_cluster_info_that_is_deleted_is_not_asked_for_without_end() -> None:
    cluster = Cluster()
    cluster.add("sgn022")
    cluster.before("PUT", lambda: cluster.api.remove(PATH))
    async with cluster.working(SIGNER):
        await advance(600)
        assert (cluster.api.count("PUT"), len(cluster.failures) <= 1) == (1, True)
        cluster.publish()
        await advance(1)
        assert cluster.signed_ids() == {"sgn022"}


# The cleaner


@virtually
async def test_controllers_that_start_again_know_all_tokens() -> None:
    cluster = Cluster()
    cluster.add("cln030", expiration=PAST)
    cluster.add("sgn030")
    async with cluster.working(BOTH, late=100):
        await advance(101)
    assert (cluster.names, cluster.signed_ids()) == (["bootstrap-token-cln030"], {"sgn030"})


@virtually
async def test_an_expired_token_is_deleted_and_no_other() -> None:
    cluster = Cluster()
    for token_id, expiration in (("cln001", PAST), ("cln002", FUTURE), ("cln003", "")):
        cluster.add(token_id, expiration=expiration)
    async with cluster.working(CLEANER):
        pass
    assert cluster.names == ["bootstrap-token-cln001"]
    assert [cluster.has(f"cln00{number}") for number in (1, 2, 3)] == [False, True, True]
    assert {method for method, _ in cluster.api.calls} == {"LIST", "WATCH", "DELETE"}


@virtually
async def test_what_is_no_token_by_type_and_name_is_never_deleted() -> None:
    cluster = Cluster()
    cluster.add("cln005", kind="Opaque", expiration=PAST)
    cluster.add("cln006", name="other-cln006", expiration=PAST)
    cluster.add("cln007", expiration=PAST, deletionTimestamp=PAST)  # a finalizer holds it
    async with cluster.working(CLEANER):
        await advance(600)
    assert not cluster.api.count("DELETE")


@virtually
async def test_a_clock_that_jumps_back_deletes_nothing_early() -> None:
    cluster = Cluster()
    cluster.add("cln012", expiration="2026-06-01T00:00:50Z")
    async with cluster.working(CLEANER):
        cluster.ahead = -3600
        await advance(3600)
        assert cluster.has("cln012")
        await advance(120)
    assert cluster.names == ["bootstrap-token-cln012"]


@virtually
async def test_a_prolonged_token_stays_and_a_shortened_one_goes() -> None:
    cluster = Cluster()
    cluster.add("cln013", expiration="2026-06-01T00:00:30Z")
    cluster.add("cln014", expiration=FUTURE)
    async with cluster.working(CLEANER):
        cluster.add("cln013", expiration="2026-06-01T00:02:00Z")
        cluster.add("cln014", expiration=PAST)
        await advance(45)
        assert (cluster.names, cluster.has("cln013")) == (["bootstrap-token-cln014"], True)


@virtually
async def test_a_clock_that_is_ahead_of_the_api_server_s_deletes_nothing_that_is_good_there() -> None:
    cluster = Cluster(ahead=2 * 86400)
    cluster.add("cln020", expiration="2026-06-02T00:00:00Z")
    cluster.add("cln021", expiration=PAST)
    async with cluster.working(CLEANER):
        pass
    assert cluster.names == ["bootstrap-token-cln021"]
    assert [error.reason for error in cluster.failures] == ["ClocksDiffer"]
    assert cluster.has("cln020")


@pytest.mark.parametrize(
    ("recreated", "changes"),
    [
        (True, {"expiration": FUTURE}),
        (False, {"expiration": FUTURE}),
        (False, {"expiration": PAST, "deletionTimestamp": PAST}),  # a finalizer holds it: it is asked to go once
    ],
)
def test_a_token_that_changed_between_decision_and_delete_is_decided_again(
    recreated: bool, changes: dict[str, str]
) -> None:
    @virtually
    async def deletes() -> None:
        cluster = Cluster()
        cluster.add("flt006", expiration=PAST)

        def change() -> None:
            if recreated:
                cluster.remove("flt006")
            cluster.add("flt006", **changes)

        cluster.before("DELETE", change)
        async with cluster.working(CLEANER):
            await advance(600)
        assert cluster.api.count("DELETE") == 1
        assert cluster.has("flt006")
        assert not cluster.names
        assert not cluster.failures

    deletes()
