#!/usr/bin/env python3
"""Finds where text leaves a program, and is not made printable there.

What servers, nodes and files say may hold line ends and what terminals obey: in a log it forges lines. It comes from
everywhere, but leaves at few places. These are the rules, for the packages that we ship:

1. Who writes to a terminal (``print``, ``click.echo``, ``sys.stderr.write``, ``sys.exit`` with a text, ...) writes a
   literal, or what ``visible_lines`` made. Commands call ``print_lines`` or the agent's ``console``, which do. Nobody
   gives a stream another name, writes to a descriptor, or prints a traceback.
2. Text that has several lines is printed only if a function of ``WRITERS`` made it, which escapes what others wrote.
   So nothing else is split into the lines that are printed.
3. Logs have one formatter, ``nodeattest_controller.logs``: nobody else makes handlers and formatters.
4. The message of a condition, an Event or a ``Status`` is a literal, a constant, or what ``one_line`` made: it is shown
   by programs of others.

It finds what is written by mistake, not what is hidden: it follows no value from one function into another.
What need not is in ``EXPLAINED``, with its reason. Any finding fails, and so does an explanation that nothing needs.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator, Mapping
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
STREAMS: Final = ("sys.stdout", "sys.stderr", "sys.__stdout__", "sys.__stderr__")
UNSEEN: Final = ("os.write", "os.writev", "traceback.")
"""How the names of calls begin that write to any descriptor, or print texts of exceptions."""
EXITS: Final = frozenset({"sys.exit", "SystemExit"})
"""They print what is no number."""
EXIT_CODES: Final = frozenset({"main", "int"})
"""Functions that return one."""
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
    "authenticator/nodeattest_authenticator/exec_plugin/fast_path.py:_write": "JSON for kubelet; a refusal cut before",
    "authenticator/nodeattest_authenticator/state/storage.py:write_atomically": "a file",
    "authenticator/nodeattest_authenticator/exec_plugin/handle.py:run": "kubelet reads it: JSON, to the byte",
    "cli/nodeattest_cli/output.py:print_document": "is one of DOCUMENTS",
    "cli/nodeattest_cli/output.py:print_exactly": "a file for a program, to the byte; never on a terminal",
    "cli/nodeattest_cli/machines/reset.py:ask_confirmation": "its callers ask with literals",
    "serving/nodeattest_serving/replies.py:failure_status": "its callers pass members of closed sets, or one_line",
}
"""``file:function`` and why it may."""


Scope = ast.Module | ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda


class Finder(ast.NodeVisitor):
    """Collects the findings of one module as (function, line, what)."""

    def __init__(self, path: Path) -> None:
        """``path`` is relative to the tree."""
        self.found: list[tuple[str, int, str]] = []
        self._scopes: list[Scope] = []
        self._formats_logs = path.as_posix() == LOGS
        self._writes_objects = path.parts[0] in WRITES_OBJECTS

    def visit(self, node: ast.AST) -> None:  # noqa: C901 - one case a kind of node
        """Check a node and what is inside of it."""
        if isinstance(node, Scope):
            self._scopes.append(node)
        match node:
            case ast.Call():
                self._check_call(node)
            case ast.ImportFrom():
                names = [f"{node.module}.{one.name}" for one in node.names]
                if any(name in {*STREAMS, *EXITS} or name.startswith(UNSEEN) for name in names):
                    self._report(node, "another name of what writes to a terminal")
            case ast.Dict():
                self._check_members(_members(node))
            case (
                ast.AugAssign(op=ast.BitOr(), value=ast.Dict() as merged)
                | ast.BinOp(op=ast.BitOr(), right=ast.Dict() as merged)
            ):
                self._check_members(_members(merged), everything=not _is_condition(_members(merged)))
            case ast.Assign() | ast.AnnAssign() | ast.NamedExpr():
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                if node.value is not None and _is_stream(node.value):
                    self._report(node, "another name of what writes to a terminal")
                if node.value is not None and any(_is_message(target) for target in targets):
                    self._check_message(node.value)
            case _:
                pass
        self.generic_visit(node)
        if isinstance(node, Scope):
            self._scopes.pop()

    def _check_call(self, node: ast.Call) -> None:
        """Check who prints, and who makes formatters."""
        name = _dotted(node.func)
        arguments = [one.value if isinstance(one, ast.Starred) else one for one in node.args]
        keywords = [one.value for one in node.keywords]
        if name in TERMINAL and not all(_is_literal(one) or _called(one) == "visible_lines" for one in arguments):
            self._report(node, f"{name} of what visible_lines did not make")
        if name in EXITS and not all(self._is_exit(one) for one in arguments):
            self._report(node, f"{name} prints what visible_lines did not make")
        if name.startswith(UNSEEN):
            self._report(node, f"{name} may write to a terminal")
        if not name.startswith("logs.") and any(_is_stream(one) for one in (*arguments, *keywords)):
            self._report(node, "a stream is given to another function")
        if name in PRINTERS and any(_splits(one) for one in arguments):
            self._report(node, f"{name} of lines that no writer made")
        if name in DOCUMENTS and not all(_called(one) in WRITERS for one in arguments):
            self._report(node, f"{name} of what no writer made")
        if name in LOGGING and not self._formats_logs:
            self._report(node, f"{name} outside {LOGS}")
        if name == "dict" or name.endswith(".update"):
            merged = arguments[0] if arguments and isinstance(arguments[0], ast.Dict) else None
            named = {one.arg: one.value for one in node.keywords if one.arg}
            inside = _members(merged) if merged else {}
            inside = {} if _is_condition(inside) else inside  # a Dict of its own
            self._check_members({**named, **inside}, everything=name != "dict")

    def _check_members(self, members: Mapping[str, ast.expr], *, everything: bool = False) -> None:
        if "message" in members and (everything or _is_condition(members)):
            self._check_message(members["message"])

    def _check_message(self, value: ast.expr) -> None:
        if self._writes_objects and not self._is_one_line(value):
            self._report(value, "a message that one_line did not make")

    def _is_one_line(self, value: ast.expr) -> bool:
        """Accept a literal, what ``one_line`` made, a constant, and a name that holds nothing else."""
        if isinstance(value, ast.IfExp):
            return self._is_one_line(value.body) and self._is_one_line(value.orelse)
        if isinstance(value, ast.Name):
            for scope in reversed(self._scopes):
                bound = list(_bound(scope, value.id))
                if bound:
                    is_constant = isinstance(scope, ast.Module) and value.id.isupper()
                    return is_constant or all(one is not None and self._is_one_line(one) for one in bound)
            return value.id.isupper()
        return _is_literal(value) or _called(value) == "one_line"

    def _is_exit(self, value: ast.expr) -> bool:
        """Accept a literal, a constant, the result of ``main``, and what is asked to be a number."""
        if isinstance(value, ast.IfExp):
            is_number = ast.unparse(value.test) == f"isinstance({ast.unparse(value.body)}, int)"
            return (is_number or self._is_exit(value.body)) and self._is_exit(value.orelse)
        called = _called(value)
        return (not called and self._is_one_line(value)) or called in EXIT_CODES or called == "visible_lines"

    def _report(self, node: ast.expr | ast.stmt, what: str) -> None:
        functions = [scope.name for scope in self._scopes if isinstance(scope, ast.FunctionDef | ast.AsyncFunctionDef)]
        self.found.append((functions[-1] if functions else "module", node.lineno, what))


def _bound(scope: Scope, name: str) -> Iterator[ast.expr | None]:
    """Yield each value that a scope binds to a name; None for any other way than an assignment to the name alone."""
    arguments = getattr(scope, "args", None)
    if arguments is not None and any(isinstance(one, ast.arg) and one.arg == name for one in ast.walk(arguments)):
        yield None
    waiting = list(ast.iter_child_nodes(scope))
    while waiting:
        node = waiting.pop()
        alone: list[ast.expr] = []
        if isinstance(node, ast.Assign | ast.AnnAssign | ast.NamedExpr) and node.value is not None:
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            alone = [one for one in targets if isinstance(one, ast.Name)]
            yield from (node.value for one in alone if isinstance(one, ast.Name) and one.id == name)
        if getattr(node, "name", None) == name or (
            isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) and node.id == name
        ):
            yield None
        if not isinstance(node, Scope | ast.ClassDef):
            waiting += [one for one in ast.iter_child_nodes(node) if one not in alone]


def _members(node: ast.Dict) -> dict[str, ast.expr]:
    pairs = zip(node.keys, node.values, strict=True)
    return {str(key.value): value for key, value in pairs if _is_literal(key)}


def _is_message(target: ast.expr) -> bool:
    return isinstance(target, ast.Subscript) and _is_literal(target.slice) and target.slice.value == "message"


def _is_condition(members: Mapping[str, ast.expr]) -> bool:
    return bool({"reason", "status", "observedGeneration"} & members.keys())


def _is_stream(node: ast.expr) -> bool:
    """Return whether it is a stream, its buffer, or its method; not what a method returns."""
    return _dotted(node).startswith(STREAMS)


def _is_literal(node: ast.expr | None) -> TypeGuard[ast.Constant]:
    return isinstance(node, ast.Constant)


def _called(node: ast.expr) -> str:
    return _dotted(node.func) if isinstance(node, ast.Call) else ""


def _dotted(node: ast.expr) -> str:
    if isinstance(node, ast.Attribute):
        return f"{_dotted(node.value)}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else ""


def _splits(node: ast.expr) -> bool:
    """Return whether text is split into lines that no writer made, or at what cannot be read here."""
    for call in ast.walk(node):
        if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Attribute):
            continue
        separators = [*call.args[:1], *(one.value for one in call.keywords if one.arg == "sep")]
        by = separators[0] if separators else None
        is_word = by is None or (_is_literal(by) and not {"\n", "\r"} & set(str(by.value)))
        at_ends = call.func.attr == "splitlines" or _dotted(call.func) == "re.split"
        at_ends |= call.func.attr in {"split", "rsplit"} and not is_word
        if at_ends and (_called(call.func.value) or _dotted(call.func.value)) not in WRITERS:
            return True
    return False


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
                sys.stdout.write(f"{path}:{line}: {what}: docs/architecture.md#foreign-text\n")
    for key in sorted(unused):
        sys.stdout.write(f"{key}: needs no explanation in tools/check_foreign_text.py\n")
    return 1 if failed or unused else 0


if __name__ == "__main__":
    sys.exit(main())
