"""A release: its checksums, provenance and signature, and what must not verify."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat
from needs import not_possible, released

from nodeattest_providers import __version__
from nodeattest_providers.version import of_checkout
from tools.release.artefacts import KINDS
from tools.release.provenance import STATEMENT, SUMS, seal

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


def test_the_provenance_names_commit_locks_and_artefacts(release: Path) -> None:
    statement = json.loads((release / STATEMENT).read_text())
    assert statement["_type"] == "https://in-toto.io/Statement/v1"
    assert statement["predicateType"] == "https://slsa.dev/provenance/v1"
    assert [subject["name"] for subject in statement["subject"]] == [MANIFESTS]
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
    with (release / MANIFESTS).open("ab") as file:
        file.write(b"\n")
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
    assert f"commit {commit.strip()}, 4 files, 0 MiB, signed" in made.stdout
    done = verified_without_a_checkout(out, PUBLIC, tmp_path / "verified", version=__version__, commit=commit.strip())
    assert done.returncode == 0, done.stdout
    assert "expected an empty folder" in make(checkout, "--out", out).stderr


def test_nothing_is_sealed_if_the_checkout_changes_meanwhile(checkout: Path, tmp_path: Path) -> None:
    writer = checkout / "images" / "controller.py"
    changing = "    Path(__file__).with_name('more.py').touch()\n    packed = io.BytesIO()"
    writer.write_text(writer.read_text().replace("    packed = io.BytesIO()", changing))
    committed(checkout)
    made = make(checkout, "--out", tmp_path / "dist")
    assert (made.returncode, "such as images/more.py" in made.stderr) == (1, True), made.stderr
    assert not (tmp_path / "dist" / SUMS).exists()


def test_the_release_under_test_is_of_this_commit_and_what_is_made_again_is_the_same(tmp_path: Path) -> None:
    """Packages and image are made again in tests/packaging/test_node_packages.py and tests/images."""
    if not (sums := released(SUMS)):
        not_possible("NODEATTEST_DIST names no release")
    folder = sums[0].parent
    key = Path(os.environ["NODEATTEST_RELEASE_KEY"])
    stated = {name: digest for digest, _, name in (line.partition("  ") for line in sums[0].read_text().splitlines())}
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
