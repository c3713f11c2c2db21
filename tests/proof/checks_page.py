"""The tables of docs/proof/checks.md, written of the rows; ``make reference`` renews the page."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import attested_rows
import cloud_rows
import kubelet_rows
import part_rows
import soft_rows
import tpm_rows
from rows import Row, rendered

from tools.markdown_tables import table

__all__ = ["ALL_ROWS", "PAGE", "TABLES", "renewed"]

PAGE: Final = Path(__file__).parents[2] / "docs" / "proof" / "checks.md"
_COLUMNS: Final = ("check", "attack", "refused as", "without the check", "the model without it")
_BLOCK: Final = re.compile(r"(<!-- table: ([a-z]+) -->\n).*?(<!-- end -->)", re.DOTALL)


ALL_ROWS: Final[tuple[Row[Any], ...]] = (
    *attested_rows.ROWS,
    *kubelet_rows.ROWS,
    *tpm_rows.ROWS,
    *soft_rows.ROWS,
    *part_rows.CHALLENGE_ROWS,
    *part_rows.COMPOSITE_ROWS,
    *cloud_rows.AWS_ROWS,
    *cloud_rows.AZURE_ROWS,
    *cloud_rows.GCP_ROWS,
    *cloud_rows.OCI_ROWS,
)
TABLES: Final[Mapping[str, str]] = {
    "attested": table(_COLUMNS, map(rendered, attested_rows.ROWS)),
    "kubelet": table(_COLUMNS, map(rendered, kubelet_rows.ROWS)),
    "tpm": table(_COLUMNS, [*map(rendered, tpm_rows.ROWS), *map(rendered, soft_rows.ROWS)]),
    "challenge": table(_COLUMNS, map(rendered, part_rows.CHALLENGE_ROWS)),
    "composite": table(_COLUMNS, map(rendered, part_rows.COMPOSITE_ROWS)),
    "aws": table(_COLUMNS, map(rendered, cloud_rows.AWS_ROWS)),
    "azure": table(_COLUMNS, map(rendered, cloud_rows.AZURE_ROWS)),
    "gcp": table(_COLUMNS, map(rendered, cloud_rows.GCP_ROWS)),
    "oci": table(_COLUMNS, map(rendered, cloud_rows.OCI_ROWS)),
    "parsers": table(
        ("parser", "refused as"), ([name, f"`{reason}`"] for name, (reason, _) in soft_rows.PARSERS.items())
    ),
}


def renewed(page: str) -> str:
    """Write the page with the tables of the rows."""
    return _BLOCK.sub(lambda found: f"{found[1]}{TABLES[found[2]]}\n{found[3]}", page)


if __name__ == "__main__":
    PAGE.write_text(renewed(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
