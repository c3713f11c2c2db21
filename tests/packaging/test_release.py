"""A release: its checksums, provenance and signatures, and every way in which one must not verify."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat
from needs import not_possible
from released import released

from nodeattest_providers import __version__
from nodeattest_providers.build_commit import of_checkout
from tools.release.artefacts import KINDS
from tools.release.provenance import ENVELOPE, SIGNATURE, STATEMENT, SUMS, VerificationError, seal, verify

TREE = Path(__file__).parents[2]
GIT = shutil.which("git") or "git"
KEY = Ed25519PrivateKey.generate()
PUBLIC = KEY.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
MANIFESTS = "nodeattest-manifests-0.1.0.tar"


@pytest.fixture
def release(tmp_path: Path) -> Path:
    KINDS["manifests"](tmp_path)
    seal_with(tmp_path, KEY)
    return tmp_path


def seal_with(folder: Path, key: Ed25519PrivateKey) -> None:
    seal(folder, version="0.1.0", commit="c" * 40, locks={"requirements.lock": TREE / "requirements.lock"}, key=key)


def test_a_signed_release_verifies_and_names_its_artefacts(release: Path) -> None:
    assert list(verify(release, PUBLIC)) == [MANIFESTS]
    statement = json.loads((release / STATEMENT).read_text())
    assert statement["_type"] == "https://in-toto.io/Statement/v1"
    assert statement["predicateType"] == "https://slsa.dev/provenance/v1"
    [commit, lock] = statement["predicate"]["buildDefinition"]["resolvedDependencies"]
    assert commit["digest"] == {"gitCommit": "c" * 40}
    assert lock["uri"] == "file:requirements.lock"


def verified_without_a_checkout(
    folder: Path, key: bytes, work: Path, *, version: str = "0.1.0", commit: str = "c" * 40
) -> subprocess.CompletedProcess[str]:
    """Run the commands of docs/install.md beside the key."""
    page = (TREE / "docs" / "install.md").read_text()
    script = page.partition("::test_openssl_and_sha256sum_verify_without_a_checkout -->\n```sh\n")[2].partition("```")[
        0
    ]
    work.mkdir()
    (work / "release.pub").write_bytes(key)
    shutil.copytree(folder, work / "dist")
    variables = {"PATH": os.environ["PATH"], "VERSION": version, "COMMIT": commit}
    command = ["/bin/sh", "-e", "-c", script]
    return subprocess.run(command, cwd=work / "dist", env=variables, capture_output=True, text=True, check=False)


def test_openssl_and_sha256sum_verify_without_a_checkout(
    release: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    work = tmp_path_factory.mktemp("verified")
    done = verified_without_a_checkout(release, PUBLIC, work / "release")
    assert (done.returncode, done.stdout.splitlines()[0]) == (0, "Signature Verified Successfully")
    for number, pins in enumerate(({"version": "0.1.1"}, {"commit": "d" * 40}, {"version": ""}, {"commit": "c" * 39})):
        assert verified_without_a_checkout(release, PUBLIC, work / f"old-{number}", **pins).returncode == 1, pins
    spoil_artefact(release)
    spoilt = verified_without_a_checkout(release, PUBLIC, work / "spoilt")
    assert (spoilt.returncode, f"{MANIFESTS}: FAILED" in spoilt.stdout) == (1, True)
    sums = (release / SUMS).read_text().splitlines()
    (release / SUMS).write_text("\n".join(line for line in sums if MANIFESTS not in line) + "\n")
    assert "Signature Verification Failure" in verified_without_a_checkout(release, PUBLIC, work / "less").stdout


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A clone of this checkout's commit."""
    clone = tmp_path / "checkout"
    subprocess.run([GIT, "clone", "--quiet", "--shared", TREE, clone], check=True, capture_output=True)
    return clone


