"""Which version of the evidence a node sends, whatever an annotation says."""

from __future__ import annotations

import pytest

from nodeattest_authenticator.enrollment.evidence_version import (
    AGREED_FOR,
    SupportedVersions,
    attestor_for_version,
    check_version,
    initial_version,
    next_version,
    supported_versions,
    version_to_remember,
)
from nodeattest_authenticator.errors import AgentError, FailureKind
from nodeattest_authenticator.state.stores import AgreedVersion
from nodeattest_providers.binding import Binding
from nodeattest_providers.identifiers import ProviderName
from nodeattest_providers.node_interface import Attestor, Evidence, PublishedChallenge

TPM = ProviderName("tpm")
NOW = 1_800_000_000.0


class Fixed:
    """An attestor of one version."""

    provider = TPM
    two_step = False

    def __init__(self, *versions: int) -> None:
        self.versions: tuple[int, ...] = versions

    def attest(self, binding: Binding, challenge: PublishedChallenge | None = None) -> Evidence:
        return Evidence(self.provider, self.versions[0], {})


class Versatile(Fixed):
    """An attestor of several."""

    def in_version(self, version: int) -> Attestor:
        return Fixed(version)


def offer(*versions: int) -> SupportedVersions:
    return SupportedVersions(TPM, versions)


def refusal(offered: SupportedVersions, refused: set[int], published: str | None) -> AgentError:
    with pytest.raises(AgentError) as caught:
        next_version(offered, refused, published)
    return caught.value


def test_an_attestor_without_older_versions_offers_its_newest_only() -> None:
    assert supported_versions(Fixed(3, 2, 1)).versions == (3,)
    assert supported_versions(Versatile(3, 2, 1)).versions == (3, 2, 1)


def test_each_version_is_made_by_the_attestor_for_it() -> None:
    binding = Binding("", "", "", b"")  # type: ignore[arg-type] - nothing is bound
    assert attestor_for_version(Versatile(2, 1), 1).attest(binding).version == 1
    assert attestor_for_version(Fixed(2), 2).attest(binding).version == 2


@pytest.mark.parametrize(
    ("published", "refused", "chosen"),
    [
        ("tpm/v2,tpm/v1", {3}, 2),
        ("tpm/v1", {3}, 1),
        ("tpm/v9,tpm/v2", {3}, 2),
        ("tpm/v3,tpm/v2", {3}, 2),
        ("tpm/v2,tpm/v1", {3, 2}, 1),
    ],
)
def test_the_newest_common_version_that_was_not_refused_is_chosen(
    published: str, refused: set[int], chosen: int
) -> None:
    assert next_version(offer(3, 2, 1), refused, published) == chosen


@pytest.mark.parametrize(
    ("offered", "published"),
    [
        (offer(3, 2), "tpm/v1"),
        (offer(3, 2), "tpm/v3,tpm/v1"),
        (offer(3), "tpm/v2,tpm/v1"),
        (offer(3, 2, 1), "tpm/v3"),
    ],
)
def test_without_a_common_version_both_lists_are_named(offered: SupportedVersions, published: str) -> None:
    failure = refusal(offered, {3}, published)
    assert (failure.reason, failure.kind) == ("EvidenceVersionUnsupported", FailureKind.DENIED)
    assert f"the controller understands {published.replace(',', ', ')};" in failure.message
    assert f"makes {', '.join(f'tpm/v{one}' for one in offered.versions)}" in str(failure)


def test_the_remedy_names_the_side_that_is_too_old() -> None:
    assert refusal(offer(3, 2), {3}, "tpm/v1").remedy.startswith("upgrade the controller")
    assert refusal(offer(3, 2), {3}, "tpm/v5,tpm/v4").remedy == "upgrade the agent of this node"


@pytest.mark.parametrize(
    "published", [None, "", "tpm/v0", "v1", "challenge/v1", "tpm/v1, tpm/v2", "tpm/v2 " * 1000, "tpm/v1,tpm/v2"]
)
def test_an_annotation_that_is_not_canonical_chooses_nothing(published: str | None) -> None:
    failure = refusal(offer(3, 2, 1), {3}, published)
    assert "does not say in our form" in failure.message
    assert len(str(failure)) < 400


def test_an_agreement_is_taken_up_until_it_is_a_day_old_or_the_agent_is_newer() -> None:
    agreed = AgreedVersion(version=1, newest=2, since=int(NOW))
    assert initial_version(offer(2, 1), None, now=NOW) == 2
    assert initial_version(offer(2, 1), agreed, now=NOW + AGREED_FOR - 1) == 1
    assert initial_version(offer(2, 1), agreed, now=NOW + AGREED_FOR) == 2
    assert initial_version(offer(2, 1), agreed, now=NOW - 1) == 2  # made under another clock
    assert initial_version(offer(3, 2, 1), agreed, now=NOW) == 3
    assert initial_version(offer(2), agreed, now=NOW) == 2


def test_an_agreement_is_not_renewed_by_its_own_use() -> None:
    agreed = AgreedVersion(version=1, newest=2, since=int(NOW))
    assert version_to_remember(offer(2, 1), agreed, 1, refused=False, now=NOW + 9) == agreed
    assert version_to_remember(offer(2, 1), agreed, 1, refused=True, now=NOW + 9) == AgreedVersion(
        version=1, newest=2, since=int(NOW) + 9
    )
    assert version_to_remember(offer(2, 1), None, 1, refused=False, now=NOW) == agreed


def test_the_newest_version_needs_no_agreement() -> None:
    assert (
        version_to_remember(offer(2, 1), AgreedVersion(version=1, newest=2, since=int(NOW)), 2, refused=True, now=NOW)
        is None
    )


@pytest.mark.parametrize("made", [Evidence(TPM, 1, {}), Evidence(ProviderName("insecure"), 2, {})])
def test_evidence_of_another_version_than_was_asked_for_is_never_sent(made: Evidence) -> None:
    check_version(Evidence(TPM, 2, {}), TPM, 2)
    with pytest.raises(AgentError, match="where tpm/v2 was wanted"):
        check_version(made, TPM, 2)
