"""``nodeattest issuer verify`` as people run it, against an issuer on loopback HTTPS."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator
from pathlib import Path

import pytest
from issuer_server import IssuerServer, issuer_server
from token_kit import AUDIENCE, SUBJECT, bad_tokens, claims, elliptic, token

from nodeattest_cli.main import main

ES = elliptic()
Verify = Callable[..., int]


@pytest.fixture
def issuer(tmp_path: Path) -> Generator[IssuerServer]:
    """Run an issuer with one key."""
    with issuer_server(tmp_path) as server:
        server.publish([ES.verifying])
        yield server


@pytest.fixture
def verify(issuer: IssuerServer, tmp_path: Path) -> Verify:
    """Run the command with a token in a file, with a line end as editors and pipes leave it."""
    file = tmp_path / "token"

    def run(text: bytes | None = None, *arguments: str) -> int:
        given = ["--issuer", issuer.url, "--audience", AUDIENCE, "--ca-file", str(issuer.ca), *arguments]
        if text is not None:
            file.write_bytes(text + b"\n")
            given.append(f"--token-file={file}")
        return main(["issuer", "verify", *given])

    return run


def good(issuer: IssuerServer, **changed: object) -> bytes:
    return token(ES, given_claims=claims(int(time.time()), issuer.url, **changed))


def test_a_good_token_is_shown_with_what_it_proves(
    issuer: IssuerServer, verify: Verify, capsys: pytest.CaptureFixture[str]
) -> None:
    assert verify(None, good(issuer).decode()) == 0
    assert "list of processes" in capsys.readouterr().err
    assert verify(good(issuer)) == 0
    said = capsys.readouterr()
    assert not said.err
    lines = (line.strip().partition("  ") for line in said.out.splitlines())
    rows = {name: value.strip() for name, _, value in lines}
    assert (rows["subject"], rows["issuer"], rows["audience"]) == (SUBJECT, issuer.url, AUDIENCE)
    assert rows["key"] == f"{ES.verifying.kid} (ES256)"
    assert rows["kubernetes.io"].startswith('{"namespace": "shop"')
    assert rows["expires"].endswith(" s)")


def test_a_refusal_says_expected_got_and_what_to_do_and_ends_with_1(
    issuer: IssuerServer, verify: Verify, capsys: pytest.CaptureFixture[str]
) -> None:
    for text in bad_tokens(ES, elliptic(1), int(time.time()), issuer.url).values():
        assert verify(text) == 1
        said = capsys.readouterr()
        assert not said.out
        first, *rest = said.err.splitlines()
        assert first.startswith("nodeattest: refused: JWT")
        assert [line.split()[0] for line in rest] == ["expected", "got", "do"]
        assert not any(part.decode() in said.err for part in text.split(b".") if part)


def test_an_issuer_that_cannot_be_asked_is_another_exit_code_than_a_refusal(
    issuer: IssuerServer, verify: Verify, capsys: pytest.CaptureFixture[str]
) -> None:
    issuer.answers.clear()
    assert verify(good(issuer)) == 3
    said = capsys.readouterr().err
    assert said.startswith("nodeattest: IssuerUnavailable: ")
    assert "got 404" in said


@pytest.mark.parametrize(
    ("text", "arguments", "words"),
    [
        (b"", ["-"], "expected one token"),
        (None, [], "expected one token"),
        (None, ["-", "--issuer", "http://issuer.example"], "--issuer: expected the https URL"),
        (None, ["-", "--jwks-file", "/dev/null"], "expected at least one RSA or ECDSA key"),
        (None, ["-", "--jwks-file", "/none"], "does not exist"),
        (None, ["-", "--audience", ""], "expected an issuer and at least one audience"),
    ],
)
def test_mistakes_are_one_line(
    verify: Verify, capsys: pytest.CaptureFixture[str], text: bytes | None, arguments: list[str], words: str
) -> None:
    assert verify(text, *arguments) == 2
    said = capsys.readouterr().err
    assert words in said
    assert said.count("\n") == 1


def test_control_characters_in_untrusted_claims_are_quoted(
    issuer: IssuerServer, verify: Verify, capsys: pytest.CaptureFixture[str]
) -> None:
    odd = good(issuer, sub="\x1b[2J\nnobody\x9b", **{"x\x1b[1A": "\x1b[31m"})
    assert verify(odd) == 0
    out = capsys.readouterr().out
    assert "\x1b" not in out
    assert "\nnobody" not in out
    assert verify(odd, "-o", "json") == 0
    assert capsys.readouterr().out.isascii()
