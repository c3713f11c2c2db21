"""Checksums of a folder of artefacts, their provenance, and a signature over both.

``SHA256SUMS`` lists every artefact and ``provenance.json``, an in-toto statement with the SLSA provenance predicate.
``SHA256SUMS.sig`` is a detached Ed25519 signature. docs/install.md verifies them by openssl and sha256sum.
Source: https://slsa.dev/spec/v1.0/provenance, https://github.com/in-toto/attestation (Statement v1).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import load_pem_private_key

SUMS: Final = "SHA256SUMS"
SIGNATURE: Final = "SHA256SUMS.sig"
STATEMENT: Final = "provenance.json"
_BUILD_TYPE: Final = "https://nodeattest.x-k8s.io/release/v1"
_BUILDER: Final = "https://nodeattest.x-k8s.io/make-release"


def private_key(pem: bytes) -> Ed25519PrivateKey:
    """Read the key that signs. Raises SystemExit for any other key."""
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
    """Write the provenance and the checksums; with a key, sign the checksums."""
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
    (folder / STATEMENT).write_text(json.dumps(statement, indent=1), encoding="utf-8")
    lines = [f"{digest}  {name}\n" for name, digest in {**digests, STATEMENT: _digest(folder / STATEMENT)}.items()]
    (folder / SUMS).write_text("".join(lines), encoding="utf-8")
    if key is not None:
        (folder / SIGNATURE).write_bytes(key.sign("".join(lines).encode()))


def _artefacts(folder: Path) -> list[str]:
    return sorted(file.relative_to(folder).as_posix() for file in folder.rglob("*") if file.is_file())


def _digest(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()
