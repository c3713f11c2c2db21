"""Seeds of what the node half reads: addresses, ConfigMaps, discovery files."""

from __future__ import annotations

import base64
import json

from fuzz.discovery import SIGNER
from fuzz.keys import NODE_KEY, authority, key_pem, kubelets_certificate, pem_of
from nodeattest_discovery import clusterinfo, jws

__all__ = ["seeds"]

_SERVER = "https://10.0.0.1:6443"
_SECRET = "hunter2"
_ENDPOINTS = (
    *("10.0.0.1:6443", "api.example:6443", "[fd00::1]:6443", _SERVER, "https://api.example", "https://[::1]/"),
    *("10.0.0.1", f"{_SERVER}/path", "a@b:1", "[::1%eth0]:1", "[a]:1", "a:0", "::1:1"),
)
_RESPONSES = (
    b"200 OK\r\nContent-Length: 5\r\nConnection: keep-alive\r\n\r\n{\n\n}\n",
    b"200\r\ntransfer-encoding:\tChunked \r\n\r\n2;a=b\r\n{\n\r\n01\r\n}\r\n0\r\nA: b\r\n\r\n",
    b"103 Early Hints\r\nLink: <a>\r\n\r\nHTTP/1.0 404 Not Found\r\nServer: \xe4\r\n\r\nnothing\nhere",
    b'304 Not Modified\r\nETag: "a"\r\n\r\n',
    b"101 Switching Protocols\r\n\r\n",
    b"200 OK\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    b"200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nxx",
    b"200 OK\r\nA: b\r\n c\r\n\r\n",
    b"200 OK\nContent-Length: 0\n\n",
    b"200 OK\r\nA:" + b" " * 2_000 + b"\0\r\n\r\n",
)


def seeds() -> dict[str, list[bytes]]:
    """Return seeds by target."""
    return {
        "discovery-endpoint": [each.encode() for each in _ENDPOINTS],
        "discovery-configmap": [json.dumps(each).encode() for each in _config_maps()],
        "discovery-file": [json.dumps(each).encode() for each in _files()],
        "discovery-response": [b"HTTP/1.1 " + each for each in _RESPONSES],
    }


def _config_maps() -> list[dict[str, object]]:
    text = clusterinfo.build(_SERVER, pem_of(authority()))
    sound: dict[str, object] = {
        "kind": "ConfigMap",
        "apiVersion": "v1",
        "metadata": {"name": "cluster-info", "namespace": "kube-public", "generation": 1},
        "data": {"kubeconfig": text, f"jws-kubeconfig-{SIGNER.id}": jws.sign(text.encode(), SIGNER)},
    }
    return [sound, {**sound, "data": None}, {**sound, "data": {"kubeconfig": "\ud800"}}, {**sound, "kind": "Secret"}]


def _files() -> list[dict[str, object]]:
    users: list[dict[str, object]] = [
        {},
        {"token": _SECRET},
        {"tokenFile": "token"},
        {"username": "a", "password": _SECRET},
        {
            "client-certificate-data": base64.b64encode(pem_of(kubelets_certificate())).decode(),
            "client-key-data": base64.b64encode(key_pem(NODE_KEY)).decode(),
        },
        {"exec": {"apiVersion": "client.authentication.k8s.io/v1", "command": "kubelet-authenticator"}},
        {"exec": {"command": "sh"}},
        {"auth-provider": {"name": "gcp"}},
    ]
    data = base64.b64encode(pem_of(authority())).decode()
    cluster = {"certificate-authority-data": data, "server": _SERVER, "tls-server-name": "kubernetes"}
    context = [{"name": "main", "context": {"cluster": "a", "user": "node"}}]
    named = [{"name": "a", "cluster": cluster}, {"name": "b", "cluster": {"server": _SERVER}}]
    made: list[dict[str, object]] = [
        {"clusters": named, "contexts": context, "current-context": "main", "users": [{"name": "node", "user": user}]}
        for user in users
    ]
    beside = {"certificate-authority": "ca.crt", "server": _SERVER}
    skips = {**cluster, "insecure-skip-tls-verify": True}
    return [*made, *({"clusters": [{"name": "", "cluster": each}]} for each in (cluster, beside, skips))]
