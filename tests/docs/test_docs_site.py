"""`make docs` refuses what is wrong in a page, and the site has every page in the order of the index."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import pytest

from tools.docs_site import build, navigation

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


def test_a_page_that_is_not_in_the_index_is_refused(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    tree = _tree(tmp_path / "tree", "# Start\n")
    (tree / "docs/alone.md").write_text("# Alone\n")
    with pytest.raises(SystemExit, match="warns"):
        build(tmp_path / "site", tree=tree)
    assert "alone.md" in capfd.readouterr().err


@pytest.mark.parametrize(
    "foreign", ['<img src="https://example.org/x.png">', '<script src="//example.org/x.js"></script>']
)
def test_a_page_that_loads_something_from_another_host_is_refused(foreign: str, tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match=r"other hosts: .*start\.html$"):
        build(tmp_path / "site", tree=_tree(tmp_path / "tree", f"# Start\n\n{foreign}\n"))


def test_the_navigation_is_the_order_of_the_index() -> None:
    groups = navigation((TREE / "docs/README.md").read_text(), TREE / "docs")
    assert [name for name, _ in groups][:4] == ["start", "install", "providers", "operate"]
    assert groups[0][1][0] == ("tutorial", Path("tutorial.md"))
