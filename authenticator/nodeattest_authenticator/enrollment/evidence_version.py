"""Which version of the evidence this node sends: the newest that both sides know.

Promises: no request is sent again in a version that was refused, regardless of the annotation: whoever controls the API
server can write it. A version that was agreed on is remembered, so that the next renewal need not be
refused first, but not forever.
Leaves to others: submission, and telling a refusal for its version from others (``csr_submission``); which versions
are still secure (the provider, by its attestor's ``versions``).
Source: docs/wire-format.md, "Versions".
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Final, Protocol

from nodeattest_authenticator.errors import AgentError, AgentReason
from nodeattest_authenticator.state.stores import AgreedVersion
from nodeattest_providers import evidence_versions
from nodeattest_providers.errors import Denied, Reason
from nodeattest_providers.identifiers import ProviderName, evidence_block
from nodeattest_providers.node_interface import Attestor, Evidence, VersionedAttestor

AGREED_FOR: Final = 86400
"""Seconds for which an older version is taken at once; then the newest is tried again: one request more a day."""


@dataclass(frozen=True, slots=True)
class SupportedVersions:
    """What this node may send."""

    provider: ProviderName
    versions: tuple[int, ...]
    """Those that it can make; newest first, never empty."""


class AgreedVersionStore(Protocol):
    """Where an agreement is kept."""

    def load(self) -> AgreedVersion | None:
        """Return what is kept, None when that is nothing or makes no sense."""
        ...

    def save(self, agreed: AgreedVersion | None) -> None:
        """Keep it, or forget; what cannot be kept is not an error."""
        ...


def supported_versions(attestor: Attestor) -> SupportedVersions:
    """Return what may be sent."""
    versions = attestor.versions if isinstance(attestor, VersionedAttestor) else attestor.versions[:1]
    return SupportedVersions(attestor.provider, versions)


def initial_version(offer: SupportedVersions, agreed: AgreedVersion | None, *, now: float) -> int:
    """Choose the version to begin with."""
    return agreed.version if agreed is not None and _is_current(agreed, offer, now) else offer.versions[0]


def next_version(offer: SupportedVersions, refused: Collection[int], published: str | None) -> int:
    """Choose the version to file after a refusal; raises ``AgentError`` when there is none.

    ``published`` is the annotation of the refused request: a claim, read strictly.
    """
    try:
        understood = evidence_versions.parse(published or "", offer.provider)
    except Denied:
        raise _no_common(offer, refused, None) from None
    common = [version for version in offer.versions if version in understood and version not in refused]
    if not common:
        raise _no_common(offer, refused, understood)
    return common[0]


def version_to_remember(
    offer: SupportedVersions, before: AgreedVersion | None, version: int, *, refused: bool, now: float
) -> AgreedVersion | None:
    """Return what to remember after a certificate was issued; None for the newest version, which needs no memory."""
    newest = offer.versions[0]
    if version == newest:
        return None
    if before is not None and before.version == version and not refused and _is_current(before, offer, now):
        return before
    return AgreedVersion(version=version, newest=newest, since=int(now))


def attestor_for_version(attestor: Attestor, version: int) -> Attestor:
    """Return the attestor of one of the offered versions."""
    if version != attestor.versions[0] and isinstance(attestor, VersionedAttestor):
        return attestor.in_version(version)
    return attestor


def check_version(evidence: Evidence, provider: ProviderName, version: int) -> None:
    """Refuse evidence of another version than was asked for, lest a refused version is sent again."""
    wanted = evidence_block(provider, version)
    if evidence.block != wanted:
        raise AgentError(
            AgentReason.CONFIGURATION_INVALID,
            f"the provider made {evidence.block} where {wanted} was wanted",
            remedy="upgrade the package of this provider, or report it to its makers",
        )


def _is_current(agreed: AgreedVersion, offer: SupportedVersions, now: float) -> bool:
    fresh = 0 <= now - agreed.since < AGREED_FOR
    return fresh and agreed.newest == offer.versions[0] and agreed.version in offer.versions


def _no_common(offer: SupportedVersions, refused: Collection[int], understood: tuple[int, ...] | None) -> AgentError:
    mine = f"this agent makes {_listed(offer.provider, offer.versions)}"
    if understood is None:
        was = _listed(offer.provider, sorted(refused, reverse=True))
        message = f"the controller refused {was} and does not say in our form which versions it understands; {mine}"
        remedy = "bring controller and agent to versions that know each other"
    else:
        message = f"the controller understands {_listed(offer.provider, understood)}; {mine}"
        remedy = _remedy(offer, understood)
    return AgentError(Reason.EVIDENCE_VERSION_UNSUPPORTED, message, remedy=remedy)


def _remedy(offer: SupportedVersions, understood: tuple[int, ...]) -> str:
    if max(understood) < min(offer.versions):
        return "upgrade the controller"
    if min(understood) > max(offer.versions):
        return "upgrade the agent of this node"
    return "bring controller and agent to versions that know each other"


def _listed(provider: ProviderName, numbers: Iterable[int]) -> str:
    return ", ".join(evidence_block(provider, number) for number in numbers)
