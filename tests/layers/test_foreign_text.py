"""tools/check_foreign_text: text of others leaves a program only through what makes it printable."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tools.check_foreign_text import findings

TREE = Path(__file__).parents[2]
BAD = {
    "print": "print(error)",
    "an f-string": "click.echo(f'{name}: {error}', err=True)",
    "a joined text": "sys.stdout.write('\\n'.join(lines))",
    "one of two is raw": "click.echo(visible_lines(a) if a else b)",
    "an escaped part": "sys.stderr.write(f'{visible(a)}\\n')",
    "bytes": "sys.stderr.buffer.write(answer)",
    "an exit": "sys.exit(f'{error}')",
    "an exit with an error": "raise SystemExit(str(error))",
    "lines of a server's text": "print_lines(*error.message.splitlines())",
    "lines by their end": "visible_lines(*text.split('\\n'))",
    "a document that nobody escaped": "print_document(answer)",
    "another formatter": "handler = logging.StreamHandler(stream)",
    "basicConfig": "logging.basicConfig(level=10)",
    "a condition": "done = {'type': 'Ready', 'status': 'True', 'message': str(error)}",
    "a message that is cut": "done = {'reason': reason, 'message': message[:1024]}",
    "a message that is set": "entry['message'] = text",
    "an exit with a name": "def a(e):\n    m = f'{e}'\n    sys.exit(m)",
    "an exit with a sum": "raise SystemExit('cannot read: ' + error)",
    "an exit with a call": "sys.exit(describe_error(error))",
    "an exit with a choice": "sys.exit(text if failed else 0)",
    "a stream's other name": "out = sys.stdout\nout.write(error)",
    "a method's other name": "write: Any = sys.stderr.write",
    "a stream for a function": "show(error, file=sys.stderr)",
    "an import of a stream": "from sys import stdout",
    "a descriptor": "os.write(2, error.encode())",
    "a traceback": "traceback.print_exc()",
    "an import of a traceback": "from traceback import print_exc",
    "a condition by keywords": "done = dict(type='A', status='False', reason='B', message=error)",
    "a message that is merged": "entry |= {'message': error}",
    "a message that is joined": "done = entry | {'message': error}",
    "a message that updates": "entry.update(message=error)",
    "a message in what updates": "entry.update({'message': error})",
    "a name that is set again": "def a(e):\n    m = one_line(e, 9)\n    m = e\n    return {'reason': r, 'message': m}",
    "a name that is added to": "def a(e):\n    m = one_line(e, 9)\n    m += e\n    return {'reason': r, 'message': m}",
    "a name of a loop": "def a(e):\n    m = one_line(e, 9)\n    for m in e:\n        b({'reason': r, 'message': m})",
    "a caught error's name": "def a():\n    try: b()\n    except E as M: c({'reason': r, 'message': M})",
    "an inner parameter": "def a():\n    m = one_line(x, 9)\n    def b(m):\n        return {'reason': r, 'message': m}",
    "an upper-case parameter": "def a(E):\n    return {'reason': r, 'message': E}",
    "an upper-case name": "def a(e):\n    E = str(e)\n    return {'reason': r, 'message': E}",
    "a lambda's parameter": "a = lambda E: {'reason': r, 'message': E}",
    "lines by a made end": "print_lines(*error.split(chr(10)))",
    "lines by a keyword": "print_lines(*error.split(sep='\\n'))",
    "lines by a carriage return": "print_lines(*error.rsplit('\\r'))",
    "lines by a pattern": "print_lines(*re.split('\\n', error))",
    "another's message": "def a():\n    m = one_line(x, 9)\ndef b(m):\n    return {'reason': r, 'message': m}",
}
GOOD = {
    "a literal": "print('nothing was changed')",
    "lines": "click.echo(visible_lines(a, *b), err=True, nl=False)",
    "a command's lines": "print_lines(f'{name}: {error}', *lines, err=True)",
    "a word of a line": "print_lines(text.split('/', 1)[0])",
    "a writer's lines": "click.echo(visible_lines(*describe(name, side).splitlines()))",
    "a document": "print_document(to_json(found))",
    "an exit code": "sys.exit(code if isinstance(code, int) else 0)",
    "a constant exit code": "_CODE: Final = 3\nsys.exit(_CODE)",
    "the exit code of main": "sys.exit(main())",
    "an exit with a line": "raise SystemExit(visible_lines(text))",
    "the stream of logs": "logs.configure(level=level, stream=sys.stderr)",
    "a dict of no condition": "done = dict(message=text)",
    "a message of two": "def a():\n    m = one_line(x, 9)\n    m = 'none'\n    return {'reason': r, 'message': m}",
    "a message or none": "done = {'reason': reason, 'message': one_line(text, 9) if text else ''}",
    "an outer message": "def a():\n    m = one_line(x, 9)\n    def b():\n        return {'reason': r, 'message': m}",
    "a logger": "log = logging.getLogger(__name__)\nlog.warning('cannot read %s', error)",
    "a condition": "done = {'type': 'Ready', 'status': 'True', 'message': one_line(text, 1024)}",
    "a message made before": "def a():\n    m = one_line(x, 9)\n    return {'reason': r, 'message': m}",
    "a constant": "done = {'reason': reason, 'message': _MESSAGE}",
    "a file of logs": "entry['text'] = text",
}


@pytest.mark.parametrize("source", BAD.values(), ids=BAD)
def test_text_that_nothing_made_printable_is_found(source: str) -> None:
    assert len(findings(source, Path("controller/nodeattest_controller/x.py"))) == 1


@pytest.mark.parametrize("source", GOOD.values(), ids=GOOD)
def test_printable_text_is_no_finding(source: str) -> None:
    assert not findings(source, Path("controller/nodeattest_controller/x.py"))


def test_the_tree_has_no_finding_and_no_explanation_that_nothing_needs() -> None:
    done = subprocess.run(
        [sys.executable, TREE / "tools/check_foreign_text.py"], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (0, "")
