"""Run the in-process tests of the trusted core, and fail unless they cover every branch (docs/trusted-core.md).

Processes that a test starts are not counted. Arguments are passed on to pytest.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

from tests.docs.test_trusted_core import GROUPS, TREE, files

TESTS: Final = (
    *("parsing", "vectors", "providers", "controller", "attacks", "examples"),
    *("cli/test_explain.py", "cli/test_policy_simulate.py", "cli/test_machines.py", "cli/test_machine_commands.py"),
)


def main(arguments: list[str]) -> int:
    """Return pytest's exit code."""
    core = [str(path.relative_to(TREE)) for _, patterns in GROUPS for path in files(patterns)]
    with tempfile.TemporaryDirectory() as folder:
        configuration = Path(folder) / "coverage.ini"
        lines = ["[run]", "branch = true", f"data_file = {folder}/data", "include =", *(f"  {one}" for one in core)]
        lines += ["[report]", "show_missing = true", "skip_covered = true", "fail_under = 100", "precision = 2"]
        configuration.write_text("\n".join(lines), encoding="utf-8")
        command = [sys.executable, "-m", "pytest", "-q", "-m", "not conformance", *arguments]
        command += [
            "--hypothesis-seed=0",
            "--cov",
            f"--cov-config={configuration}",
            *(f"tests/{path}" for path in TESTS),
        ]
        return subprocess.run(command, cwd=TREE, check=False).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
