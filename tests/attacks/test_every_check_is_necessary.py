"""Each declared check is removed in turn: some attack then ends otherwise. docs/proof/checks.md has the attacks.

Here are the controller's checks. Those of verifiers are removed by ``catalogue.evaluated``, for each row of the page.
"""

from __future__ import annotations

import ast
import inspect
import re
from pathlib import Path
from typing import Final

import controller_rows
import pytest
from catalogue import ROWS as ATTACKS
from controller_scene import GRANTED, running
from csr_world import OneRound
from proof_page import CONTROLLERS, ROWS, Row

from nodeattest_controller.controllers.csr import checks as csr_checks
from nodeattest_controller.controllers.csr import kubelet_checks
from nodeattest_controller.controllers.csr.issuer import Issuer
from nodeattest_controller.model.csr_request import Round, parse_request
from nodeattest_controller.verification.checks import Pipeline, Stage
from nodeattest_controller.verification.facts import CSRFacts
from nodeattest_providers.errors import Denied
from nodeattest_providers.identifiers import ProviderName, Purpose
from nodeattest_providers.platform import OFFLINE, make_signer
from nodeattest_providers.registry import BUILT_IN
from nodeattest_sandbox.pki import ClusterPki
from tools.prove import LEDGER_RUNS, MUTANTS

ROOT: Final = Path(__file__).parents[2]
PRODUCT: Final = ("providers", "controller", "discovery", "authenticator", "identity", "kube", "serving", "cli")
OWN: Final = [row for row in ROWS if row.part in CONTROLLERS]


@pytest.mark.parametrize("row", OWN, ids=lambda row: row.check)
async def test_every_check_of_the_controller_refuses_an_attack_that_ends_otherwise_without_it(
    pki: ClusterPki, row: Row
) -> None:
    assert await controller_rows.outcome(pki, row.check, without="") == (row.check, row.reason)
    assert await controller_rows.outcome(pki, row.check, without=row.check) != (row.check, row.reason)


# Every declared check has a row


FREE: Final = ("a token of no other machine", "an active cluster", "one policy", "attestor authorized",
               "evidence version and schema", "round of the request", "one Machine, alive and ready")  # fmt: skip


@pytest.mark.parametrize("name", FREE)
async def test_what_request_and_memory_refuse_costs_no_read(pki: ClusterPki, name: str) -> None:
    async with running(pki, controller_rows.VERIFIERS.get(f"attested: {name}", OneRound)) as scene:
        await scene.settle()
        apis = (scene.world.management_api, scene.world.workload_api)
        before = [api.count("GET") for api in apis]
        await controller_rows.ATTESTED[name](scene)
        assert scene.ran[-1] == f"attested: {name}"
        assert ([api.count("GET") for api in apis], scene.world.verifier.calls) == (before, 0)


async def test_every_check_of_a_client_request_runs_in_the_declared_order(pki: ClusterPki) -> None:
    checks = [check for check in csr_checks.CHECKS if Purpose.CLIENT in check.purposes and Round.FINAL in check.rounds]
    in_order = sorted(checks, key=lambda check: check.stage is Stage.ISSUE)
    async with running(pki) as scene:
        assert await scene.file() == GRANTED
        assert scene.ran == [f"attested: {check.name}" for check in in_order]


def test_every_check_has_a_rule_in_a_sentence_and_a_source() -> None:
    for check in (*csr_checks.CHECKS, *kubelet_checks.CHECKS):
        assert check.rule[0].isupper(), check.name
        assert check.rule.endswith("."), check.name
        assert check.source, check.name


async def test_a_list_without_checks_or_of_which_none_applies_lets_nothing_pass(pki: ClusterPki) -> None:
    with pytest.raises(ValueError, match="checks"):
        Pipeline[CSRFacts](())
    with pytest.raises(ValueError, match="checks"):
        Pipeline((*csr_checks.CHECKS, csr_checks.CHECKS[0]))
    only = [check for check in csr_checks.CHECKS if Purpose.CLIENT not in check.purposes]
    async with running(pki) as scene:
        request = parse_request(scene.world.file())
        with pytest.raises(RuntimeError, match="no check"):
            await Pipeline(only).run(CSRFacts(scene.world.facts_of(scene.world.workload), request))


