"""docs/trusted-core.md lists the modules that must be right; run this file to write its table."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

TREE: Final = Path(__file__).parents[2]
PAGE: Final = TREE / "docs" / "trusted-core.md"
CEILING: Final = 12_000
"""Lines; lower it as the core shrinks."""
_BEGIN, _END = "<!-- begin files: written by make reference -->", "<!-- end files -->"
_OTHERS: Final = {
    *("__init__.py", "attestor.py", "node.py", "api.py", "webhook_configuration.py"),
    *("bootstrap_providers.py", "attestation_status.py"),
}
"""Files of the same folders on which no certificate depends."""
GROUPS: Final[tuple[tuple[str, tuple[str, ...]], ...]] = (
    (
        "values and refusals",
        (
            "parsing/nodeattest_parsing/{values,objects,strict_base64,strict_json,times,compact_jws}.py",
            "providers/nodeattest_providers/{errors,identifiers}.py",
        ),
    ),
    (
        "bytes become values",
        (
            "providers/nodeattest_providers/{envelope,canonical_json,pem,der,pkcs10,keys,cms}.py",
            "providers/nodeattest_providers/{certificate_chain,config_fields}.py",
        ),
    ),
    (
        "what binds evidence to a request",
        (
            "providers/nodeattest_providers/{node_interface,verifier_interface,checks}.py",
            "providers/nodeattest_providers/challenge_response.py",
        ),
    ),
    (
        "provider tpm",
        ("providers/nodeattest_providers/tpm/*.py",),
    ),
    ("providers challenge and composite", ("providers/nodeattest_providers/{challenge,composite}/*.py",)),
    ("providers of clouds", ("providers/nodeattest_providers/{aws,azure,gcp,oci}/*.py",)),
    ("providers that prove nothing", ("providers/nodeattest_providers/{insecure,null}/*.py",)),
    ("which Machine, which name, which key", ("controller/nodeattest_controller/model/*.py",)),
    ("the declared checks", ("controller/nodeattest_controller/verification/checks.py",)),
    (
        "the checks of each kind of request",
        ("controller/nodeattest_controller/controllers/csr/{machine_checks,checks,kubelet_checks}.py",),
    ),
)
"""In reading order; braces as a shell has them."""


def expanded(pattern: str) -> Iterator[str]:
    """Yield the patterns of a pattern with braces."""
    found = re.search(r"\{([^}]*)\}", pattern)
    for choice in found[1].split(",") if found else [""]:
        yield pattern.replace(found[0], choice, 1) if found else pattern


def files(patterns: tuple[str, ...]) -> list[Path]:
    """List the files of a group."""
    found = [path for pattern in patterns for each in expanded(pattern) for path in sorted(TREE.glob(each))]
    return [path for path in found if path.name not in _OTHERS]


def lines(path: Path) -> int:
    """Count a file's lines."""
    return path.read_text(encoding="utf-8").count("\n")


def table() -> str:
    """Return the table of files with their lines."""
    rows, total = ["| part | files | lines |", "|---|---|---|"], 0
    for name, patterns in GROUPS:
        found = files(patterns)
        links = ", ".join(f"[{path.stem}](../{path.relative_to(TREE)}) {lines(path)}" for path in found)
        total += (count := sum(map(lines, found)))
        rows.append(f"| {name} | {links} | {count:,} |")
    return "\n".join([*rows, f"| all | | {total:,} |"])


def renewed(page: str) -> str:
    """Return the page with today's table."""
    before, rest = page.split(_BEGIN)
    return f"{before}{_BEGIN}\n\n{table()}\n\n{_END}{rest.split(_END)[1]}"


def test_the_page_lists_the_core_as_it_is() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert page == renewed(page), "make reference renews it"


def test_the_core_does_not_grow() -> None:
    assert sum(lines(path) for _, patterns in GROUPS for path in files(patterns)) <= CEILING


if __name__ == "__main__":
    PAGE.write_text(renewed(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
