"""The ``challenge`` section of a NodeAttestationPolicy: who gives each Machine its secret.

Promises: a value, or ``Denied`` with ``PolicyInvalid``. Out of scope: making the secrets (the controller).
Docs: docs/providers/challenge.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from nodeattest_providers.config_fields import boolean, check_keys
from nodeattest_providers.node_interface import JsonValue

_WHERE: Final = "spec.challenge"


@dataclass(frozen=True, slots=True)
class ChallengePolicy:
    """What a cluster's operator decided."""

    create_secrets: bool = False
    """Whether the controller creates the secret of each Machine; else operators write ``<machine>-attestation``."""


def parse_policy(settings: Mapping[str, JsonValue]) -> ChallengePolicy:
    """Read the section."""
    check_keys(settings, _WHERE, ("createSecrets",))
    return ChallengePolicy(boolean(settings.get("createSecrets", False), f"{_WHERE}.createSecrets"))
