"""Requirements files of a release: our wheels beside them and the locked packages, each with its hashes, for pip.

Third parties' versions and hashes are those of requirements.lock. pip takes a file by its hash only, so a package of
our name in an index is never installed.
Source: https://pip.pypa.io/en/stable/topics/secure-installs/ (hash-checking mode).
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from email.message import Message
from pathlib import Path
from types import MappingProxyType
from typing import Final

from images.requirements import PYTHON_LOCK, environment, locked_lines, metadata_of, needed

_CLOUDS: Final = frozenset({"aws", "azure", "gcp", "store"})
SETS: Final[Mapping[str, tuple[str, frozenset[str]]]] = MappingProxyType(
    {
        "agent": ("nodeattest-agent", frozenset({"aws"})),
        "cli": ("nodeattest-cli", _CLOUDS),
        "controller": ("nodeattest-controller", _CLOUDS),
        "sandbox": ("nodeattest-sandbox", frozenset[str]()),
    }
)
"""``requirements-NAME.txt`` to a distribution of ours and its extras."""
_PYTHONS: Final = ("3.11.2", "3.12.0", "3.13.0", "3.14.0")
_MACHINES: Final = (("Linux", "x86_64"), ("Linux", "aarch64"), ("Darwin", "arm64"))
_HEAD: Final = """\
# pip install -r {name}: the files beside this one, and packages from your index, each by its hash.
--require-hashes
--only-binary :all:
--find-links .
"""


def write_requirements(folder: Path, lock: Path = PYTHON_LOCK) -> None:
    """Write a file for each set beside the wheels of a folder."""
    wheels = {read["Name"].lower(): (wheel, read) for wheel in folder.glob("*.whl") for read in [metadata_of(wheel)]}
    everywhere = [environment(python, *machine) for python in _PYTHONS for machine in _MACHINES]
    paths = [wheel for wheel, _ in wheels.values()]
    for which, (root, extras) in SETS.items():
        wanted = needed(paths, root, extras, everywhere)
        lines = [_pinned(wheels[name][0], wheels[name][1]) for name in sorted(wanted.ours)]
        file = folder / f"requirements-{which}.txt"
        text = f"{_HEAD.format(name=file.name)}{''.join(lines)}{locked_lines(lock, wanted.others)}"
        file.write_text(text, encoding="utf-8")


def _pinned(wheel: Path, read: Message) -> str:
    digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
    return f"{read['Name']}=={read['Version']} \\\n    --hash=sha256:{digest}\n"
