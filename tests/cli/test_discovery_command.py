"""``nodeattest discovery serve``: what is set wrong is one line and exit code 2, before anything listens."""

from __future__ import annotations

from pathlib import Path

import pytest

from nodeattest_cli.main import main

NOWHERE = {
    "--kubeconfig": "kubeconfig",
    "--tls-cert-file": "tls.crt",
    "--tls-private-key-file": "tls.key",
    "--bind-address": "127.0.0.1:0",
}


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ({}, "kubeconfig"),
        ({"--bind-address": "9443"}, "--bind-address: expected host:port, got '9443'"),
        ({"--health-bind-address": "x:y"}, "--health-bind-address: expected host:port, got 'x:y'"),
        ({"--max-stale": "5"}, "expected at least 120 s, got 5"),
        ({"--max-stale": "nan"}, "expected a number, got nan"),
        ({"--client-rate": "0"}, "'--client-rate': 0.0 is not in the range"),
        ({"--token-burst": "-1"}, "'--token-burst': -1 is not in the range"),
    ],
)
def test_a_wrong_setting_is_one_line(
    flags: dict[str, str],
    said: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    words = [f"{name}={value}" for name, value in (NOWHERE | flags).items()]
    assert main(["discovery", "serve", *words]) == 2
    (line,) = [line for line in capsys.readouterr().err.splitlines() if line.startswith("nodeattest: ")]
    assert said in line


def test_files_that_are_no_certificate_are_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    kubeconfig = tmp_path / "kubeconfig"
    kubeconfig.write_text(
        "{kind: Config, current-context: a, contexts: [{name: a, context: {cluster: a}}], "
        "clusters: [{name: a, cluster: {server: 'https://127.0.0.1:1'}}]}"
    )
    words = [f"{name}={value}" for name, value in (NOWHERE | {"--kubeconfig": str(kubeconfig)}).items()]
    assert main(["discovery", "serve", *words]) == 2
    assert "expected a certificate in PEM and its key, got No such file" in capsys.readouterr().err
    certificate = tmp_path / "tls.crt"
    certificate.write_text("no PEM")
    words += [f"--tls-cert-file={certificate}", f"--tls-private-key-file={certificate}"]
    assert main(["discovery", "serve", *words]) == 2
    assert "got something else, or the key of another certificate" in capsys.readouterr().err
