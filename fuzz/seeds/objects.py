"""Seeds of what the controller and the package kube read: Kubernetes objects, kubeconfigs, configurations."""

from __future__ import annotations

import base64
import json
from typing import Final

from fuzz.keys import AUTHORITY_KEY, NODE_KEY, authority, key_pem, pem_of
from fuzz.seeds.wire import HASH, UID, filed, kubelets_request
from nodeattest_providers import envelope, pem

__all__ = ["request_object", "seeds"]

_GROUP: Final = "attestation.cluster.x-k8s.io/v1alpha1"
_CREATED: Final = "2026-01-02T03:04:05Z"
_CONFIGURATION: Final = (
    b"apiVersion: config.nodeattest.x-k8s.io/v1alpha1\nkind: NodeAttestationControllerConfiguration\n"
)


def seeds() -> dict[str, list[bytes]]:
    """Return seeds by target."""
    requests = [request_object(), request_object(username="system:node:node-0", groups=["system:nodes"])]
    requests.append(request_object(request="%%%"))
    requests.append(_kubelets_object())
    status = {
        "kind": "Status",
        "code": 409,
        "reason": "AlreadyExists",
        "message": "x\ny",
        "details": {"retryAfterSeconds": 3},
    }
    page = {"metadata": {"continue": "a"}, "items": [{"metadata": {"name": "a", "namespace": "b"}}, 1, None]}
    return {
        "request": _texts(*requests),
        "policy": _texts(*_policies()),
        "ledger": _texts(
            _ledger(), _machine(), _pool(), {"spec": {"issued": [{"notBefore": "0001-01-01T00:00:00+23:59"}]}}
        ),
        "authority": _texts(*_secrets()),
        "configuration": [
            _CONFIGURATION + each for each in (b"", b"namespace: x\n", b"a: &a [*a]\n", b'a: !!int ""\n', b"<<: {}\n")
        ],
        "duration": [each.encode() for each in ("336h", "1h30m0.5s", "500ms", "12", "1.5", "-1s", "1µs", "٣h", "1e5")],
        "kubeconfig": _kubeconfigs(),
        "documents": _documents(),
        "json": [*_texts(request_object(), status, page), b'{"a":1e999}', b'{"a":"\\ud800"}', b"[" * 5000],
        "api-answer": _answers(),
        "lines": [b"\x03one\ntwo\n\nthree", b"\x40" + b"x" * 80 + b"\ny\n", b"\x01\n", b"\xff" + b"x" * 600 + b"\n"],
    }


def _answers() -> list[bytes]:
    """HTTP answers of API servers behind a byte that says how they are cut."""
    fields = (
        b"HTTP/1.1 200 OK\r\nAudit-Id: 1\r\nContent-Type: application/json\r\nDate: Sat, 28 Nov 2026 10:00:00 GMT\r\n"
    )
    chunked = fields + b"Transfer-Encoding: chunked\r\n\r\n2;x=y\r\n{}\r\n0\r\nX: y\r\n\r\n"
    sized = fields + b"Content-Length: 2\r\n\r\n{}"
    busy = b"HTTP/1.1 429 Too Many Requests\r\nRetry-After: 1\r\nConnection: close\r\nContent-Length: 2\r\n\r\n{}"
    until_end = b"HTTP/1.0 502 Bad Gateway\r\nContent-Type: text/html\r\n\r\n<html>"
    interim = b"HTTP/1.1 100 Continue\r\n\r\n" + sized
    two_lengths = sized.replace(b"\r\n\r\n", b"\r\nContent-Length: 3\r\n\r\n")
    answers = (chunked, sized, busy, until_end, interim, two_lengths, sized + sized, b"HTTP/1.1 204 No Content\r\n\r\n")
    return [bytes([number]) + each for number, each in enumerate(answers, start=1)]


def _texts(*values: object) -> list[bytes]:
    return [json.dumps(value).encode() for value in values]


def request_object(**spec: object) -> dict[str, object]:
    """Make a CertificateSigningRequest as the API server shows it."""
    return {
        "metadata": {"name": "node-csr-0", "uid": UID, "resourceVersion": "7", "creationTimestamp": _CREATED},
        "spec": {
            "request": base64.b64encode(filed()).decode(),
            "signerName": "cluster.x-k8s.io/kube-apiserver-client-kubelet-insecure",
            "usages": ["digital signature", "client auth"],
            "username": "system:bootstrap:abcdef",
            "groups": ["system:bootstrappers", "system:authenticated"],
            "expirationSeconds": 3600,
            **spec,
        },
        "status": {"conditions": [{"type": "Approved", "status": "True", "reason": "Attested"}]},
    }


def _kubelets_object() -> dict[str, object]:
    return request_object(
        request=base64.b64encode(pem.encode([(envelope.LABEL_CSR, kubelets_request())])).decode(),
        signerName="kubernetes.io/kubelet-serving",
        usages=["digital signature", "server auth"],
        username="system:node:node-0",
        groups=["system:nodes", "system:authenticated"],
    )


