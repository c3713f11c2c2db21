"""Draw docs/demo.svg from a run of the demo: ``python -m tools.demo_picture FILE``.

What differs from run to run (ports, the process, the order in which machines join) is as that run had it; a test
compares the steps.
"""

from __future__ import annotations

import argparse
import html
import io
import re
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Final

from rich.console import Console
from rich.terminal_theme import MONOKAI
from rich.text import Text

COMMAND: Final = ("demo", "--sandbox", "--json")
"""With ``--json`` the steps are alone on standard error."""
_WIDTH: Final = 124
_COLOURS: Final = {"joined": "green", "closed": "green", "refused": "bold cyan"}
_STEP: Final = re.compile(r" *\d+\.\ds  (.+)")
_TEXT: Final = re.compile(r'<text class="demo-r\d+" x="[\d.]+" y="([\d.]+)"[^>]*>([^<]*)</text>')
_FONT: Final = re.compile(r"@font-face \{.*?\}\s*", re.DOTALL)
"""rich would have the viewer's browser load a font from another host."""
_VARYING: Final = re.compile(
    r"(?<=127\.0\.0\.1:)\d+|(?<=process )\d+|\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ|\d+\.\d+\.\d+(?=\+nodeattest)"
)


def steps(output: str) -> list[str]:
    """Return the demo's steps without what differs from run to run; machines that join in the order of their names."""
    lines = [found[1].rstrip() for line in output.splitlines() if (found := _STEP.fullmatch(line.rstrip()))]
    plain = [_VARYING.sub("…", line) for line in lines]
    joined = iter(sorted(line for line in plain if line.startswith("joined")))
    return [next(joined) if line.startswith("joined") else line for line in plain]


def draw(output: str) -> str:
    """Draw the steps of one run as a terminal shows them."""
    console = Console(record=True, width=_WIDTH, file=io.StringIO(), color_system="truecolor", force_terminal=True)
    console.print(Text.assemble(("$ ", "bold"), "make demo"))
    for line in output.splitlines():
        found = _STEP.fullmatch(line.rstrip())
        if found is None:
            continue
        word = found[1].partition(" ")[0]
        start = line[: found.start(1)]
        rest = found[1].removeprefix(word)
        console.print(Text.assemble((start, "dim"), (word, _COLOURS.get(word, "")), rest), soft_wrap=True)
    return _FONT.sub("", console.export_svg(title="nodeattest demo", theme=MONOKAI, unique_id="demo"))


def drawn(picture: str) -> str:
    """Return the lines of a picture."""
    lines: dict[float, str] = {}
    for height, text in _TEXT.findall(picture):
        lines[float(height)] = lines.get(float(height), "") + html.unescape(text).replace("\xa0", " ")
    return "\n".join(text for _, text in sorted(lines.items()))


def main() -> int:
    """Run the demo, and write the picture."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file", type=Path, metavar="FILE")
    file = parser.parse_args().file
    program = Path(sysconfig.get_path("scripts"), "nodeattest")
    done = subprocess.run([program, *COMMAND], capture_output=True, text=True, check=True)
    file.write_text(draw(done.stderr), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
