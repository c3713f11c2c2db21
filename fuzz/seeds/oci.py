"""Seeds of the ``oci`` provider."""

from __future__ import annotations

import json
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import ExtendedKeyUsageOID

from fuzz.keys import authority, certificate, pem_of
from nodeattest_providers import canonical_json
from nodeattest_providers.oci.protocol import OciEvidence

__all__ = ["seeds"]

_INSTANCE: Final = "ocid1.instance.oc1.phx.anyhqlj"
_TENANCY: Final = "ocid1.tenancy.oc1..aaaaaaaa"
_COMPARTMENT: Final = "ocid1.compartment.oc1..aaaaaaaa"
_MODULUS: Final = (1 << 2047) + 1
"""Of no key: a certificate's reader does not use it."""


def _identity() -> bytes:
    key = rsa.RSAPublicNumbers(65537, _MODULUS).public_key()
    units = ("certtype:instance", f"compartment:{_COMPARTMENT}", f"instance:{_INSTANCE}", f"tenant:{_TENANCY}")
    subject = [(x509.NameOID.COMMON_NAME, _INSTANCE)]
    subject += [(x509.NameOID.ORGANIZATIONAL_UNIT_NAME, f"opc-{unit}") for unit in units]
    usage = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.CLIENT_AUTH])
    made = certificate(subject, key, (usage, False))  # pyright: ignore[reportArgumentType] - an RSA key is signed as well
    return made.public_bytes(Encoding.DER)


def seeds() -> dict[str, list[bytes]]:
    """Return seeds by target."""
    identity = _identity()
    intermediate = authority().public_bytes(Encoding.DER)
    evidence = OciEvidence(certificate=identity, intermediates=(intermediate,), signature=bytes(256))
    policy = {"tenancies": [_TENANCY], "compartments": [_COMPARTMENT, _TENANCY]}
    return {
        "oci-evidence": [canonical_json.dumps(evidence.to_json())],
        "oci-certificate": [identity],
        "oci-provider-id": [f"oci://{_INSTANCE}".encode()],
        "oci-trust-bundle": [pem_of(authority())],
        "oci-policy": [json.dumps(policy).encode()],
        "oci-configuration": [b'{"trustBundle":"/etc/nodeattest/oci-roots.pem"}'],
    }
