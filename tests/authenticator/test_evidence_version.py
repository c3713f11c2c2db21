"""Which version of the evidence a node sends, whatever an annotation says."""

from __future__ import annotations

import pytest

from nodeattest_authenticator.enrollment.evidence_version import check_version, next_version
from nodeattest_authenticator.errors import AgentError
from nodeattest_providers.binding import Binding
from nodeattest_providers.identifiers import ProviderName
from nodeattest_providers.node_interface import Attestor, Evidence, PublishedChallenge

TPM = ProviderName("tpm")


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


@pytest.mark.parametrize(
    ("published", "refused", "chosen"),
    [("tpm/v2,tpm/v1", {3}, 2), ("tpm/v9,tpm/v2", {3}, 2), ("tpm/v3,tpm/v2", {3}, 2), ("tpm/v2,tpm/v1", {3, 2}, 1)],
)
def test_the_newest_common_version_that_was_not_refused_is_chosen(
    published: str, refused: set[int], chosen: int
) -> None:
    assert next_version(Versatile(3, 2, 1), refused, published) == chosen


def test_an_attestor_without_older_versions_sends_its_newest_only() -> None:
    with pytest.raises(AgentError, match=r"understands tpm/v2, tpm/v1; this agent makes tpm/v3"):
        next_version(Fixed(3, 2, 1), {3}, "tpm/v2,tpm/v1")


@pytest.mark.parametrize(
    "published", [None, "", "tpm/v0", "v1", "challenge/v1", "tpm/v1, tpm/v2", "tpm/v2 " * 1000, "tpm/v1,tpm/v2"]
)
def test_an_annotation_that_is_not_canonical_chooses_nothing(published: str | None) -> None:
    with pytest.raises(AgentError, match="does not say in our form") as caught:
        next_version(Versatile(3, 2, 1), {3}, published)
    assert len(str(caught.value)) < 400


@pytest.mark.parametrize("made", [Evidence(TPM, 1, {}), Evidence(ProviderName("insecure"), 2, {})])
def test_evidence_of_another_version_than_was_asked_for_is_never_sent(made: Evidence) -> None:
    check_version(Evidence(TPM, 2, {}), TPM, 2)
    with pytest.raises(AgentError, match="where tpm/v2 was wanted"):
        check_version(made, TPM, 2)
