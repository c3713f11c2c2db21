#!/usr/bin/env python3
"""Prints the project's modules that take part in one TPM join, from the watch of requests to the certificate.

A controller's queue, reconciler and issuer run in this process over two API servers in memory; the TPM is software.
A module counts if the body of one of its functions ran between the first request and the certificate.
Run it with ``PYTHONPATH=tests:tests/controller:tests/providers``.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
import threading
from base64 import b64encode
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import Final

from cryptography.hazmat.primitives.asymmetric import ec
from csr_world import KEY, PROVIDER_ID, World
from tpm_world import PCR_VALUES, SoftTpm, parsed

from nodeattest_controller.controllers.csr.controller import CSRController
from nodeattest_controller.runtime.cluster_log import ClusterLog
from nodeattest_kube.store import MemoryPool
from nodeattest_parsing.objects import text
from nodeattest_parsing.values import JsonValue
from nodeattest_providers import envelope
from nodeattest_providers.challenge_response import LABEL_SECRET, challenge_context, derive
from nodeattest_providers.identifiers import ANNOTATION_CHALLENGE
from nodeattest_providers.node_interface import FirstRequestRef
from nodeattest_providers.tpm.protocol import Challenge, SecondEvidence, proof, qualifying_data
from nodeattest_providers.tpm.verifier import TpmSigner
from nodeattest_providers.verifier_interface import AttestedNode, Facts, NodeRequest
from nodeattest_sandbox.pki import ClusterPki

TREE: Final = Path(__file__).parents[1]
NOT_COUNTED: Final = ("tests", "tools", "sandbox", ".venv")


class RecordingSigner(TpmSigner):
    """Keeps what the verification of the first request was given: the software TPM answers by it."""

    given: tuple[NodeRequest, Facts]

    async def verify_client_attestation_data(self, request: NodeRequest, facts: Facts) -> AttestedNode:
        """Verify a request."""
        if facts.first_request is None:
            self.given = request, facts
        return await super().verify_client_attestation_data(request, facts)


async def join(world: World, signer: RecordingSigner, tpm: SoftTpm) -> None:
    """File both requests of a join, and wait for the certificate."""
    key = ec.generate_private_key(ec.SECP256R1())
    world.file("r-1", evidence=tpm.first().to_json(), key=key)
    await until(lambda: bool(world.annotation(ANNOTATION_CHALLENGE)))
    first, facts = signer.given
    challenge = Challenge.parse(world.annotation(ANNOTATION_CHALLENGE))
    ak, ek = parsed(tpm.ak_public), parsed(tpm.ek_public)
    master = world.challenge_keys.keys()[0]
    secret = derive(LABEL_SECRET, master, challenge_context(facts, first, ak.name, ek.spki_sha256))
    binding = first.binding(min(facts.cluster.pins)).digest
    quote = tpm.quote_parts(qualifying_data(challenge.nonce, first.uid, binding), challenge.pcrs, PCR_VALUES).marshal()
    answer = SecondEvidence(
        first=FirstRequestRef(name=first.name, uid=first.uid),
        mac=proof(secret, first.uid, first.csr.sha256, binding),
        quote=quote,
        signature=tpm.sign(quote),
        pcrs=PCR_VALUES,
    )
    envelope_ = envelope.encode(first.csr.der, replace(first.evidence, data=answer.to_json()))
    world.file("r-2", key=key, request=b64encode(envelope_).decode())
    await until(lambda: bool(text(world.csr("r-2"), "status", "certificate")))


async def until(happened: Callable[[], bool]) -> None:
    """Wait for what the controller does."""
    for _turn in range(1000):
        if happened():
            return
        await asyncio.sleep(0.01)
    raise TimeoutError


async def modules_of_a_join(folder: Path) -> set[str]:
    """Join, and return the paths of the modules in which a function ran."""
    tpm, signer, ran = SoftTpm(), RecordingSigner(), set[str]()
    world = World(ClusterPki.make(folder, "blue"), signer)  # pyright: ignore[reportArgumentType] - a real verifier
    keys: list[JsonValue] = [{"providerID": PROVIDER_ID, "sha256": tpm.fingerprint}]
    world.policy(tpm={"endorsementKeys": keys})
    controller = CSRController(
        world.reconciler,
        has_provider=lambda name: name == "tpm",
        metrics=world.metrics,
        log=ClusterLog(),
        now=world.clock,
        memory=MemoryPool(1 << 30),
        workers=4,
    )

    def note(frame: FrameType, event: str, _argument: object) -> None:
        if event == "call" and frame.f_code.co_name != "<module>":
            ran.add(frame.f_code.co_filename)

    async with world.running(), asyncio.TaskGroup() as tasks:
        runner = controller.for_cluster(KEY, world.workload_api)
        running = [tasks.create_task(controller.run()), tasks.create_task(runner.run())]
        await until(lambda: runner.synced)
        threading.setprofile(note)
        sys.setprofile(note)
        await join(world, signer, tpm)
        sys.setprofile(None)
        for task in running:
            task.cancel()
    return ran


def main() -> None:
    """Print the modules and their number."""
    with tempfile.TemporaryDirectory() as folder:
        ran = asyncio.run(modules_of_a_join(Path(folder)))
    paths = [Path(name).relative_to(TREE) for name in ran if name.startswith(str(TREE))]
    counted = sorted(str(path) for path in paths if path.parts[0] not in NOT_COUNTED)
    print(*counted, f"{len(counted)} modules", sep="\n")


if __name__ == "__main__":
    main()