def make(checkout: Path, *words: str | Path) -> subprocess.CompletedProcess[str]:
    """Make the manifests' part of a release in a checkout."""
    folders = ["parsing", "providers", "kube", "serving", "discovery", "identity"]
    folders += ["authenticator", "controller", "sandbox", "cli"]
    variables = {**os.environ, "PYTHONPATH": ":".join(str(checkout / name) for name in folders)}
    command = [sys.executable, "-m", "tools.release", "--only", "manifests", *words]
    return subprocess.run(command, cwd=checkout, env=variables, capture_output=True, text=True, check=False)


def committed(checkout: Path) -> None:
    identity = ["-c", "user.name=test", "-c", "user.email=test@localhost"]
    subprocess.run([GIT, *identity, "commit", "--quiet", "--all", "-m", "a change"], cwd=checkout, check=True)


def test_a_release_is_made_of_a_commit_and_into_an_empty_folder(checkout: Path, tmp_path: Path) -> None:
    out = tmp_path / "dist"
    (checkout / "controller" / "more.py").write_text("")
    refused = make(checkout, "--out", out)
    assert (
        refused.stderr
        == "expected a commit without changes, got 1, such as controller/more.py: commit or remove them\n"
    )
    (checkout / "controller" / "more.py").unlink()
    key = tmp_path / "release.pem"
    key.write_text("")
    assert "expected an Ed25519 private key" in make(checkout, "--out", out, "--key", key).stderr
    assert not out.exists()
    key.write_bytes(KEY.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    made = make(checkout, "--out", out, "--key", key)
    assert made.returncode == 0, made.stderr
    commit = subprocess.run([GIT, "rev-parse", "HEAD"], cwd=TREE, capture_output=True, text=True, check=True).stdout
    assert f"commit {commit.strip()}, 5 files, 0 MiB, signed" in made.stdout
    assert list(verify(out, PUBLIC, commit=commit.strip())) == [MANIFESTS]
    assert "expected an empty folder" in make(checkout, "--out", out).stderr


def test_nothing_is_sealed_if_the_checkout_changes_meanwhile(checkout: Path, tmp_path: Path) -> None:
    writer = checkout / "tools" / "release" / "archive.py"
    changing = "    Path(__file__).with_name('more.py').touch()\n    held = io.BytesIO()"
    writer.write_text(writer.read_text().replace("    held = io.BytesIO()", changing))
    committed(checkout)
    made = make(checkout, "--out", tmp_path / "dist")
    assert (made.returncode, "such as tools/release/more.py" in made.stderr) == (1, True), made.stderr
    assert not (tmp_path / "dist" / SUMS).exists()


def test_the_release_under_test_is_of_this_commit_and_what_is_made_again_is_the_same(tmp_path: Path) -> None:
    """Packages and image are made again in tests/packaging/test_node_packages.py and tests/images."""
    if not (sums := released(SUMS)):
        not_possible("NODEATTEST_DIST names no release")
    folder = sums[0].parent
    key = Path(os.environ["NODEATTEST_RELEASE_KEY"])
    stated = verify(folder, key.read_bytes(), version=__version__, commit=of_checkout())
    kinds = {"whl", "txt", "deb", "rpm", "gz", "tgz", "tar", "json", "yaml"}
    assert {name.rpartition(".")[2] for name in stated} == kinds
    done = verified_without_a_checkout(
        folder, key.read_bytes(), tmp_path / "verified", version=__version__, commit=of_checkout()
    )
    assert done.returncode == 0, done.stdout
    again = tmp_path / "again"
    again.mkdir()
    for kind in KINDS.keys() - {"packages", "image"}:
        KINDS[kind](again)
    made = {file.relative_to(again).as_posix(): file.read_bytes() for file in again.rglob("*") if file.is_file()}
    assert len(made) > len(KINDS)
    for name, content in made.items():
        assert hashlib.sha256(content).hexdigest() == stated[name], name


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


@pytest.mark.parametrize("what", SPOILT)
def test_a_spoilt_release_does_not_verify(release: Path, what: str) -> None:
    spoil, named = SPOILT[what]
    spoil(release)
    with pytest.raises(VerificationError, match=named.replace(".", r"\.")):
        verify(release, PUBLIC)
