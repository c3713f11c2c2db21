"""Seeds of the wire format."""

from __future__ import annotations

from ipaddress import ip_address
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import NameOID

from fuzz.keys import NODE_KEY
from nodeattest_providers import canonical_json, envelope
from nodeattest_providers.canonical_json import b64encode
from nodeattest_providers.names import PROVIDER_ID_OID, ProviderName
from nodeattest_providers.node_interface import Evidence, JsonObject

__all__ = ["HASH", "UID", "filed", "kubelets_request", "request", "seeds"]

UID: Final = "5d9a3b56-2f0c-4d7e-8a61-0f6f5c1b9a11"
HASH: Final = "sha256:" + "ab" * 32


def request(*names: x509.GeneralName, has_provider_id: bool = True) -> bytes:
    """Write a sound PKCS#10 request; with names, one for a serving certificate."""
    subject = [
        x509.NameAttribute(NameOID.ORGANIZATION_NAME, "system:nodes"),
        x509.NameAttribute(NameOID.COMMON_NAME, "system:node:node-0"),
    ]
    provider_id = x509.UnrecognizedExtension(x509.ObjectIdentifier(PROVIDER_ID_OID), b"\x0c\x08metal://")
    builder = x509.CertificateSigningRequestBuilder().subject_name(x509.Name(subject))
    if has_provider_id:
        builder = builder.add_extension(provider_id, critical=False)
    if names:
        builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
    return builder.sign(NODE_KEY, hashes.SHA256(), ecdsa_deterministic=True).public_bytes(Encoding.DER)


def kubelets_request() -> bytes:
    """Write what kubelet itself files for its serving certificate."""
    subject = [
        x509.NameAttribute(NameOID.ORGANIZATION_NAME, "system:nodes"),
        x509.NameAttribute(NameOID.COMMON_NAME, "system:node:node-0"),
    ]
    names = x509.SubjectAlternativeName([x509.DNSName("node-0"), x509.IPAddress(ip_address("10.0.0.7"))])
    builder = x509.CertificateSigningRequestBuilder().subject_name(x509.Name(subject))
    signed = builder.add_extension(names, critical=False).sign(NODE_KEY, hashes.SHA256(), ecdsa_deterministic=True)
    return signed.public_bytes(Encoding.DER)


def filed(provider: str = "insecure", data: JsonObject | None = None) -> bytes:
    """Write a sound envelope."""
    return envelope.encode(request(), Evidence(ProviderName(provider), 1, data or {}))


def seeds() -> dict[str, list[bytes]]:
    """Return seeds by target."""
    answer: JsonObject = {"first": {"name": "node-csr-0", "uid": UID}, "mac": b64encode(bytes(32)), "phase": 2}
    challenge: JsonObject = {"n": b64encode(bytes(32)), "spki": HASH, "uid": UID, "v": 1}
    parts: JsonObject = {"challenge": {"data": {"phase": 1}, "v": 1}, "tpm": {"data": {"ekPub": "AA"}, "v": 1}}
    together: JsonObject = {"first": {"name": "node-csr-0", "uid": UID}, "parts": parts, "phase": 2}
    serving = request(
        x509.DNSName("node-0"), x509.IPAddress(ip_address("10.0.0.7")), x509.IPAddress(ip_address("fd::7"))
    )
    return {
        "envelope": [filed(), filed("challenge", answer)],
        "pem": [filed(), filed().replace(b"\n", b"\r\n"), b"-----BEGIN CERTIFICATE REQUEST-----\n"],
        "csr": [request(), serving, kubelets_request(), request(has_provider_id=False)],
        "der": [
            *(
                bytes.fromhex(text)
                for text in ("30060201000c0141", "3100", "a000", "0403414243", "0302000f", "02020080")
            ),
            *(bytes.fromhex(text) for text in ("0603551d11", "06028001", "0c8141" + "41" * 65, "30800000", "020100")),
        ],
        "canonical": [canonical_json.dumps(answer), '{"é":[1,{"a":null}],"ﬁ":"\\n"}'.encode()],
        "challenge-evidence": [canonical_json.dumps({"phase": 1}), canonical_json.dumps(answer), b'{"phase":true}'],
        "composite-evidence": [canonical_json.dumps({"parts": parts, "phase": 1}), canonical_json.dumps(together)],
        "composite-challenge": [b"{}", canonical_json.dumps({"challenge": canonical_json.dumps(challenge).decode()})],
        "versions": [b"tpm/v2,tpm/v1", b"tpm/v1", b"tpm/v1,tpm/v2", b"tpm/v01", b"tpm/v" + b"9" * 5000],
        "provider-id-template": [
            b"vsphere://{dmi:product_serial}",
            b"metal3://'{cloud-init:ds.meta_data.providerid}'",
            b'openstack:///"875fd7a2"\\\'',
            b"x://{{ ds.meta_data.uuid }}",
        ],
        "challenge-challenge": [canonical_json.dumps(challenge)],
    }
