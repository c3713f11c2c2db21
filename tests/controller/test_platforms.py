"""The section ``platforms``: every provider reads its own when the controller starts, a third party's, too."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from nodeattest_controller import library
from nodeattest_controller.metrics import Metrics
from nodeattest_controller.platforms import check_platforms
from nodeattest_controller.verification.verifiers import VerifierRegistry
from nodeattest_providers import registry
from nodeattest_providers.errors import Denied
from nodeattest_providers.identifiers import ProviderName
from nodeattest_providers.verifier_interface import AttestedNode, ClusterAPISigner, Facts, NodeRequest
from nodeattest_serving.bounded_server import SettingsError

SOURCE = """
from nodeattest_providers.config_fields import check_keys
from nodeattest_providers.identifiers import ProviderName
from nodeattest_providers.verifier_interface import ClusterAPISigner


class Signer(ClusterAPISigner):
    provider, versions, secure, takes_platform = ProviderName("lunar"), (1,), True, True

    def __init__(self, *, platform):
        assert not platform.may_call, "nothing is asked at the start"
        check_keys(platform.settings, "platforms.lunar", ("endpoint", "caFile"))

    async def verify_client_attestation_data(self, request, facts): ...

    async def verify_serving_attestation_data(self, request, facts): ...
"""


@pytest.fixture(autouse=True)
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "lunar_platform.py").write_text(SOURCE)
    info = tmp_path / "lunar_platform-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: lunar-platform\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[nodeattest.signers]\nlunar = lunar_platform:Signer\n")
    monkeypatch.delitem(sys.modules, "lunar_platform", raising=False)
    monkeypatch.syspath_prepend(tmp_path)  # pyright: ignore[reportUnknownMemberType] - pytest leaves the path untyped


@pytest.mark.parametrize(
    ("name", "section", "said"),
    [
        (
            "lunar",
            {"endpiont": "x"},
            "lunar: expected platforms.lunar: one of endpoint, caFile, got 'endpiont'; did you mean 'endpoint'?",
        ),
        ("lunra", {}, "lunra: unknown provider; did you mean .platforms.lunar?"),
        ("challenge", {"a": 1}, "challenge: expected no settings: this provider asks no platform, got 'a'"),
    ],
)
def test_a_mistake_is_one_line_with_the_nearest_known(name: str, section: dict[str, str], said: str) -> None:
    with pytest.raises(SettingsError) as refused:
        check_platforms({name: {**section}}, "c.yaml")
    assert str(refused.value) == f"c.yaml: .platforms.{said}"


# The controller as a library: which signers its caller may hand in, and that they are used and never closed


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


@pytest.mark.parametrize("name", [*registry.BUILT_IN, "null"])
async def test_no_built_in_name_can_be_taken_over(name: str) -> None:
    with pytest.raises(library.SettingsError, match="a name of a built-in provider"):
        await library.run(SETTINGS, {}, signers={name: Mine(name)})


async def test_a_signer_that_was_handed_in_is_used_as_it_is_and_left_open() -> None:
    mine = Mine()
    verifiers = VerifierRegistry({}, Metrics(), {mine.provider: mine})
    assert verifiers(mine.provider) is mine
    await verifiers.aclose()
    assert not mine.closed
    with pytest.raises(Denied):
        VerifierRegistry({}, Metrics(), {})(mine.provider)
