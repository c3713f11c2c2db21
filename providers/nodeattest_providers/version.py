"""What a command says of itself: its version, the commit it was built from, and the evidence that it speaks."""

from __future__ import annotations

from importlib import import_module
from typing import Final, Literal, cast

from nodeattest_providers import __version__
from nodeattest_providers.build_commit import COMMIT, of_checkout
from nodeattest_providers.identifiers import ProviderName
from nodeattest_providers.node_interface import versions_to_text
from nodeattest_providers.registry import BUILT_IN

Side = Literal["attestor", "signer"]
_VERB: Final = {"attestor": "sends", "signer": "accepts"}


def describe(program: str, side: Side) -> str:
    """Return three lines: program and version; commit; versions of the evidence of each built-in provider."""
    commit = COMMIT or f"{of_checkout()} (checkout)"
    versions = ",".join(versions_to_text(ProviderName(name), _versions(name, side)) for name in sorted(BUILT_IN))
    return f"{program} {__version__}\ncommit: {commit}\n{_VERB[side]} evidence: {versions}"


def _versions(provider: str, side: Side) -> tuple[int, ...]:
    module, _, name = getattr(BUILT_IN[provider], side).partition(":")
    return cast("tuple[int, ...]", getattr(import_module(module), name).versions)