def _policies() -> list[dict[str, object]]:
    every = {
        "clusterSelector": {
            "matchLabels": {"env": "prod"},
            "matchExpressions": [{"key": "env", "operator": "In", "values": ["prod"]}],
        },
        "authorizedAttestors": ["tpm", "acme"],
        "certificateLifetime": "336h",
        "enforcement": "Audit",
        "tpm": {"pcrs": {"selection": [0, 7]}},
        "providers": {"acme": {"a": [1, {"b": None}]}},
    }
    few: list[object] = [
        {"authorizedAttestors": ["insecure"]},
        {"tmp": {}},
        {"certificateLifetime": "٣h"},
        {"tpm": {"a": 1.5}},
    ]
    return [{"apiVersion": _GROUP, "metadata": {"name": "p"}, "spec": spec} for spec in (every, *few)]


def _ledger() -> dict[str, object]:
    entry = {
        "requestName": "node-csr-0",
        "requestUID": UID,
        "firstRequestUID": UID,
        "spki": HASH,
        "serial": "7",
        "notBefore": _CREATED,
        "notAfter": "2026-01-16T03:04:05Z",
        "issuedAt": _CREATED,
        "certificate": "",
    }
    spec = {
        "clusterName": "c",
        "machineName": "m",
        "providerID": "metal://rack-1/7",
        "nodeName": "node-0",
        "provider": "tpm",
        "fingerprints": {"ek": HASH, "ak": HASH},
        "issued": [entry, {**entry, "notAfter": "9999-12-31T23:59:59-23:59"}],
        "boot": {"clock": 1, "resetCount": 1, "restartCount": 0, "safe": True, "pcrDigest": "ab"},
    }
    metadata = {"name": "c-0", "namespace": "fleet", "ownerReferences": [{"uid": UID}], "resourceVersion": "1"}
    return {"metadata": metadata, "spec": spec}


def _machine() -> dict[str, object]:
    spec = {
        "clusterName": "c",
        "providerID": "metal://rack-1/7",
        "infrastructureRef": {"apiVersion": "infrastructure.cluster.x-k8s.io/v1beta1", "kind": "M", "name": "m"},
    }
    status = {
        "nodeRef": {"name": "node-0", "uid": UID},
        "addresses": [{"type": "Hostname", "address": "node-0"}, {"type": "InternalIP", "address": "10.0.0.7"}],
        "conditions": [{"type": "BootstrapReady", "status": "True"}],
    }
    metadata = {"name": "m", "namespace": "fleet", "uid": UID, "annotations": {"cluster.x-k8s.io/paused": ""}}
    return {"apiVersion": "cluster.x-k8s.io/v1beta1", "metadata": metadata, "spec": spec, "status": status}


def _pool() -> dict[str, object]:
    metadata = {"name": "p", "namespace": "fleet", "uid": UID, "deletionTimestamp": _CREATED}
    return {"metadata": metadata, "spec": {"clusterName": "c", "providerIDList": ["aws:///a/i-1", "aws:///a/i-2"]}}


def _secrets() -> list[dict[str, object]]:
    encoded = [
        base64.b64encode(each).decode() for each in (pem_of(authority()), key_pem(AUTHORITY_KEY), key_pem(NODE_KEY))
    ]
    return [
        {"data": {"tls.crt": encoded[0], "tls.key": encoded[1]}},
        {"data": {"tls.crt": encoded[0], "tls.key": encoded[2]}},
        {"data": {"tls.crt": encoded[1], "tls.key": encoded[0]}},
        {"data": {"tls.crt": encoded[0]}},
    ]


def _documents() -> list[bytes]:
    listed = {"kind": "List", "items": [_machine(), 1]}
    block = b"kind: A\nmetadata: {name: a, created: 2026-01-02T03:04:05Z}\n---\nkind: B\n"
    strange = (b"a: 1\na: 2\n", b"a: &a 1\nb: *a\n", b'a: !!int ""\n', b"--- 1\n", b"[" * 99)
    return [*_texts(_machine(), listed), block, *strange]


def _kubeconfigs() -> list[bytes]:
    ca = base64.b64encode(pem_of(authority())).decode()
    document = {
        "kind": "Config",
        "current-context": "c",
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
        "clusters": [{"name": "c", "cluster": {"server": "https://10.0.0.1:6443", "certificate-authority-data": ca}}],
        "users": [{"name": "u", "user": {"token": "t"}}],
    }
    block = (
        b"current-context: c\nclusters:\n- name: c\n  cluster: {server: 'https://[::1]:6443/p', tls-server-name: a}\n"
    )
    block += b"contexts:\n- {name: c, context: {cluster: c}}\n"
    strange = (
        b'a: !!int ""\n',
        b"a: !!timestamp x\n",
        b"a: !!bool x\n",
        b"a: &a [*a]\n",
        b"? {a: b}\n: c\n",
        b"!!set {a}\n",
    )
    merged = b"a: &a {k: v}\nb: &b {<<: [*a, *a]}\nc: {<<: [*b, *b]}\n"
    return [
        json.dumps(document).encode(),
        block,
        merged,
        *strange,
        b"\xff\xfe",
        b"a: 0x_\nb: 1:_:1\n",
        b"{" * 3000,
        b"[" * 4000,
        b"- " * 2000,
    ]
