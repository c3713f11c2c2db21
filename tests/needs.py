"""What a test needs of its machine: programs of others, and how a test ends that lacks one.

Promises: the reason of every skip begins with ``NOT_POSSIBLE``. Where everything must run (NODEATTEST_REQUIRE_ALL, as
in CI), a test that lacks what the machine can have (``lacks``, ``skip_if``) turns the run red instead. What no setting
of the machine can cure, such as its architecture, is skipped in CI too (``not_possible``).
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final, NoReturn

import pytest

NOT_POSSIBLE: Final = "not possible here:"
"""How the reason of a skip begins that CI lets pass; a skip for any other reason turns its run red."""


def lacks(what: str) -> NoReturn:
    """End a test for what is missing; call it where the test or its fixture needs it."""
    if os.environ.get("NODEATTEST_REQUIRE_ALL"):
        pytest.fail(f"must not be skipped: {what}")
    pytest.skip(f"{NOT_POSSIBLE} {what}")


def not_possible(why: str) -> NoReturn:
    """Skip a test, in CI too; call it where the test or its fixture finds out."""
    pytest.skip(f"{NOT_POSSIBLE} {why}")


def skip_if(lacking: bool, what: str) -> pytest.MarkDecorator:
    """Mark tests that need what is lacking; in CI the skip turns the run red."""
    reason = what if os.environ.get("NODEATTEST_REQUIRE_ALL") else f"{NOT_POSSIBLE} {what}"
    return pytest.mark.skipif(lacking, reason=reason)


ONLY_ROOT: Final = skip_if(os.geteuid() != 0, "root only")


def programs_folder() -> Path | None:
    """Return the folder of Kubernetes' own programs; None where none is set."""
    assets = os.environ.get("KUBEBUILDER_ASSETS", "")
    return Path(assets) if assets else None


def kubernetes_folder() -> Path:
    """Return the folder of Kubernetes' own programs, or end the test."""
    return programs_folder() or lacks("KUBEBUILDER_ASSETS names no folder with etcd and kube-apiserver")


def kubernetes_program(name: str) -> Path:
    """Return one of Kubernetes' own programs, or end the test."""
    folder = programs_folder()
    if folder is None or not (folder / name).exists():
        lacks(f"KUBEBUILDER_ASSETS names no folder with {name}")
    return folder / name


def released(pattern: str) -> list[Path]:
    """Return the release's files of this pattern; nothing where none was made, and the test builds its own."""
    folder = os.environ.get("NODEATTEST_DIST", "")
    if not folder:
        return []
    found = sorted(Path(folder).glob(pattern))
    assert found, f"NODEATTEST_DIST: expected {pattern} in {folder}, got none: make release"
    return found
