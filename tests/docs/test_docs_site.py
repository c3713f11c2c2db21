"""`make docs` refuses what is wrong in a page, and the site has every page in the order of the index."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import pytest

from tools.docs_site import build

TREE: Final = Path(__file__).parents[2]
INDEX: Final = """# Index

| | page | answers |
|---|---|---|
| start | [start](start.md) | Where do I begin? |
| | [decisions](decisions.md) | Why? |
"""
pytestmark = pytest.mark.filterwarnings("ignore:'myst_parser:PendingDeprecationWarning")  # MyST's own, for Sphinx 11


def _tree(folder: Path, start: str) -> Path:
    for name, text in {
        "docs/README.md": INDEX,
        "docs/start.md": start,
        "docs/decisions.md": "# Decisions\n\n## One\n",
        "CHANGELOG.md": "# Changelog\n\n## 1.0\n\n[start](docs/start.md)\n",
        "tools/some.py": "print('shown')\n",
    }.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


def test_a_site_shows_the_pages_and_what_they_link_to(tmp_path: Path) -> None:
    page = "# Start\n\n[code](../tools/some.py) [old](../CHANGELOG.md#10) [why](decisions.md) `[x](none.md)`\n"
    build(tmp_path / "site", tree=_tree(tmp_path / "tree", page))
    start = (tmp_path / "site/start.html").read_text()
    for target in ("repository/CHANGELOG.html", "decisions.html"):
        assert f'href="{target}' in start
        assert (tmp_path / "site" / target).is_file()
    assert "some.py" not in start
    assert "code <a" in start  # the text of a link that leaves the site
    assert 'href="start.html"' in (tmp_path / "site/index.html").read_text()


@pytest.mark.parametrize(
    ("link", "fault"),
    [
        ("none.md", "none.md"),
        ("../tools/none.py", "none.py"),
        ("#none", "none"),
        ("decisions.md#none", "none"),
        ("../CHANGELOG.md#none", "none"),
    ],
)
def test_a_link_that_leads_nowhere_is_refused(
    link: str, fault: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="warns"):
        build(tmp_path / "site", tree=_tree(tmp_path / "tree", f"# Start\n\n[x]({link})\n"))
    (warning,) = [line for line in capfd.readouterr().err.splitlines() if "WARNING" in line]
    assert fault in warning


@pytest.mark.parametrize(
    "foreign", ['<img src="https://example.org/x.png">', '<script src="//example.org/x.js"></script>']
)
def test_a_page_that_loads_something_from_another_host_is_refused(foreign: str, tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match=r"other hosts: .*start\.html$"):
        build(tmp_path / "site", tree=_tree(tmp_path / "tree", f"# Start\n\n{foreign}\n"))
