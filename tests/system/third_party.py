"""A third party's provider, installed as an installer would for programs that are started from here on."""

from __future__ import annotations

from pathlib import Path

import pytest


def install_provider(folder: Path, monkeypatch: pytest.MonkeyPatch, name: str, source: str) -> None:
    """Install a provider whose ``source`` defines ``Signer``."""
    (folder / f"{name}_platform.py").write_text(source)
    info = folder / f"{name}_platform-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}-platform\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[nodeattest.signers]\n{name} = {name}_platform:Signer\n")
    monkeypatch.setenv("PYTHONPATH", str(folder))
