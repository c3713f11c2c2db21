"""Writes the commit into the wheel of nodeattest_providers, so that every command can say what it was built from.

An editable installation asks git each time instead. Source: https://hatch.pypa.io/latest/plugins/build-hook/custom/.
"""

from __future__ import annotations

import runpy
import tempfile
from pathlib import Path
from typing import Any, Final

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

_MODULE: Final = "nodeattest_providers/version.py"


class CommitHook(BuildHookInterface[Any]):
    """Replaces one module of the wheel."""

    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Write the module; ``version`` is ``standard`` or ``editable``."""
        if version == "editable":
            return
        source = Path(self.root, _MODULE)
        commit: str = runpy.run_path(str(source))["of_checkout"]()
        written = Path(tempfile.mkdtemp(prefix="nodeattest-"), source.name)
        text = source.read_text(encoding="utf-8").replace('COMMIT: Final = ""', f'COMMIT: Final = "{commit}"')
        written.write_text(text, encoding="utf-8")
        build_data["force_include"][str(written)] = _MODULE
