#!/usr/bin/env python3
"""Build the documentation as a site: ``docs_site.py --out FOLDER``. Any warning of Sphinx fails the build.

Pages stay as they are read in the repository. What a site needs besides is made in a copy of them:

* The order of the table in docs/README.md becomes the site's navigation; a page that is not in it is an error.
* A link that leaves docs/ leads to a page that shows the file, or lists the folder.
* A link to a folder of pages leads to its README.md.

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
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from nodeattest_providers import __version__

__all__ = ["External", "build", "navigation", "stage"]

TREE: Final = Path(__file__).parents[1]
ROOT_PAGES: Final = ("README.md", "CHANGELOG.md", "SECURITY.md", "CONTRIBUTING.md")
"""Pages of the repository's top folder that are in the navigation."""
OUTSIDE: Final = "repository"
"""Folder of the site that shows what is not in docs/."""
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
_LINK: Final = re.compile(r"(\[(?:[^\[\]]|\[[^\]]*\])*\]\()([^)\s]+)(\))")
_FENCE: Final = re.compile(r"^ *```.*?^ *```", re.DOTALL | re.MULTILINE)
_INLINE_CODE: Final = re.compile(r"(?<!`)(`+)(?!`).+?(?<!`)\1(?!`)", re.DOTALL)
_LANGUAGES: Final = {
    ".py": "python",
    ".yaml": "yaml",
    ".yml": "yaml",
    ".json": "json",
    ".toml": "toml",
    ".sh": "sh",
    ".service": "ini",
}
_FOREIGN_RESOURCE: Final = re.compile(
    r"<(?:script|img|iframe|source)\b[^>]*\bsrc=\"(?:https?:)?//|<link\b(?![^>]*rel=\"(?:canonical|next|prev)\")[^>]*"
    r"\bhref=\"(?:https?:)?//|@import|url\(\"?(?:https?:)?//"
)


@dataclass
class External:
    """Files and folders outside docs/ that pages link to, and the pages that are made of them."""

    tree: Path
    docs: Path
    pending: list[Path] = field(default_factory=list[Path])
    known: set[Path] = field(default_factory=set[Path])

    def page_of(self, file: Path) -> Path:
        """Return the path of the site's page that shows a file or folder, from the site's root."""
        if file not in self.known:
            self.known.add(file)
            self.pending.append(file)
        path = Path(OUTSIDE, file.relative_to(self.tree))
        if file.is_dir():
            return path / "index.md"
        return path if path.suffix == ".md" else path.with_name(f"{path.name}.md")


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
    external = External(tree, docs)
    shutil.copytree(docs, source)
    (source / "README.md").unlink()
    for page in sorted(docs.rglob("*.md")):
        place = page.relative_to(docs)
        place = _INDEX if place == Path("README.md") else place
        text = _relinked(page.read_text(encoding="utf-8"), page=page, place=place, external=external)
        (source / place).write_text(_shown(text), encoding="utf-8")
    extra = [tree / name for name in ROOT_PAGES if (tree / name).is_file()]
    project = [(page.stem, external.page_of(page)) for page in extra]
    while external.pending:
        _write_external(external.pending.pop(), source, external, navigated=extra)
    index = source / _INDEX
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


def _relinked(text: str, *, page: Path, place: Path, external: External) -> str:
    """Return a page whose links lead to pages of the site; links inside of code stay."""
    code = [match.span() for pattern in (_FENCE, _INLINE_CODE) for match in pattern.finditer(text)]

    def replaced(match: re.Match[str]) -> str:
        before, target, after = match.groups()
        start = match.start(2)
        if any(begin < start < end for begin, end in code) or "://" in target or target.startswith(("#", "mailto:")):
            return match[0]
        path, mark, anchor = target.partition("#")
        file = (page.parent / path).resolve()
        if not file.exists() or not file.is_relative_to(external.tree):
            return match[0]  # Sphinx reports it
        if file.is_relative_to(external.docs):
            aim = file.relative_to(external.docs)
            aim = _INDEX if aim == Path("README.md") or file == external.docs else aim
            aim = aim / "README.md" if file.is_dir() and aim != _INDEX else aim
        else:
            aim = external.page_of(file)
        return f"{before}{os.path.relpath(aim, place.parent)}{mark}{anchor}{after}"

    return _LINK.sub(replaced, text)


def _shown(text: str) -> str:
    """Return a page without what only a repository's viewer draws: a diagram is shown as its source."""
    return re.sub(r"^( *)```mermaid$", r"\1```text", text, flags=re.MULTILINE)


def _write_external(file: Path, source: Path, external: External, *, navigated: list[Path]) -> None:
    place = external.page_of(file)
    if file.is_dir():
        links = (f"* [`{each.name}`]({os.path.relpath(each, file)})" for each in _tracked(file))
        text = f"# `{file.relative_to(external.tree)}`\n\n" + "\n".join(links) + "\n"
        text = _relinked(text, page=file / "index.md", place=place, external=external)
    elif file.suffix == ".md":
        text = _relinked(file.read_text(encoding="utf-8"), page=file, place=place, external=external)
    else:
        name = file.relative_to(external.tree)
        language = _LANGUAGES.get(file.suffix, "text")
        text = f"# `{name}`\n\n``````{language}\n{file.read_text(encoding='utf-8')}\n``````\n"
    orphan = "" if file in navigated else "---\norphan: true\n---\n\n"
    (source / place).parent.mkdir(parents=True, exist_ok=True)
    (source / place).write_text(orphan + _shown(text), encoding="utf-8")


def _tracked(folder: Path) -> Iterator[Path]:
    """Yield the files and folders of a folder, without what git ignores."""
    git = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "."]
    listed = subprocess.run(git, cwd=folder, capture_output=True, text=True, check=False)
    names = {line.partition("/")[0] for line in listed.stdout.splitlines()}
    yield from (folder / name for name in sorted(names))


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
