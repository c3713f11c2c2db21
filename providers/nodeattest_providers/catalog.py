"""Finding a provider's half by name: the explicit catalogue first, third parties by entry point after.

Promises: a name of the catalogue always means the half that ships here, whatever else is installed; a half is imported
when it is asked for and not before; a name that nobody offers, or two packages do, is ``Denied``.
Leaves to others: which providers a cluster allows (policy). Installed packages are trusted: they run in this process.
Source: https://packaging.python.org/en/latest/specifications/entry-points/.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Final, cast

from nodeattest_providers.errors import Denied, Reason
from nodeattest_providers.evidence_versions import HIGHEST
from nodeattest_providers.identifiers import printable
from nodeattest_providers.names import ProviderName

__all__ = ["check_half", "find"]

_REMEDY: Final = "correct the provider's name, or install the one package that offers it"


def find(provider: ProviderName, *, group: str, in_tree: Mapping[str, str]) -> Callable[..., object]:
    """Return the factory of a provider's half; ``in_tree`` maps names to ``module:class``."""
    target = in_tree.get(provider)
    if target is not None:
        module, name = target.split(":")
        return cast("Callable[..., object]", getattr(import_module(module), name))
    return _third_party(provider, group, in_tree)


def check_half(half: object, provider: ProviderName, methods: tuple[str, ...]) -> None:
    """Refuse what a third party's factory made if it is of another provider, lacks a method or misstates versions."""
    missing = [method for method in methods if not callable(getattr(half, method, None))]
    if getattr(half, "provider", None) != provider or missing:
        lacks = f" that lacks {', '.join(missing)}" if missing else " of another provider"
        raise _unknown(f"an implementation of {provider}", f"one{lacks}")
    if not _are_versions(getattr(half, "versions", None)):
        raise _unknown(f"an implementation of {provider} with its evidence versions, newest first", "one without")


def _are_versions(versions: object) -> bool:
    """Tell whether these are distinct versions that an envelope can name, newest first, and not none."""
    found = cast("tuple[object, ...]", versions) if isinstance(versions, tuple) else ()
    numbers = [one for one in found if type(one) is int and 1 <= one <= HIGHEST]
    return bool(found) and numbers == sorted(set(numbers), reverse=True) and len(numbers) == len(found)


def _third_party(provider: ProviderName, group: str, in_tree: Mapping[str, str]) -> Callable[..., object]:
    from importlib.metadata import entry_points  # noqa: PLC0415 - 40 ms that names of the catalogue need not pay

    found = tuple(entry_points(group=group, name=provider))
    if len(found) != 1:
        expected = f"{', '.join(in_tree)}, or one entry point in the group {group}"
        raise _unknown(expected, f"{printable(provider)}, which has {len(found)}")
    return cast("Callable[..., object]", found[0].load())


def _unknown(expected: str, got: str) -> Denied:
    return Denied(Reason.SIGNER_UNKNOWN, expected=expected, got=got, remedy=_REMEDY)
