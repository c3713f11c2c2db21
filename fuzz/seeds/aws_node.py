"""Seeds of what an instance's metadata service says."""

from __future__ import annotations

import base64
import json
from typing import Final

from fuzz.seeds.signed import documents

__all__ = ["seeds"]

_PLACE: Final = {"availabilityZone": "us-east-1a", "instanceId": "i-0123456789abcdef0", "region": "us-east-1"}
_KEYS: Final = {
    "Code": "Success",
    "LastUpdated": "2026-03-01T12:00:00Z",
    "Type": "AWS-HMAC",
    "AccessKeyId": "ASIAEXAMPLEEXAMPLE00",
    "SecretAccessKey": "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY",
    "Token": "FwoGZXIvYXdzEXAMPLE//////////wEaDEXAMPLE=",
    "Expiration": "2099-03-01T18:00:00Z",
}


def seeds() -> dict[str, list[bytes]]:
    """Return seeds by target."""
    place = json.dumps(_PLACE, indent=2).encode()
    signed = documents(place)
    return {
        "aws-node-credentials": [
            json.dumps(_KEYS, indent=2).encode(),
            json.dumps(_KEYS | {"Code": "AssumeRoleUnauthorizedAccess"}).encode(),
        ],
        "aws-node-document": [place],
        "aws-node-signature": [base64.encodebytes(one).rstrip() for one in signed],
        "aws-node-words": [b"AQAEAEXAMPLE-session_token==", b"nodes.cluster-api-provider-aws.sigs.k8s.io", b"a\nb"],
    }
