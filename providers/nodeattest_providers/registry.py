"""The built-in providers, and the lookup of providers by name: built-in ones first, then installed packages.

Others register by an entry point in ``nodeattest.attestors`` or ``nodeattest.signers`` (docs/write-a-provider.md).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from types import MappingProxyType
from typing import Final, NamedTuple, cast

from nodeattest_providers.errors import Denied, Reason
from nodeattest_providers.identifiers import ProviderName, printable
from nodeattest_providers.node_interface import HIGHEST, Attestor, JsonValue

ATTESTORS: Final = "nodeattest.attestors"
"""Entry-point group of attestors; a factory takes the node's settings."""
SIGNERS: Final = "nodeattest.signers"
"""Entry-point group of signers (verifiers); a factory takes nothing, or ``platform`` where it says
``takes_platform``."""
_REMEDY: Final = "correct the provider's name, or install the one package that offers it"


class BuiltIn(NamedTuple):
    """One provider that ships here."""

    name: str
    secure: bool = True
    """False: proves nothing, so it is never beside a secure provider in a policy or in a composite proof."""
    required_lists: tuple[str, ...] = ()
    """Lists of its policy section that admit nobody while they are empty."""
    knows_provider_id: bool = False
    """Whether its attestor finds the machine's provider ID; otherwise the bootstrap configuration must say it."""
    attests_once: bool = False
    """Whether a bootstrap token joins a machine once only: a token with another key needs a reset of its record."""

    @property
    def attestor(self) -> str:
        """``module:class`` on the node."""
        return f"nodeattest_providers.{self.name}.attestor:{self.name.capitalize()}Attestor"

    @property
    def signer(self) -> str:
        """``module:class`` of the verifier in the controller."""
        return f"nodeattest_providers.{self.name}.verifier:{self.name.capitalize()}Signer"


_ROWS: Final = (
    BuiltIn("aws", required_lists=("accounts", "regions", "roles"), knows_provider_id=True),
    BuiltIn("azure", required_lists=("subscriptions", "resourceGroups"), knows_provider_id=True),
    BuiltIn("challenge", attests_once=True),
    BuiltIn("composite", knows_provider_id=True),
    BuiltIn("gcp", required_lists=("projects",), knows_provider_id=True),
    BuiltIn("insecure", secure=False, attests_once=True),
    BuiltIn("oci", required_lists=("tenancies", "compartments"), knows_provider_id=True),
    BuiltIn("tpm"),
)
BUILT_IN: Final[Mapping[str, BuiltIn]] = MappingProxyType({row.name: row for row in _ROWS})
_RUBBER_STAMP: Final = "null"
"""Accepts everything; tests name its class, and no lookup finds it."""
INSECURE: Final = frozenset(
    {ProviderName(_RUBBER_STAMP), *(ProviderName(name) for name, row in BUILT_IN.items() if not row.secure)}
)
RESERVED: Final = frozenset({_RUBBER_STAMP, *BUILT_IN})


def make_attestor(provider: ProviderName, settings: Mapping[str, JsonValue]) -> Attestor:
    row = BUILT_IN.get(provider)
    attestor = _load(provider, ATTESTORS, row.attestor if row else None)(settings)
    check_made(attestor, provider, is_complete=isinstance(attestor, Attestor))
    made = cast("Attestor", attestor)
    if len(made.versions) > 1 and type(made).in_version is Attestor.in_version:
        raise _unknown(f"an implementation of {provider} that makes each of its evidence versions", "one without")
    return made


def find_signer(provider: ProviderName) -> Callable[..., object]:
    row = BUILT_IN.get(provider)
    return _load(provider, SIGNERS, row.signer if row else None)


def installed(group: str) -> frozenset[str]:
    """List the names of providers that can be looked up: the built-in ones and those of entry points."""
    from importlib.metadata import entry_points

    return frozenset(BUILT_IN) | {one.name for one in entry_points(group=group)}


def check_made(made: object, provider: ProviderName, *, is_complete: bool) -> None:
    if getattr(made, "provider", None) != provider or not is_complete:
        got = "one of another provider" if is_complete else "one that does not derive from its base class"
        raise _unknown(f"an implementation of {provider}", got)
    versions = getattr(made, "versions", None)
    found = cast("tuple[object, ...]", versions) if isinstance(versions, tuple) else ()
    numbers = [one for one in found if type(one) is int and 1 <= one <= HIGHEST]
    if not numbers or (*sorted(set(numbers), reverse=True),) != versions:
        raise _unknown(f"an implementation of {provider} with its evidence versions, newest first", "one without")


def _load(provider: ProviderName, group: str, built_in: str | None) -> Callable[..., object]:
    if built_in is not None:
        module, _, name = built_in.partition(":")
        return cast("Callable[..., object]", getattr(import_module(module), name))
    from importlib.metadata import entry_points

    found = tuple(entry_points(group=group, name=provider))
    if len(found) != 1:
        expected = f"{', '.join(BUILT_IN)}, or one entry point in the group {group}"
        raise _unknown(expected, f"{printable(provider)}, which has {len(found)}")
    return cast("Callable[..., object]", found[0].load())


def _unknown(expected: str, got: str) -> Denied:
    return Denied(Reason.SIGNER_UNKNOWN, expected=expected, got=got, remedy=_REMEDY)
