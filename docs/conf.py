"""Sphinx: the documentation as a site. Any warning fails the build; pages load nothing from other hosts.

A link to a file outside docs/ stays what it is in the repository; tests/docs/test_pages.py follows it.
"""

from __future__ import annotations

import re
from typing import Any

from nodeattest_providers import __version__

project = "nodeattest"
author = "The nodeattest authors"
version = release = __version__
extensions = ["myst_parser"]
root_doc = "README"
source_suffix = {".md": "markdown"}
suppress_warnings = ["myst.xref_missing"]
myst_heading_anchors = 4
html_theme = "furo"
html_title = f"nodeattest {__version__}"
html_copy_source = False
html_show_sphinx = False
html_show_copyright = False
smartquotes = False


def setup(app: Any) -> None:  # noqa: ANN401 - Sphinx's
    """Give the index its navigation, in the order of its table, and show diagrams as text."""
    app.connect("source-read", _read)


def _read(_app: Any, page: str, source: list[str]) -> None:  # noqa: ANN401 - Sphinx's
    source[0] = re.sub(r"^( *)```mermaid$", r"\1```text", source[0], flags=re.MULTILINE)
    if page == root_doc:
        rows = [row for row in source[0].splitlines() if row.startswith("| ")]
        pages = re.findall(r"\]\(([^)#:]+?)\.md\)", "\n".join(rows))
        entries = "\n".join(dict.fromkeys(pages))
        source[0] += f"\n```{{toctree}}\n:hidden:\n\n{entries}\n```\n"
