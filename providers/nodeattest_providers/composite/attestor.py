"""The ``composite`` provider's attestor: lets each part's own attestor make its evidence for the same request.

Its settings are the parts, each with its own: ``{"tpm": {"tcti": "…"}, "challenge": {"secretFile": "…"}}``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from nodeattest_providers import registry
from nodeattest_providers.challenge_response import check_own
from nodeattest_providers.composite import protocol
from nodeattest_providers.config_fields import invalid, mapping
from nodeattest_providers.errors import Denied, Reason
from nodeattest_providers.identifiers import ProviderName, evidence_block
from nodeattest_providers.node_interface import (
    Attestor,
    Binding,
    Evidence,
    FirstRequestRef,
    JsonValue,
    PublishedChallenge,
)


class CompositeAttestor(Attestor):
    """Makes the parts' evidence."""

    provider = protocol.PROVIDER
    versions: tuple[int, ...] = (protocol.VERSION,)
    two_step = True

    def __init__(self, settings: Mapping[str, JsonValue]) -> None:
        _check_names(settings)
        self.parts = tuple(
            registry.make_attestor(ProviderName(name), mapping(settings[name], f"composite settings, {name}"))
            for name in sorted(settings)
        )
        self.holds_device = any(part.holds_device for part in self.parts)

    def attest(self, binding: Binding, challenge: PublishedChallenge | None = None) -> Evidence:
        attestors = self.parts
        texts: Mapping[ProviderName, str] = {} if challenge is None else _texts(attestors, binding, challenge)
        parts = {
            attestor.provider: _evidence_of(attestor, binding, _own_challenge(attestor, challenge, texts))
            for attestor in attestors
        }
        first = None if challenge is None else FirstRequestRef(name=challenge.name, uid=challenge.uid)
        evidence = protocol.CompositeEvidence(parts=parts, first=first)
        return Evidence(protocol.PROVIDER, protocol.VERSION, evidence.to_json())

    def close(self) -> None:
        for part in self.parts:
            part.close()


def _texts(
    attestors: Iterable[Attestor], binding: Binding, challenge: PublishedChallenge
) -> Mapping[ProviderName, str]:
    texts = protocol.CompositeChallenge.parse(challenge.text).texts
    wanted = {attestor.provider for attestor in attestors if attestor.two_step}
    check_own(binding, challenge, (f"parts, {', '.join(sorted(wanted)) or 'none'}", set(texts) == wanted))
    return texts


def _check_names(settings: Mapping[str, JsonValue]) -> None:
    wrong = [name for name in settings if not protocol.is_part(name)]
    if wrong or not protocol.MIN_PARTS <= len(settings) <= protocol.MAX_PARTS:
        raise invalid(
            "composite settings",
            f"{protocol.MIN_PARTS} to {protocol.MAX_PARTS} providers that prove something, each with its settings",
            ", ".join(map(repr, wrong or settings)) or "none",
        )


def _own_challenge(
    attestor: Attestor, challenge: PublishedChallenge | None, texts: Mapping[ProviderName, str]
) -> PublishedChallenge | None:
    """Return the part's own challenge; a part of one step proves itself again."""
    return replace(challenge, text=texts[attestor.provider]) if challenge is not None and attestor.two_step else None


def _evidence_of(attestor: Attestor, binding: Binding, challenge: PublishedChallenge | None) -> dict[str, JsonValue]:
    block = evidence_block(attestor.provider, protocol.PART_VERSION)
    made = attestor.attest(replace(binding, evidence_block=block), challenge)
    if made.block != block:
        raise Denied(
            Reason.EVIDENCE_VERSION_UNSUPPORTED,
            expected=f"{block}, which composite/v{protocol.VERSION} carries",
            got=made.block,
            remedy="use releases of this provider and of the agent that know each other",
        )
    return made.data
