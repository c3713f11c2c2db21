"""What the sandbox AWS knows: instances, whose an access key is, what its services do when they are asked.

Mutable on purpose: a running cloud changes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from nodeattest_sandbox.clouds.aws.backend import SessionKeys
from nodeattest_sandbox.clouds.aws.documents import Placement, RegionKey, make_region_key
from nodeattest_sandbox.clouds.aws.sigv4 import Principal


class Mode(StrEnum):
    """What a service does with requests."""

    UP = "up"
    THROTTLE = "throttle"
    """Refuses for there were too many."""
    DOWN = "down"
    """Answers 503."""
    HANG = "hang"
    """Answers after ``seconds``."""


class Tokens(StrEnum):
    """How a metadata service takes requests without a session token."""

    REQUIRED = "required"
    VERSION_1 = "version-1"
    """Knows no tokens and answers everybody, as before 2019."""
    DISABLED = "disabled"
    """The endpoint is switched off."""


@dataclass(frozen=True, slots=True)
class Answering:
    """How a service answers now."""

    mode: Mode = Mode.UP
    seconds: float = 0.0


@dataclass(slots=True, kw_only=True)
class Machine:
    """An instance and its metadata service."""

    place: Placement
    role: str | None
    tokens: Tokens
    keys: SessionKeys | None = field(default=None, repr=False)
    """The role's credentials that the metadata service gives out now."""
    tpm_keys: Mapping[str, str] = field(default_factory=dict[str, str])
    """Endorsement keys (DER in base64) by EC2's name of their type; none: launched without NitroTPM."""


@dataclass(slots=True)
class Cloud:
    """Everything."""

    regions: Mapping[str, RegionKey]
    principals: dict[str, Principal] = field(default_factory=dict[str, Principal], repr=False)
    answering: dict[str, Answering] = field(default_factory=dict[str, Answering])
    """By service."""
    calls: Counter[str] = field(default_factory=Counter[str])
    """Requests by ``service:action`` or ``service:error code``."""
    machines: dict[str, Machine] = field(default_factory=dict[str, Machine])

    def admit(self, account: str, keys: SessionKeys, may: frozenset[str] = frozenset()) -> SessionKeys:
        """Let a session sign requests."""
        self.principals[keys.access_key_id] = Principal(
            account=account,
            access_key_id=keys.access_key_id,
            secret=keys.secret,
            token=keys.token,
            expires=keys.expires,
            may=may,
        )
        return keys


REGIONS: Final = ("us-east-1", "eu-central-1")
"""Regions that the sandbox has."""


def new_cloud() -> Cloud:
    """Make a cloud without anything in it."""
    return Cloud({region: make_region_key() for region in REGIONS})
