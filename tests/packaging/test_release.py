"""A release: its checksums, provenance and signatures, and every way in which one must not verify."""

from __future__ import annotations

import base64
import json
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


def spoil_statement(folder: Path) -> None:
    (folder / STATEMENT).write_text((folder / STATEMENT).read_text().replace("cccc", "dddd", 1))


def spoil_envelope(folder: Path) -> None:
    envelope = json.loads((folder / ENVELOPE).read_text())
    envelope["payload"] = base64.b64encode(base64.b64decode(envelope["payload"]).replace(b"cccc", b"dddd")).decode()
    (folder / ENVELOPE).write_text(json.dumps(envelope))


def spoil_artefact(folder: Path) -> None:
    with (folder / MANIFESTS).open("ab") as file:
        file.write(b"\n")


SPOILT: dict[str, tuple[Callable[[Path], object], str]] = {
    "an artefact": (spoil_artefact, MANIFESTS),
    "a file more": (lambda folder: (folder / "more.whl").write_text(""), "the files that"),
    "a file less": (lambda folder: (folder / MANIFESTS).unlink(), "the files that"),
    "the checksums": (lambda folder: (folder / SUMS).write_text(f"{'0' * 64}  {MANIFESTS}\n"), SUMS),
    "the signature": (lambda folder: (folder / SIGNATURE).write_bytes(base64.b64encode(bytes(64))), SUMS),
    "the statement": (spoil_statement, STATEMENT),
    "the envelope": (spoil_envelope, ENVELOPE),
    "another signer": (lambda folder: seal_with(folder, Ed25519PrivateKey.generate()), SUMS),
}


@pytest.mark.parametrize("what", SPOILT)
def test_a_spoilt_release_does_not_verify(release: Path, what: str) -> None:
    spoil, named = SPOILT[what]
    spoil(release)
    with pytest.raises(VerificationError, match=named.replace(".", r"\.")):
        verify(release, PUBLIC)
