"""The declared lists of checks: unique names, complete declarations, the order in which they run, never empty."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import TypeVar

import pytest
from csr_world import CAPI, CSRS, NODE, PROVIDER_ID, SIGNERS, OneRound, TwoRounds, World, attested, machine, request

from nodeattest_controller.controllers.csr import checks as csr_checks
from nodeattest_controller.controllers.csr.checks import CSRFacts
from nodeattest_controller.controllers.csr.evaluator import Evaluator
from nodeattest_controller.controllers.kubelet_serving import checks as kubelet_checks
from nodeattest_controller.controllers.kubelet_serving.evaluator import KubeletServingEvaluator
from nodeattest_controller.model.csr_request import RequestState
from nodeattest_controller.model.objects import text
from nodeattest_controller.verification.checks import Pipeline, RequestCheck, Round, Stage
from nodeattest_controller.verification.facts import RequestFacts
from nodeattest_kube.jsontypes import JsonObject, JsonValue
from nodeattest_providers.errors import ChallengeRequired
from nodeattest_providers.names import PROVIDER_ID_OID, Purpose
from nodeattest_providers.node_interface import FirstRequestRef
from nodeattest_sandbox.pki import ClusterPki

F = TypeVar("F", bound=RequestFacts)
BY_NODE: dict[str, JsonValue] = {"username": f"system:node:{NODE}", "groups": ["system:nodes"]}
SERVING: dict[str, JsonValue] = {
    "signerName": SIGNERS[Purpose.SERVING],
    "usages": ["digital signature", "server auth"],
    **BY_NODE,
}


@pytest.fixture(scope="module")
def pki(tmp_path_factory: pytest.TempPathFactory) -> ClusterPki:
    return ClusterPki.make(tmp_path_factory.mktemp("pki"), "blue")


def recording(checks: tuple[RequestCheck[F], ...], ran: list[str]) -> Pipeline[F]:
    """Make a pipeline of the same checks that notes the name of each that runs."""

    def noting(check: RequestCheck[F]) -> Callable[[F], Awaitable[None]]:
        async def run(facts: F) -> None:
            ran.append(check.name)
            await check.run(facts)

        return run

    return Pipeline(tuple(replace(check, run=noting(check)) for check in checks))


@pytest.mark.parametrize("checks", [csr_checks.CHECKS, kubelet_checks.CHECKS], ids=["attested", "kubelet"])
def test_every_check_has_a_name_of_its_own_a_rule_in_a_sentence_and_a_source(
    checks: tuple[RequestCheck[RequestFacts], ...],
) -> None:
    names = [check.name for check in checks]
    assert len(names) == len(set(names))
    for check in checks:
        assert check.rule[0].isupper(), check.name
        assert check.rule.endswith("."), check.name
        assert check.source, check.name
        assert check.purposes, check.name
        assert check.rounds, check.name


def test_a_list_without_checks_or_with_one_name_twice_is_no_pipeline() -> None:
    with pytest.raises(ValueError, match="checks"):
        Pipeline[CSRFacts](())
    with pytest.raises(ValueError, match="checks"):
        Pipeline((*csr_checks.CHECKS, csr_checks.CHECKS[0]))


async def test_a_request_to_which_no_check_applies_does_not_pass(pki: ClusterPki) -> None:
    only = tuple(check for check in csr_checks.CHECKS if Purpose.CLIENT not in check.purposes)
    async with World(pki, OneRound()).running() as world:
        world.file()
        await world.seen("r-1")
        request = world.evaluator.parse_request(world.csr())
        with pytest.raises(RuntimeError, match="no check"):
            await Pipeline(only).run(CSRFacts(world.facts_of(world.workload), request))


def declared(purpose: Purpose, rounds: Round, stage: Stage = Stage.EVALUATE) -> list[str]:
    return [
        check.name
        for check in csr_checks.CHECKS
        if purpose in check.purposes and rounds in check.rounds and check.stage is stage
    ]


async def ran_for(world: World, name: str, *, issue: bool = True) -> list[str]:
    """Evaluate a stored request, and return the names of the checks that ran."""
    ran: list[str] = []

    class Recording(Evaluator):
        _pipeline = recording(csr_checks.CHECKS, ran)

    evaluator = Recording(world.facts_of, provider_id_oid=PROVIDER_ID_OID)
    request = evaluator.parse_request(world.csr(name))
    approval = await evaluator.evaluate(world.workload, request, RequestState.PENDING)
    if issue:
        await evaluator.check_issuance(approval)
    return ran


async def test_every_check_of_a_client_request_runs_in_the_declared_order(pki: ClusterPki) -> None:
    async with World(pki, OneRound()).running() as world:
        world.file()
        assert await ran_for(world, "r-1") == [
            *declared(Purpose.CLIENT, Round.FINAL),
            *declared(Purpose.CLIENT, Round.FINAL, Stage.ISSUE),
        ]


async def test_every_check_of_an_answer_runs_in_the_declared_order(pki: ClusterPki) -> None:
    async with World(pki, TwoRounds()).running() as world:
        uid = text(world.file("first"), "metadata", "uid")
        world.verifier.answer = attested(FirstRequestRef(name="first", uid=uid))
        world.file("second", evidence={"name": "first", "uid": uid})
        assert await ran_for(world, "second", issue=False) == declared(Purpose.CLIENT, Round.FINAL)


async def test_the_checks_of_a_first_request_run_until_its_challenge(pki: ClusterPki) -> None:
    async with World(pki, TwoRounds()).running() as world:
        world.verifier.answer = ChallengeRequired("{}")
        world.file()
        ran: list[str] = []

        class Recording(Evaluator):
            _pipeline = recording(csr_checks.CHECKS, ran)

        evaluator = Recording(world.facts_of, provider_id_oid=PROVIDER_ID_OID)
        with pytest.raises(ChallengeRequired):
            await evaluator.evaluate(world.workload, evaluator.parse_request(world.csr()), RequestState.PENDING)
        wanted = declared(Purpose.CLIENT, Round.FIRST)
        assert ran == wanted[: wanted.index(csr_checks.VERIFICATION) + 1]


async def test_every_check_of_a_serving_request_runs_in_the_declared_order(pki: ClusterPki) -> None:
    async with World(pki, OneRound()).running() as world:
        world.file()
        await world.reconcile()
        addresses: list[JsonValue] = [
            {"type": "Hostname", "address": NODE},
            {"type": "InternalIP", "address": "10.0.0.1"},
        ]
        world.management_api.put(f"{CAPI}/machines/m-1", machine(addresses=addresses))
        node: JsonObject = {"metadata": {"name": NODE}, "spec": {"providerID": PROVIDER_ID}}
        world.workload_api.put(f"/api/v1/nodes/{NODE}", node)
        await world.settle()
        world.workload_api.put(f"{CSRS}/s-1", request("s-1", evidence=None, key=None, **SERVING))
        assert await ran_for(world, "s-1") == [
            *declared(Purpose.SERVING, Round.FINAL),
            *declared(Purpose.SERVING, Round.FINAL, Stage.ISSUE),
        ]


def test_the_lists_are_no_setting() -> None:
    """No parameter of a public constructor, and no attribute of the settings, changes what is checked."""
    for evaluator in (Evaluator, KubeletServingEvaluator):
        assert not {"checks", "pipeline"} & set(inspect.signature(evaluator).parameters)
