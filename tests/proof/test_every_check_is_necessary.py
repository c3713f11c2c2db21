"""Each declared check is removed in turn: some attack then ends otherwise. docs/proof/checks.md has the attacks."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import AsyncGenerator, Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import controller_rows
import pytest
import pytest_asyncio
import tpm_rows
from aws_cloud import cloud
from cloud_rows import AWS, AZURE, GCP, OCI, AwsScene, AzureScene, GcpScene, OciScene
from gcp_world import cloud_in, instance_of, rsa_tpm
from oci_world import OracleCloud
from parts_rows import CHALLENGES, COMPOSITE, Secret, sound_parts
from proof_page import GRANTED, ROWS, Outcome, Row, outcome_of, plain, removed

from clouds.azure.cloud import SandboxAzure
from nodeattest_controller.controllers.csr import checks as csr_checks
from nodeattest_controller.controllers.csr.checks import CSRFacts
from nodeattest_controller.controllers.csr.evaluator import Evaluator
from nodeattest_controller.controllers.kubelet_serving import checks as kubelet_checks
from nodeattest_controller.controllers.kubelet_serving.evaluator import KubeletServingEvaluator
from nodeattest_controller.verification.checks import Pipeline, Round, Stage
from nodeattest_providers.errors import Check
from nodeattest_providers.identifiers import ProviderName, Purpose
from nodeattest_providers.platform import OFFLINE, make_signer
from nodeattest_providers.registry import BUILT_IN
from nodeattest_sandbox.pki import ClusterPki
from tools.prove import LEDGER_RUNS, MUTANTS

ROOT: Final = Path(__file__).parents[2]
PRODUCT: Final = ("providers", "controller", "discovery", "authenticator", "identity", "kube", "serving", "cli")
ATTACKS: Final = dict[str, Mapping[str, Callable[..., Any]]](
    attested=controller_rows.ATTESTED,
    kubelet=controller_rows.KUBELET,
    tpm=tpm_rows.ATTACKS,
    parsers=tpm_rows.PARSERS,
    challenge=CHALLENGES,
    composite=COMPOSITE,
    aws=AWS,
    azure=AZURE,
    gcp=GCP,
    oci=OCI,
)
"""By the list of the check, and its name."""
in_one_loop = pytest.mark.asyncio(loop_scope="module")


@dataclass(frozen=True, slots=True)
class Places:
    """Where attacks are carried out: a cluster's keys, and clouds on loopback."""

    pki: ClusterPki
    aws: AwsScene
    azure: SandboxAzure
    gcp: GcpScene
    oci: OciScene
    launched: list[str] = field(default_factory=list[str])

    def of_azure(self) -> AzureScene:
        """Launch a machine of its own for an attack."""
        self.launched.append(f"vm-{len(self.launched)}")
        return AzureScene(cloud=self.azure, machine=self.azure.launch(self.launched[-1], tags={"Team": "nodes"}))

    def of_gcp(self) -> GcpScene:
        """Have an instance of which a policy may demand more."""
        self.gcp.put(secure_boot=False, integrity_monitoring=False)
        return self.gcp

    async def outcome(self, row: Row, without: str) -> Outcome:
        """Carry out an attack where a check, ``list: name``, may be missing."""
        if row.part in {"attested", "kubelet"}:
            return await controller_rows.outcome(self.pki, row.check, without)
        run = ATTACKS[row.part][row.name]
        scenes: dict[str, Callable[[], object]] = {
            "aws": lambda: self.aws,
            "azure": self.of_azure,
            "gcp": self.of_gcp,
            "oci": lambda: self.oci,
        }
        if row.part in scenes:
            attack = run(scenes[row.part]())
        else:
            attack = run() if row.part == "composite" else run().verified()
        with removed(without.partition(": ")[2]):
            name, reason = await outcome_of(attack)
        return (f"{row.part}: {name}", reason)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def places(tmp_path_factory: pytest.TempPathFactory) -> AsyncGenerator[Places]:
    folder = tmp_path_factory.mktemp
    with (
        pytest.MonkeyPatch.context() as environment,
        cloud(folder("aws")) as aws,
        SandboxAzure(folder("azure")) as azure,
        cloud_in(folder("gcp")) as gcp,
    ):
        environment.setenv("AWS_ACCESS_KEY_ID", "AKIACONTROLLEREXAMPL")
        environment.setenv("AWS_SECRET_ACCESS_KEY", "secret")
        oci = OracleCloud(folder("oci"))
        (instance,) = aws.start({"team": "nodes"})
        made = Places(
            ClusterPki.make(folder("pki"), "blue"),
            AwsScene(cloud=aws, instance=instance, folder=folder("trust")),
            azure,
            GcpScene(cloud=gcp, tpm=rsa_tpm()),
            OciScene(cloud=oci, instance=oci.launch("victim")),
        )
        yield made
        await made.aws.aclose()


@in_one_loop
@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.check)
async def test_every_check_refuses_an_attack_that_ends_otherwise_without_it(places: Places, row: Row) -> None:
    assert await places.outcome(row, without="") == (row.check, row.reason)
    if row.part != "parsers":  # without what a parser returns there is nothing to go on with
        assert await places.outcome(row, without=row.check) != (row.check, row.reason)


# Every declared check has a row


def names(*parts: str) -> set[str]:
    return {row.name for row in ROWS if row.part in parts}


