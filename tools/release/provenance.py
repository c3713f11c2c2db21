"""Checksums, provenance and signatures of a folder of artefacts; making and verifying them.

``SHA256SUMS`` lists every artefact and the provenance. The provenance is an in-toto statement with the SLSA provenance
predicate. With a key, it is wrapped in a DSSE envelope and ``SHA256SUMS`` gets a detached signature.
Source: https://slsa.dev/spec/v1.0/provenance, https://github.com/in-toto/attestation (Statement v1),
https://github.com/secure-systems-lab/dsse (protocol.md).
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Final, cast

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import load_pem_private_key, load_pem_public_key

SUMS: Final = "SHA256SUMS"
SIGNATURE: Final = "SHA256SUMS.sig"
STATEMENT: Final = "provenance.json"
ENVELOPE: Final = "provenance.dsse.json"
_PAYLOAD_TYPE: Final = "application/vnd.in-toto+json"
_BUILD_TYPE: Final = "https://nodeattest.x-k8s.io/release/v1"
_BUILDER: Final = "https://nodeattest.x-k8s.io/make-release"
_SEALS: Final = frozenset({SUMS, SIGNATURE, STATEMENT, ENVELOPE})


class VerificationError(Exception):
    """A release that is not what its signer wrote."""


def private_key(pem: bytes) -> Ed25519PrivateKey:
    """Read the key that signs; ends this program where it is another one."""
    try:
        key = load_pem_private_key(pem, None)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        key = None
    if not isinstance(key, Ed25519PrivateKey):
        raise SystemExit(
            "expected an Ed25519 private key in PEM without a password: openssl genpkey -algorithm ed25519"
        )
    return key


def seal(folder: Path, *, version: str, commit: str, locks: Mapping[str, Path], key: Ed25519PrivateKey | None) -> None:
    """Write the provenance and the checksums; with a key, sign both."""
    digests = {name: _digest(folder / name) for name in _artefacts(folder)}
    resolved = [{"uri": f"git+nodeattest@{commit}", "digest": {"gitCommit": commit}}]
    resolved += [{"uri": f"file:{name}", "digest": {"sha256": _digest(path)}} for name, path in sorted(locks.items())]
    statement = {
        "_type": "https://in-toto.io/Statement/v1",
        "subject": [{"name": name, "digest": {"sha256": digest}} for name, digest in digests.items()],
        "predicateType": "https://slsa.dev/provenance/v1",
        "predicate": {
            "buildDefinition": {
                "buildType": _BUILD_TYPE,
                "externalParameters": {"version": version, "commit": commit},
                "resolvedDependencies": resolved,
            },
            "runDetails": {"builder": {"id": _BUILDER}},
        },
    }
    payload = json.dumps(statement, indent=1).encode()
    (folder / STATEMENT).write_bytes(payload)
    sums = "".join(
        f"{digest}  {name}\n" for name, digest in {**digests, STATEMENT: _digest(folder / STATEMENT)}.items()
    )
    (folder / SUMS).write_text(sums, encoding="utf-8")
    if key is None:
        return
    (folder / SIGNATURE).write_bytes(base64.b64encode(key.sign(sums.encode())) + b"\n")
    envelope = {
        "payloadType": _PAYLOAD_TYPE,
        "payload": base64.b64encode(payload).decode(),
        "signatures": [{"sig": base64.b64encode(key.sign(_pre_authentication(payload))).decode()}],
    }
    (folder / ENVELOPE).write_text(json.dumps(envelope), encoding="utf-8")


def verify(folder: Path, key: bytes, *, version: str | None = None, commit: str | None = None) -> dict[str, str]:
    """Verify a signed release by the public key; returns the artefacts with their SHA-256.

    1. SHA256SUMS is signed. 2. It names every file, and each has its digest. 3. The envelope is signed, and its
    statement is the listed one. 4. The statement has the same artefacts, and the version and commit that are expected.
    """
    public = _public(key)
    present = _artefacts(folder)
    sums = _read(folder, SUMS)
    _check(public, _decoded(SIGNATURE, _read(folder, SIGNATURE)), sums, SUMS)  # 1.
    listed = {name: digest for digest, _, name in (line.partition("  ") for line in sums.decode().splitlines())}
    if {*present, STATEMENT} != listed.keys():  # 2.
        raise VerificationError(f"expected the files that {SUMS} names, got others")
    for name, digest in listed.items():
        if _digest(folder / name) != digest:
            raise VerificationError(f"{name}: expected SHA-256 {digest}")
    payload, signature = _opened(_read(folder, ENVELOPE))  # 3.
    _check(public, signature, _pre_authentication(payload), ENVELOPE)
    if payload != (folder / STATEMENT).read_bytes():
        raise VerificationError(f"{ENVELOPE}: expected the statement in {STATEMENT}, got another one")
    statement = json.loads(payload)  # 4.
    subjects = cast("list[dict[str, dict[str, str]]]", statement["subject"])
    stated = {str(one["name"]): one["digest"]["sha256"] for one in subjects}
    if stated != {name: digest for name, digest in listed.items() if name != STATEMENT}:
        raise VerificationError(f"{STATEMENT}: expected the artefacts of {SUMS}, got others")
    built = cast("dict[str, str]", statement["predicate"]["buildDefinition"]["externalParameters"])
    for name, expected in (("version", version), ("commit", commit)):
        if expected is not None and built[name] != expected:
            raise VerificationError(f"{STATEMENT}: expected the {name} {expected}, got {built[name]}")
    return stated


def _artefacts(folder: Path) -> list[str]:
    names: list[str] = []
    for file in folder.rglob("*"):
        name = file.relative_to(folder).as_posix()
        if file.is_symlink() or not (file.is_dir() or file.is_file()):
            raise VerificationError(f"{name}: expected a file or a folder, got a link or a device")
        if not file.is_dir() and name not in _SEALS:
            names.append(name)
    return sorted(names)


def _public(key: bytes) -> Ed25519PublicKey:
    try:
        public = load_pem_public_key(key)
    except (ValueError, UnsupportedAlgorithm):
        public = None
    if not isinstance(public, Ed25519PublicKey):
        raise VerificationError("expected an Ed25519 public key in PEM")
    return public


def _read(folder: Path, name: str) -> bytes:
    try:
        return (folder / name).read_bytes()
    except FileNotFoundError:
        raise VerificationError(
            f"{name}: expected a release that was signed (make release KEY=...), got none"
        ) from None


def _decoded(name: str, text: bytes | str) -> bytes:
    try:
        return base64.b64decode(text.strip(), validate=True)
    except ValueError:
        raise VerificationError(f"{name}: expected base64, got other text") from None


def _opened(envelope: bytes) -> tuple[bytes, bytes]:
    """Return payload and signature of a DSSE envelope with one signature."""
    try:
        read = json.loads(envelope)
        payload, signature = str(read["payload"]), str(read["signatures"][0]["sig"])
    except (ValueError, LookupError, TypeError, RecursionError):
        raise VerificationError(f"{ENVELOPE}: expected a DSSE envelope, got other JSON") from None
    return _decoded(ENVELOPE, payload), _decoded(ENVELOPE, signature)


def _digest(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()


def _pre_authentication(payload: bytes) -> bytes:
    kind = _PAYLOAD_TYPE.encode()
    return b"DSSEv1 %d %s %d %s" % (len(kind), kind, len(payload), payload)


def _check(public: Ed25519PublicKey, signature: bytes, signed: bytes, name: str) -> None:
    try:
        public.verify(signature, signed)
    except InvalidSignature:
        raise VerificationError(f"{name}: expected a signature by this key, got another one") from None
