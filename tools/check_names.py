#!/usr/bin/env python3
"""Finds public names with two meanings, and words in identifiers that are no terms of the field.

A homonym is a class or function in ``__all__`` of two modules. No homonyms are: names in modules of the same file name,
which do the same job (every provider's ``verifier``); functions of one word, which are called through their module
(``jwt.parse``); names of the sandbox, which imitates other programs and is imported by none of ours. With --check,
findings beyond ``KNOWN_HOMONYMS`` and ``KNOWN_WORDS`` fail; those lists only shrink.
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
NOT_SOURCE: Final = ("tests", "fuzz", "bench", "tools", "examples")
BANNED: Final = frozenset(
    [
        "desk",
        "desks",
        "door",
        "doors",
        "ground",
        "grounds",
        "halves",
        "leash",
        "looks",
        "patience",
        "pen",
        "tellings",
        "voice",
        "weigh",
        "sift",
        "bury",
        "stranger",
        "strangers",
        "told",
        "hears",
        "impostor",
        "impostors",
    ]
)
"""Words that stood for something else: docs/glossary.md has the terms."""
KNOWN_HOMONYMS: Final[frozenset[str]] = frozenset(
    {
        "Address",
        "Answer",
        "ApiClient",
        "BackoffPolicy",
        "ChallengeSigner",
        "Condition",
        "Credential",
        "Decision",
        "Denied",
        "Endpoint",
        "Facts",
        "Fields",
        "Instance",
        "Limits",
        "Metrics",
        "Outcome",
        "Published",
        "Review",
        "Serving",
        "ServingCertificate",
        "State",
        "Step",
        "attestor_settings",
        "check_clock",
        "check_instance",
        "check_keys",
        "check_signature",
        "check_time",
        "cluster_info",
        "cluster_of",
        "collection_path",
        "from_attestation",
        "join_command",
        "kubeconfig_of",
        "name_of",
        "owner_of",
        "parse_bundle",
        "parse_document",
        "parse_identity",
        "parse_object",
        "parse_signature",
        "parse_token",
        "read_text",
        "to_json",
        "to_text",
        "view_of",
        "write_private",
    }
)
"""Names that mean two things today."""
KNOWN_WORDS: Final[frozenset[str]] = frozenset(
    {
        "authenticator/nodeattest_authenticator/cluster/discover.py",
        "authenticator/nodeattest_authenticator/commands/cluster_source.py",
        "authenticator/nodeattest_authenticator/commands/join_flags.py",
        "cli/nodeattest_cli/machines/open.py",
        "cli/nodeattest_cli/machines/rejoin.py",
        "cli/nodeattest_cli/machines/reset.py",
        "controller/nodeattest_controller/app.py",
        "controller/nodeattest_controller/controllers/auto_approval/certificate_log.py",
        "controller/nodeattest_controller/controllers/auto_approval/decide.py",
        "controller/nodeattest_controller/controllers/auto_approval/reconciler.py",
        "controller/nodeattest_controller/controllers/bootstrap_config/handler.py",
        "controller/nodeattest_controller/controllers/node_attested/pending.py",
        "controller/nodeattest_controller/controllers/policy_status/decide.py",
        "controller/nodeattest_controller/controllers/signer_names/reconciler.py",
        "controller/nodeattest_controller/metrics.py",
        "controller/nodeattest_controller/runtime/conditions.py",
        "controller/nodeattest_controller/verification/runner.py",
        "discovery/nodeattest_discovery/node/by_file.py",
        "discovery/nodeattest_discovery/node/refresh.py",
        "identity/nodeattest_identity/proxy/server.py",
        "identity/nodeattest_identity/publish/stores/azure_blob.py",
        "identity/nodeattest_identity/publish/stores/s3.py",
    }
)
"""Modules (``room/path.py``) in which a banned word stands today."""


def sources() -> list[Path]:
    """Return the source files under version control or about to be."""
    command = ["git", "ls-files", "-co", "--exclude-standard", "*.py"]
    found = map(Path, subprocess.run(command, cwd=TREE, capture_output=True, text=True, check=True).stdout.split())
    return [path for path in found if path.parts[0] not in NOT_SOURCE and (TREE / path).is_file()]


def exported(tree: ast.Module) -> set[str]:
    """Return the names in ``__all__`` that are classes or functions of the module itself."""
    defined = {
        node.name for node in tree.body if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
    }
    for node in tree.body:
        if isinstance(node, ast.Assign) and any(isinstance(at, ast.Name) and at.id == "__all__" for at in node.targets):
            return defined & {each.value for each in ast.walk(node.value) if isinstance(each, ast.Constant)}
    return set()


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


def main(arguments: list[str]) -> int:
    """Print what was found; with --check return 1 where it is more than is known."""
    modules: defaultdict[str, list[Path]] = defaultdict(list)
    words: list[tuple[Path, str]] = []
    for path in sources():
        tree = ast.parse((TREE / path).read_text(encoding="utf-8"))
        for name in exported(tree) if path.parts[0] != "sandbox" else ():
            modules[name].append(path)
        words += [(path, f"{path}:1 {path.stem}")] if words_of(path.stem) & BANNED else []
        words += [(path, f"{path}:{line} {name}") for line, name in identifiers(tree) if words_of(name) & BANNED]
    homonyms = {
        name: found
        for name, found in modules.items()
        if len({path.name for path in found}) > 1 and ("_" in name or name[0].isupper())
    }
    new_homonyms = sorted(homonyms.keys() - KNOWN_HOMONYMS)
    new_words = sorted(where for path, where in words if str(path) not in KNOWN_WORDS)
    for name in new_homonyms if "--check" in arguments else sorted(homonyms):
        print(f"{name}: {', '.join(map(str, homonyms[name]))}")
    print(*(new_words if "--check" in arguments else sorted(where for _path, where in words)), sep="\n")
    print(f"{len(homonyms)} public names with several meanings, {len(words)} banned words in identifiers")
    return int("--check" in arguments and bool(new_homonyms or new_words))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
