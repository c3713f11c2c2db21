#!/usr/bin/env python3
"""Finds public names with two meanings, and words in identifiers that are no terms of the field.

A homonym is a class, type alias or function in the top level of two modules. No homonyms are: names of modules
of several providers, which do the same job (every provider's ``verifier``); functions of one word, which are called
through their module (``jwt.parse``); names of the sandbox, which imitates other programs and is imported by none of
ours. Any finding fails.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Final

TREE: Final = Path(__file__).parents[1]
NOT_SOURCE: Final = ("tests", "tools", "images", "examples")
BANNED: Final = re.compile(
    r"desks?|doors?|grounds?|halves|leash|looks|patience|pen|tellings|voice|weigh|sift|bury|strangers?|told|hears"
    r"|impostors?|judge[ds]?|whoever"
)
"""Words that stood for something else: docs/architecture.md#glossary has the terms."""
PROSE: Final = re.compile(r"doors?|hears|judged|looks|patience|strangers?|told|whoever")
"""Banned words that tests, fuzz targets and measurements may have: a test's name is a sentence."""
PROVIDERS: Final = Path("providers/nodeattest_providers")
SAME_MEANING: Final = {
    "Metrics": "what a program measures of itself",
    "Settings": "all that a program is told, as one frozen value",
    "parse_object": "strict_json's and strict_yaml's, called through their modules",
    "JsonObject": "of JsonValue",
    "JsonValue": "JSON: as the Kubernetes API has it, and as evidence has it, whose numbers are integers",
}
"""Names that several modules may have, each with its reason."""


def files() -> list[Path]:
    """Return the Python files under version control or about to be."""
    command = ["git", "ls-files", "-co", "--exclude-standard", "*.py"]
    found = map(Path, subprocess.run(command, cwd=TREE, capture_output=True, text=True, check=True).stdout.split())
    return [path for path in found if path != Path("tools/check_names.py") and (TREE / path).is_file()]


def exported(tree: ast.Module) -> set[str]:
    """Return the public classes, type aliases and functions that the module itself defines."""
    defined = {
        node.name for node in tree.body if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
    }
    defined |= {name for node in tree.body for name in targets(node) if name[0].isupper() and not name.isupper()}
    return {name for name in defined if not name.startswith("_")}


def targets(node: ast.stmt) -> list[str]:
    """Return the names that a statement of a module assigns: ``A = B | C``, ``A: TypeAlias = B``, ``type A = B``."""
    assigned = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", getattr(node, "name", None))]
    return [each.id for each in assigned if isinstance(each, ast.Name)]


def identifiers(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Yield each identifier that the module defines, and its line."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield node.lineno, node.name
        elif isinstance(node, ast.arg):
            yield node.lineno, node.arg
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.lineno, node.id
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.lineno, node.attr


def words_of(identifier: str) -> set[str]:
    """Split snake_case and CamelCase into lower-case words."""
    return {word.lower() for word in re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+", identifier)}


def siblings(found: list[Path]) -> bool:
    """Return whether these modules do the same job for several providers."""
    folders = {path.relative_to(PROVIDERS).parts[0] for path in found if PROVIDERS in path.parents}
    return len(folders) == len(found)


def main() -> int:
    """Print what was found; return 1 where there is anything."""
    modules: defaultdict[str, list[Path]] = defaultdict(list)
    words: list[str] = []
    parsed = {path: ast.parse((TREE / path).read_text(encoding="utf-8")) for path in files()}
    trees = {path: tree for path, tree in parsed.items() if path.parts[0] not in NOT_SOURCE}
    for path, tree in trees.items():
        for name in exported(tree) if path.parts[0] != "sandbox" else ():
            modules[name].append(path)
    for path, tree in parsed.items():
        for line, name in ((1, path.stem), *identifiers(tree)):
            banned = {word for word in words_of(name) if BANNED.fullmatch(word)}
            if banned and (path in trees or not all(map(PROSE.fullmatch, banned))):
                words.append(f"{path}:{line} {name}")
    homonyms = {
        name: found
        for name, found in modules.items()
        if len(found) > 1 and not siblings(found) and ("_" in name or name[0].isupper()) and name not in SAME_MEANING
    }
    for name, found in sorted(homonyms.items()):
        print(f"{name}: {', '.join(map(str, found))}")
    for where in sorted(words):
        print(where)
    print(f"{len(homonyms)} public names with several meanings, {len(words)} banned words in identifiers")
    return int(bool(homonyms or words))


if __name__ == "__main__":
    sys.exit(main())
