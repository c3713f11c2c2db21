"""The bootstrap token controllers on live API servers: what they write and delete, when, and what they never do."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterator
from datetime import UTC, datetime, timedelta

import pytest
from aiohttp.web import Request
from hypothesis import given
from hypothesis import strategies as st
from polling import until
from token_world import (
    CLEANER,
    KUBECONFIG,
    SECRET,
    SECRETS,
    SIGNER,
    Recorded,
    TokenCluster,
    Told,
    VirtualTime,
    applied_writes,
    signature,
    working,
)
from write_gate import Gate, opened_gate

from nodeattest_discovery.clusterinfo import KUBECONFIG_KEY, SIGNATURE_PREFIX
from nodeattest_discovery.controllers.bootstrap_signer import RECHECK, ControllerDeps, desired_cluster_info, sign_all
from nodeattest_discovery.controllers.token_controllers import TokenControllers
from nodeattest_discovery.token import BootstrapToken
from nodeattest_kube.client import ApiClient
from nodeattest_kube.errors import Conflict
from nodeattest_parsing.objects import dig
from nodeattest_parsing.values import JsonObject
from nodeattest_sandbox.control_plane import ControlPlane

# What cluster-info must hold, decided without an API server


ONE = BootstrapToken("abc123", SECRET)
OTHER = BootstrapToken("def456", SECRET)
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
    after = desired_cluster_info(before, signatures) or before
    assert desired_cluster_info(after, signatures) is None
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
        signatures = await sign_all(b"x" * (size + 1), TOKENS, {})
        assert await sign_all(b"x" * (size + 1), TOKENS, signatures) == signatures  # made once
        done.set()

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(sign())
        tasks.create_task(others())
    assert abs(len(served) - turns) <= 1


# The signer


@pytest.fixture
def cluster(control_plane: ControlPlane) -> Iterator[TokenCluster]:
    made = TokenCluster(control_plane)
    made.clean()
    yield made
    made.clean()


@pytest.fixture
async def gate(cluster: TokenCluster) -> AsyncGenerator[Gate]:
    async with opened_gate(cluster.plane, cluster.kubeconfig()) as opened:
        yield opened


async def test_a_token_s_signature_comes_and_goes_with_it_one_write_each(cluster: TokenCluster) -> None:
    cluster.publish()
    async with working(cluster.kubeconfig(), enabled=SIGNER) as told:
        token = cluster.add("sgn001")
        await until(lambda: cluster.signed_ids() == {"sgn001"}, "the signature")
        assert cluster.info()["jws-kubeconfig-sgn001"] == signature(token)
        assert cluster.info()["kubeconfig"] == KUBECONFIG
        cluster.remove("sgn001")
        await until(lambda: not cluster.signed_ids(), "the signature's end")
        await until(lambda: len(told.signings) == 2)
    assert told.signings == [1, 0]
    writes = await applied_writes(cluster, 2)
    assert [(entry.verb, entry.name, entry.code) for entry in writes] == [("update", "cluster-info", 200)] * 2
    assert {entry.verb for entry in cluster.requests()} <= {"list", "watch", "update"}


async def test_a_signature_that_somebody_spoils_comes_back_and_ever_more_slowly(cluster: TokenCluster) -> None:
    time = VirtualTime()
    cluster.publish()
    token = cluster.add("sgn010")
    async with working(cluster.kubeconfig(), enabled=SIGNER, deps=time.deps) as told:
        for spoilt in (None, "somebody's", None, "somebody's"):
            await until(lambda: cluster.info().get("jws-kubeconfig-sgn010") == signature(token))
            cluster.edit(**{"jws-kubeconfig-sgn010": spoilt})
        await until(lambda: any(queue.delayed for queue in told.queues))
        await told.worked_off()
        assert len(told.signings) == 4
        time.advance(30)
        await until(lambda: cluster.info().get("jws-kubeconfig-sgn010") == signature(token))


async def test_signatures_of_nobody_go_and_everything_else_stays(cluster: TokenCluster) -> None:
    strange = {"jws-kubeconfig-": "x", "jws-kubeconfig-not-a-token": "x", "jws-kubeconfig-zzzzzz": "x"}
    kept = {"jws-other": "y", "jws-kubeconfig": "y", "note": "y"}
    cluster.publish(
        {"kubeconfig": KUBECONFIG, **strange, **kept}, labels={"a": "b"}, annotations={"tests.example/note": "kept"}
    )
    cluster.add("sgn007")
    async with working(cluster.kubeconfig(), enabled=SIGNER):
        await until(lambda: cluster.signed_ids() == {"sgn007"})
    found = cluster.admin.get("/api/v1/namespaces/kube-public/configmaps/cluster-info")
    assert {key: cluster.info()[key] for key in kept} == kept
    assert found["metadata"]["labels"] == {"a": "b"}  # pyright: ignore[reportArgumentType, reportCallIssue, reportIndexIssue, reportOptionalSubscript]
    assert "tests.example/note" in str(found["metadata"])


async def test_signatures_that_stand_are_not_taken_away_before_the_tokens_are_known(cluster: TokenCluster) -> None:
    tokens = [cluster.add(f"sgn1{number:02d}") for number in range(5)]
    cluster.publish({"kubeconfig": KUBECONFIG, **{f"jws-kubeconfig-{token.id}": signature(token) for token in tokens}})
    async with working(cluster.kubeconfig(), enabled=SIGNER):
        cluster.remove("sgn100")
        await until(lambda: len(cluster.signed_ids()) == 4)
    assert len(await applied_writes(cluster, 1)) == 1


async def test_a_signer_that_does_not_know_the_tokens_yet_writes_nothing(cluster: TokenCluster, gate: Gate) -> None:
    cluster.publish({"kubeconfig": KUBECONFIG, "jws-kubeconfig-sgn110": signature(cluster.add("sgn110"))})
    gate.held = lambda call: "/secrets" in call.path
    told = Told()
    async with ApiClient.from_kubeconfig_file(gate.kubeconfig) as client:
        pair = TokenControllers(client, SIGNER, observer=told, deps=Recorded.of(ControllerDeps(), told))
        running = asyncio.create_task(pair.run())
        await until(lambda: sum("configmaps" in call.path for call in gate.calls) > 1)  # the list, then the watch
        await told.worked_off()
        running.cancel()
        await asyncio.wait([running])
    assert not cluster.writes()
    assert cluster.signed_ids() == {"sgn110"}


async def test_a_changed_kubeconfig_is_signed_anew_as_the_exact_string(cluster: TokenCluster) -> None:
    cluster.publish()
    token = cluster.add("sgn006")
    other = "no: kubeconfig\r\n\t at all\n\n"
    async with working(cluster.kubeconfig(), enabled=SIGNER):
        await until(lambda: "sgn006" in cluster.signed_ids())
        cluster.edit(kubeconfig=other)
        await until(lambda: cluster.info()["jws-kubeconfig-sgn006"] == signature(token, other))
    assert cluster.info()["kubeconfig"] == other


async def test_a_token_s_end_takes_its_signature_at_that_moment_without_the_cleaner(cluster: TokenCluster) -> None:
    time = VirtualTime(datetime(2026, 6, 1, tzinfo=UTC))
    cluster.publish()
    cluster.add("sgn011", expiration="2026-06-01T12:00:00Z")
    cluster.add("sgn012", expiration="2026-06-01T13:00:00Z")
    async with working(cluster.kubeconfig(), enabled=SIGNER, deps=time.deps) as told:
        await until(lambda: cluster.signed_ids() == {"sgn011", "sgn012"})
        await pass_hours(time, 11.9)
        assert len(told.signings) == 1
        await pass_hours(time, 0.1)
        await until(lambda: cluster.signed_ids() == {"sgn012"})
        await pass_hours(time, 1)
        await until(lambda: not cluster.signed_ids())
    assert cluster.has("bootstrap-token-sgn011")
    assert len(await applied_writes(cluster, 3)) == 3


async def pass_hours(time: VirtualTime, hours: float) -> None:
    """Let time pass in steps in which the controllers can set their next timer."""
    for _ in range(round(hours * 60)):
        time.advance(60)
        for _turn in range(4):
            await asyncio.sleep(0)


# The cleaner


START = datetime(2020, 6, 1, tzinfo=UTC)


async def test_an_expired_token_is_deleted_and_no_other(cluster: TokenCluster) -> None:
    cluster.add("cln001", expiration="2020-01-01T00:00:00Z")
    cluster.add("cln002", expiration="2999-01-01T00:00:00Z")
    cluster.add("cln003")
    async with working(cluster.kubeconfig(), enabled=CLEANER) as told:
        await until(lambda: told.names)
        await told.worked_off()
    assert told.names == ["bootstrap-token-cln001"]
    writes = await applied_writes(cluster, 1)
    assert [(entry.verb, entry.name) for entry in writes] == [("delete", "bootstrap-token-cln001")]
    assert [cluster.has(f"bootstrap-token-cln00{number}") for number in (1, 2, 3)] == [False, True, True]


async def test_what_is_no_token_by_type_and_name_is_never_deleted(cluster: TokenCluster) -> None:
    past = "2020-01-01T00:00:00Z"
    cluster.add("cln005", kind="Opaque", expiration=past)
    cluster.add("cln006", name="other-cln006", expiration=past)
    cluster.add("cln007", name="other-bootstrap-token-cln007", kind="Opaque", expiration=past)
    async with working(cluster.kubeconfig(), enabled=CLEANER) as told:
        cluster.add("cln008", expiration=past)
        await until(lambda: told.names)
        await told.worked_off()
    assert told.names == ["bootstrap-token-cln008"]
    assert len(await applied_writes(cluster, 1)) == 1


async def test_a_clock_that_jumps_back_deletes_nothing_early(cluster: TokenCluster) -> None:
    time = VirtualTime(START)
    cluster.add("cln012", expiration="2020-06-01T00:00:50Z")
    async with working(cluster.kubeconfig(), enabled=CLEANER, deps=time.deps) as told:
        time.jump(-3600)
        time.advance(50)
        await told.worked_off()
        assert not cluster.writes()
        for _ in range(61):
            time.advance(60)
            await told.worked_off()
        await until(lambda: told.names == ["bootstrap-token-cln012"])


async def test_a_token_that_a_finalizer_holds_is_asked_to_go_once(cluster: TokenCluster) -> None:
    time = VirtualTime(START)
    cluster.add("cln015", expiration="2021-01-01T00:00:00Z")
    held = f"{SECRETS}/bootstrap-token-cln015"
    cluster.admin.patch(held, {"metadata": {"finalizers": ["tests.example/hold"]}})
    async with working(cluster.kubeconfig(), enabled=CLEANER, deps=time.deps) as told:
        cluster.prolong("cln015", "2020-01-01T00:00:00Z")
        await until(lambda: told.names)
        cluster.add("cln016", expiration="2020-01-01T00:00:00Z")
        await until(lambda: len(told.names) == 2)  # the watch told before that the first is being deleted
        for _ in range(5):
            time.advance(RECHECK)
            await told.worked_off()
        deleted = [entry.name for entry in await applied_writes(cluster, 2)]
        assert deleted.count("bootstrap-token-cln015") == 1  # the watch may tell later that the second is gone
    cluster.admin.patch(held, {"metadata": {"finalizers": None}})


async def test_a_prolonged_token_stays_and_a_shortened_one_goes(cluster: TokenCluster) -> None:
    time = VirtualTime(START)
    cluster.add("cln013", expiration="2020-06-01T00:00:30Z")
    cluster.add("cln014", expiration="2021-01-01T00:00:00Z")
    async with working(cluster.kubeconfig(), enabled=CLEANER, deps=time.deps) as told:
        cluster.prolong("cln013", "2020-06-01T00:02:00Z")
        cluster.prolong("cln014", "2020-05-01T00:00:00Z")
        await until(lambda: told.names == ["bootstrap-token-cln014"])
        time.advance(45)
        await told.worked_off()
        assert cluster.has("bootstrap-token-cln013")


async def test_a_clock_that_is_ahead_of_the_api_server_s_deletes_nothing_that_is_good_there(
    cluster: TokenCluster,
) -> None:
    wrong = ControllerDeps(now=lambda: datetime.now(UTC) + timedelta(days=2))
    in_a_day = datetime.now(UTC) + timedelta(days=1)
    cluster.add("cln020", expiration=in_a_day.strftime("%Y-%m-%dT%H:%M:%SZ"))
    cluster.add("cln021", expiration="2020-01-01T00:00:00Z")
    async with working(cluster.kubeconfig(), enabled=CLEANER, deps=wrong) as told:
        await until(lambda: told.failures and told.names)
        await told.worked_off()
    assert told.names == ["bootstrap-token-cln021"]
    assert [error.reason for _, error in told.failures] == ["ClocksDiffer"]
    assert len(await applied_writes(cluster, 1)) == 1


# Somebody gets between them and their write


class Times:
    """Says yes so many times, to calls of one method."""

    def __init__(self, method: str, count: int) -> None:
        self._method = method
        self.left = count

    def __call__(self, call: Request) -> bool:
        if call.method != self._method or self.left <= 0:
            return False
        self.left -= 1
        return True


async def test_a_lost_race_for_cluster_info_is_run_again_on_what_stands_there_now(
    cluster: TokenCluster, gate: Gate
) -> None:
    hit = Times("PUT", 1)

    def overtake(call: Request) -> None:
        if hit(call):
            cluster.edit(note="written in between")

    gate.before = overtake
    cluster.publish()
    cluster.add("flt002")
    async with working(gate.kubeconfig, enabled=SIGNER) as told:
        await until(lambda: cluster.signed_ids() == {"flt002"})
    assert cluster.info()["note"] == "written in between"
    assert [type(error) for _, error in told.failures] == [Conflict]
    await until(lambda: [entry.code for entry in cluster.writes()] == [409, 200])


@pytest.mark.parametrize("what", ["made anew", "prolonged"])
async def test_a_token_that_changed_between_decision_and_delete_is_decided_again(
    cluster: TokenCluster, gate: Gate, what: str
) -> None:
    hit = Times("DELETE", 1)

    def change(call: Request) -> None:
        if hit(call) and what == "made anew":
            cluster.remove("flt006")
            cluster.add("flt006", expiration="2999-01-01T00:00:00Z")
        elif hit.left == 0 and call.method == "DELETE":
            cluster.prolong("flt006", "2999-01-01T00:00:00Z")

    gate.before = change
    cluster.add("flt006", expiration="2020-01-01T00:00:00Z")
    async with working(gate.kubeconfig, enabled=CLEANER) as told:
        await until(lambda: [entry.code for entry in cluster.writes()] == [409])
        cluster.add("flt016", expiration="2020-01-01T00:00:00Z")
        await until(lambda: told.names)  # the watch told before what became of the first
        await told.worked_off()
        assert [entry.name for entry in await applied_writes(cluster, 1)] == ["bootstrap-token-flt016"]
        assert len(cluster.writes()) == 2
    assert cluster.has("bootstrap-token-flt006")
    assert told.names == ["bootstrap-token-flt016"]
    assert not told.failures
