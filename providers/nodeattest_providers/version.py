"""What a command says of itself: its version, the commit it was built from, and the evidence that it speaks.

``hatch_build.py`` beside the package runs this module before the package is importable, and fills the commit in.
"""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Final, Literal, cast

COMMIT: Final = ""
"""Empty: not a wheel but a checkout."""
UNKNOWN: Final = "unknown"
_DESCRIBE: Final = ("git", "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*")


def of_checkout() -> str:
    """Ask git; ``unknown`` where it does not know this file, or is not installed."""
    import subprocess

    here = Path(__file__).resolve()
    known = ("git", "ls-files", "--error-unmatch", here.name)
    try:
        subprocess.run(known, cwd=here.parent, capture_output=True, timeout=10, check=True)
        said = subprocess.run(_DESCRIBE, cwd=here.parent, capture_output=True, text=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError):
        return UNKNOWN
    return said.stdout.strip()


Side = Literal["attestor", "signer"]
_VERB: Final = {"attestor": "sends", "signer": "accepts"}


def describe(program: str, side: Side) -> str:
    """Return three lines: program and version; commit; versions of the evidence of each built-in provider."""
    from nodeattest_providers import __version__
    from nodeattest_providers.identifiers import ProviderName
    from nodeattest_providers.node_interface import versions_to_text
    from nodeattest_providers.registry import BUILT_IN

    spoken: list[str] = []
    for name in sorted(BUILT_IN):
        module, _, kind = getattr(BUILT_IN[name], side).partition(":")
        versions = cast("tuple[int, ...]", getattr(import_module(module), kind).versions)
        spoken.append(versions_to_text(ProviderName(name), versions))
    commit = COMMIT or f"{of_checkout()} (checkout)"
    return f"{program} {__version__}\ncommit: {commit}\n{_VERB[side]} evidence: {','.join(spoken)}"
