"""``nodeattest issuer verify`` as people run it, against an issuer on loopback HTTPS."""

from __future__ import annotations

import time
from collections.abc import Generator
from pathlib import Path

import pytest
from issuer_server import IssuerServer, issuer_server
from token_kit import AUDIENCE, SUBJECT, bad_tokens, claims, elliptic, good_tokens, token

from nodeattest_cli.main import main

ES = elliptic()


@pytest.fixture
def issuer(tmp_path: Path) -> Generator[IssuerServer]:
    """Run an issuer with one key."""
    with issuer_server(tmp_path) as server:
        server.publish([ES.verifying])
        yield server


@pytest.fixture
def held(tmp_path: Path, issuer: IssuerServer) -> Path:
    """Write a good token, with a line end as editors and pipes leave it."""
    path = tmp_path / "token"
    path.write_bytes(good_tokens([ES], int(time.time()), issuer.url)["ES256"] + b"\n")
    return path


def command(issuer: IssuerServer, *arguments: object) -> list[str]:
    """Spell the command."""
    given = ("--issuer", issuer.url, "--audience", AUDIENCE, "--ca-file", issuer.ca, *arguments)
    return ["issuer", "verify", *map(str, given)]


def test_a_good_token_is_shown_with_what_it_proves(
    issuer: IssuerServer, held: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(command(issuer, held.read_text(encoding="utf-8").strip())) == 0
    assert "list of processes" in capsys.readouterr().err
    assert main(command(issuer, "--token-file", held)) == 0
    said = capsys.readouterr()
    assert not said.err
    lines = (line.strip().partition("  ") for line in said.out.splitlines())
    rows = {name: value.strip() for name, _, value in lines}
    assert (rows["subject"], rows["issuer"], rows["audience"]) == (SUBJECT, issuer.url, AUDIENCE)
    assert rows["key"] == f"{ES.verifying.kid} (ES256)"
    assert rows["kubernetes.io"].startswith('{"namespace": "shop"')
    assert rows["expires"].endswith(" s)")


def test_a_refusal_says_expected_got_and_what_to_do_and_ends_with_1(
    issuer: IssuerServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    now = int(time.time())
    path = tmp_path / "bad"
    for text in bad_tokens(ES, elliptic(1), now, issuer.url).values():
        path.write_bytes(text)
        assert main(command(issuer, "--token-file", path)) == 1
        said = capsys.readouterr()
        assert not said.out
        first, *rest = said.err.splitlines()
        assert first.startswith("nodeattest: refused: JWT")
        assert [line.split()[0] for line in rest] == ["expected", "got", "do"]
        assert not any(part.decode() in said.err for part in text.split(b".") if part)


def test_an_issuer_that_cannot_be_asked_is_another_exit_code_than_a_refusal(
    issuer: IssuerServer, held: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    issuer.answers.clear()
    assert main(command(issuer, "--token-file", held)) == 3
    said = capsys.readouterr().err
    assert said.startswith("nodeattest: IssuerUnavailable: ")
    assert "got 404" in said


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["-", "--token-file", "FILE"], "expected one token"),
        ([], "expected one token"),
        (["-", "--issuer", "http://issuer.example"], "--issuer: expected the https URL"),
        (["-", "--jwks-file", "FILE"], "expected at least one RSA or ECDSA key"),
        (["-", "--jwks-file", "/none"], "does not exist"),
        (["-", "--audience", ""], "expected an issuer and at least one audience"),
    ],
)
def test_mistakes_are_one_line(
    issuer: IssuerServer, tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], words: str
) -> None:
    file = tmp_path / "empty"
    file.write_bytes(b"")
    assert main(command(issuer, *(str(file) if each == "FILE" else each for each in arguments))) == 2
    said = capsys.readouterr().err
    assert words in said
    assert said.count("\n") == 1


def test_control_characters_in_untrusted_claims_are_quoted(
    issuer: IssuerServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "odd"
    odd = claims(int(time.time()), issuer.url, sub="\x1b[2J\nnobody\x9b", **{"x\x1b[1A": "\x1b[31m"})
    path.write_bytes(token(ES, given_claims=odd))
    assert main(command(issuer, "--token-file", path)) == 0
    out = capsys.readouterr().out
    assert "\x1b" not in out
    assert "\nnobody" not in out
    assert main(command(issuer, "--token-file", path, "-o", "json")) == 0
    assert capsys.readouterr().out.isascii()
