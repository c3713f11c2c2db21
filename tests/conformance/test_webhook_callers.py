"""What a real API server shows a webhook that asks for a client certificate: none, unless its configuration names one.

So the webhook cannot tell an API server from a stranger by default (docs/decisions.md).
"""

from __future__ import annotations

import base64
import json
import ssl
import threading
from collections.abc import Generator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from cryptography import x509
from polling import eventually
from webhook_world import ClientCertificates

from nodeattest_sandbox.apiserver.jsonvalue import JsonMap, load, text_at
from nodeattest_sandbox.control_plane import free_ports, start_real
from nodeattest_sandbox.pki import ClusterPki

pytestmark = pytest.mark.conformance

CONFIGURATIONS = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations"
CONFIG_MAPS = "/api/v1/namespaces/default/configmaps"


@contextmanager
def asking_webhook(pki: ClusterPki, client_ca: Path, port: int) -> Generator[list[str]]:
    """Serve a webhook that asks for a client certificate and allows everything; yields the callers' subjects."""
    shown: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            assert isinstance(self.connection, ssl.SSLSocket)
            certificate = self.connection.getpeercert(binary_form=True)
            subject = x509.load_der_x509_certificate(certificate).subject if certificate is not None else None
            shown.append("" if subject is None else subject.rfc4514_string())
            asked = load(self.rfile.read(int(self.headers["Content-Length"])))
            answer = {"uid": text_at(asked, "request", "uid"), "allowed": True}
            body = json.dumps({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": answer})
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body.encode())

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pki.server_certificate, pki.server_key)
    context.load_verify_locations(client_ca)
    context.verify_mode = ssl.CERT_OPTIONAL
    with ThreadingHTTPServer(("127.0.0.1", port), Handler) as server:
        server.socket = context.wrap_socket(server.socket, server_side=True)
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield shown
        finally:
            server.shutdown()
            thread.join()


def configuration(pki: ClusterPki, port: int) -> JsonMap:
    authority = base64.b64encode(pki.ca_certificate.read_bytes()).decode()
    rule: JsonMap = {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["configmaps"]}
    return {
        "metadata": {"name": "asking"},
        "webhooks": [
            {
                "name": "asking.example.com",
                "clientConfig": {"url": f"https://127.0.0.1:{port}/", "caBundle": authority},
                "rules": [rule],
                "admissionReviewVersions": ["v1"],
                "sideEffects": "None",
                "failurePolicy": "Fail",
            }
        ],
    }


@pytest.mark.parametrize("is_configured", [False, True])
def test_an_api_server_shows_webhooks_no_certificate_unless_its_configuration_names_one(
    assets: Path, tmp_path: Path, is_configured: bool
) -> None:
    [port] = free_ports(1)
    clients = ClientCertificates(tmp_path, port)
    pki = ClusterPki.make(tmp_path / "webhook", "webhook")
    flags = clients.apiserver_flags() if is_configured else ()
    with (
        start_real(tmp_path / "plane", assets, name="management", flags=flags) as plane,
        asking_webhook(pki, clients.ca, port) as shown,
    ):
        client = plane.client()
        client.create(CONFIGURATIONS, configuration(pki, port))

        def was_asked() -> bool:
            client.create(CONFIG_MAPS, {"metadata": {"generateName": "asked-"}})
            return bool(shown)

        eventually(was_asked, what="a call of the webhook")
    assert set(shown) == {"CN=kube-apiserver" if is_configured else ""}
