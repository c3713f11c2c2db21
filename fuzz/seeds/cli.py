"""Seeds of what ``nodeattest token`` and ``cluster-info`` read: Secrets, ConfigMaps, durations."""

from __future__ import annotations

import json
from typing import Final

from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from fuzz.discovery import SIGNER
from fuzz.keys import NODE_KEY, authority, pem_of
from nodeattest_discovery import clusterinfo, jws
from nodeattest_discovery.secret import SECRET_TYPE, TokenSecret, encode, secret_name

__all__ = ["seeds"]

_DURATIONS: Final = (
    "0",
    "1h30m",
    "300ms",
    "-1h",
    "+.5s",
    "1.s",
    "24h0m0s",
    "2562047h47m16.854775807s",
    "5",
    "1d",
    "12µs",
)


def seeds() -> dict[str, list[bytes]]:
    """Return seeds by target."""
    content = clusterinfo.build("https://10.0.0.1:6443", pem_of(authority()))
    signed = {"kubeconfig": content, "jws-kubeconfig-abcdef": jws.sign(content.encode(), SIGNER)}
    foreign = {**signed, "jws-kubeconfig-zzzzzz": "x..y", "jws-kubeconfig-\x1b": "z"}
    maps: tuple[dict[str, str], ...] = (signed, foreign, {"kubeconfig": content}, {"kubeconfig": "users: ["}, {})
    return {
        "cli-token-secret": [json.dumps(each).encode() for each in _secrets()],
        "cli-cluster-info": [json.dumps({"kind": "ConfigMap", "data": data}).encode() for data in maps],
        "cli-endorsement-keys": _key_files(),
        "cli-duration": [each.encode() for each in _DURATIONS],
    }


def _key_files() -> list[bytes]:
    """Make files of endorsement keys: each format, and a key in each form that has one spelling."""
    public = NODE_KEY.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo).decode()
    encoded = "".join(public.splitlines()[1:-1])
    forms = (f"sha256:{'ab' * 32}", public, encoded, pem_of(authority()).decode())
    rows = [f'BareMetalHost/metal3/node-{number},,"{form}",' for number, form in enumerate(forms)]
    rows += [f",metal://rack-1/7,{forms[0]},node-7"]
    header = "host,providerID,endorsementKey,nodeName"
    entries = [{"host": "MachineRecord/metal/node-7", "endorsementKey": forms[0]}]
    entries += [{"providerID": "metal://rack-1/8", "endorsementKey": forms[1], "description": "rack 1"}]
    return [*(f"{header}\n{row}".encode() for row in rows), json.dumps(entries).encode(), header.encode()]


def _secrets() -> list[dict[str, object]]:
    data = encode(TokenSecret(token=SIGNER, description="a <b> & c\n\x1b[2J"))
    changes: tuple[dict[str, str], ...] = (
        {},
        {"expiration": "MjAzMC0wMS0wMVQwMDowMDowMFo="},
        {"expiration": "bmV2ZXI="},
        {"auth-groups": "eA=="},
        {"usage-bootstrap-other": "dHJ1ZQ=="},
        {"description": "/w=="},
    )
    metadata = {"name": secret_name(SIGNER.id)}
    return [{"metadata": metadata, "type": SECRET_TYPE, "data": {**data, **change}} for change in changes]
