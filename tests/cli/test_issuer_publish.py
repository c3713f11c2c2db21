"""``nodeattest issuer publish`` as an operator runs it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from issuer_server import IssuerServer, issuer_server
from publish_kit import kids, private

from nodeattest_cli.main import main

ISSUER = "https://issuer.example/c1"


@pytest.fixture
def served(tmp_path: Path) -> Iterator[IssuerServer]:
    """A public HTTPS server of the folder."""
    (tmp_path / "www").mkdir()
    with issuer_server(tmp_path / "tls", root=tmp_path / "www") as running:
        yield running


def key_file(directory: Path, name: str) -> str:
    pem = private(name).private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    path = directory / f"{name}.key"
    path.write_bytes(pem)
    return str(path)


@pytest.fixture
def run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    www = tmp_path / "www"
    www.mkdir(exist_ok=True)

    def run_(*arguments: str, issuer: str = ISSUER, to: str = f"dir:{www}") -> tuple[int, str, str]:
        code = main(["issuer", "publish", "--service-account-issuer", issuer, "--to", to, *arguments])
        done = capsys.readouterr()
        return code, done.out, done.err

    return run_


def keys(directory: Path, *names: str) -> list[str]:
    return [word for name in names for word in ("--service-account-key-file", key_file(directory, name))]


Run = Callable[..., tuple[int, str, str]]


def test_what_the_public_sees_ends_with_0(served: IssuerServer, run: Run, tmp_path: Path) -> None:
    code, out, err = run(*keys(tmp_path, "a"), "--ca-file", str(served.ca), issuer=f"{served.url}/c1")
    assert (code, err) == (0, "")
    assert "shows it" in out
    assert kids("a")[0] in out
    written = [path.read_text() for path in (tmp_path / "www").rglob("*") if path.is_file()]
    assert not [text for text in written if "PRIVATE" in text]
    again = run(*keys(tmp_path, "a"), "--ca-file", str(served.ca), issuer=f"{served.url}/c1")
    assert again[0] == 0
    assert "everything is there already" in again[1]


def test_a_public_url_that_shows_something_else_ends_with_1(served: IssuerServer, run: Run, tmp_path: Path) -> None:
    code, out, _ = run(*keys(tmp_path, "a"), issuer=f"{served.url}/c1")
    assert code == 1
    assert "--ca-file" in out


def test_caches_that_show_the_older_documents_end_with_3(served: IssuerServer, run: Run, tmp_path: Path) -> None:
    trusted = ("--ca-file", str(served.ca))
    assert run(*keys(tmp_path, "a"), *trusted, issuer=f"{served.url}/c1")[0] == 0
    older = served.reply("/c1/openid/v1/jwks")
    served.spoil = lambda path, reply: older if path.endswith("jwks") else reply
    code, out, _ = run(*keys(tmp_path, "a", "b"), *trusted, issuer=f"{served.url}/c1")
    assert code == 3
    assert f"still an older key set, without {kids('b')[0]}" in out
    assert "older until" in out


def test_a_dry_run_writes_nothing_and_ends_with_3_where_something_is_to_do(run: Run, tmp_path: Path) -> None:
    code, out, _ = run(*keys(tmp_path, "a"), "--dry-run")
    assert code == 3
    assert "openid/v1/jwks: missing, would be written" in out
    assert not any((tmp_path / "www").iterdir())
    assert run(*keys(tmp_path, "a"), "--no-read-back")[0] == 0
    assert run(*keys(tmp_path, "a"), "--dry-run")[0] == 0


@pytest.mark.parametrize("more", [(), ("--dry-run",)])
def test_a_name_of_no_key_to_drop_is_said_and_ends_with_1(run: Run, tmp_path: Path, more: tuple[str, ...]) -> None:
    run(*keys(tmp_path, "a", "b"), "--no-read-back")
    code, _, err = run(*keys(tmp_path, "b"), "--no-read-back", "--drop-key", "nokid", *more)
    assert code == 1
    assert "got nokid" in err
    assert all(kid in err for kid in kids("a", "b"))
    [key_set] = (tmp_path / "www").rglob("jwks")
    assert {one["kid"] for one in json.loads(key_set.read_text())["keys"]} == set(kids("a", "b"))


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--max-age", "0s"), "--max-age: expected 1s to 168h"),
        (("--max-age", "1"), "--max-age: expected a duration"),
        (("--retire-after", "-1h"), "--retire-after: expected a duration"),
        (
            ("--service-account-key-file", "/nonexistent"),
            "expected a readable file with keys, got 'No such file",
        ),
        (("--service-account-key-file", "/"), "got 'Is a directory'; give the path of a file"),
        (("--service-account-jwks-uri", "http://x/y"), "expected the https URL of a key set"),
        (("--service-account-jwks-uri", f"{ISSUER}/../x"), "plain segments"),
        (("--to", "configmap:x/y"), "--to: expected dir:PATH"),
        (("--to", "dir:/nonexistent/x"), "expected a directory"),
        (("--service-account-issuer", "http://x"), "expected the https URL of an issuer"),
        (("--ca-file", "/nonexistent"), "--ca-file"),
        (("--owner", "cluster-2"), "belong to 'nodeattest'"),
    ],
)
def test_what_is_wrong_is_one_line_and_2(run: Run, tmp_path: Path, arguments: tuple[str, ...], said: str) -> None:
    run(*keys(tmp_path, "a"), "--no-read-back")
    code, _, err = run(*keys(tmp_path, "a"), *arguments)
    assert code == 2
    assert said in err
    assert err.count("\n") == 1
