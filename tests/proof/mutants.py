"""Mutants: the product's own controller and verifiers in process, of whose checks named ones do not refuse.

The product cannot make one: its evaluators have their lists as class variables and its verifiers a ``Checks`` of their
own (``test_checks_page``). Here an evaluator of a test has the declared list without some of its members, and
a verifier of a test hands a ``ChecksWithout`` to the same code that the product runs.
"""

from __future__ import annotations

import base64
import re
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Final, TypeVar

from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from csr_world import OneRound, World
from joins import VERSION, Join

from nodeattest_controller.controllers.csr import checks as csr_checks
from nodeattest_controller.controllers.csr.checks import CSRFacts
from nodeattest_controller.controllers.csr.evaluator import Evaluator
from nodeattest_controller.controllers.kubelet_serving import checks as kubelet_checks
from nodeattest_controller.controllers.kubelet_serving.checks import KubeletFacts
from nodeattest_controller.controllers.kubelet_serving.evaluator import KubeletServingEvaluator
from nodeattest_controller.model.objects import text
from nodeattest_controller.verification.checks import Pipeline, RequestCheck
from nodeattest_controller.verification.facts import RequestFacts
from nodeattest_providers.checks import Checks
from nodeattest_providers.errors import ChallengeRequired, Denied, Unavailable
from nodeattest_providers.names import ANNOTATION_CHALLENGE, ANNOTATION_REASON
from nodeattest_providers.platform import OFFLINE, Platform
from nodeattest_providers.tpm.protocol import VERSIONS
from nodeattest_providers.tpm.verifier import TpmSigner
from nodeattest_providers.verifier_interface import AttestedNode, Facts, NodeRequest
from nodeattest_sandbox.pki import ClusterPki
from nodeattest_sandbox.swtpm import SoftwareTpm

__all__ = [
    "CHALLENGED",
    "CRASHED",
    "GRANTED",
    "NOT_RECORDED",
    "ChecksWithout",
    "Ended",
    "Scene",
    "StandIn",
    "ended_by",
    "kept",
    "of_part",
    "plain",
    "running",
]

F = TypeVar("F", bound=RequestFacts)
GRANTED: Final = ("granted", "")
"""What ``Ended`` is for an attack that succeeds: a certificate, an approval, an attested node."""
CHALLENGED: Final = ("challenged", "")
CRASHED: Final = "crashed"
NOT_RECORDED: Final = ("the issuer's own comparison", "")
"""The issuer found, under its reservation, that another machine was recorded: the request is evaluated again."""
_ONE_OF_MANY: Final = re.compile(
    r"(PCR value|replays PCR|closes PCR|label)( [^ ]+)$|^[a-z]+: (of this machine)$|^(pinned ak)(V2)$"
)

Ended = tuple[str, str]
"""Name of the check that refused, and its reason."""


def plain(name: str) -> str:
    """Name a check that is asked of each register, label, part or version once, whichever it is."""
    return _ONE_OF_MANY.sub(r"\1\3\4", name)


def of_part(part: str, removed: Iterable[str]) -> frozenset[str]:
    """Return the names of one list among ``list: name``."""
    return frozenset(name for found, _, name in (one.partition(": ") for one in removed) if found == part)


@dataclass(slots=True)
class ChecksWithout(Checks):  # pyright: ignore[reportGeneralTypeIssues] - final for the product, not for this test
    """Records what the product's does, and refuses nothing by the checks of these names."""

    without: frozenset[str] = frozenset()

    def require(self, passed: bool, name: str, **rest: Any) -> None:
        Checks.require(self, passed or plain(name) in self.without, name, **rest)


class TpmWithout(TpmSigner):
    """The verifier of ``tpm`` without these checks; remembers by which check it refused last."""

    def __init__(self, without: frozenset[str], platform: Platform = OFFLINE) -> None:
        super().__init__(platform=platform)
        self._without = without
        self.refused_by = ""

    async def verify_client_attestation_data(self, request: NodeRequest, facts: Facts) -> AttestedNode:
        self.refused_by = ""
        try:
            checks, policy = ChecksWithout(without=self._without), self._policies.get(facts.settings)
            ec2_key = await self._ask_ec2(checks, request, facts, policy)
            return self._verify(checks, request, facts, policy, ec2_key)
        except Denied as denied:
            self.refused_by = denied.checks[-1].name if denied.checks else "shape of the evidence"
            raise

    verify_serving_attestation_data = verify_client_attestation_data


class StandIn(OneRound):
    """A provider whose answer is set, where an attack is on what any provider could let pass."""

    versions = VERSIONS


