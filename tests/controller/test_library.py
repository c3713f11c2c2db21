"""The controller as a library: which signers its caller may hand in, and that they are used and never closed."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from nodeattest_controller import library
from nodeattest_controller.metrics import Metrics
from nodeattest_controller.verification.registry import VerifierRegistry
from nodeattest_providers import registry
from nodeattest_providers.errors import Denied
from nodeattest_providers.names import ProviderName
from nodeattest_providers.verifier_interface import AttestedNode, ClusterAPISigner, Facts, NodeRequest

SETTINGS = library.read_settings()


class Mine(ClusterAPISigner):
    """A signer of the caller's own."""

    versions: tuple[int, ...] = (1,)
    secure = True

    def __init__(self, provider: str = "contosocloud") -> None:
        self.provider = ProviderName(provider)
        self.closed = False

    async def verify_client_attestation_data(self, request: NodeRequest, facts: Facts) -> AttestedNode:
        raise AssertionError(request, facts)

    verify_serving_attestation_data = verify_client_attestation_data

    async def aclose(self) -> None:
        self.closed = True


class Unversioned(Mine):
    versions = ()


@pytest.mark.parametrize("name", [*registry.BUILT_IN, "null"])
async def test_no_built_in_name_can_be_taken_over(name: str) -> None:
    with pytest.raises(library.SettingsError, match="a name of a built-in provider"):
        await library.run(SETTINGS, {}, signers={name: Mine(name)})


async def test_a_signer_may_not_stand_beside_an_entry_point_of_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    info = tmp_path / "contosocloud-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: contosocloud\nVersion: 1\n")
    (info / "entry_points.txt").write_text("[nodeattest.signers]\ncontosocloud = contosocloud:Signer\n")
    monkeypatch.syspath_prepend(tmp_path)  # pyright: ignore[reportUnknownMemberType] - pytest leaves the path untyped
    with pytest.raises(library.SettingsError, match="an installed entry point"):
        await library.run(SETTINGS, {}, signers={"contosocloud": Mine()})


@pytest.mark.parametrize(("name", "half"), [("another", Mine()), ("contosocloud", Unversioned())])
async def test_what_is_no_signer_of_that_name_is_refused(name: str, half: Mine) -> None:
    with pytest.raises(library.SettingsError, match=f"signers.'?{name}"):
        await library.run(SETTINGS, {}, signers={name: half})


async def test_a_signer_of_the_callers_has_its_settings_from_the_caller() -> None:
    settings = replace(SETTINGS, platforms={"contosocloud": {"endpoint": "https://127.0.0.1"}})
    with pytest.raises(library.SettingsError, match=r"platforms\.contosocloud"):
        await library.run(settings, {}, signers={"contosocloud": Mine()})


async def test_a_signer_that_was_handed_in_is_used_as_it_is_and_left_open() -> None:
    mine = Mine()
    verifiers = VerifierRegistry({}, Metrics(), {mine.provider: mine})
    assert verifiers(mine.provider) is mine
    await verifiers.aclose()
    assert not mine.closed
    with pytest.raises(Denied):
        VerifierRegistry({}, Metrics(), {})(mine.provider)
