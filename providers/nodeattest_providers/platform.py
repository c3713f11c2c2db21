"""The controller's side of a provider: its signer, and its platform's settings.

Endpoints, CAs and credentials come from the controller's own configuration (``platforms.<provider>``), never from a
policy or a request. A signer refuses wrong settings when it is made, and opens no connection then.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from types import MappingProxyType
from typing import Final, Protocol, cast

from cryptography.x509 import Certificate

from nodeattest_providers import registry
from nodeattest_providers.certificate_chain import parse_authorities
from nodeattest_providers.config_fields import invalid
from nodeattest_providers.errors import Denied, Reason, Unavailable, platform_unavailable
from nodeattest_providers.identifiers import ProviderName, printable
from nodeattest_providers.node_interface import JsonValue
from nodeattest_providers.verifier_interface import ClusterAPISigner

_MAX_FILE: Final = 1 << 20
"""Bytes of a file that a setting names; a ConfigMap has at most as many."""


class CallOutcome(StrEnum):
    """How a request to a platform's API ended; a label of the metric ``nodeattest_platform_call_seconds``."""

    OK = "ok"
    REFUSED = "refused"
    """The platform said no: bad credentials, no such instance, missing permission."""
    THROTTLED = "throttled"
    FAILED = "failed"
    """The platform failed, or its answer could not be read."""
    TIMED_OUT = "timed_out"
    UNREACHABLE = "unreachable"


class ObserveCall(Protocol):
    """Observes each request to a platform's API; cheap and never raises."""

    def __call__(self, service: str, outcome: CallOutcome, seconds: float) -> None:
        """Count one call; ``service`` is from a closed set of the provider's, such as ``sts``."""
        ...


def _ignore(service: str, outcome: CallOutcome, seconds: float) -> None:
    """Ignore the call."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Platform:
    """What a signer gets from the controller that runs it."""

    settings: Mapping[str, JsonValue] = field(default_factory=dict[str, JsonValue], repr=False)
    """``platforms.<provider>`` of the controller's configuration; ``{}`` means the provider's defaults."""
    observe: ObserveCall = _ignore
    may_call: bool = True
    """False: offline, as in ``nodeattest explain``; what needs the platform is ``Unavailable`` then."""
    find_signer: Callable[[ProviderName], ClusterAPISigner] | None = field(default=None, repr=False)
    """Returns the signer of another provider, each with its own platform; for one that is made of others."""


OFFLINE: Final = Platform(settings=MappingProxyType({}), may_call=False)


def make_signer(provider: ProviderName, platform: Platform | None = None) -> ClusterAPISigner:
    """Make a provider's signer; ``Denied`` for an unknown provider or wrong settings of its platform.

    ``platform`` goes to the factories that say ``takes_platform``; without it they get an empty one.
    """
    factory = registry.find_signer(provider)
    takes_platform = getattr(factory, "takes_platform", False) is True
    if platform is not None and platform.settings and not takes_platform:
        raise Denied(
            Reason.POLICY_INVALID,
            expected="no settings: this provider asks no platform",
            got=", ".join(map(printable, platform.settings)),
            remedy=f"take the section platforms.{provider} out of the controller's configuration",
        )
    return check_signer(factory(platform=platform or Platform()) if takes_platform else factory(), provider)


def check_signer(signer: object, provider: ProviderName) -> ClusterAPISigner:
    registry.check_made(signer, provider, is_complete=isinstance(signer, ClusterAPISigner))
    return cast("ClusterAPISigner", signer)


def offline(service: str) -> Unavailable:
    """Make the ``Unavailable`` of what has to be asked and is not asked here, as in ``nodeattest explain``."""
    return platform_unavailable(f"{service} is not asked here", remedy="let a running controller verify the request")


def nobody_trusted(what: str, setting: str, page: str) -> Unavailable:
    """Make the ``Unavailable`` of a controller whose configuration trusts nobody to sign what it is shown."""
    return platform_unavailable(
        f"nobody is trusted to sign {what}: no {setting}",
        remedy=f"set {setting} in the controller's configuration ({page})",
        retry_after=60.0,
    )


def read_authorities(path: Path | None, where: str) -> tuple[Certificate, ...] | None:
    """Read the trust bundle that a setting names; None where it names none. ``Denied`` when it cannot be used."""
    return None if path is None else parse_authorities(read_file(path, where).decode(errors="replace"), where)


def read_file(path: Path, where: str) -> bytes:
    try:
        with path.open("rb") as file:
            content = file.read(_MAX_FILE + 1)
    except (OSError, ValueError) as error:
        got = error.strerror if isinstance(error, OSError) else "no path"
        raise invalid(where, "a file that the controller may read", f"{str(path)!r}: {got}") from None
    if len(content) > _MAX_FILE:
        raise invalid(where, f"a file of at most {_MAX_FILE} bytes", "a larger one")
    return content
