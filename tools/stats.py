#!/usr/bin/env python3
"""Prints figures of the tree, and with --check fails where one is over its limit. Standard library only."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Final

TREE: Final = Path(__file__).parents[1]
NOT_SOURCE: Final = ("tests", "tools", "images", "examples", "docs")
SHORT: Final = 60
"""Lines; a file below it is counted as short."""
BUDGET: Final = {
    "controller": 15_000,
    "providers": 11_000,
    "authenticator": 5_800,
    "discovery": 3_200,
    "identity": 4_300,
    "kube serving parsing": 4_500,
    "cli": 7_500,
    "sandbox": 6_000,
    "tools images": 1_700,
    "tests": 60_000,
}
"""Lines of Python that each group of folders is to have at most."""
LIMITS: Final = {
    "lines outside of tests": 62_300,  # on the way to 59,000: lower it with each deletion
    "lines of tests": 67_000,  # on the way to 60,000
    "lines of the longest function": 60,
    "sleeps in tests": 3,
}
"""What --check allows."""
LONG_SLEEP: Final = 0.1
"""Seconds; a test's sleep that lasts so long, or for a time that no number states, is counted."""
MAY_SLEEP: Final = {
    "tests/polling.py": "the one place that polls",
    "tests/virtual.py": "its seconds take no time",
    "tests/identity/raw_sockets.py": "attackers that write a byte at a time",
}
"""Test modules whose sleeps are not counted, each with its reason."""


def tracked() -> Iterator[tuple[Path, int, ast.Module]]:
    """Yield the Python files under version control or about to be, with their number of lines, parsed."""
    command = ["git", "ls-files", "-co", "--exclude-standard", "*.py"]
    for name in subprocess.run(command, cwd=TREE, capture_output=True, text=True, check=True).stdout.split():
        if (TREE / name).is_file():
            text = (TREE / name).read_text(encoding="utf-8")
            yield Path(name), text.count("\n"), ast.parse(text)


def functions(path: Path, tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Yield the length of each function, and where it is."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield (node.end_lineno or node.lineno) - node.lineno + 1, f"{path}:{node.lineno} {node.name}"


def sleeps(tree: ast.Module) -> int:
    """Count the calls of ``time.sleep`` and ``asyncio.sleep`` that are not short."""
    count = 0
    for node in ast.walk(tree):
        match node:
            case ast.Call(func=ast.Attribute(ast.Name("time" | "asyncio"), "sleep"), args=[seconds, *_]):
                is_short = isinstance(seconds, ast.Constant) and float(str(seconds.value)) < LONG_SLEEP
                count += not is_short
            case _:
                pass
    return count


def main(arguments: list[str]) -> int:
    """Print the figures; with --check return 1 where one is over its limit."""
    files = list(tracked())
    lines = Counter[str]()
    for path, length, _ in files:
        lines[path.parts[0]] += length
    for folders, budget in BUDGET.items():
        print(f"{folders:<29} {sum(lines[folder] for folder in folders.split()):>7} of {budget}")
    source = sorted(length for path, length, _ in files if path.parts[0] not in NOT_SOURCE)
    print(f"files                         {len(source):>7}, of which {sum(each < SHORT for each in source)} are short")
    print(f"lines of the median file      {source[len(source) // 2]:>7}")
    longest, where = max(each for path, _, tree in files for each in functions(path, tree))
    figures = {
        "lines outside of tests": lines.total() - lines["tests"],
        "lines of tests": lines["tests"],
        "lines of the longest function": longest,
        "sleeps in tests": sum(
            sleeps(tree)
            for path, _, tree in files
            if path.parts[0] == "tests" and path.parts[1] != "bench" and str(path) not in MAY_SLEEP
        ),
    }
    for name, value in figures.items():
        print(f"{name:<29} {value:>7}, at most {LIMITS[name]}")
    over = [f"{name}: {value} of at most {LIMITS[name]}" for name, value in figures.items() if value > LIMITS[name]]
    if "--check" in arguments and over:
        print(*over, f"longest function: {where}", sep="\n", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
