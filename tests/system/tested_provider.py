"""A third party's provider that believes a word about each machine, and lets the policy say which words it likes."""

from __future__ import annotations

import base64
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from uuid import uuid4

import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from filing_requests import Filed
from kubelet_requests import register_node
from serving_requests import end_of
from third_party import install_provider
from world import CSRS, World

from nodeattest_providers import csr, envelope
from nodeattest_providers.names import CLIENT_SIGNER_PREFIX, ProviderName
from nodeattest_providers.node_interface import Evidence
from nodeattest_sandbox.apiserver.jsonvalue import JsonMap, map_at, text_at

__all__ = ["Fleet", "installed"]

NAME: Final = "tested"
SOURCE: Final = """
from nodeattest_providers.checks import Checks
from nodeattest_providers.errors import Denied, Reason
from nodeattest_providers.verifier_interface import AttestedNode, ClusterAPISigner


class Signer(ClusterAPISigner):
    provider, versions, secure, reads_infrastructure = "tested", (1,), True, False

    async def verify_client_attestation_data(self, request, facts):
        checks = Checks()
        word, liked = request.evidence.data.get("word", ""), facts.settings.get("words", ["good"])
        if word.startswith("!"):
            raise Denied(Reason(word[1:]), expected="", got="", remedy="a test's")
        checks.require(
            word in liked, "word", section="", reason=Reason.PCR_VALUE_NOT_ALLOWED, expected="", got=word, remedy="none"
        )
        return AttestedNode(provider=self.provider, provider_id=facts.machine.provider_id, checks=checks.record())

    verify_serving_attestation_data = verify_client_attestation_data
"""


@dataclass(frozen=True, slots=True)
class Fleet:
    """A cluster of machines that this provider attests."""

    world: World

    def policy(self, *words: str, **spec: object) -> None:
        """Let the policy like these words."""
        liked = {"words": list(words) or ["good"]}
        self.world.set_policy(authorizedAttestors=[NAME], providers={NAME: liked}, **spec)  # pyright: ignore[reportArgumentType] - JSON

    def joined(self, name: str, **options: object) -> None:
        """Make a Machine, let it join, and let its Node stand there."""
        self.world.machine(name, **options)  # pyright: ignore[reportArgumentType] - the tests name real options
        assert end_of(self.file(name, "good", as_node=False)) == "issued"
        register_node(self.world, name)

    def file(self, name: str, word: str, *, as_node: bool = True, node: str = "", provider_id: str = "") -> Filed:
        """File a request for a machine, as its node or by a token; ``node`` asks under another name."""
        der = csr.build_csr(ec.generate_private_key(ec.SECP256R1()), node or name, provider_id or f"sandbox://{name}")
        raw = envelope.encode(der, Evidence(ProviderName(NAME), 1, {"word": word}))
        body: JsonMap = {
            "apiVersion": "certificates.k8s.io/v1",
            "kind": "CertificateSigningRequest",
            "metadata": {"name": f"r-{uuid4().hex[:12]}"},
            "spec": {
                "signerName": CLIENT_SIGNER_PREFIX + NAME,
                "usages": ["digital signature", "client auth"],
                "request": base64.b64encode(raw).decode(),
            },
        }
        workload = self.world.workload
        user = f"system:node:{node or name}"
        kubeconfig: Path = (
            workload.client_kubeconfig(user, ("system:nodes",))
            if as_node
            else workload.token_kubeconfig(self.world.token())
        )
        return Filed(self.world, text_at(workload.client(kubeconfig).create(CSRS, body), "metadata", "name"))

    def node(self, name: str) -> JsonMap:
        """Read a Node."""
        return self.world.workload_admin.get(f"/api/v1/nodes/{name}")

    def has_node(self, name: str) -> bool:
        """Tell whether a Node is there."""
        return any(text_at(one, "metadata", "name") == name for one in self.world.workload_admin.list("/api/v1/nodes"))

    def marks(self, *names: str) -> list[str]:
        """Return the values of our taints on these Nodes."""
        found = (map_at(self.node(name), "spec").get("taints") for name in names if self.has_node(name))
        taints = [taint for each in found if isinstance(each, list) for taint in each]
        return [text_at(taint, "value") for taint in taints if text_at(taint, "key").startswith("attestation.")]


@contextmanager
def installed(world: World, name: str) -> Generator[Fleet]:
    """Install the provider for programs that are started meanwhile."""
    folder = world.directory / f"installed-{name}"
    folder.mkdir()
    with pytest.MonkeyPatch.context() as monkeypatch:
        install_provider(folder, monkeypatch, NAME, SOURCE)
        yield Fleet(world)
