"""A release: its checksums, provenance and signatures, and every way in which one must not verify."""

from __future__ import annotations

import base64
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat

from tools.release.artefacts import KINDS
from tools.release.provenance import ENVELOPE, SIGNATURE, STATEMENT, SUMS, VerificationError, seal, verify

TREE = Path(__file__).parents[2]
KEY = Ed25519PrivateKey.generate()
PUBLIC = KEY.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
MANIFESTS = "nodeattest-manifests-0.1.0.tar"


@pytest.fixture
def release(tmp_path: Path) -> Path:
    KINDS["manifests"](tmp_path)
    seal_with(tmp_path, KEY)
    return tmp_path


def seal_with(folder: Path, key: Ed25519PrivateKey) -> None:
    pem = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    seal(folder, version="0.1.0", commit="c" * 40, locks={"requirements.lock": TREE / "requirements.lock"}, key=pem)


def test_a_signed_release_verifies_and_names_its_artefacts(release: Path) -> None:
    assert list(verify(release, PUBLIC)) == [MANIFESTS]
    statement = json.loads((release / STATEMENT).read_text())
    assert statement["_type"] == "https://in-toto.io/Statement/v1"
    assert statement["predicateType"] == "https://slsa.dev/provenance/v1"
    [commit, lock] = statement["predicate"]["buildDefinition"]["resolvedDependencies"]
    assert commit["digest"] == {"gitCommit": "c" * 40}
    assert lock["uri"] == "file:requirements.lock"


def test_an_artefact_is_the_same_when_it_is_made_again(release: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    again = tmp_path_factory.mktemp("again")
    KINDS["manifests"](again)
    assert (again / MANIFESTS).read_bytes() == (release / MANIFESTS).read_bytes()
    for kind in ("chart", "clusterctl"):
        KINDS[kind](again / "one")
        KINDS[kind](again / "other")
    made = [{f.name: f.read_bytes() for f in (again / name).rglob("*") if f.is_file()} for name in ("one", "other")]
    assert len(made[0]) == len(("chart", "components", "metadata"))
    assert made[0] == made[1]


def spoil_statement(folder: Path) -> None:
    (folder / STATEMENT).write_text((folder / STATEMENT).read_text().replace("cccc", "dddd", 1))


def spoil_envelope(folder: Path) -> None:
    envelope = json.loads((folder / ENVELOPE).read_text())
    envelope["payload"] = base64.b64encode(base64.b64decode(envelope["payload"]).replace(b"cccc", b"dddd")).decode()
    (folder / ENVELOPE).write_text(json.dumps(envelope))


def spoil_artefact(folder: Path) -> None:
    with (folder / MANIFESTS).open("ab") as file:
        file.write(b"\n")


def more_in_a_folder(folder: Path) -> None:
    (folder / "addon-nodeattest").mkdir()
    (folder / "addon-nodeattest" / "more.yaml").write_text("")


SPOILT: dict[str, tuple[Callable[[Path], object], str]] = {
    "an artefact": (spoil_artefact, MANIFESTS),
    "a file more": (lambda folder: (folder / "more.whl").write_text(""), "the files that"),
    "a file less": (lambda folder: (folder / MANIFESTS).unlink(), "the files that"),
    "a file more in a folder": (more_in_a_folder, "the files that"),
    "a link to a folder": (lambda folder: (folder / "charts").symlink_to("/"), "charts: expected a file or a folder"),
    "a pipe": (lambda folder: os.mkfifo(folder / "more.whl"), "more.whl: expected a file or a folder"),
    "a deep envelope": (lambda folder: (folder / ENVELOPE).write_text("[" * 200_000), "expected a DSSE envelope"),
    "no signature": (lambda folder: (folder / SIGNATURE).unlink(), f"{SIGNATURE}: expected a release that was signed"),
    "no envelope": (lambda folder: (folder / ENVELOPE).unlink(), f"{ENVELOPE}: expected a release that was signed"),
    "no checksums": (lambda folder: (folder / SUMS).unlink(), f"{SUMS}: expected a release that was signed"),
    "a signature that is no base64": (lambda folder: (folder / SIGNATURE).write_text("-"), "expected base64"),
    "an envelope that is none": (lambda folder: (folder / ENVELOPE).write_text("[]"), "expected a DSSE envelope"),
    "the checksums": (lambda folder: (folder / SUMS).write_text(f"{'0' * 64}  {MANIFESTS}\n"), SUMS),
    "the signature": (lambda folder: (folder / SIGNATURE).write_bytes(base64.b64encode(bytes(64))), SUMS),
    "the statement": (spoil_statement, STATEMENT),
    "the envelope": (spoil_envelope, ENVELOPE),
    "another signer": (lambda folder: seal_with(folder, Ed25519PrivateKey.generate()), SUMS),
}


def test_the_version_and_the_commit_are_those_that_are_expected(release: Path) -> None:
    assert verify(release, PUBLIC, version="0.1.0", commit="c" * 40)
    with pytest.raises(VerificationError, match=r"expected the version 0\.1\.1, got 0\.1\.0"):
        verify(release, PUBLIC, version="0.1.1")
    with pytest.raises(VerificationError, match="expected the commit dddd"):
        verify(release, PUBLIC, commit="d" * 40)


@pytest.mark.parametrize("key", [b"", b"-----BEGIN PUBLIC KEY-----\n!\n-----END PUBLIC KEY-----\n"])
def test_what_is_no_public_key_is_said(release: Path, key: bytes) -> None:
    with pytest.raises(VerificationError, match="expected an Ed25519 public key in PEM"):
        verify(release, key)


def test_an_unsigned_release_is_refused_in_one_line(release: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    (release / SIGNATURE).unlink()
    key = tmp_path_factory.mktemp("keys") / "release.pub"
    key.write_bytes(PUBLIC)
    command = [sys.executable, "-m", "tools.release", "--out", str(release), "--verify", str(key)]
    done = subprocess.run(command, cwd=TREE, capture_output=True, text=True, check=False)
    said = "SHA256SUMS.sig: expected a release that was signed (make release KEY=...), got none\n"
    assert (done.returncode, done.stdout, done.stderr) == (1, "", f"{release}: {said}")


@pytest.mark.parametrize("what", SPOILT)
def test_a_spoilt_release_does_not_verify(release: Path, what: str) -> None:
    spoil, named = SPOILT[what]
    spoil(release)
    with pytest.raises(VerificationError, match=named.replace(".", r"\.")):
        verify(release, PUBLIC)
