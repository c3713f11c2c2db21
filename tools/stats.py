#!/usr/bin/env python3
"""Prints figures of the tree, and with --check fails where one is over its limit.

Standard library only. Source lines are those of the rooms, without tests; the longest function is one
of all files. An import circle is made of imports anywhere in a module: those in functions and under ``TYPE_CHECKING``
count, too.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tokenize
import tomllib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import Final, cast

TREE: Final = Path(__file__).parents[1]
NOT_SOURCE: Final = ("tests", "tools", "images", "examples")
SHORT: Final = 60
"""Lines; a file below it is counted as short."""
LIMITS: Final = {
    "longest function": 60,
    "import circles": 0,
    "noqa and per-file ignores": 100,
    "sleeps in tests": 3,
}
"""What --check allows."""
BUDGET: Final = {
    ("controller",): 15_000,
    ("providers",): 11_000,
    ("authenticator",): 5_800,
    ("discovery",): 3_200,
    ("identity",): 4_300,
    ("kube", "serving", "parsing"): 4_500,
    ("cli",): 7_500,
    ("sandbox",): 6_000,
    ("tools", "images"): 1_700,
    ("tests",): 60_000,
}
"""Lines of Python that each group of folders is to have at most."""
CEILINGS: Final = {"lines outside of tests": 78_500, "lines of tests": 92_500}
"""What --check allows on the way to the budget (59,000 and 60,000): lower them with each deletion."""
TESTS: Final = ("tests",)
LONG_SLEEP: Final = 0.1
"""Seconds; a test's sleep that lasts so long, or for a time that no number states, is counted."""
MAY_SLEEP: Final = {
    "tests/polling.py": "the one place that polls",
    "tests/virtual.py": "its seconds take no time",
    "tests/identity/raw_sockets.py": "attackers in a process of their own",
    "tests/clouds/aws/front.py": "a slow service",
    "tests/clouds/azure/manager.py": "a slow service",
}
"""Test modules whose sleeps are not counted, each with its reason."""


@dataclass(frozen=True)
class Module:
    """One source file, parsed."""

    path: Path
    name: str
    lines: int
    tree: ast.Module


def tracked() -> list[Path]:
    """Return the Python files under version control or about to be."""
    command = ["git", "ls-files", "-co", "--exclude-standard", "*.py"]
    found = subprocess.run(command, cwd=TREE, capture_output=True, text=True, check=True).stdout.split()
    return [Path(name) for name in found if (TREE / name).is_file()]


def parsed(paths: Iterable[Path]) -> list[Module]:
    """Parse source files; a module is named after the path below its room."""
    modules: list[Module] = []
    for path in paths:
        text = (TREE / path).read_text(encoding="utf-8")
        name = ".".join(path.with_suffix("").parts[1:]).removesuffix(".__init__")
        modules.append(Module(path, name, text.count("\n"), ast.parse(text)))
    return modules


def functions(module: Module) -> Iterator[tuple[int, str]]:
    """Yield the length of each function, and where it is."""
    for node in ast.walk(module.tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield (node.end_lineno or node.lineno) - node.lineno + 1, f"{module.path}:{node.lineno} {node.name}"


def imports(module: Module, known: Mapping[str, Module]) -> set[str]:
    """Return the modules of ours that a module imports, at once, when a function is called, or for its types."""
    found: set[str] = set()
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            inner = {alias.name: f"{node.module}.{alias.name}" for alias in node.names}
            found.update(name if name in known else node.module for name in inner.values())
    return (found & known.keys()) - {module.name}


def circle(edges: Mapping[str, set[str]]) -> list[str]:
    """Return the modules of a circle; none: an empty list."""
    try:
        TopologicalSorter(edges).prepare()
    except CycleError as error:
        return error.args[1]
    return []


def suppressed(paths: Iterable[Path]) -> int:
    """Count ``noqa`` comments and the rules that pyproject.toml ignores in some files."""
    count = 0
    for path in paths:
        with tokenize.open(TREE / path) as file:
            tokens = tokenize.generate_tokens(file.readline)
            count += sum(
                token.type == tokenize.COMMENT and bool(re.search(r"#\s*noqa\b", token.string)) for token in tokens
            )
    settings = tomllib.loads((TREE / "pyproject.toml").read_text(encoding="utf-8"))
    ignored = cast("dict[str, list[str]]", settings["tool"]["ruff"]["lint"]["per-file-ignores"])
    return count + sum(map(len, ignored.values()))


def sleeps(module: Module) -> int:
    """Count the calls of ``time.sleep`` and ``asyncio.sleep`` that are not short."""
    count = 0
    for node in ast.walk(module.tree):
        match node:
            case ast.Call(func=ast.Attribute(ast.Name("time" | "asyncio"), "sleep"), args=[seconds, *_]):
                match seconds:
                    case ast.Constant(int() | float() as number) if number < LONG_SLEEP:
                        pass
                    case _:
                        count += 1
            case _:
                pass
    return count


def print_budget(lines: Mapping[str, int]) -> dict[str, int]:
    """Print the lines of each group of folders beside its budget; returns the totals by the names of ``CEILINGS``."""
    for folders, most in BUDGET.items():
        print(f"{', '.join(folders):<27} {sum(lines.get(folder, 0) for folder in folders):>7} of {most}")
    tests = sum(lines.get(folder, 0) for folder in TESTS)
    totals = {"lines outside of tests": sum(lines.values()) - tests, "lines of tests": tests}
    for name, total in totals.items():
        print(f"{name:<27} {total:>7} (at most {CEILINGS[name]} now)")
    return totals


def main(arguments: list[str]) -> int:
    """Print the figures; with --check return 1 where one is over its limit."""
    paths = tracked()
    modules = parsed(paths)
    source = [module for module in modules if module.path.parts[0] not in NOT_SOURCE]
    tests = [module for module in modules if module.path.parts[0] == "tests" and module.path.parts[1] != "bench"]
    lengths = sorted(module.lines for module in source)
    longest = max(each for module in modules for each in functions(module))
    known = {module.name: module for module in source}
    found = circle({name: imports(module, known) for name, module in known.items()})
    short = sum(length < SHORT for length in lengths)
    figures = {
        "longest function": longest[0],
        "import circles": len(found),
        "noqa and per-file ignores": suppressed(paths),
        "sleeps in tests": sum(sleeps(module) for module in tests if str(module.path) not in MAY_SLEEP),
    }
    notes = {"longest function": longest[1], "import circles": " ".join(found)}
    lines = Counter[str]()
    for module in modules:
        lines[module.path.parts[0]] += module.lines
    totals = print_budget(lines)
    print(f"source files                {len(lengths)}")
    print(f"files under {SHORT} lines        {100 * short // len(lengths)} %")
    print(f"95th percentile of files    {lengths[95 * len(lengths) // 100]} lines")
    for name, value in figures.items():
        print(f"{name:<27} {value} (goal {LIMITS[name]}) {notes.get(name, '')}".rstrip())
    over = [f"{name} is {value}, more than {LIMITS[name]}" for name, value in figures.items() if value > LIMITS[name]]
    over += [
        f"there are {total} {name}, more than {CEILINGS[name]}"
        for name, total in totals.items()
        if total > CEILINGS[name]
    ]
    if "--check" in arguments:
        for line in over:
            print(line, file=sys.stderr)
        return int(bool(over))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
