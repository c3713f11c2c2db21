"""Seeds of the ``azure`` provider."""

from __future__ import annotations

import json

from cryptography import x509

from fuzz.keys import authority, certificate, pem_of
from fuzz.seeds.signed import documents
from fuzz.seeds.wire import UID
from nodeattest_providers import canonical_json
from nodeattest_providers.azure.protocol import AzureEvidence

__all__ = ["seeds"]

_DOCUMENT = {
    "licenseType": "",
    "nonce": "0123456789abcdef" * 2,
    "plan": {"name": "", "product": "", "publisher": ""},
    "subscriptionId": UID,
    "timeStamp": {"createdOn": "03/01/26 12:00:00 -0000", "expiresOn": "03/01/26 18:00:00 -0000"},
    "vmId": UID,
}
_GROUP = f"azure:///subscriptions/{UID}/resourceGroups/fleet/providers/Microsoft.Compute"


def seeds() -> dict[str, list[bytes]]:
    """Return seeds by target."""
    document = json.dumps(_DOCUMENT, separators=(",", ":")).encode()
    evidence = AzureEvidence(documents(document)[0])
    policy = {"subscriptions": [UID], "resourceGroups": ["fleet"], "scaleSets": ["pool"], "tags": {"a": "b"}}
    workload = {"tenantID": UID, "clientID": UID, "tokenFile": "/var/run/secrets/token"}
    configuration = {
        "cloud": "AzureChinaCloud",
        "trustBundle": "/etc/nodeattest/azure-trust.pem",
        "credential": {"workloadIdentity": workload},
        "endpoints": {"resourceManager": "https://arm.example:443"},
    }
    below = certificate(
        [(x509.NameOID.COMMON_NAME, "issuing")],
        authority().public_key(),  # pyright: ignore[reportArgumentType] - an elliptic curve's
        (x509.BasicConstraints(ca=True, path_length=None), True),
    )
    return {
        "azure-evidence": [canonical_json.dumps(evidence.to_json())],
        "azure-document": [document],
        "azure-provider-id": [
            f"{_GROUP}/virtualMachines/worker_1".encode(),
            f"{_GROUP}/virtualMachineScaleSets/Pool/virtualMachines/12".encode(),
        ],
        "azure-trust-bundle": [pem_of(authority()), pem_of(authority()) + pem_of(below)],
        "azure-policy": [json.dumps(policy).encode()],
        "azure-configuration": [json.dumps(configuration).encode(), b'{"credential":{"managedIdentity":{}}}'],
    }
