#!/usr/bin/env python3
"""Build the documentation as a site: ``docs_site.py --out FOLDER``. Any warning of Sphinx fails the build.

Pages stay as they are read in the repository. What a site needs besides is made in a copy of them:

* The order of the table in docs/README.md becomes the site's navigation; a page that is not in it is an error.
* A link to a folder of pages leads to its README.md.
* Of what is outside docs/ the site has ``ROOT_PAGES``. A link to another file becomes the link's text.

Sphinx reports links to pages and sections that do not exist. Pages load nothing from other hosts.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from nodeattest_providers import __version__

TREE: Final = Path(__file__).parents[1]
ROOT_PAGES: Final = ("README.md", "CHANGELOG.md", "SECURITY.md", "CONTRIBUTING.md")
"""Pages of the repository's top folder that are in the site."""
OUTSIDE: Final = "repository"
"""Folder of the site that has them."""
_INDEX: Final = Path("index.md")
"""What docs/README.md is in the site."""
SETTINGS: Final[dict[str, object]] = {
    "project": "nodeattest",
    "author": "The nodeattest authors",
    "version": __version__,
    "release": __version__,
    "extensions": ["myst_parser"],
    "root_doc": _INDEX.stem,
    "source_suffix": {".md": "markdown"},
    "myst_heading_anchors": 4,
    "html_theme": "furo",
    "html_title": f"nodeattest {__version__}",
    "html_copy_source": False,
    "html_show_sphinx": False,
    "html_show_copyright": False,
    "smartquotes": False,
}
_LINK: Final = re.compile(r"\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^)\s]+)\)")
_FENCE: Final = re.compile(r"^ *```.*?^ *```", re.DOTALL | re.MULTILINE)
_INLINE_CODE: Final = re.compile(r"(?<!`)(`+)(?!`).+?(?<!`)\1(?!`)", re.DOTALL)
_FOREIGN_RESOURCE: Final = re.compile(
    r"<(?:script|img|iframe|source)\b[^>]*\bsrc=\"(?:https?:)?//|<link\b(?![^>]*rel=\"(?:canonical|next|prev)\")[^>]*"
    r"\bhref=\"(?:https?:)?//|@import|url\(\"?(?:https?:)?//"
)


def build(out: Path, *, tree: Path = TREE) -> None:
    """Build the site into a folder, which is emptied first; raise SystemExit where a page is wrong."""
    with tempfile.TemporaryDirectory() as work:
        source = Path(work, "source")
        stage(source, tree=tree)
        shutil.rmtree(out, ignore_errors=True)
        settings = (f"{name} = {value!r}\n" for name, value in SETTINGS.items())
        (source / "conf.py").write_text("".join(settings), encoding="utf-8")
        strict = ["--fail-on-warning", "--quiet", "--no-color", "--jobs", "auto"]
        command = [sys.executable, "-m", "sphinx", *strict, "--doctree-dir", f"{work}/doctrees", str(source), str(out)]
        # A process of its own: where Sphinx is loaded, tpm2-pytss stays a stub, for whatever test uses it next.
        if subprocess.run(command, check=False).returncode != 0:
            sys.exit("Sphinx warns of the pages (above)")
    foreign = [str(page) for page in sorted(out.rglob("*.html")) if _FOREIGN_RESOURCE.search(page.read_text())]
    if foreign:
        sys.exit(f"pages load something from other hosts: {', '.join(foreign)}")


def stage(source: Path, *, tree: Path) -> None:
    """Write the pages that Sphinx reads."""
    docs = tree / "docs"
    shutil.copytree(docs, source)
    (source / "README.md").unlink()
    (source / OUTSIDE).mkdir()
    places = {file: file.relative_to(docs) for file in docs.rglob("*.*")} | {docs / "README.md": _INDEX, docs: _INDEX}
    places |= {page.parent: place for page, place in places.items() if page.name == "README.md" and page.parent != docs}
    extra = {tree / name: Path(OUTSIDE, name) for name in ROOT_PAGES if (tree / name).is_file()}
    places |= extra
    for page, place in places.items():
        if page.is_file() and page.suffix == ".md":
            text = _relinked(page.read_text(encoding="utf-8"), page, places)
            (source / place).write_text(re.sub(r"^( *)```mermaid$", r"\1```text", text, flags=re.MULTILINE))
    index = source / _INDEX
    project = [(page.stem, place) for page, place in extra.items()]
    sections = [*navigation((docs / "README.md").read_text(encoding="utf-8"), docs), ("repository", project)]
    index.write_text(index.read_text(encoding="utf-8") + "".join(map(_toctree, sections)), encoding="utf-8")


def navigation(index: str, docs: Path) -> list[tuple[str, list[tuple[str, Path]]]]:
    """Return the groups of the table in docs/README.md with their pages, in its order."""
    groups: list[tuple[str, list[tuple[str, Path]]]] = []
    for row in index.splitlines():
        if not row.startswith("| ") or "](" not in row:
            continue
        group, _, cells = row.removeprefix("| ").partition("|")
        if group.strip():
            groups.append((group.strip(), []))
        for text, target in re.findall(r"\[([^\]]+)\]\(([^)#\s]+)\)", cells):
            page = Path(target, "README.md") if (docs / target).is_dir() else Path(target)
            groups[-1][1].append((text, page))
    return groups


def _toctree(section: tuple[str, list[tuple[str, Path]]]) -> str:
    caption, pages = section
    entries = "\n".join(f"{text} <{page.with_suffix('').as_posix()}>" for text, page in pages)
    return f"\n```{{toctree}}\n:hidden:\n:caption: {caption.capitalize()}\n\n{entries}\n```\n"


def _relinked(text: str, page: Path, places: Mapping[Path, Path]) -> str:
    """Return a page whose links lead to pages of the site; links inside of code stay."""
    code = [match.span() for pattern in (_FENCE, _INLINE_CODE) for match in pattern.finditer(text)]

    def replaced(match: re.Match[str]) -> str:
        words, target = match.groups()
        start = match.start(2)
        if any(begin < start < end for begin, end in code) or "://" in target or target.startswith(("#", "mailto:")):
            return match[0]
        path, mark, anchor = target.partition("#")
        file = (page.parent / path).resolve()
        if file in places:
            return f"[{words}]({os.path.relpath(places[file], places[page].parent)}{mark}{anchor})"
        return words if file.exists() else match[0]  # Sphinx reports what does not exist

    return _LINK.sub(replaced, text)


def main() -> int:
    """Build the site."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, metavar="FOLDER")
    out = parser.parse_args().out
    build(out)
    print(f"{len(list(out.rglob('*.html')))} pages in {out}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
