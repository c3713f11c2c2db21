"""A kubelet as far as its credential goes: client-go's rules for the exec plugin, and a request every few seconds.

The plugin is the real ``kubelet-authenticator`` in a process of its own, called when ``expirationTimestamp`` is over or
the server said 401, as client-go's exec.go does; renewals are its detached processes. A node is lost at the moment at
which it holds no certificate that is valid and accepted; a server that does not answer loses nobody.
"""

from __future__ import annotations

import base64
import http.client
import json
import ssl
import tempfile
import threading
import time
from dataclasses import dataclass, field
from http import HTTPStatus
from pathlib import Path
from urllib.parse import urlsplit

from cryptography import x509

from nodeattest_authenticator.state.credential_format import CREDENTIAL_FILE
from nodeattest_demo.machines import Children
from nodeattest_discovery.node.clock import random_unit
from nodeattest_kube.jsontypes import parse_json
from nodeattest_parsing.objects import items, mapping, moment, strings, text
from nodeattest_parsing.values import JsonObject

PLUGIN_LIMIT = 90.0
"""Seconds; the agent gives up after 60."""
REQUEST_LIMIT = 30.0
BUSY_RETRY = 1.0
"""Seconds before the plugin is called again after it failed; kubelet's requests come about so often."""
LEASES = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases"


@dataclass
class Diary:
    """What happened to one node."""

    beats: int = 0
    silent: int = 0
    """Requests that got no answer: a frozen server."""
    calls: int = 0
    failed_calls: int = 0
    certificates: list[str] = field(default_factory=list[str])
    """Serial numbers in the order in which the client got them."""
    renewals: list[float] = field(default_factory=list[float])
    """Seconds from the call that began a renewal to the stored certificate."""
    lost: list[str] = field(default_factory=list[str])
    """Moments without a valid credential, in words."""
    last_words: str = ""
    accepted_at: float = 0.0
    """Unix time at which the server accepted the credential last."""


@dataclass(frozen=True)
class Held:
    """What client-go keeps in memory."""

    pem: str = field(repr=False)
    serial: str
    not_after: float
    ask_again: float


class Kubelet:
    """One node's client; ``run`` until it is stopped."""

    def __init__(self, name: str, kubeconfig: Path, cache: Path, children: Children, *, beat: float) -> None:
        document = parse_json(kubeconfig.read_bytes())
        plugin = mapping(items(document, "users")[0], "user", "exec")
        cluster = mapping(items(document, "clusters")[0], "cluster")
        info: JsonObject = {
            "kind": "ExecCredential",
            "apiVersion": text(plugin, "apiVersion"),
            "spec": {"cluster": cluster, "interactive": False},
        }
        self.name = name
        self.cache = cache
        self.diary = Diary()
        self._command = [text(plugin, "command"), *strings(plugin, "args")]
        self._environment = {"KUBERNETES_EXEC_INFO": json.dumps(info)}
        self._server = urlsplit(text(cluster, "server"))
        self._ca = base64.b64decode(text(cluster, "certificate-authority-data")).decode()
        self._children = children
        self._beat = beat
        self._held: Held | None = None
        self._connection: http.client.HTTPSConnection | None = None
        self._renewing: float | None = None

    def run(self, stop: threading.Event) -> None:
        """Beat until ``stop``; the first moment is drawn, so that nodes do not march in step."""
        stop.wait(random_unit() * self._beat)
        while not stop.is_set():
            began = time.monotonic()
            self._step()
            stop.wait(max(0.0, began + self._beat - time.monotonic()))
        self._disconnect()

    def _step(self) -> None:
        if self._held is None or time.time() >= self._held.ask_again:
            self._call_plugin()
        if self._held is None:
            self._lose("the plugin gave no credential")
        elif time.time() >= self._held.not_after:
            self._lose("its certificate is over")
        else:
            self._request()

    def _call_plugin(self) -> None:
        stored = _written(self.cache)
        began = time.time()
        ended = self._children.run(self._command, limit=PLUGIN_LIMIT, environment=self._environment)
        self.diary.calls += 1
        if ended.code:
            self.diary.failed_calls += 1
            self.diary.last_words = ended.last_line
            return
        status = mapping(parse_json(ended.output.encode()), "status")
        found = _held(status)
        if self._held is not None and found.serial != self._held.serial:
            if self._renewing is not None:
                self.diary.renewals.append(max(0.0, stored - self._renewing))
            self._renewing = None
        if self._held is None or found.serial != self._held.serial:
            self.diary.certificates.append(found.serial)
            self._disconnect()  # client-go closes connections when the certificate changes
        elif self._renewing is None:
            self._renewing = began
        self._held = found

    def _request(self) -> None:
        try:
            code = self._ask(f"{LEASES}/{self.name}")
        except (OSError, http.client.HTTPException):
            self._disconnect()
            self.diary.silent += 1
            return
        if code == HTTPStatus.UNAUTHORIZED and self._held is not None:
            self._lose("the server says 401")
            self._held = None
        elif code in {HTTPStatus.OK, HTTPStatus.NOT_FOUND}:
            self.diary.beats += 1
            self.diary.accepted_at = time.time()
        else:
            self._lose(f"the server answers {code}")

    def _ask(self, path: str) -> int:
        if self._connection is None:
            self._connection = http.client.HTTPSConnection(
                self._server.hostname or "", self._server.port, timeout=REQUEST_LIMIT, context=self._context()
            )
        self._connection.request("GET", self._server.path + path)
        answer = self._connection.getresponse()
        answer.read()
        return answer.status

    def _context(self) -> ssl.SSLContext:
        context = ssl.create_default_context(cadata=self._ca)
        assert self._held is not None
        with tempfile.NamedTemporaryFile(dir=self.cache.parent) as file:  # ssl reads certificate and key from a file
            file.write(self._held.pem.encode())
            file.flush()
            context.load_cert_chain(file.name)
        return context

    def _disconnect(self) -> None:
        if self._connection is not None:
            self._connection.close()
        self._connection = None

    def _lose(self, how: str) -> None:
        self.diary.lost.append(f"{time.strftime('%H:%M:%S')} {how}")


def _held(status: JsonObject) -> Held:
    certificate = x509.load_pem_x509_certificate(text(status, "clientCertificateData").encode())
    expires = moment(text(status, "expirationTimestamp"))
    assert expires is not None
    return Held(
        pem=text(status, "clientCertificateData") + text(status, "clientKeyData"),
        serial=f"{certificate.serial_number:x}",
        not_after=certificate.not_valid_after_utc.timestamp(),
        ask_again=expires.timestamp(),
    )


def _written(cache: Path) -> float:
    try:
        return (cache / CREDENTIAL_FILE).stat().st_mtime
    except OSError:
        return 0.0
