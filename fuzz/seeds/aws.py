"""Seeds of the ``aws`` provider."""

from __future__ import annotations

import json
from datetime import timedelta

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicNumbers
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import NameOID

from fuzz.keys import AUTHORITY_KEY, NOW
from fuzz.seeds import aws_node
from fuzz.seeds.signed import documents
from nodeattest_providers import canonical_json
from nodeattest_providers.aws.protocol import SIGNED_HEADERS, AwsEvidence, SignedHeaders

__all__ = ["seeds"]

_INSTANCE = "i-0123456789abcdef0"
_ACCOUNT = "123456789012"
_HEADERS = SignedHeaders(
    authorization="AWS4-HMAC-SHA256 Credential=ASIAEXAMPLEEXAMPLE00/20260301/us-east-1/sts/aws4_request, "
    f"SignedHeaders={';'.join(SIGNED_HEADERS)}, Signature={'ab' * 32}",
    date="20260301T120000Z",
    security_token="FwoGZXIvYXdzEXAMPLE//////////wEaDEXAMPLE=",  # noqa: S106 - made up
)
_DOCUMENT = {
    "accountId": _ACCOUNT,
    "availabilityZone": "us-east-1a",
    "billingProducts": None,
    "imageId": "ami-12c6146b",
    "instanceId": _INSTANCE,
    "pendingTime": "2026-03-01T11:00:00Z",
    "privateIp": "10.0.0.1",
    "region": "us-east-1",
}


def _certificate() -> str:
    """Certify an RSA key by the fixed authority; nobody has its private part."""
    key = RSAPublicNumbers(65537, (1 << 2048) - 1942289).public_key()
    name = x509.Name([x509.NameAttribute(NameOID.ORGANIZATION_NAME, "Sandbox Web Services")])
    builder = x509.CertificateBuilder(name, name, key, 1, NOW, NOW + timedelta(days=36500))
    made = builder.sign(AUTHORITY_KEY, hashes.SHA256(), ecdsa_deterministic=True)
    return made.public_bytes(Encoding.PEM).decode()


def _streamed(der: bytes) -> bytes:
    """Give the outermost element an indefinite length."""
    header = 2 if der[1] < 0x80 else 2 + der[1] - 0x80
    return b"\x30\x80" + der[header:] + b"\0\0"


def seeds() -> dict[str, list[bytes]]:
    """Return seeds by target."""
    document = json.dumps(_DOCUMENT, indent=2).encode()
    signed = documents(document)
    evidence = AwsEvidence(document=document, pkcs7=signed[1], region="us-east-1", sts=_HEADERS)
    arn = f"arn:aws:sts::{_ACCOUNT}:assumed-role/nodes/{_INSTANCE}"
    identity = {"Account": _ACCOUNT, "Arn": arn, "UserId": f"AROAEXAMPLE:{_INSTANCE}"}
    answer = {"GetCallerIdentityResponse": {"GetCallerIdentityResult": identity}}
    refusal = {"Error": {"Code": "SignatureDoesNotMatch", "Message": "Signature expired: …", "Type": "Sender"}}
    policy = {"accounts": [_ACCOUNT], "regions": ["us-east-1"], "roles": ["nodes"], "tags": {"a": "b"}}
    configuration = {
        "trustBundle": "/etc/nodeattest/aws-trust.json",
        "endpoints": {"sts": "https://sts.example:443"},
        "assumeRoles": {_ACCOUNT: f"arn:aws:iam::{_ACCOUNT}:role/reader"},
    }
    return {
        "aws-evidence": [canonical_json.dumps(evidence.to_json())],
        "aws-header-set": [f"{_HEADERS.authorization}\n{_HEADERS.date}\n{_HEADERS.security_token}".encode()],
        "aws-identity-document": [document],
        "aws-sts-answer": [json.dumps(answer).encode(), json.dumps(refusal).encode()],
        "aws-provider-id": [f"aws:///us-east-1a/{_INSTANCE}".encode(), b"aws:///us-west-2-lax-1a/i-01234567"],
        "aws-ber": [*signed, _streamed(signed[1])],
        "aws-trust-bundle": [json.dumps({"us-east-1": _certificate()}).encode()],
        "aws-policy": [json.dumps(policy | {"vpcs": ["vpc-01234567"]}).encode()],
        "aws-configuration": [json.dumps(configuration).encode(), b"{}"],
    } | aws_node.seeds()
