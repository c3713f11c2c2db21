"""What the attacks on the ``aws`` verifier share: a signer for one verdict, beside an AWS on loopback."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from aws_cloud import Cloud, cloud, node_role
from aws_world import POLICY, Node, facts_of, trust_bundle

from nodeattest_providers.aws.verifier import AwsSigner
from nodeattest_providers.node_interface import JsonValue
from nodeattest_providers.platform import ObserveCall, Platform
from nodeattest_providers.verifier_interface import AttestedNode, Facts, LedgerFacts, NodeRequest


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """An AWS with one instance, and the bundle that the controller trusts."""

    cloud: Cloud
    bundle: Path
    node: Node
    observe: ObserveCall = lambda service, outcome, seconds: None  # noqa: ARG005

    def set(self) -> Stage:
        """Begin anew: STS knows the instance and answers."""
        self.cloud.reset()
        self.cloud.principal = node_role(self.node.instance_id)
        return self

    def attest(
        self, request: NodeRequest, node: Node | None = None, ledger: LedgerFacts | None = None, **policy: JsonValue
    ) -> AttestedNode:
        """Verify one request; raises what the verifier does."""
        facts = facts_of(node or self.node, {**POLICY, **policy})
        return asyncio.run(self._attest(request, replace(facts, ledger=ledger or facts.ledger)))

    async def _attest(self, request: NodeRequest, facts: Facts) -> AttestedNode:
        settings = {**self.cloud.settings, "trustBundle": str(self.bundle)}
        signer = AwsSigner(platform=Platform(settings=settings, observe=self.observe))
        try:
            return await signer.verify_client_attestation_data(request, facts)
        finally:
            await signer.aclose()


@pytest.fixture(scope="session")
def played(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    folder = tmp_path_factory.mktemp("aws-stage")
    with cloud(folder) as running:
        (instance,) = running.start({"team": "nodes"})
        yield Stage(cloud=running, bundle=trust_bundle(folder / "trust"), node=Node(instance_id=instance))


@pytest.fixture
def stage(played: Stage, monkeypatch: pytest.MonkeyPatch) -> Stage:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIACONTROLLEREXAMPL")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    return played.set()
