"""A loopback API server that knows CertificateSigningRequests and does what a test tells it, over real TLS."""

from __future__ import annotations

import base64
import contextlib
import copy
import json
import ssl
import threading
import time
import uuid
from collections.abc import Callable, Generator, Iterable
from email.utils import formatdate
from ipaddress import ip_address
from typing import Any, cast
from urllib.parse import parse_qs, urlsplit

from cryptography import x509
from cryptography.x509.oid import ExtendedKeyUsageOID
from lying_servers import Ca, Handler, LoopbackServer

from clouds.authority import PublicKey
from nodeattest_providers.challenge.protocol import Challenge
from nodeattest_providers.envelope import decode
from nodeattest_providers.identifiers import split_signer
from nodeattest_providers.node_interface import Evidence, NodeCsr

TOKEN = "abcdef.0123456789abcdef"
Object = dict[str, Any]


def named(dns_names: Iterable[str], addresses: Iterable[str]) -> list[x509.GeneralName]:
    return [*(x509.DNSName(name) for name in dns_names), *(x509.IPAddress(ip_address(one)) for one in addresses)]


def tells_provider_id(
    told: str | None, *, to: str | None = "", then: Callable[[FakeApi, str], None] | None = None
) -> Callable[[FakeApi, str], None]:
    """A controller that tells an ID to requests that have ``to`` (None: to all); ``then`` decides all others (sign)."""

    def decide(api: FakeApi, name: str) -> None:
        if to is not None and api.envelope(name)[0].provider_id != to:
            (then or FakeApi.sign)(api, name)
            return
        if told is not None:
            api.annotate(name, provider_id=told)
        api.deny(name, "ProviderIDRequired", "file with the ID")

    return decide


def challenge_then_sign(api: FakeApi, name: str, **changes: Any) -> None:
    """Decide as the controller does for a provider of two steps."""
    csr, evidence = api.envelope(name)
    if evidence.data["phase"] == 1:
        text = Challenge(uid=api.objects[name]["metadata"]["uid"], spki_sha256=csr.spki_sha256, nonce=b"n" * 32)
        api.annotate(name, challenge=text.to_text())
    else:
        api.sign(name, **changes)


def filed_ids(api: FakeApi) -> list[str]:
    """List the provider IDs of all requests, in their order."""
    return [str(api.envelope(name)[0].provider_id) for name in api.objects]


class FakeApi(LoopbackServer):
    """What a test may set: ``on_create``, ``ahead``, ``hangs`` to ``readable``."""

    def __init__(self, authority: Ca) -> None:
        self.on_create: Callable[[FakeApi, str], None] = lambda api, name: api.sign(name)
        self.ahead = 0.0
        self.hangs = False
        self.hides_deletions = False
        self.not_accepted: set[str] = set()
        self.public: dict[str, Object] = {}
        """What anybody may read, by path."""
        self.readable: dict[str, Object] = {}
        """The same, for those who say who they are."""
        self.shown: list[tuple[str, str]] = []
        """Path and Authorization header of each request that had one."""
        self.presented: list[tuple[str, str]] = []
        """Path and serial number of the client certificate of each request that had one."""
        self.requests: list[str] = []
        self.connections = 0
        self.objects: dict[str, Object] = {}
        self._events: list[tuple[int, str, Object]] = []
        self._version = 100
        self._changed = threading.Condition()
        self.is_stopping = False
        super().__init__(_Handler, authority.server())
        self.context.verify_mode = ssl.CERT_OPTIONAL
        self.stand_under(authority)

    def posts(self) -> int:
        return sum(line.startswith("POST") for line in self.requests)

    def __exit__(self, *_: object) -> None:
        with self._changed:
            self.is_stopping = True
            self._changed.notify_all()
        super().__exit__()

    def stand_under(self, authority: Ca) -> None:
        """Serve by a certificate of this CA from now on, and know its clients as well as those of earlier ones."""
        self.authority = authority
        self.present(authority.server())
        self.context.load_verify_locations(cadata=authority.pem.decode())

    # What a controller does.

    def envelope(self, name: str) -> tuple[NodeCsr, Evidence]:
        spec = self.objects[name]["spec"]
        found = split_signer(spec["signerName"])
        assert found is not None
        return decode(base64.b64decode(spec["request"]), purpose=found[1])

    def sign(self, name: str, *, by: Ca | None = None, **changes: Any) -> None:
        csr, _ = self.envelope(name)
        key = x509.load_der_x509_csr(csr.der).public_key()
        if csr.dns_names or csr.ip_addresses:
            serving = {"usage": ExtendedKeyUsageOID.SERVER_AUTH, "names": named(csr.dns_names, csr.ip_addresses)}
            changes = serving | changes
        made = (by or self.authority).client(cast("PublicKey", key), changes.pop("node", csr.node_name), **changes)
        self.set_certificate(name, made)

    def set_certificate(self, name: str, pem: bytes) -> None:
        self._change(name, lambda item: item["status"].update(certificate=base64.b64encode(pem).decode()))

    def deny(self, name: str, reason: str, message: str = "ask the operator") -> None:
        condition = {"type": "Denied", "status": "True", "reason": reason, "message": message}
        self._change(name, lambda item: item["status"].update(conditions=[condition]))

    def annotate(self, name: str, **values: str) -> None:
        written = {f"attestation.cluster.x-k8s.io/{key.replace('_', '-')}": value for key, value in values.items()}
        self._change(name, lambda item: item["metadata"].setdefault("annotations", {}).update(written))

    def delete(self, name: str) -> None:
        with self._changed:
            self._record("DELETED", self.objects.pop(name))

    # What the API server does.

    def create(self, document: Object, username: str) -> Object | None:
        name = document["metadata"]["name"]
        with self._changed:
            if name in self.objects:
                return None
            document["metadata"]["uid"] = str(uuid.uuid4())
            document["metadata"]["creationTimestamp"] = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
            document["spec"]["username"] = username
            document["status"] = {}
            self.objects[name] = document
            answer = copy.deepcopy(self._record("ADDED", document))
        threading.Thread(target=self._decide, args=(name,), daemon=True).start()
        return answer

    def events(self, name: str, version: int, seconds: float) -> Generator[bytes]:
        end = time.monotonic() + seconds
        while True:
            with self._changed:
                fresh = [event for event in self._events if event[0] > version]
                if not fresh:
                    if self.is_stopping or time.monotonic() >= end:
                        return
                    self._changed.wait(min(0.5, end - time.monotonic()))
                    continue
                version = fresh[-1][0]
            for _, kind, item in fresh:
                if item["metadata"]["name"] == name and not (self.hides_deletions and kind == "DELETED"):
                    yield json.dumps({"type": kind, "object": item}).encode() + b"\n"

    def _decide(self, name: str) -> None:
        with contextlib.suppress(KeyError):
            self.on_create(self, name)

    def _change(self, name: str, edit: Callable[[Object], None]) -> None:
        with self._changed:
            edit(self.objects[name])
            self._record("MODIFIED", self.objects[name])

    def _record(self, kind: str, item: Object) -> Object:
        self._version += 1
        item["metadata"]["resourceVersion"] = str(self._version)
        self._events.append((self._version, kind, copy.deepcopy(item)))
        self._changed.notify_all()
        return item


