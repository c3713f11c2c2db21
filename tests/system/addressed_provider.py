"""A third party's provider whose platform tells addresses: a folder with a file for each machine."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import mkdtemp
from typing import Final

import pytest
from kubelet_requests import register_node
from serving_requests import Node
from world import World

from nodeattest_providers.identifiers import ProviderName
from nodeattest_providers.node_interface import Binding, Evidence, PublishedChallenge

ADDRESSED: Final = ProviderName("addressed")
SOURCE: Final = """
from pathlib import Path

from nodeattest_providers.checks import Checks
from nodeattest_providers.errors import Reason, Unavailable
from nodeattest_providers.verifier_interface import AttestedNode, ClusterAPISigner


class Signer(ClusterAPISigner):
    provider, versions, secure, reads_infrastructure = "addressed", (1,), True, False
    tells_addresses = True

    async def verify_client_attestation_data(self, request, facts):
        checks = Checks()
        checks.require(True, "asked", section="", reason=Reason.PROOF_INVALID, expected="", got="", remedy="")
        return AttestedNode(provider=self.provider, provider_id=facts.machine.provider_id, checks=checks.record())

    verify_serving_attestation_data = verify_client_attestation_data

    async def addresses(self, facts):
        told = Path(FOLDER, facts.machine.name)
        if not told.exists():
            raise Unavailable(Reason.PLATFORM_UNAVAILABLE, "no answer", remedy="see to the platform", retry_after=0.5)
        return tuple(tuple(line.split()) for line in told.read_text().splitlines())
"""
STALE, FRESH = "10.9.0.1", "10.9.0.2"


def install_provider(folder: Path, monkeypatch: pytest.MonkeyPatch, name: str, source: str) -> None:
    """Install a provider whose ``source`` defines ``Signer``."""
    (folder / f"{name}_platform.py").write_text(source)
    info = folder / f"{name}_platform-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}-platform\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[nodeattest.signers]\n{name} = {name}_platform:Signer\n")
    monkeypatch.setenv("PYTHONPATH", str(folder))


class Addressed:
    """Says nothing; the platform knows."""

    provider, versions, two_step = ADDRESSED, (1,), False

    def attest(self, binding: Binding, challenge: PublishedChallenge | None = None) -> Evidence:
        return Evidence(ADDRESSED, 1, {})


@dataclass(frozen=True, slots=True)
class Platform:
    """The folder that the provider reads, and the world whose Machines it knows."""

    world: World
    folder: Path

    def tell(self, name: str, *addresses: str) -> None:
        """Let the platform say where a machine is now."""
        part = self.folder / f".{name}"
        part.write_text("".join(f"InternalIP {address}\n" for address in addresses))
        part.rename(self.folder / name)

    def joined(self, name: str) -> Node:
        """Make a Machine whose status still lists the address that it had, and let it join."""
        self.world.machine(name, addresses=[("Hostname", name), ("InternalIP", f"{STALE}{len(name)}")])
        node = Node(self.world, name, ADDRESSED, Addressed())
        node.join()
        register_node(self.world, name)
        return node


@contextmanager
def installed_platform(world: World) -> Generator[Platform]:
    """Install the provider for programs that are started meanwhile."""
    folder, installed = (Path(mkdtemp(prefix=f"{name}-", dir=world.directory)) for name in ("platform", "installed"))
    with pytest.MonkeyPatch.context() as monkeypatch:
        install_provider(installed, monkeypatch, "addressed", f"FOLDER = {str(folder)!r}\n{SOURCE}")
        yield Platform(world, folder)


def places(name: str) -> tuple[str, str]:
    """Return the address that a machine had and the one that it has."""
    return f"{STALE}{len(name)}", f"{FRESH}{len(name)}"
