#!/usr/bin/env python3
"""Finds where text leaves a program, and is not made printable there.

What servers, nodes and files say may hold line ends and what terminals obey: in a log it forges lines. It comes from
everywhere, but leaves at few places. These are the rules, for the packages that we ship:

1. Who writes to a terminal (``print``, ``click.echo``, ``sys.stderr.write``, ``sys.exit`` with a text, ...) writes a
   literal, or what ``visible_lines`` made. Commands call ``print_lines`` or the agent's ``console``, which do.
2. Text that has several lines is printed only if a function of ``WRITERS`` made it, which escapes what others wrote.
   So nothing else is split into the lines that are printed.
3. Logs have one formatter, ``nodeattest_controller.logs``: nobody else makes handlers and formatters.
4. The message of a condition, an Event or a ``Status`` is a literal, a constant, or what ``one_line`` made: it is shown
   by programs of others.

What need not is in ``EXPLAINED``, with its reason. Any finding fails, and so does an explanation that nothing needs.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final, TypeGuard

TREE: Final = Path(__file__).parents[1]
SHIPPED: Final = (
    "authenticator",
    "cli",
    "controller",
    "discovery",
    "identity",
    "kube",
    "parsing",
    "providers",
    "serving",
)
"""Not the sandbox, which runs on its developer's machine and imitates other programs."""
TERMINAL: Final = frozenset(
    {
        "print",
        "click.echo",
        "click.secho",
        "click.confirm",
        "click.prompt",
        "warnings.warn",
        "sys.stdout.write",
        "sys.stderr.write",
        "sys.stdout.writelines",
        "sys.stderr.writelines",
        "sys.stdout.buffer.write",
        "sys.stderr.buffer.write",
    }
)
EXITS: Final = frozenset({"sys.exit", "SystemExit"})
"""They print what is no number."""
PRINTERS: Final = frozenset({"visible_lines", "print_lines", "console.show"})
"""Each of their arguments becomes one line."""
DOCUMENTS: Final = frozenset({"print_document", "console.document"})
"""They keep the lines of what they print."""
WRITERS: Final = {
    "to_json": "escapes what cannot be printed",
    "to_yaml": "escapes what cannot be printed",
    "format_tokens": "JSON, YAML or a table",
    "json.dumps": "is ASCII",
    "configfile.dump": "YAML of our own configuration, quoted",
    "describe": "versions of this program",
    "error.format_message": "click's own text of our own options",
    "asked.format_message": "click's own text of our own options",
    "script": "click's script for a shell",
}
LOGS: Final = "controller/nodeattest_controller/logs.py"
LOGGING: Final = frozenset({"logging.basicConfig", "logging.StreamHandler", "logging.FileHandler", "logging.Formatter"})
WRITES_OBJECTS: Final = ("controller", "discovery", "identity", "kube", "serving")
EXPLAINED: Final = {
    "authenticator/nodeattest_authenticator/commands/credential.py:run": "kubelet reads it: JSON, to the byte",
    "cli/nodeattest_cli/output.py:print_document": "is one of DOCUMENTS",
    "cli/nodeattest_cli/output.py:print_exactly": "a file for a program, to the byte; never on a terminal",
    "cli/nodeattest_cli/machines/reset.py:ask_confirmation": "its callers ask with literals",
    "identity/nodeattest_identity/proxy/refusals.py:body": "of two closed sets",
    "serving/nodeattest_serving/replies.py:refusal": "of a closed set",
}
"""``file:function`` and why it may."""