def _list_without(
    part: str, checks: tuple[RequestCheck[F], ...], removed: Iterable[str], ran: list[str]
) -> Pipeline[F]:
    """Make a pipeline of the declared checks but these, which notes the name of each that runs."""
    without = of_part(part, removed)
    assert without <= {check.name for check in checks}, without

    def noting(check: RequestCheck[F]) -> Callable[[F], Awaitable[None]]:
        async def run(facts: F) -> None:
            ran.append(f"{part}: {check.name}")
            await check.run(facts)

        return run

    return Pipeline(tuple(replace(check, run=noting(check)) for check in checks if check.name not in without))


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """One cluster with a controller that may lack checks, the TPM of its machine, and one of a thief."""

    world: World
    victim: SoftwareTpm
    thief: SoftwareTpm
    signer: TpmWithout
    kubelet_list: Pipeline[KubeletFacts]
    ran: list[str] = field(default_factory=list[str])
    version: int = VERSION
    """Of the evidence."""

    def join(self, **changes: Any) -> Join:
        """Begin to join as the machine; ``changes`` are of ``Join``."""
        fields: dict[str, Any] = {"version": self.version, **changes}
        return Join(world=self.world, **fields)

    async def ended(self, name: str) -> Ended:
        """Let the controller handle a request; tells which check refused it, or ``GRANTED``."""
        await self.world.reconcile(name)
        return self.read(name)

    def read(self, name: str) -> Ended:
        """Tell how the request ended."""
        world = self.world
        if issued := text(world.csr(name), "status", "certificate"):
            certificate = x509.load_pem_x509_certificate(base64.b64decode(issued))
            asked = world.evaluator.parse_request(world.csr(name)).csr
            assert certificate.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo) == asked.spki
            assert certificate.subject.rfc4514_string() == f"CN=system:node:{asked.node_name},O=system:nodes"
            return GRANTED
        if (
            reason := world.condition("Denied", name)
            or world.condition("Failed", name)
            or world.annotation(ANNOTATION_REASON, name).partition(":")[0]
        ):
            declared = self.ran[-1] if self.ran else ""
            inner = self.signer.refused_by if declared == f"attested: {csr_checks.VERIFICATION}" else ""
            return (f"tpm: {plain(inner)}" if inner else declared, reason)
        if world.annotation(ANNOTATION_CHALLENGE, name):
            return CHALLENGED
        return GRANTED if world.condition("Approved", name) else NOT_RECORDED


@asynccontextmanager
async def running(
    pki: ClusterPki,
    victim: SoftwareTpm,
    thief: SoftwareTpm,
    removed: Iterable[str],
    stand_in: Callable[[], OneRound] | None = None,
    *,
    version: int = VERSION,
) -> AsyncGenerator[Scene]:
    """Run a controller without these checks, each ``list: name``; ``stand_in`` makes a provider in the TPM's place."""
    ran: list[str] = []

    attested: Pipeline[CSRFacts] = _list_without("attested", csr_checks.CHECKS, removed, ran)
    kubelet: Pipeline[KubeletFacts] = _list_without("kubelet", kubelet_checks.CHECKS, removed, ran)

    class Without(Evaluator):
        _pipeline = attested

    class KubeletWithout(KubeletServingEvaluator):
        _pipeline = kubelet

    signer = TpmWithout(of_part("tpm", removed))
    other = stand_in() if stand_in is not None else None
    world = World(
        pki,
        other or OneRound(),
        signer=signer if other is None else None,
        evaluator=Without,
        kubelet_serving=KubeletWithout,
    )
    async with world.running():
        yield Scene(
            world=world,
            victim=victim,
            thief=thief,
            signer=signer,
            kubelet_list=kubelet,
            ran=ran,
            version=version,
        )
    await signer.aclose()


async def ended_by(verification: Awaitable[object]) -> Ended:
    """Tell which check of a verification refused, or ``GRANTED``; without a verdict, which exception came."""
    try:
        await verification
    except Denied as denied:
        return (plain(denied.checks[-1].name) if denied.checks else "", denied.reason)
    except Unavailable as unavailable:
        return (plain(unavailable.checks[-1].name) if unavailable.checks else "", unavailable.reason)
    except ChallengeRequired:
        return CHALLENGED
    except (AssertionError, AttributeError, LookupError, TypeError, ValueError) as error:
        return (CRASHED, type(error).__name__)
    return GRANTED


def kept(names: Iterable[str]) -> frozenset[str]:
    """Return the names of recorded checks as rows have them."""
    return frozenset(map(plain, names))
