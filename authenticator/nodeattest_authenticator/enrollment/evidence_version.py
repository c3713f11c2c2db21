"""Which version of the evidence this node sends: the newest that both sides know.

Promises: no request is sent again in a version that was refused, regardless of the annotation: whoever controls the API
server can write it. Each call begins with the newest version.
Source: docs/wire-format.md, "Versions".
"""

from __future__ import annotations

from collections.abc import Collection

from nodeattest_authenticator.errors import AgentError, AgentReason
from nodeattest_providers import evidence_versions
from nodeattest_providers.errors import Denied, Reason
from nodeattest_providers.identifiers import ProviderName, evidence_block
from nodeattest_providers.node_interface import Attestor, Evidence, VersionedAttestor


def supported_versions(attestor: Attestor) -> tuple[int, ...]:
    """Return what may be sent, newest first."""
    return attestor.versions if isinstance(attestor, VersionedAttestor) else attestor.versions[:1]


def next_version(attestor: Attestor, refused: Collection[int], published: str | None) -> int:
    """Choose the version to submit after a refusal; raises ``AgentError`` when there is none.

    ``published`` is the annotation of the refused request: a claim, read strictly.
    """
    provider, versions = attestor.provider, supported_versions(attestor)
    mine = ", ".join(evidence_block(provider, version) for version in versions)
    try:
        understood = evidence_versions.parse(published or "", provider)
    except Denied:
        understood = ()
    for version in versions:
        if version in understood and version not in refused:
            return version
    theirs = "does not say in our form which versions it understands"
    if understood:
        theirs = f"understands {', '.join(evidence_block(provider, version) for version in understood)}"
    raise AgentError(
        Reason.EVIDENCE_VERSION_UNSUPPORTED,
        f"the controller refused the evidence and {theirs}; this agent makes {mine}",
        remedy="upgrade the older of both: the controller, or the agent of this node",
    )


def attestor_for_version(attestor: Attestor, version: int) -> Attestor:
    """Return the attestor of one of the supported versions."""
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
