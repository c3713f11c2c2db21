"""Records joins with real software TPMs: ``python tests/vectors/record.py FOLDER``.

Run once for each file (``v1/README.md``). A file that is there already is never written again.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import importlib
import json
import sys
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

from cryptography.hazmat.primitives.asymmetric import ec
from recorded import Json, Recorded

from nodeattest_providers import envelope, registry
from nodeattest_providers.binding import Binding
from nodeattest_providers.errors import ChallengeRequired
from nodeattest_providers.identifiers import ClusterPin, ProviderName, Purpose, evidence_block, signer_for
from nodeattest_providers.node_interface import Attestor, Evidence, JsonValue, PublishedChallenge
from nodeattest_providers.pkcs10 import build_csr
from nodeattest_providers.platform import make_signer
from nodeattest_providers.tpm.attestor import TpmAttestor
from nodeattest_providers.tpm.endorsement_key import MACHINE_ANNOTATION
from nodeattest_sandbox.firmware import boot, crypto_agile_log, typical_boot
from nodeattest_sandbox.swtpm import SoftwareTpm

tss: Any = importlib.import_module("tpm2_pytss")  # it has no types; here it is the machine's firmware
PIN = "sha256:" + "ab" * 32
NODE, PROVIDER_ID = "node-7", "metal://rack-1/7"
BOOTSTRAP = "system:bootstrap:abcdef", ["system:bootstrappers", "system:authenticated"]
ITSELF = f"system:node:{NODE}", ["system:nodes", "system:authenticated"]


@dataclass(frozen=True, kw_only=True)
class Join:
    """What is to be recorded."""

    attestor: Attestor
    settings: Mapping[str, JsonValue] = field(default_factory=dict[str, JsonValue])
    annotations: Mapping[str, str] = field(default_factory=dict[str, str])
    secret: bytes = b""
    who: tuple[str, list[str]] = BOOTSTRAP


def record(join: Join) -> Json:
    """Go through one join as agent, API server and controller."""
    provider, now = join.attestor.provider, datetime.now(UTC).replace(microsecond=0)
    document: Json = {
        "requests": [],
        "challenge": None,
        "facts": {
            "cluster": {"name": "blue", "namespace": "fleet", "uid": str(uuid4()), "pins": [PIN]},
            "machine": {
                "name": "blue-7",
                "namespace": "fleet",
                "uid": str(uuid4()),
                "providerID": PROVIDER_ID,
                "annotations": dict(join.annotations),
                "attestationSecret": base64.b64encode(join.secret).decode() or None,
            },
            "settings": dict(join.settings),
            "challengeKeys": ["5a" * 32, "a5" * 32],
            "verifiedAt": (now + timedelta(seconds=3)).isoformat(),
        },
    }
    der = build_csr(ec.generate_private_key(ec.SECP256R1()), NODE, PROVIDER_ID)

    def file(evidence: Evidence, after: int) -> None:
        document["requests"].append(stored(der, evidence, provider, join.who, now + timedelta(seconds=after)))

    file(join.attestor.attest(_binding(der, provider)), 0)
    recorded = Recorded(document)
    if join.attestor.two_step:
        first = recorded.first
        try:
            asyncio.run(make_signer(provider).verify_client_attestation_data(first, recorded.opening))
        except ChallengeRequired as challenge:
            document["challenge"] = challenge.challenge
        published = PublishedChallenge(
            name=first.name, uid=first.uid, csr_sha256=first.csr.sha256, text=document["challenge"]
        )
        file(join.attestor.attest(_binding(der, provider), published), 2)
    node = asyncio.run(make_signer(provider).verify_client_attestation_data(recorded.last, recorded.closing))
    state = node.boot
    document["found"] = {
        "providerID": node.provider_id,
        "fingerprints": dict(node.fingerprints),
        "clock": state.clock if state else None,
        "resetCount": state.reset_count if state else None,
        "pcrDigest": state.pcr_digest if state else None,
    }
    return document


def stored(der: bytes, evidence: Evidence, provider: ProviderName, who: tuple[str, list[str]], at: datetime) -> Json:
    """Write the object as the API server keeps it."""
    return {
        "apiVersion": "certificates.k8s.io/v1",
        "kind": "CertificateSigningRequest",
        "metadata": {
            "name": f"nodeattest-{uuid4().hex}",
            "uid": str(uuid4()),
            "resourceVersion": "1",
            "creationTimestamp": at.isoformat().replace("+00:00", "Z"),
        },
        "spec": {
            "request": base64.b64encode(envelope.encode(der, evidence)).decode(),
            "signerName": signer_for(provider, Purpose.CLIENT),
            "usages": ["digital signature", "client auth"],
            "username": who[0],
            "groups": who[1],
        },
        "status": {},
    }


def _binding(der: bytes, provider: ProviderName) -> Binding:
    return Binding(
        evidence_block(provider, 1), ClusterPin(PIN), signer_for(provider, Purpose.CLIENT), hashlib.sha256(der).digest()
    )


def by_certificate(tpm: SoftwareTpm, attestor: TpmAttestor, who: tuple[str, list[str]]) -> Json:
    return record(
        Join(
            attestor=attestor,
            settings={"endorsementCAs": tpm.authority_pem},
            annotations={MACHINE_ANNOTATION: attestor.endorsement_fingerprint()},
            who=who,
        )
    )


def by_list(tpm: SoftwareTpm, attestor: TpmAttestor) -> Json:
    listed: JsonValue = [{"providerID": PROVIDER_ID, "sha256": attestor.endorsement_fingerprint()}]
    attestor.close()
    with tss.ESAPI(tpm.tcti) as esys:
        esys.pcr_event(tss.ESYS_TR.PCR16, b"what was booted")
        value = bytes(esys.pcr_read("sha256:16")[2][0]).hex()
    pcrs: JsonValue = {"selection": [0, 7, 16], "values": {"16": ["00" * 32, value]}}
    settings: Mapping[str, JsonValue] = {"endorsementKeys": listed, "pcrs": pcrs}
    return record(Join(attestor=attestor, settings=settings))


def by_log(tpm: SoftwareTpm, folder: Path) -> Json:
    measured = typical_boot("vmlinuz-1 ro")
    boot(tpm.tcti, measured)
    log = folder / "log"
    log.write_bytes(crypto_agile_log(measured))
    with TpmAttestor({"tcti": tpm.tcti, "endorsementKey": "ecc-p384", "eventLog": str(log)}) as attestor:
        listed: JsonValue = [{"providerID": PROVIDER_ID, "sha256": attestor.endorsement_fingerprint()}]
        pcrs: JsonValue = {"selection": [0, 4, 7, 8]}
        settings: Mapping[str, JsonValue] = {"endorsementKeys": listed, "pcrs": pcrs, "eventLog": "Require"}
        return record(Join(attestor=attestor, settings=settings))


def without_tpm(folder: Path) -> dict[str, Callable[[], Json]]:
    secret = b"a secret of at least thirty-two bytes, made up for this record\n"
    path = folder / "secret"
    path.write_bytes(secret)
    path.chmod(0o600)
    challenge = registry.make_attestor(ProviderName("challenge"), {"secretFile": str(path)})
    return {
        "insecure": lambda: record(Join(attestor=registry.make_attestor(ProviderName("insecure"), {}))),
        "challenge": lambda: record(Join(attestor=challenge, secret=secret)),
    }


def main(target: Path) -> None:
    with tempfile.TemporaryDirectory() as name, SoftwareTpm.create(Path(name) / "tpm", name="recorded") as tpm:
        rsa, p384 = (TpmAttestor({"tcti": tpm.tcti, "endorsementKey": kind}) for kind in ("rsa2048", "ecc-p384"))
        joins = without_tpm(Path(name)) | {
            "tpm-rsa2048-certificate": lambda: by_certificate(tpm, rsa, BOOTSTRAP),
            "tpm-p384-certificate": lambda: by_certificate(tpm, p384, ITSELF),
            "tpm-p384-listed-pcrs": lambda: by_list(tpm, p384),
            "tpm-p384-measured-boot": lambda: by_log(tpm, Path(name)),
        }
        for join, make in joins.items():
            path = target / f"{join}.json"
            if not path.exists():
                document = make()
                path.write_text(json.dumps(document, indent=1) + "\n")
            for attestor in (rsa, p384):
                attestor.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