class _Handler(Handler):
    disable_nagle_algorithm = True
    wbufsize = -1

    def setup(self) -> None:
        super().setup()
        self._peer.do_handshake()
        self._api.connections += 1

    @property
    def _peer(self) -> ssl.SSLSocket:
        return cast("ssl.SSLSocket", self.connection)

    @property
    def _api(self) -> FakeApi:
        return cast("FakeApi", self.owner)

    def date_time_string(self, timestamp: float | None = None) -> str:
        return formatdate((timestamp or time.time()) + self._api.ahead, usegmt=True)

    def do_POST(self) -> None:  # noqa: N802 - http.server's name
        document = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self._begin():
            created = self._api.create(document, self._username())
            if created is None:
                self._answer(409, {"kind": "Status", "message": "already exists"})
            else:
                self._answer(201, created)

    def do_GET(self) -> None:  # noqa: N802 - http.server's name
        if not self._begin():
            return
        parts = urlsplit(self.path)
        if parts.path in self._api.readable:
            self._answer(200, self._api.readable[parts.path])
            return
        query = {key: values[0] for key, values in parse_qs(parts.query).items()}
        if query.get("watch") != "1":
            item = self._api.objects.get(parts.path.rpartition("/")[2])
            self._answer(*((200, item) if item else (404, {"kind": "Status", "message": "not found"})))
            return
        self.send_response(200)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        self.wfile.flush()
        name = query["fieldSelector"].removeprefix("metadata.name=")
        for line in self._api.events(name, int(query["resourceVersion"]), float(query["timeoutSeconds"])):
            self.wfile.write(b"%x\r\n%b\r\n" % (len(line), line))
            self.wfile.flush()
        self.wfile.write(b"0\r\n\r\n")
        self.wfile.flush()

    def _begin(self) -> bool:
        api = self._api
        api.requests.append(f"{self.command} {self.path}")
        while api.hangs and not api.is_stopping:
            time.sleep(0.02)
        if "Authorization" in self.headers:
            api.shown.append((self.path, self.headers["Authorization"]))
        if peer := self._peer.getpeercert():
            api.presented.append((self.path, str(peer["serialNumber"])))
        if urlsplit(self.path).path in api.public:
            self._answer(200, api.public[urlsplit(self.path).path])
            return False
        is_known = self._username() not in {"", *api.not_accepted}
        if not is_known:
            self._answer(401, {"kind": "Status", "message": "the test says no"})
        return is_known

    def _username(self) -> str:
        if self.headers.get("Authorization") == f"Bearer {TOKEN}":
            return "system:bootstrap:abcdef"
        peer = self._peer.getpeercert()
        subject = cast("tuple[tuple[tuple[str, str], ...], ...]", (peer or {}).get("subject", ()))
        return next((value for part in subject for name, value in part if name == "commonName"), "")

    def _answer(self, code: int, document: Object) -> None:
        body = json.dumps(document).encode()
        self.send_response(code)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
        self.wfile.flush()