def recorded(*exchanges: tuple[Check, ...]) -> set[str]:
    return {plain(check.name) for checks in exchanges for check in checks}


FREE: Final = ("a token of no other machine", "an active cluster", "one policy", "attestor authorized",
               "evidence version and schema", "round of the request", "one Machine, alive and ready")  # fmt: skip


@in_one_loop
@pytest.mark.parametrize("name", FREE)
async def test_what_request_and_memory_refuse_costs_no_read(places: Places, name: str) -> None:
    async with controller_rows.running(places.pki, f"attested: {name}", without="") as scene:
        await scene.settle()
        apis = (scene.world.management_api, scene.world.workload_api)
        before = [api.count("GET") for api in apis]
        assert (await controller_rows.ATTESTED[name](scene))[0] == f"attested: {name}"
        assert ([api.count("GET") for api in apis], scene.world.verifier.calls) == (before, 0)


@in_one_loop
async def test_every_check_of_a_client_request_runs_in_the_declared_order(places: Places) -> None:
    checks = [check for check in csr_checks.CHECKS if Purpose.CLIENT in check.purposes and Round.FINAL in check.rounds]
    in_order = sorted(checks, key=lambda check: check.stage is Stage.ISSUE)
    async with controller_rows.running(places.pki, "", without="") as scene:
        assert await scene.file() == GRANTED
        assert scene.ran == [f"attested: {check.name}" for check in in_order]


def test_every_check_has_a_rule_in_a_sentence_and_a_source() -> None:
    for check in (*csr_checks.CHECKS, *kubelet_checks.CHECKS):
        assert check.rule[0].isupper(), check.name
        assert check.rule.endswith("."), check.name
        assert check.source, check.name


@in_one_loop
async def test_a_list_without_checks_or_of_which_none_applies_lets_nothing_pass(places: Places) -> None:
    with pytest.raises(ValueError, match="checks"):
        Pipeline[CSRFacts](())
    with pytest.raises(ValueError, match="checks"):
        Pipeline((*csr_checks.CHECKS, csr_checks.CHECKS[0]))
    only = [check for check in csr_checks.CHECKS if Purpose.CLIENT not in check.purposes]
    async with controller_rows.running(places.pki, "", without="") as scene:
        request = scene.world.evaluator.parse_request(scene.world.file())
        with pytest.raises(RuntimeError, match="no check"):
            await Pipeline(only).run(CSRFacts(scene.world.facts_of(scene.world.workload), request))


def test_every_check_of_the_controllers_lists_has_one_row() -> None:
    declared = [f"attested: {check.name}" for check in csr_checks.CHECKS]
    declared += [f"kubelet: {check.name}" for check in kubelet_checks.CHECKS]
    assert [row.check for row in ROWS if row.part in {"attested", "kubelet"}] == declared
    assert len({row.check for row in ROWS}) == len(ROWS)


async def test_every_check_of_the_tpm_protocol_has_one_row() -> None:
    exchanges = [(await sound.verified()).checks for sound in tpm_rows.sound()]
    assert recorded(*exchanges) == names("tpm", "parsers") | tpm_rows.RECORDS


PARSERS: Final = {
    *("evidence schema", "policy section", "provider ID", "partition", "signed headers", "identity document"),
    *("PKCS#7 structure", "signed document", "attested document", "identity certificate"),
}
"""Checks that record a value that was read: without it there is nothing to go on with."""


@in_one_loop
async def test_every_check_of_the_other_providers_has_one_row(places: Places) -> None:
    places.gcp.cloud.instances = [instance_of(places.gcp.tpm, labels={"role": "node"})]
    shared = PARSERS | names("tpm", "parsers")
    sound = {
        "challenge": (await Secret().verified()).checks,
        "composite": tuple(check for check in (await sound_parts()).checks if not is_a_parts(check)),
        "aws": (await places.aws.verified()).checks,
        "azure": (await places.of_azure().verified()).checks,
        "gcp": (await places.gcp.verified(labels={"role": "node"})).checks,
        "oci": (await places.oci.verified()).checks,
    }
    for part, checks in sound.items():
        assert recorded(checks) - shared == names(part), part


def is_a_parts(check: Check) -> bool:
    """Return whether a part's own verifier recorded it."""
    return check.name.startswith(("tpm: ", "challenge: ")) and plain(check.name) == check.name


def test_the_page_has_each_attack() -> None:
    assert {part: names(part) for part in ATTACKS} == {part: set(attacks) for part, attacks in ATTACKS.items()}


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
    assert made == [("csr", "Pipeline(CHECKS)"), ("kubelet_serving", "Pipeline(CHECKS)")]


@pytest.mark.parametrize("name", sorted(BUILT_IN))
def test_no_public_function_of_a_verifier_takes_checks(name: str) -> None:
    signer = make_signer(ProviderName(name), OFFLINE)
    public = [value for attribute, value in inspect.getmembers(type(signer), callable) if attribute[0] != "_"]
    for value in (*public, type(signer)):
        assert "checks" not in inspect.signature(value).parameters, value


@pytest.mark.parametrize("evaluator", [Evaluator, KubeletServingEvaluator])
def test_no_evaluator_takes_a_list(evaluator: type) -> None:
    assert not {"checks", "pipeline"} & set(inspect.signature(evaluator).parameters)
