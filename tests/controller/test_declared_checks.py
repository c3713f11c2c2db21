"""The declared lists of checks: unique names, complete declarations, the order in which they run, never empty."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from dataclasses import replace
from typing import TypeVar, cast

import pytest
from csr_world import CSRS, NODE, PROVIDER_ID, SIGNERS, OneRound, TellsAddresses, TwoRounds, World, attested, request

from nodeattest_controller.controllers.csr import checks as csr_checks
from nodeattest_controller.controllers.csr.checks import CSRFacts
from nodeattest_controller.controllers.csr.evaluator import Approval, Evaluator
from nodeattest_controller.controllers.kubelet_serving import checks as kubelet_checks
from nodeattest_controller.model.csr_request import RequestState
from nodeattest_controller.verification.checks import Needs, Pipeline, RequestCheck, Round, Stage
from nodeattest_controller.verification.facts import FactSource, RequestFacts
from nodeattest_parsing.objects import text
from nodeattest_parsing.values import JsonValue
from nodeattest_providers.errors import ChallengeRequired
from nodeattest_providers.identifiers import PROVIDER_ID_OID, Purpose
from nodeattest_providers.node_interface import FirstRequestRef
from nodeattest_sandbox.pki import ClusterPki

F = TypeVar("F", bound=RequestFacts)
BY_NODE: dict[str, JsonValue] = {"username": f"system:node:{NODE}", "groups": ["system:nodes"]}
SERVING: dict[str, JsonValue] = {
    "signerName": SIGNERS[Purpose.SERVING],
    "usages": ["digital signature", "server auth"],
    **BY_NODE,
}


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
    assert isinstance(approval, Approval)
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


async def file_serving(world: World) -> None:
    """Have the node join, and file a request for its serving certificate."""
    world.file()
    await world.reconcile()
    world.join_node()
    await world.settle()
    world.workload_api.put(
        f"{CSRS}/s-1", request("s-1", evidence=None, key=None, node=NODE, provider_id=PROVIDER_ID, **SERVING)
    )


# What each check needs

ORDER = list(Needs)
COST = {
    **dict.fromkeys(
        (
            *("cluster", "policy", "inventory", "machines", "machines_of_node"),
            *("attestation", "recorded_attestation", "summary"),
        ),
        Needs.MEMORY,
    ),
    **dict.fromkeys(("machine_now", "named_tokens", "first_request", "node", "platform_addresses"), Needs.LIVE),
    "verify": Needs.PROVIDER,
}
"""What each fact of a source costs; the others come with the request or the settings."""


class Asked:
    """A source that notes what it is asked for."""

    def __init__(self, source: FactSource) -> None:
        self._source = source
        self.most = Needs.REQUEST

    def __getattr__(self, name: str) -> object:
        self.most = max(self.most, COST.get(name, Needs.REQUEST), key=ORDER.index)
        return getattr(self._source, name)


async def asked_by(check: RequestCheck[F], facts: F) -> Needs:
    """Run a check; returns the most costly source that was asked for what had not been gathered before."""
    source, asked = facts.source, Asked(facts.source)
    facts.source = cast("FactSource", asked)
    try:
        await check.run(facts)
    except ChallengeRequired:
        pass
    finally:
        facts.source = source
    return asked.most


async def too_costly(checks: Sequence[RequestCheck[F]], facts: F) -> set[str]:
    """Run all checks that apply, in order; returns those that asked for more than they declare."""
    found: set[str] = set()
    for check in checks:
        if await check.applies(facts) and ORDER.index(await asked_by(check, facts)) > ORDER.index(check.needs):
            found.add(check.name)
        if check.name == csr_checks.VERIFICATION and await facts.round() is Round.FIRST:
            break
    return found


async def asks_enough(checks: Sequence[RequestCheck[F]], facts_of: Callable[[], F]) -> set[str]:
    """Run each check alone, on facts that nobody gathered; returns those that asked for as much as they declare."""
    found: set[str] = set()
    for check in checks:
        facts = facts_of()
        if await check.applies(facts) and ORDER.index(await asked_by(check, facts)) >= ORDER.index(check.needs):
            found.add(check.name)
    return found


def facts_of(world: World, name: str = "r-1") -> Callable[[], CSRFacts]:
    """Make facts about a stored request, nothing of them gathered."""
    parsed = world.evaluator.parse_request(world.csr(name))
    return lambda: CSRFacts(world.facts_of(world.workload), parsed)


async def stored_requests(pki: ClusterPki) -> AsyncGenerator[Callable[[], CSRFacts]]:
    """File attested requests of every kind that a check can be for."""
    async with World(pki, OneRound()).running() as world:
        world.file()
        await world.seen("r-1")
        yield facts_of(world)
    async with World(pki, TwoRounds()).running() as world:
        uid = text(world.file("first"), "metadata", "uid")
        world.verifier.answer = ChallengeRequired("{}")
        await world.seen("first")
        yield facts_of(world, "first")
        world.verifier.answer = attested(FirstRequestRef(name="first", uid=uid))
        world.file("second", evidence={"name": "first", "uid": uid})
        await world.seen("second")
        yield facts_of(world, "second")
    for verifier in (OneRound(), TellsAddresses()):
        async with World(pki, verifier).running() as world:
            await file_serving(world)
            await world.seen("s-1")
            yield facts_of(world, "s-1")


async def test_no_check_of_an_attested_request_asks_for_more_than_it_declares_and_each_for_as_much(
    pki: ClusterPki,
) -> None:
    asking: set[str] = set()
    async for make_facts in stored_requests(pki):
        assert await too_costly(csr_checks.CHECKS, make_facts()) == set()
        asking |= await asks_enough(csr_checks.CHECKS, make_facts)
    assert asking == {check.name for check in csr_checks.CHECKS}
