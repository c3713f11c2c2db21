"""Seeds of the ``gcp`` provider."""

from __future__ import annotations

import json

from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from fuzz.gcp import PLACE
from fuzz.keys import TPM_KEY
from fuzz.seeds import tpm

__all__ = ["seeds"]

_INSTANCE = {
    "id": "4520031799277582759",
    "name": PLACE.name,
    "zone": f"https://www.googleapis.com/compute/v1/projects/{PLACE.project}/zones/{PLACE.zone}",
    "status": "RUNNING",
    "hostname": "node-7.example.com",
    "labels": {"capg-cluster-blue": "owned"},
    "serviceAccounts": [{"email": "nodes@fleet-project.iam.gserviceaccount.com"}],
    "shieldedInstanceConfig": {"enableSecureBoot": True, "enableVtpm": True, "enableIntegrityMonitoring": False},
    "networkInterfaces": [
        {"networkIP": "10.0.0.2", "accessConfigs": [{"natIP": "198.51.100.1"}]},
        {
            "ipv6Address": "FD20::1",
            "ipv6AccessType": "INTERNAL",
            "ipv6AccessConfigs": [{"externalIpv6": "2001:db8::7"}],
        },
    ],
}


def _text(value: object) -> bytes:
    return json.dumps(value).encode()


def seeds() -> dict[str, list[bytes]]:
    """Return seeds by target."""
    key = TPM_KEY.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo).decode()
    entry = {"ekPub": key, "ekCert": ""}
    executable = {"executable": {"command": "/bin/true"}}
    return {
        "gcp-evidence": tpm.seeds()["tpm-evidence"],
        "gcp-provider-id": [
            PLACE.provider_id.encode(),
            b"gce://example.com:old-one/us-central1-f/a",
            b"gce://fleet-project/europe-west4-a/..",
        ],
        "gcp-instances": [
            _text({"items": [_INSTANCE], "nextPageToken": "1"}),
            _text({"items": [{key: _INSTANCE[key] for key in ("id", "name", "zone", "status")}]}),
            b"{}",
        ],
        "gcp-identity": [
            _text({"kind": "compute#shieldedInstanceIdentity", "encryptionKey": entry, "signingKey": entry}),
            _text({"eccP256EncryptionKey": entry}),
            b"{}",
        ],
        "gcp-credentials": [
            _text(
                {"type": "service_account", "client_email": "a@b", "token_uri": "https://oauth2.googleapis.com/token"}
            ),
            _text({"type": "external_account", "credential_source": {"file": "/var/run/token"}}),
            _text({"type": "external_account", "credential_source": {"environment_id": "aws1"}}),
            _text({"type": "external_account", "credential_source": executable}),
        ],
        "gcp-policy": [*map(_text, _policies())],
        "gcp-configuration": [
            b"{}",
            _text({"endpoints": {"compute": "https://[::1]:8443/"}, "proxy": "http://proxy.example:3128"}),
            _text({"endpoints": {"compute": "http://compute.googleapis.com"}}),
        ],
    }


def _policies() -> list[object]:
    whole = {
        "projects": ["fleet-project", "example.com:old-one"],
        "zones": ["europe-west4-a"],
        "regions": ["us-central1"],
        "labels": {"capg-cluster-blue": "owned"},
        "serviceAccounts": ["nodes@fleet-project.iam.gserviceaccount.com"],
        "requireSecureBoot": True,
        "requireIntegrityMonitoring": False,
        "pcrs": {"selection": [4], "values": {"4": ["00" * 32]}},
        "eventLog": "Require",
    }
    return [{}, whole, {"projects": []}, {"zones": []}, {"endpoint": "https://elsewhere"}]
