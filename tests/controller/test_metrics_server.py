"""Health, and metrics over HTTPS, which nobody reads without a permission of the API server."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import AsyncGenerator, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Final

import aiohttp
import pytest
from fake_api import FakeApi
from node_attested_world import ISSUED, NOW, ledger, machine
from rights import apply
from virtual import advance, run_virtually

from nodeattest_controller.controllers.node_attested.conditions import condition_of_machine
from nodeattest_controller.controllers.node_attested.reconciler import MachineCensus
from nodeattest_controller.metrics import MachineState, Metrics
from nodeattest_controller.metrics_server import BURST, ScrapeAuthorizer, ScrapeRefusedError, serve_health
from nodeattest_controller.model.attestation import Attestation, new_attestation
from nodeattest_controller.model.attestation_status import RESET, LastDecision
from nodeattest_controller.model.machine_view import MachineView
from nodeattest_controller.runtime.indexes import ClusterKey
from nodeattest_controller.settings import Settings
from nodeattest_kube.client import ApiClient
from nodeattest_kube.errors import Forbidden, Unreachable
from nodeattest_kube.kubeconfig import read_kubeconfig
from nodeattest_parsing.objects import dig
from nodeattest_parsing.values import JsonObject, JsonValue
from nodeattest_providers.errors import Reason
from nodeattest_sandbox import fleet
from nodeattest_sandbox.apiserver.jsonvalue import JsonMap
from nodeattest_sandbox.control_plane import ControlPlane, StartControlPlane

TOKEN_REVIEWS: Final = "/apis/authentication.k8s.io/v1/tokenreviews"
ACCESS_REVIEWS: Final = "/apis/authorization.k8s.io/v1/subjectaccessreviews"
TOKEN: Final = "one.two.three"
SCRAPER, STRANGER = "10.0.0.1", "10.0.0.2"
USER: Final[JsonObject] = {"username": "prometheus", "groups": ["g"], "uid": "7", "extra": {"pod": ["p"]}}


def settings(**change: object) -> Settings:
    secure: dict[str, object] = {"metrics_secure": True, "metrics_bind_address": "127.0.0.1:0", **change}
    return Settings(identity="replica-a", health_bind_address="127.0.0.1:0", **secure)  # pyright: ignore[reportArgumentType] - the fields' own types


@asynccontextmanager
async def served(client: ApiClient, **change: object) -> AsyncGenerator[aiohttp.ClientSession]:
    trust = aiohttp.TCPConnector(ssl=False)
    async with (
        serve_health(settings(**change), Metrics(), {}, client) as ports,
        aiohttp.ClientSession(f"https://127.0.0.1:{ports.metrics}", connector=trust) as web,
    ):
        yield web


async def scrape(web: aiohttp.ClientSession, token: str = TOKEN) -> tuple[int, str]:
    async with web.get("/metrics", headers={"Authorization": f"Bearer {token}"}) as answer:
        return answer.status, await answer.text()


class Reviews(FakeApi):
    """An API server that knows some tokens, and counts."""

    def __init__(self, status: JsonObject | None = None) -> None:
        super().__init__()
        self.good = {TOKEN}
        self.status: JsonObject = {"authenticated": True, "user": USER} if status is None else status
        self.allowed = True
        self.asked: list[JsonObject] = []
        self.answers = {TOKEN_REVIEWS: self._authenticate, ACCESS_REVIEWS: self._authorize}

    def _authenticate(self, body: JsonObject) -> JsonObject:
        self.asked.append(body)
        known = dig(body, "spec", "token") in self.good
        return {**body, "status": self.status if known else {"authenticated": False}}

    def _authorize(self, body: JsonObject) -> JsonObject:
        self.asked.append(body)
        return {**body, "status": {"allowed": self.allowed}}


async def test_the_api_server_is_asked_about_the_user_as_it_named_them() -> None:
    api = Reviews()
    async with served(api) as web:
        status, text = await scrape(web)
        assert (status, "nodeattest_build_info" in text) == (200, True)
        assert [dig(one, "spec") for one in api.asked] == [
            {"token": TOKEN},
            {
                "user": "prometheus",
                "groups": ["g"],
                "uid": "7",
                "extra": {"pod": ["p"]},
                "nonResourceAttributes": {"path": "/metrics", "verb": "get"},
            },
        ]
        for value in (None, "Basic eDp5", "Bearer a b"):
            headers = {} if value is None else {"Authorization": value}
            async with web.get("/metrics", headers=headers) as answer:
                assert (answer.status, answer.headers["WWW-Authenticate"]) == (401, "Bearer")
                assert "nodeattest_" not in await answer.text()
        good = {"Authorization": f"Bearer {TOKEN}"}
        for method, path, refused in (("POST", "/metrics", 405), ("GET", "/readyz", 404)):
            async with web.request(method, path, headers=good) as answer:
                assert answer.status == refused
        assert len(api.asked) == 2


class Scrapers:
    """An authorizer, its clock, and who asks it."""

    def __init__(self, api: Reviews, *audiences: str) -> None:
        self.now = 1000.0
        self.api = api
        self._authorizer = ScrapeAuthorizer(api, audiences=audiences, clock=lambda: self.now)

    async def ask(self, token: str = TOKEN, peer: str = SCRAPER) -> int:
        try:
            await self._authorizer.check(((b"Authorization", f"Bearer {token}".encode()),), peer)
        except ScrapeRefusedError as refused:
            return refused.status
        return 200


async def test_a_decision_is_kept_for_a_short_time_and_for_its_token_only() -> None:
    api = Reviews()
    scrapers = Scrapers(api)
    assert [await scrapers.ask() for _ in range(3)] == [200] * 3
    assert len(api.asked) == 2
    api.good.clear()
    assert [await scrapers.ask("another") for _ in range(2)] == [401] * 2
    assert len(api.asked) == 3
    assert await scrapers.ask() == 200
    scrapers.now += 11
    assert await scrapers.ask() == 401
    api.good, api.allowed = {TOKEN}, False
    scrapers.now += 2
    assert await scrapers.ask() == 403
    api.allowed = True
    scrapers.now += 2
    assert await scrapers.ask() == 200


@pytest.mark.parametrize(("audiences", "status"), [(["other", "mine"], 200), (["other"], 401), ([], 401)])
async def test_a_token_for_other_audiences_reads_nothing(audiences: list[JsonValue], status: int) -> None:
    api = Reviews({"authenticated": True, "user": USER, "audiences": audiences})
    assert await Scrapers(api, "mine", "also mine").ask() == status
    assert dig(api.asked[0], "spec", "audiences") == ["mine", "also mine"]


def test_few_reviews_are_under_way_and_none_for_long() -> None:
    api, under_way = Reviews(), 0

    async def hang(_method: str, _path: str) -> None:
        nonlocal under_way
        under_way += 1
        try:
            await asyncio.Event().wait()
        finally:
            under_way -= 1

    async def main() -> None:
        api.on_call, scrapers = hang, Scrapers(api)
        asked = [asyncio.create_task(scrapers.ask(f"token-{number}")) for number in range(5)]
        await advance(1.0)
        assert under_way == 2
        asked += [asyncio.create_task(scrapers.ask("token", f"10.0.1.{number}")) for number in range(9)]
        await advance(1.0)
        assert under_way == 4
        await advance(8.0)
        assert [task.result() for task in asked] == [503] * len(asked)

    run_virtually(main())


@pytest.mark.parametrize(
    "status",
    [
        {},
        {"authenticated": "true", "user": USER},
        {"authenticated": True, "user": USER, "error": "expired"},
        {"authenticated": True},
        {"authenticated": True, "user": {"username": 7}},
        {"authenticated": True, "user": ["prometheus"]},
    ],
)
async def test_what_is_not_a_plain_yes_is_401(status: JsonObject) -> None:
    api = Reviews(status)
    assert await Scrapers(api).ask() == 401
    assert len(api.asked) == 1


async def test_one_addresss_tokens_are_limited_and_take_nothing_from_another_or_from_the_cache() -> None:
    api = Reviews()
    scrapers = Scrapers(api)
    assert await scrapers.ask(TOKEN, STRANGER) == 200
    flood = [await scrapers.ask(f"made-up-{number}", STRANGER) for number in range(100)]
    assert flood.count(429) == 100 - (BURST - 1)
    assert await scrapers.ask(TOKEN, STRANGER) == 200
    assert await scrapers.ask("made-up", SCRAPER) == 401


async def test_a_token_of_the_last_hour_is_not_locked_out_by_others_at_its_address() -> None:
    scrapers = Scrapers(Reviews())
    for number in range(2):
        assert await scrapers.ask(TOKEN) == 200
        scrapers.now += 59.0
        assert 429 in [await scrapers.ask(f"made-up-{number}-{again}") for again in range(BURST + 1)]
    scrapers.now += 3601.0
    for again in range(BURST):
        await scrapers.ask(f"made-up-{again}")
    assert await scrapers.ask(TOKEN) == 429


@pytest.mark.parametrize(
    ("error", "status", "told"),
    [
        (Unreachable("no route"), 503, "the API server cannot be asked\n"),
        (Forbidden(403, "Forbidden", "cannot create resource"), 500, "the controller has no right to create"),
    ],
)
async def test_without_an_answer_nobody_reads(
    error: Exception, status: int, told: str, caplog: pytest.LogCaptureFixture
) -> None:
    api = Reviews()

    async def fail(_method: str, _path: str) -> None:
        raise error

    api.on_call = fail
    caplog.set_level(logging.DEBUG)
    async with served(api) as web:
        found, text = await scrape(web)
        assert (found, text.startswith(told)) == (status, True)
        await scrape(web, "another")
        api.on_call = None
        assert (await scrape(web))[0] == 200
    lines = [record for record in caplog.records if "cannot review" in record.getMessage()]
    assert len(lines) == 1  # once, however often strangers ask
    assert TOKEN not in caplog.text
    assert "prometheus" not in caplog.text


# Health over plain HTTP


def broken() -> str | None:
    raise LookupError("secret details")


async def test_readiness_names_each_failed_check_and_liveness_and_metrics_need_none() -> None:
    settings = Settings(identity="a", health_bind_address="127.0.0.1:0", metrics_bind_address="127.0.0.1:0")
    checks = {"caches": lambda: "waiting for machines", "bug": broken, "good": lambda: None}
    async with serve_health(settings, Metrics(), checks, FakeApi()) as ports, aiohttp.ClientSession() as web:

        async def fetch(path: str, port: int | None = ports.health) -> tuple[int, str]:
            async with web.get(f"http://127.0.0.1:{port}{path}") as answer:
                return answer.status, await answer.text()

        failed = "[-]caches failed: waiting for machines\n[-]bug failed: the check itself failed with LookupError\n"
        assert await fetch("/readyz") == (500, f"[+]ping ok\n{failed}[+]good ok\nreadyz check failed\n")
        assert (await fetch("/readyz/caches"))[0] == 500
        assert await fetch("/readyz/good") == (200, "ok")
        assert (await fetch("/readyz/unknown"))[0] == 404
        assert await fetch("/livez") == await fetch("/healthz") == (200, "ok")
        status, text = await fetch("/metrics", ports.metrics)
        assert (status, "nodeattest_leader 0.0" in text) == (200, True)
        assert (await fetch("/readyz", ports.metrics))[0] == 404


# On an API server, with the shipped rights


@pytest.fixture(scope="module")
def plane(start_control_plane: StartControlPlane) -> Iterator[ControlPlane]:
    with start_control_plane("metrics-auth") as made:
        yield made


async def test_the_shipped_roles_suffice_on_an_api_server(plane: ControlPlane) -> None:
    admin, group = plane.client(), {"apiGroup": "rbac.authorization.k8s.io"}
    reader, other = "metric.0123456789abcdef", "nobody.0123456789abcdef"
    for token in (reader, other):
        fleet.create_bootstrap_token(admin, token)
        plane.await_token(token)
    body: JsonMap = {
        "metadata": {"name": "reader"},
        "roleRef": {**group, "kind": "ClusterRole", "name": "nodeattest:metrics-reader"},
        "subjects": [{**group, "kind": "User", "name": "system:bootstrap:metric"}],
    }
    kubeconfig = plane.client_kubeconfig("metrics-controller")
    async with ApiClient(read_kubeconfig(kubeconfig)) as client, served(client) as web:
        assert (await scrape(web, reader))[0] == 500
        apply(admin, ["metrics-auth"], "metrics-controller")
        admin.create("/apis/rbac.authorization.k8s.io/v1/clusterrolebindings", body)
        for token, status in ((reader, 200), (other, 403), ("absent.0123456789abcdef", 401)):
            async with asyncio.timeout(60):
                while (await scrape(web, token))[0] != status:
                    await client.get("/api")  # a real server learns of rights by a watch


# What operators and alerts rely on, and no request can grow

RULES = Path(__file__).parents[2] / "manifests/prometheus/rules.yaml"


def value(metrics: Metrics, family: str, **labels: str) -> float | None:
    return metrics.registry.get_sample_value(family, labels)


def series(metrics: Metrics) -> int:
    return sum(1 for line in metrics.render().splitlines() if not line.startswith(b"#"))


def test_requests_cannot_grow_the_number_of_series() -> None:
    metrics = Metrics()
    counts = set[int]()
    for number in range(3):
        made_up = f"made-up-{number}"
        metrics.verdict(made_up, made_up, made_up)
        metrics.issued(made_up)
        metrics.verification_seconds(made_up, 0.1)
        metrics.api_request(made_up, 1000 + number)
        counts.add(series(metrics))
    assert len(counts) == 1


def test_the_series_of_a_cluster_go_with_it() -> None:
    metrics, key = Metrics(), "fleet/blue"
    metrics.cluster(key, connected=True)
    metrics.requests_passed_over(key, 1)
    metrics.auto_approval_closed(key, closed=True)
    metrics.in_tree_certificate(key)
    metrics.standing(key, failing=1, treated=1, withheld=0)
    metrics.machines(key, {}, (1.0, 1.0))
    assert key.encode() in metrics.render()
    metrics.forget_cluster(key)
    metrics.forget_standing(key)
    assert key.encode() not in metrics.render()


def test_a_missing_right_is_counted_apart_and_the_alert_counts_nothing_else() -> None:
    metrics = Metrics()
    metrics.api_request("GET", 403)
    metrics.api_request("GET", 404)
    assert value(metrics, "rest_client_requests_total", method="GET", code="403") == 1
    assert value(metrics, "rest_client_requests_total", method="GET", code="404") == 1
    [rule] = [line for line in RULES.read_text().splitlines() if "rest_client_requests_total" in line]
    assert re.findall(r"rest_client_requests_total\{(.*?)\}", rule) == ['code="403"']


# What metrics say of a cluster's machines and certificates: the same as the condition, and bounded


BAD = Reason.PCR_VALUE_NOT_ALLOWED
ME, NEW = machine(0), machine(2, node=False)
ENDED = NOW - timedelta(seconds=1)
STATES: list[tuple[MachineView, Attestation | None, MachineState, str]] = [
    (ME, ledger(ME), MachineState.ATTESTED, "Attested"),
    (ME, ledger(ME, refused=BAD), MachineState.REFUSED, BAD),
    (ME, ledger(ME, refused=BAD, ends=ENDED), MachineState.EXPIRED, "CertificateExpired"),
    (ME, ledger(ME, ends=NOW), MachineState.EXPIRED, "CertificateExpired"),
    (ME, replace(new_attestation(ME), verdict=LastDecision(RESET, "")), MachineState.RESET, "AttestationReset"),
    (ME, None, MachineState.NOT_ATTESTED, "NotAttested"),
    (NEW, None, MachineState.PENDING, "NotYetAttested"),
    (NEW, new_attestation(NEW), MachineState.PENDING, "NotYetAttested"),
]


def shown(census: MachineCensus) -> tuple[dict[str, float | None], float | None, float | None]:
    """Return the counts that are not 0, and the end and lifetime of the first certificate."""
    metrics, key = Metrics(), "fleet/blue"
    census.show(metrics, ClusterKey(key))
    counts = {state: value(metrics, "nodeattest_machines", cluster=key, state=state) for state in MachineState}
    first = "nodeattest_certificate_earliest_"
    end = value(metrics, f"{first}end_timestamp_seconds", cluster=key)
    lifetime = value(metrics, f"{first}lifetime_seconds", cluster=key)
    return {str(state): count for state, count in counts.items() if count}, end, lifetime


@pytest.mark.parametrize(("member", "known", "state", "reason"), STATES)
def test_a_state_is_the_condition_in_one_word(
    member: MachineView, known: Attestation | None, state: MachineState, reason: str
) -> None:
    census = MachineCensus(NOW)
    census.add(member, known)
    assert shown(census)[0] == {state: 1}
    assert condition_of_machine(member, known, NOW).reason == reason


def test_the_earliest_end_is_of_the_certificates_that_are_still_good() -> None:
    census, soon = MachineCensus(NOW), NOW + timedelta(hours=3)
    for number, ends in enumerate((ENDED, soon, NOW + timedelta(days=5))):
        census.add(machine(number), ledger(machine(number), ends=ends))
    assert shown(census) == ({"expired": 1, "attested": 2}, soon.timestamp(), (soon - ISSUED).total_seconds())
