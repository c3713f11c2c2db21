"""The section ``platforms``: every provider reads its own when the controller starts, a third party's, too."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from nodeattest_controller.platforms import check_platforms
from nodeattest_serving.settings import SettingsError

SOURCE = """
from nodeattest_providers.config_fields import check_keys
from nodeattest_providers.names import ProviderName
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


def test_settings_that_the_provider_knows_are_taken() -> None:
    check_platforms({"lunar": {"endpoint": "https://127.0.0.1:1"}}, "c.yaml")
    check_platforms({"tpm": {}}, "c.yaml")


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