async def test_a_fact_that_could_not_be_had_fails_each_check_that_asks(pki: ClusterPki) -> None:
    async with running(pki) as scene:
        facts = CSRFacts(scene.world.facts_of(scene.world.workload), parse_request(scene.world.file()))
        await controller_rows.two_policies(scene)
        for _check in range(2):
            with pytest.raises(Denied):
                await facts.policy()


def test_every_check_of_the_controllers_lists_has_one_row() -> None:
    declared = [f"attested: {check.name}" for check in csr_checks.CHECKS]
    declared += [f"kubelet: {check.name}" for check in kubelet_checks.CHECKS]
    assert [row.check for row in OWN] == declared
    assert len({row.check for row in ROWS}) == len(ROWS)


def test_the_page_has_each_attack_and_the_reason_of_the_catalogue() -> None:
    of_verifiers = [row for row in ROWS if row.part not in CONTROLLERS]
    assert {row.check: (row.attack, row.reason) for row in of_verifiers} == {
        row.check: (f"{attack.id}: {attack.attack}", attack.expected.reason)
        for row in of_verifiers
        for attack in [ATTACKS[row.attack.partition(":")[0]]]
    }
    assert [row.name for row in OWN] == [*controller_rows.ATTESTED, *controller_rows.KUBELET]


def test_the_page_names_the_models_that_leave_a_check_out() -> None:
    linked = {
        row.check: set(re.findall(r"\[([^]]+)\]\(README\.md#", row.models)) for row in ROWS if row.part != "parsers"
    }
    mutants = {mutant.check for mutant in MUTANTS}
    assert {check for check, models in linked.items() if "ProVerif" in models} == {
        check for check in linked if check.partition(": ")[2] in mutants
    }
    runs = set[str]().union(*linked.values()) - {"ProVerif"}
    assert runs | NO_CHECKS == {run.name for run in LEDGER_RUNS if run.fails}
    assert not runs & NO_CHECKS


NO_CHECKS: Final = frozenset(
    {
        "without compare-and-swap",
        "without the same bytes for the same key",
        "publish before the record",
        "two Machines: what is searched",
        "without confirmation",
        "confirmation before the record",
        "without the term in the confirmation",
        "without a list by the new owner",
        "without reservation",
        "without the second look at a recorded certificate",
    }
)
"""What models leave out that no check is: in which order and how the issuer writes."""


# The product leaves no check out


def made_of(name: str) -> list[tuple[Path, ast.Call | ast.ClassDef]]:
    """Find each call of a class, and each class with it as a base, in the product's modules."""

    def is_it(head: ast.expr) -> bool:
        return ast.unparse(head).rpartition(".")[2] == name

    return [
        (path, node)
        for folder in PRODUCT
        for path in (ROOT / folder / f"nodeattest_{folder}").rglob("*.py")
        if name in (source := path.read_text(encoding="utf-8"))
        for node in ast.walk(ast.parse(source))
        if (isinstance(node, ast.Call) and is_it(node.func))
        or (isinstance(node, ast.ClassDef) and any(map(is_it, node.bases)))
    ]


def test_every_verification_of_the_product_makes_its_own_checks() -> None:
    made = made_of("Checks")
    assert made
    for path, node in made:
        assert isinstance(node, ast.Call), path
        assert not node.args, path
        assert not node.keywords, path


def test_a_pipeline_of_the_product_has_a_declared_list() -> None:
    made = sorted((path.parent.name, ast.unparse(node)) for path, node in made_of("Pipeline"))
    assert made == [("csr", "Pipeline(CHECKS)"), ("csr", "Pipeline(KUBELET_CHECKS)")]


@pytest.mark.parametrize("name", sorted(BUILT_IN))
def test_no_public_function_of_a_verifier_takes_checks(name: str) -> None:
    signer = make_signer(ProviderName(name), OFFLINE)
    public = [value for attribute, value in inspect.getmembers(type(signer), callable) if attribute[0] != "_"]
    for value in (*public, type(signer)):
        assert "checks" not in inspect.signature(value).parameters, value


def test_the_issuer_takes_no_list() -> None:
    assert not {"checks", "pipeline"} & set(inspect.signature(Issuer).parameters)
