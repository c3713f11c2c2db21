"""Writes the published test vectors of docs/wire-format.md; ``python tests/vectors/generate.py`` and no diff is right.

Everything is derived from constants here: keys from fixed scalars, ECDSA after RFC 6979. The formulas are written out
once more, from the document and not from the code under test, which the tests then compare with the vectors.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
from datetime import UTC, datetime
from ipaddress import ip_address
from pathlib import Path
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

FOLDER: Final = Path(__file__).parent
JSON = dict[str, object]

OID: Final = x509.ObjectIdentifier("1.3.6.1.4.1.11129.2.1.21")
KEY: Final = ec.derive_private_key(0xC0FFEE, ec.SECP256R1())
KEY_384: Final = ec.derive_private_key(0xC0FFEE, ec.SECP384R1())
CA: Final = ec.derive_private_key(0xCA, ec.SECP256R1())

CLIENT_SIGNER: Final = "cluster.x-k8s.io/kube-apiserver-client-kubelet-challenge"
FIRST_UID: Final = "5d9a3b56-2f0c-4d7e-8a61-0f6f5c1b9a11"
FIRST_NAME: Final = "node-csr-vector"


def lp(*fields: bytes) -> bytes:
    """Length-prefixed fields: four bytes big-endian, then the bytes."""
    return b"".join(len(field).to_bytes(4, "big") + field for field in fields)


def sha256(data: bytes) -> bytes:
    return hashlib.sha256(data).digest()


def hkdf(key: bytes, info: bytes) -> bytes:
    """HKDF-SHA256 (RFC 5869) without salt, 32 bytes: one block."""
    pseudo_random_key = hmac.digest(bytes(32), key, "sha256")
    return hmac.digest(pseudo_random_key, info + b"\x01", "sha256")


def b64url(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def spki(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.public_key().public_bytes(serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo)


def csr(
    key: ec.EllipticCurvePrivateKey = KEY,
    *,
    node: str = "node-0",
    provider_id: str | None = "metal:///rack-1/7",
    organizations: tuple[str, ...] = ("system:nodes",),
    sans: tuple[str, ...] = (),
    other: tuple[x509.ExtensionType, ...] = (),
) -> bytes:
    names = [x509.NameAttribute(NameOID.ORGANIZATION_NAME, name) for name in organizations]
    names.append(x509.NameAttribute(NameOID.COMMON_NAME, "system:node:" + node))
    builder = x509.CertificateSigningRequestBuilder().subject_name(x509.Name(names))
    if provider_id is not None:
        payload = provider_id.encode()
        extension = x509.UnrecognizedExtension(OID, bytes([0x0C, len(payload)]) + payload)
        builder = builder.add_extension(extension, critical=False)
    if sans:
        builder = builder.add_extension(x509.SubjectAlternativeName([_general(name) for name in sans]), critical=False)
    for extension in other:
        builder = builder.add_extension(extension, critical=True)
    algorithm = hashes.SHA384() if isinstance(key.curve, ec.SECP384R1) else hashes.SHA256()
    return builder.sign(key, algorithm, ecdsa_deterministic=True).public_bytes(serialization.Encoding.DER)


def _general(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def block(label: str, content: bytes) -> str:
    text = base64.b64encode(content).decode()
    lines = "".join(text[start : start + 64] + "\n" for start in range(0, len(text), 64))
    return f"-----BEGIN {label}-----\n{lines}-----END {label}-----\n"


def envelope(request: bytes, provider: str, data: str) -> str:
    return (
        block("CERTIFICATE REQUEST", request)
        + block("KUBELET AUTHENTICATOR ATTESTATION PROVIDER", provider.encode())
        + block("KUBELET AUTHENTICATOR ATTESTATION DATA", data.encode())
    )


def with_unused_bit() -> bytes:
    """A request whose signature ends in a bit 0 that its BIT STRING calls unused; found by fuzzing."""
    for number in range(64):
        request = csr(node=f"node-{number}")
        at = request.rindex(b"\x03", 0, len(request) - 66)
        while at + 2 + request[at + 1] != len(request) or request[at + 2] != 0:
            at = request.rindex(b"\x03", 0, at)
        if request[-1] & 1 == 0:
            return request[: at + 2] + b"\x01" + request[at + 3 :]
    raise AssertionError("64 signatures in a row end in a bit 1")


def accepted_envelopes() -> list[JSON]:
    return [
        _accepted("insecure, P-256", csr(), KEY, "insecure/v1", "{}"),
        _accepted("tpm phase 1, P-384", csr(KEY_384), KEY_384, "tpm/v1", '{"akPub":"AAE","ekPub":"AAI","phase":1}'),
        _accepted("a third party's, version 12", csr(), KEY, "acme-hsm/v12", '{"é":[1,{"a":null}],"ﬁ":"\\n"}'),
        _accepted("no provider ID", csr(provider_id=None), KEY, "insecure/v1", "{}", provider_id=""),
        _accepted(
            "serving",
            csr(sans=("node-0", "node-0.example", "10.0.0.7", "fd00::7")),
            KEY,
            "challenge/v1",
            '{"phase":1}',
            dns_names=["node-0", "node-0.example"],
            ip_addresses=["10.0.0.7", "fd00::7"],
        ),
    ]


def _accepted(
    name: str,
    request: bytes,
    key: ec.EllipticCurvePrivateKey,
    provider: str,
    data: str,
    *,
    provider_id: str = "metal:///rack-1/7",
    dns_names: list[str] | None = None,
    ip_addresses: list[str] | None = None,
) -> JSON:
    return {
        "name": name,
        "purpose": "serving" if dns_names else "client",
        "request": envelope(request, provider, data),
        "csrSha256": sha256(request).hex(),
        "spkiSha256": "sha256:" + sha256(spki(key)).hex(),
        "nodeName": "node-0",
        "providerID": provider_id,
        "dnsNames": dns_names or [],
        "ipAddresses": ip_addresses or [],
        "provider": provider.split("/v", maxsplit=1)[0],
        "version": int(provider.split("/v")[1]),
        "data": json.loads(data),
    }


def denied_envelopes() -> list[JSON]:
    good = envelope(csr(), "insecure/v1", "{}")
    first, rest = good.split("-----BEGIN KUBELET", 1)
    spoilt = bytearray(csr())
    spoilt[-1] ^= 1
    basic = x509.BasicConstraints(ca=True, path_length=None)
    rows = {
        "text before": ("x\n" + good, "EnvelopeMalformed"),
        "text after": (good + "\n", "EnvelopeMalformed"),
        "attestation first": ("-----BEGIN KUBELET" + rest + first, "EnvelopeMalformed"),
        "two requests": (first + good, "EnvelopeMalformed"),
        "header": (good.replace("REQUEST-----\n", "REQUEST-----\nX: y\n\n", 1), "EnvelopeMalformed"),
        "CRLF": (good.replace("\n", "\r\n"), "EnvelopeMalformed"),
        "NEW CERTIFICATE REQUEST": (good.replace("CERTIFICATE R", "NEW CERTIFICATE R"), "EnvelopeMalformed"),
        "the proposal's other label": (
            good.replace("KUBELET AUTHENTICATOR ATTESTATION DATA", "ATTESTATION DATA"),
            "EnvelopeMalformed",
        ),
        "no version": (envelope(csr(), "insecure", "{}"), "EnvelopeMalformed"),
        "version 01": (envelope(csr(), "insecure/v01", "{}"), "EnvelopeMalformed"),
        "space in JSON": (envelope(csr(), "insecure/v1", "{ }"), "EvidenceMalformed"),
        "duplicate key": (envelope(csr(), "insecure/v1", '{"a":1,"a":1}'), "EvidenceMalformed"),
        "unsorted keys": (envelope(csr(), "insecure/v1", '{"b":1,"a":1}'), "EvidenceMalformed"),
        "float": (envelope(csr(), "insecure/v1", '{"a":1.0}'), "EvidenceMalformed"),
        "beyond int64": (envelope(csr(), "insecure/v1", '{"a":9223372036854775808}'), "EvidenceMalformed"),
        "needless escape": (envelope(csr(), "insecure/v1", '{"a":"\\u00e9"}'), "EvidenceMalformed"),
        "nine levels": (envelope(csr(), "insecure/v1", '{"a":' + "[" * 8 + "]" * 8 + "}"), "EvidenceMalformed"),
        "wrong signature": (envelope(bytes(spoilt), "insecure/v1", "{}"), "CSRSignatureInvalid"),
        "trailing byte": (envelope(csr() + b"\0", "insecure/v1", "{}"), "CSRMalformed"),
        "unused bit in the signature": (envelope(with_unused_bit(), "insecure/v1", "{}"), "CSRMalformed"),
        "two organizations": (
            envelope(csr(organizations=("system:nodes", "system:masters")), "insecure/v1", "{}"),
            "SubjectNotAllowed",
        ),
        "upper-case node name": (envelope(csr(node="Node-0"), "insecure/v1", "{}"), "NodeNameInvalid"),
        "SAN in a client request": (envelope(csr(sans=("node-0",)), "insecure/v1", "{}"), "ExtensionNotAllowed"),
        "CA": (envelope(csr(other=(basic,)), "insecure/v1", "{}"), "ExtensionNotAllowed"),
        "empty provider ID": (envelope(csr(provider_id=""), "insecure/v1", "{}"), "ProviderIDInvalid"),
        "P-521": (
            envelope(csr(ec.derive_private_key(0xC0FFEE, ec.SECP521R1())), "insecure/v1", "{}"),
            "KeyNotAllowed",
        ),
    }
    return [{"name": name, "request": request, "reason": reason} for name, (request, reason) in rows.items()]


def binding(evidence: str, signer: str, csr_sha256: bytes, pin: str) -> bytes:
    return sha256(lp(b"nodeattest/v1/binding", evidence.encode(), pin.encode(), signer.encode(), csr_sha256))


def cluster_pin() -> str:
    return "sha256:" + sha256(spki(CA)).hex()


def bindings() -> list[JSON]:
    signers = (("challenge/v1", CLIENT_SIGNER), ("tpm/v1", "cluster.x-k8s.io/kubelet-serving-tpm"))
    return [
        {
            "clusterCASpki": spki(CA).hex(),
            "clusterPin": cluster_pin(),
            "evidence": evidence,
            "signerName": signer,
            "csrSha256": sha256(csr()).hex(),
            "binding": binding(evidence, signer, sha256(csr()), cluster_pin()).hex(),
        }
        for evidence, signer in signers
    ]


def challenge_exchange() -> JSON:
    """One whole exchange of challenge/v1."""
    master_key, secret = bytes(range(32)), bytes(range(100, 132))
    created = datetime(2026, 3, 1, 12, 0, 0, tzinfo=UTC)
    first = envelope(csr(), "challenge/v1", '{"phase":1}')
    context = lp(
        b"0b9c5a53-cluster",
        FIRST_UID.encode(),
        sha256(first.encode()),
        b"system:bootstrap:abcdef",
        b"77d1e2c4-machine",
        str(int(created.timestamp())).encode(),
    )
    nonce = hkdf(master_key, lp(b"nodeattest/v1/nonce") + context)
    digest = binding("challenge/v1", CLIENT_SIGNER, sha256(csr()), cluster_pin())
    mac = hmac.digest(secret, lp(b"nodeattest/v1/challenge", nonce, FIRST_UID.encode(), digest), "sha256")
    reference = f'"first":{{"name":"{FIRST_NAME}","uid":"{FIRST_UID}"}}'
    second = envelope(csr(), "challenge/v1", f'{{{reference},"mac":"{b64url(mac)}","phase":2}}')
    key = f"sha256:{sha256(spki(KEY)).hex()}"
    return {
        "masterKey": master_key.hex(),
        "machineSecret": secret.hex(),
        "secretFingerprint": "sha256:" + sha256(lp(b"nodeattest/v1/challenge-secret", secret)).hex(),
        "clusterUID": "0b9c5a53-cluster",
        "machineUID": "77d1e2c4-machine",
        "clusterPin": cluster_pin(),
        "signerName": CLIENT_SIGNER,
        "username": "system:bootstrap:abcdef",
        "firstName": FIRST_NAME,
        "firstUID": FIRST_UID,
        "firstCreated": created.isoformat().replace("+00:00", "Z"),
        "firstRequest": first,
        "context": context.hex(),
        "nonce": nonce.hex(),
        "challenge": f'{{"n":"{b64url(nonce)}","spki":"{key}","uid":"{FIRST_UID}","v":1}}',
        "binding": digest.hex(),
        "mac": mac.hex(),
        "secondRequest": second,
    }


def fuzz_corpus() -> dict[str, bytes]:
    """Seeds by parser; files that a fuzzer or a bug adds stay beside them."""
    good = csr()
    texts = (b"{}", b'{"a":' * 2000, b'{"a":1e9999}', b'{"a":"\\ud800"}', b"\xff\xfe{\0}\0", b'{"a":-' + b"9" * 5000)
    envelopes = [*accepted_envelopes(), *denied_envelopes()]
    seeds = {f"canonical/{index:02}": text for index, text in enumerate(texts)}
    seeds |= {f"csr/cut-{size:03}": good[:size] for size in (0, 1, 2, 5, 30, 90, 200, len(good) - 1)}
    seeds |= {f"csr/zero-{at:03}": good[:at] + b"\0" + good[at + 1 :] for at in range(0, len(good), 23)}
    seeds |= {f"csr/long-{at:03}": good[:at] + b"\x84\xff\xff\xff\xff" + good[at + 1 :] for at in range(1, 120, 17)}
    seeds |= {f"envelope/{index:02}": str(row["request"]).encode() for index, row in enumerate(envelopes)}
    return {f"fuzz/{name}": seed for name, seed in seeds.items()}


def files() -> dict[str, bytes]:
    """Contents by path under this folder."""
    documents: dict[str, object] = {
        "envelope.json": {"accepted": accepted_envelopes(), "denied": denied_envelopes()},
        "binding.json": bindings(),
        "challenge.json": challenge_exchange(),
    }
    written = {
        name: (json.dumps(document, indent=2, ensure_ascii=False) + "\n").encode()
        for name, document in documents.items()
    }
    return written | fuzz_corpus()


def main() -> None:
    for name, content in files().items():
        path = FOLDER / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)


if __name__ == "__main__":
    main()