class Finder(ast.NodeVisitor):
    """Collects the findings of one module as (function, line, what)."""

    def __init__(self, path: Path) -> None:
        """``path`` is relative to the tree."""
        self.found: list[tuple[str, int, str]] = []
        self._functions = ["module"]
        self._one_line: list[set[str]] = [set()]
        """Names that hold what ``one_line`` made, for each function around."""
        self._formats_logs = path.as_posix() == LOGS
        self._writes_objects = path.parts[0] in WRITES_OBJECTS

    def visit_FunctionDef(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        """Enter a function."""
        assigned = [one for one in ast.walk(node) if isinstance(one, ast.Assign)]
        self._one_line.append(
            {_dotted(target) for one in assigned if _called(one.value) == "one_line" for target in one.targets}
        )
        self._functions.append(node.name)
        self.generic_visit(node)
        self._functions.pop()
        self._one_line.pop()

    def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> None:
        """Enter a function."""
        self.visit_FunctionDef(node)

    def visit_Call(self, node: ast.Call) -> None:
        """Check who prints, and who makes formatters."""
        name = _dotted(node.func)
        arguments = [one.value if isinstance(one, ast.Starred) else one for one in node.args]
        if name in TERMINAL and not all(_is_literal(one) or _called(one) == "visible_lines" for one in arguments):
            self._report(node, f"{name} of what visible_lines did not make")
        if name in EXITS and any(isinstance(one, ast.JoinedStr) or _called(one) == "str" for one in arguments):
            self._report(node, f"{name} prints what visible_lines did not make")
        if name in PRINTERS and any(_splits(one) for one in arguments):
            self._report(node, f"{name} of lines that no writer made")
        if name in DOCUMENTS and not all(_called(one) in WRITERS for one in arguments):
            self._report(node, f"{name} of what no writer made")
        if name in LOGGING and not self._formats_logs:
            self._report(node, f"{name} outside {LOGS}")
        self.generic_visit(node)

    def visit_Dict(self, node: ast.Dict) -> None:
        """Check the messages of objects."""
        members = {key.value: value for key, value in zip(node.keys, node.values, strict=True) if _is_literal(key)}
        if {"reason", "status", "observedGeneration"} & members.keys():
            self._check_message(members.get("message"))
        self.generic_visit(node)

    def visit_Assign(self, node: ast.Assign) -> None:
        """Check messages that are set into an object."""
        for target in node.targets:
            if isinstance(target, ast.Subscript) and _is_literal(target.slice) and target.slice.value == "message":
                self._check_message(node.value)
        self.generic_visit(node)

    def _check_message(self, value: ast.expr | None) -> None:
        if value is None or not self._writes_objects or _is_literal(value) or _called(value) == "one_line":
            return
        name = _dotted(value)
        if not (name.isupper() or any(name in known for known in self._one_line)):
            self._report(value, "a message that one_line did not make")

    def _report(self, node: ast.expr, what: str) -> None:
        self.found.append((self._functions[-1], node.lineno, what))


def _is_literal(node: ast.expr | None) -> TypeGuard[ast.Constant]:
    return isinstance(node, ast.Constant)


def _called(node: ast.expr) -> str:
    return _dotted(node.func) if isinstance(node, ast.Call) else ""


def _dotted(node: ast.expr) -> str:
    if isinstance(node, ast.Attribute):
        return f"{_dotted(node.value)}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else ""


def _splits(node: ast.expr) -> bool:
    """Return whether text is split into lines that no writer made."""
    return any(
        isinstance(one, ast.Call)
        and isinstance(one.func, ast.Attribute)
        and (one.func.attr == "splitlines" or (one.func.attr == "split" and ast.unparse(one).endswith(r"('\n')")))
        and (_called(one.func.value) or _dotted(one.func.value)) not in WRITERS
        for one in ast.walk(node)
    )


def findings(source: str, path: Path) -> list[tuple[str, int, str]]:
    """Return (function, line, what) of each finding in a module."""
    finder = Finder(path)
    finder.visit(ast.parse(source))
    return finder.found


def shipped() -> Iterator[Path]:
    """Yield the modules under version control or about to be, relative to the tree."""
    command = ["git", "ls-files", "-co", "--exclude-standard", *(f"{folder}/**.py" for folder in SHIPPED)]
    for line in subprocess.run(command, cwd=TREE, capture_output=True, text=True, check=True).stdout.splitlines():
        if (TREE / line).is_file():
            yield Path(line)


def main() -> int:
    """Print what was found; returns the exit code."""
    unused, failed = set(EXPLAINED), False
    for path in shipped():
        for function, line, what in findings((TREE / path).read_text(encoding="utf-8"), path):
            key = f"{path.as_posix()}:{function}"
            unused.discard(key)
            if key not in EXPLAINED:
                failed = True
                sys.stdout.write(f"{path}:{line}: {what}: docs/contribute.md#foreign-text\n")
    for key in sorted(unused):
        sys.stdout.write(f"{key}: needs no explanation in tools/check_foreign_text.py\n")
    return 1 if failed or unused else 0


if __name__ == "__main__":
    sys.exit(main())
