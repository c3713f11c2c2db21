"""The section ``platforms``: every provider reads its own when the controller starts."""

from __future__ import annotations

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


@pytest.mark.parametrize(
    ("name", "section", "said"),
    [
        ("aws", {"endpionts": {}}, "aws: expected platforms.aws: one of"),
        ("asw", {}, "asw: unknown provider; did you mean .platforms.aws?"),
        ("challenge", {"a": 1}, "challenge: expected no settings: this provider asks no platform, got 'a'"),
    ],
)
def test_a_mistake_is_one_line_with_the_nearest_known(name: str, section: dict[str, str], said: str) -> None:
    with pytest.raises(SettingsError) as refused:
        check_platforms({name: {**section}}, "c.yaml")
    assert str(refused.value).startswith(f"c.yaml: .platforms.{said}")
    assert "\n" not in str(refused.value)


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
