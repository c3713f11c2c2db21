"""A stand-in for cert-manager: it signs a Certificate, writes its Secret, and fills ``caBundle``.

cert-manager's controllers cannot run without a cluster that runs pods.
"""

from __future__ import annotations

import base64
import shutil
from pathlib import Path
from typing import Final

from nodeattest_sandbox.apiserver.jsonvalue import JsonMap, map_at, maps_at, text_at, texts_at
from nodeattest_sandbox.client import Client
from nodeattest_sandbox.definitions import small_definition
from nodeattest_sandbox.pki import ClusterPki

CONFIGURATIONS: Final = tuple(
    f"/apis/admissionregistration.k8s.io/v1/{kind}webhookconfigurations/nodeattest-bootstrap-config"
    for kind in ("mutating", "validating")
)
DEFINITIONS: Final = [
    small_definition("cert-manager.io", f"{kind.lower()}s", kind, ["v1"]) for kind in ("Issuer", "Certificate")
]


def serving_files(folder: Path, client: Client, hosts: tuple[str, ...] = (), *, url: str = "") -> Path:
    """Return a folder with ``tls.crt`` and ``tls.key`` of a new CA, which the webhook configurations name from now on.

    ``url`` replaces the Service, where there is no network of pods; the path of the Service is appended.
    """
    folder.mkdir(parents=True, exist_ok=True)
    pki = ClusterPki.make(folder / f"ca-{len(list(folder.glob('ca-*')))}", "webhook")
    for made, name in zip(pki.files("webhook", hosts or ("localhost",)), ("tls.crt", "tls.key"), strict=True):
        made.replace(folder / name)
    bundle = base64.b64encode(pki.ca_certificate.read_bytes()).decode()
    for path in CONFIGURATIONS:
        for number, webhook in enumerate(maps_at(client.get(path), "webhooks")):
            where = dict(map_at(webhook, "clientConfig"))
            if url and "service" in where:
                where = {"url": url + text_at(where, "service", "path")}
            change: JsonMap = {"op": "replace", "path": f"/webhooks/{number}/clientConfig"}
            client.patch(path, [{**change, "value": {**where, "caBundle": bundle}}], "json")
    return folder


def issue(client: Client, folder: Path, namespace: str = "nodeattest-system") -> Path:
    """Sign the one Certificate of a namespace and write its Secret; returns the folder that kubelet would mount."""
    [certificate] = client.list(f"/apis/cert-manager.io/v1/namespaces/{namespace}/certificates")
    files = serving_files(folder, client, tuple(texts_at(certificate, "spec", "dnsNames")))
    data: JsonMap = {name: base64.b64encode((files / name).read_bytes()).decode() for name in ("tls.crt", "tls.key")}
    head: JsonMap = {"name": text_at(certificate, "spec", "secretName")}
    secret: JsonMap = {"metadata": head, "type": "kubernetes.io/tls", "data": data}
    client.create(f"/api/v1/namespaces/{namespace}/secrets", secret)
    return files


def copy_server_files(pki: ClusterPki, folder: Path) -> Path:
    """Copy an API server's certificate and key to ``tls.crt`` and ``tls.key`` of a folder; returns the folder."""
    folder.mkdir(exist_ok=True)
    shutil.copy(pki.server_certificate, folder / "tls.crt")
    shutil.copy(pki.server_key, folder / "tls.key")
    return folder
