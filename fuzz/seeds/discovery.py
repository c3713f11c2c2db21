"""Seeds of what discovery reads: tokens, pins, expirations, Secrets, signatures, kubeconfigs."""

from __future__ import annotations

import base64
import json
from typing import Final

from fuzz.discovery import SIGNER
from fuzz.keys import authority, kubelets_certificate, pem_of
from nodeattest_discovery import clusterinfo, jws, pins
from nodeattest_discovery.secret import SECRET_TYPE, TokenSecret, Usage, encode, secret_name

__all__ = ["seeds"]

_SERVER: Final = "https://10.0.0.1:6443"
_TIMES: Final = (
    *("2030-01-01T00:00:00Z", "2030-01-01T0:00:00.5Z", "2030-01-01T00:00:00,5+02:00", "2028-02-29T23:59:59-24:60"),
    *("0000-01-01T00:00:00Z", "9999-12-31T23:59:59-24:00", "2030-01-01t00:00:00z", "2030-02-30T00:00:00Z", "never"),
)


def seeds() -> dict[str, list[bytes]]:
    """Return seeds by target."""
    pin = str(pins.pin_of(authority()))
    content = clusterinfo.build(_SERVER, pem_of(authority())).encode()
    yamls = (
        "a: b\nc: [true, null, 'x']\n",
        '{"a": "\\u00e9"}',
        "a: |\n  b\n",
        "a: &x b\nc: *x\n",
        'a: "\\UFFFFFFFF"',
        "a: b\0",
    )
    return {
        "discovery-token": [
            SIGNER.reveal().encode(),
            b"abcdef",
            b"abcdef.0123456789ABCDEF",
            b"abcdef.\n",
            b"\xff.\xff",
        ],
        "discovery-pin": [pin.encode(), pin.upper().encode(), b"sha512:00", b"sha256:", pin.encode() + b"\n"],
        "discovery-time": [each.encode() for each in _TIMES],
        "discovery-secret": [json.dumps(each).encode() for each in _secrets()],
        "discovery-signature": [
            jws.sign(b"payload", SIGNER).encode() + b"\npayload",
            jws.sign(b"", SIGNER).encode() + b"\n",
            jws.sign(b"x", SIGNER).encode() + b"=\nx",
            b"..\n",
            b"\xff\n\xff",
        ],
        "discovery-yaml": [content, *(each.encode() for each in yamls)],
        "discovery-cluster-info": _cluster_infos(content),
    }


def _secrets() -> list[dict[str, object]]:
    both = encode(TokenSecret(token=SIGNER))
    signing = encode(TokenSecret(token=SIGNER, usages=frozenset({Usage.SIGNING}), groups=()))
    odd = {
        **both,
        "expiration": base64.b64encode(b"2030-01-01T00:00:00.5+02:00").decode(),
        "auth-extra-groups": base64.b64encode(b"system:bootstrappers:a,system:bootstrappers:b:c").decode(),
        "token-secret": base64.b64encode(b"\xff").decode(),
    }
    metadata = {"name": secret_name(SIGNER.id)}
    gone = {**metadata, "deletionTimestamp": "2026-01-01T00:00:00Z"}
    made: list[dict[str, object]] = [
        {"metadata": metadata, "type": SECRET_TYPE, "data": each} for each in (both, signing, odd)
    ]
    return [*made, {"metadata": gone, "type": SECRET_TYPE, "data": both}, {"metadata": metadata, "data": both}]


def _cluster_infos(content: bytes) -> list[bytes]:
    data = base64.b64encode(pem_of(authority()) * 2).decode()
    cluster = {"certificate-authority-data": data, "server": _SERVER, "tls-server-name": "kubernetes"}
    document = {"clusters": [{"name": "a", "cluster": cluster}], "contexts": [], "current-context": "", "users": []}
    leaf = {**cluster, "certificate-authority-data": base64.b64encode(pem_of(kubelets_certificate())).decode()}
    spoilt: list[dict[str, object]] = [
        {**document, "clusters": [{"cluster": leaf}]},
        {**document, "users": [{"user": {"token": SIGNER.reveal()}}]},
        {**document, "clusters": [{"cluster": {**cluster, "insecure-skip-tls-verify": True}}]},
    ]
    return [content, *(json.dumps(each).encode() for each in (document, *spoilt)), b"a: b\0"]
