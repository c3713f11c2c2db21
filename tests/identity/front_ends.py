"""The servers of ours that strangers reach, as processes with the limits of their manifests."""

from __future__ import annotations

import json
import ssl
import sys
import time
from collections.abc import Callable, Generator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from cryptography.hazmat.primitives.asymmetric import ec

from nodeattest_controller import manifests
from nodeattest_controller.controllers.bootstrap_config.config_reviewer import PATH as REVIEWS
from nodeattest_discovery import clusterinfo, jwt
from nodeattest_discovery.secret import SECRET_TYPE, TokenSecret, Usage, encode, secret_name
from nodeattest_discovery.token import generate
from nodeattest_identity.addon.gateway.target import ROOT
from nodeattest_identity.issuer.documents import documents
from nodeattest_identity.tokens.jwt import SigningKey, mint, signing_key
from nodeattest_parsing.objects import dig
from nodeattest_parsing.values import JsonObject
from nodeattest_sandbox.apiserver.jsonvalue import JsonMap
from nodeattest_sandbox.child_process import LOOPBACK, Process, wait
from nodeattest_sandbox.control_plane import ControlPlane, free_ports, listens, start_sandbox
from nodeattest_sandbox.definitions import install_cluster_api, install_definitions
from nodeattest_sandbox.fleet import create_namespace

ISSUER = "https://issuer.invalid"
AUDIENCE = "apps/dashboard"
LIFETIME = 3600
NAMESPACE = "nodeattest-addon-auth"
FRONT_PROXY = "front-proxy-client"
_REVIEW: JsonObject = {
    "apiVersion": "admission.k8s.io/v1",
    "kind": "AdmissionReview",
    "request": {
        "uid": "1",
        "kind": {"group": "", "version": "v1", "kind": "Pod"},
        "resource": {"group": "", "version": "v1", "resource": "pods"},
        "operation": "CREATE",
        "namespace": "default",
        "name": "a",
        "object": {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a", "namespace": "default"}},
    },
}
"""Of an object that is not ours: the answer needs no API server."""
_UNITS = {"Mi": 1 << 20, "Gi": 1 << 30}
PROGRAM = (sys.executable, "-m", "nodeattest_cli.main")
_CONTROLLER = (sys.executable, "-m", "nodeattest_controller.main")


@dataclass(frozen=True, slots=True, kw_only=True)
class FrontEnd:
    """One that listens."""

    name: str
    process: Process
    port: int
    most_memory: int
    """Bytes, of its manifest."""
    request: Callable[[], bytes]
    """Writes that of an honest client; it is answered with 200."""
    path: str
    tls: ssl.SSLContext | None
    """Of an honest client; None: plain HTTP."""
    ca: str = ""
    """File of the CA of its certificate; empty: plain HTTP."""

    def memory(self) -> int:
        """Return its bytes of memory (VmRSS, proc(5))."""
        lines = Path(f"/proc/{self.process.pid()}/status").read_text(encoding="ascii").splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS:")) << 10


@dataclass(frozen=True, slots=True)
class ServingFiles:
    """A serving certificate."""

    certificate: Path
    key: Path
    ca: Path


@dataclass(frozen=True, slots=True)
class Users:
    """Who asks a sidecar."""

    key: SigningKey

    def line(self, user: str) -> str:
        """Write the header field of a user."""
        token = mint(
            self.key,
            issuer=ISSUER,
            subject=user,
            audience=AUDIENCE,
            now=time.time(),
            lifetime=LIFETIME,
            jwt_id="1",
        )
        return f"Authorization: Bearer {token}\r\n"


def container(base: str) -> tuple[list[str], int]:
    """Return a manifest's flags of limits, and its limit of memory in bytes."""
    for document in manifests.objects(base):
        found = dig(document, "spec", "template", "spec", "containers")
        if isinstance(found, list):
            [one] = cast("list[JsonObject]", found)
            size = str(dig(one, "resources", "limits", "memory"))
            flags = [str(flag) for flag in cast("list[object]", one["args"]) if str(flag).startswith("--max-")]
            return flags, int(size[:-2]) * _UNITS[size[-2:]]
    raise LookupError(base)


@contextmanager
def sidecar(directory: Path, over: ServingFiles | None = None) -> Generator[tuple[FrontEnd, Users]]:
    """Run a sidecar as manifests/addon-sidecar has it, before ``echo_upstream``; ``over`` TLS where it is given."""
    port, upstream = free_ports(2)
    users = Users(signing_key(ec.generate_private_key(ec.SECP256R1())))
    jwks = directory / ("jwks.json" if over is None else "jwks-tls.json")  # each has users of its own
    jwks.write_bytes(documents(ISSUER, f"{ISSUER}/openid/v1/jwks", (users.key.verifying,)).jwks)
    flags, most_memory = container("addon-sidecar")
    with ExitStack() as stack:
        add_on = started(stack, "add-on", [sys.executable, "-m", "echo_upstream", str(upstream)], directory)
        wait(add_on, lambda: listens(upstream))
        name = "sidecar" if over is None else "sidecar over TLS"
        served = ["--plain-http"]
        if over is not None:
            served = [f"--tls-cert-file={over.certificate}", f"--tls-private-key-file={over.key}"]
        command = [
            *(*PROGRAM, "addon-auth", "sidecar", *served, f"--bind-address={LOOPBACK}:{port}"),
            *(f"--upstream={LOOPBACK}:{upstream}", f"--issuer={ISSUER}", f"--jwks-file={jwks}"),
            *(f"--audience={AUDIENCE}", f"--longest-lifetime={LIFETIME}", "--log-level=warning", *flags),
        ]
        process = started(stack, name.replace(" ", "-"), command, directory)
        wait(process, lambda: listens(port))
        asked = f"GET / HTTP/1.1\r\nHost: a\r\n{users.line('honest')}\r\n".encode()
        yield (
            FrontEnd(
                name=name,
                process=process,
                port=port,
                most_memory=most_memory,
                request=lambda: asked,
                path="/",
                tls=None if over is None else ssl.create_default_context(cafile=over.ca),
                ca="" if over is None else str(over.ca),
            ),
            users,
        )


def started(stack: ExitStack, name: str, command: list[str], directory: Path) -> Process:
    """Start a program of ours; it stops with ``stack``."""
    process = Process(name, command, directory, environment={"PYTHONPATH": str(Path(__file__).parent)})
    stack.callback(process.stop)
    return process


@contextmanager
def front_ends(directory: Path) -> Generator[list[FrontEnd]]:
    """Run gateway, sidecar (also over TLS), issuer, discovery front and webhook, beside the sandbox's API server."""
    with ExitStack() as stack:
        plane = stack.enter_context(start_sandbox(directory / "plane", name="neighbours"))
        first, _ = stack.enter_context(sidecar(directory))
        files = ServingFiles(plane.pki.server_certificate, plane.pki.server_key, plane.ca_certificate)
        second, _ = stack.enter_context(sidecar(directory, files))
        place = _Place(stack, directory, plane)
        made = [start(place) for start in (_gateway, _issuer, _discovery_front, _webhook)]
        yield [first, second, *made]


def front_proxy_config(plane: ControlPlane) -> JsonMap:
    """Return the ConfigMap by which a gateway believes the front proxy of a control plane's CA."""
    ca = plane.ca_certificate.read_text(encoding="utf-8")
    data: JsonMap = {
        "client-ca-file": ca,
        "requestheader-client-ca-file": ca,
        "requestheader-username-headers": '["X-Remote-User"]',
        "requestheader-group-headers": '["X-Remote-Group"]',
        "requestheader-extra-headers-prefix": '["X-Remote-Extra-"]',
        "requestheader-allowed-names": f'["{FRONT_PROXY}"]',
    }
    return {"metadata": {"name": "extension-apiserver-authentication"}, "data": data}


def _gateway(place: _Place) -> FrontEnd:
    admin = place.plane.client()
    create_namespace(admin, NAMESPACE)
    admin.create("/api/v1/namespaces/kube-system/configmaps", front_proxy_config(place.plane))
    flags = [
        f"--kubeconfig={place.plane.admin_kubeconfig}",
        "--issuer=https://gateway.invalid",
        f"--namespace={NAMESPACE}",
    ]
    command = [*PROGRAM, "addon-auth", "gateway", *flags]
    tls = _trust(place.plane)
    tls.load_cert_chain(*place.plane.pki.files(FRONT_PROXY))
    asked = f"GET {ROOT} HTTP/1.1\r\nHost: a\r\nX-Remote-User: honest\r\n\r\n".encode()
    limits = container("addon-gateway")
    return place.over_tls("gateway", command, (ROOT, lambda: asked), limits, tls)


def _issuer(place: _Place) -> FrontEnd:
    command = [
        *(*PROGRAM, "issuer", "serve", f"--service-account-issuer={ISSUER}"),
        f"--service-account-key-file={place.plane.pki.account_public_key}",
    ]
    path = "/openid/v1/jwks"
    asked = f"GET {path} HTTP/1.1\r\nHost: a\r\n\r\n".encode()
    limits = container("discovery-front")  # there is no manifest of the issuer
    return place.over_tls("issuer", command, (path, lambda: asked), limits)


def _discovery_front(place: _Place) -> FrontEnd:
    admin = place.plane.client()
    kubeconfig = clusterinfo.build(place.plane.server, place.plane.ca_certificate.read_bytes())
    admin.create(
        "/api/v1/namespaces/kube-public/configmaps",
        {"metadata": {"name": clusterinfo.NAME}, "data": {"kubeconfig": kubeconfig}},
    )
    token = generate()
    data: JsonMap = {**encode(TokenSecret(token=token, usages=frozenset(Usage)))}
    secret: JsonMap = {"metadata": {"name": secret_name(token.id)}, "type": SECRET_TYPE, "data": data}
    admin.create("/api/v1/namespaces/kube-system/secrets", secret)
    command = [*PROGRAM, "discovery", "serve", f"--kubeconfig={place.plane.admin_kubeconfig}"]

    def asked() -> bytes:
        question = jwt.mint(token, time.time())
        return f"GET {clusterinfo.PATH} HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer {question}\r\n\r\n".encode()

    path, limits = clusterinfo.PATH, container("discovery-front")
    return place.over_tls("discovery front", command, (path, asked), limits)


def _webhook(place: _Place) -> FrontEnd:
    admin = place.plane.client()
    install_cluster_api(admin)
    install_definitions(admin, manifests.crds())  # pyright: ignore[reportArgumentType] - the sandbox's own JSON type
    folder = place.directory / "webhook"
    folder.mkdir()
    (folder / "tls.crt").write_bytes(place.plane.pki.server_certificate.read_bytes())
    (folder / "tls.key").write_bytes(place.plane.pki.server_key.read_bytes())
    [port] = free_ports(1)
    command = [
        *(*_CONTROLLER, "run", "--kubeconfig", str(place.plane.admin_kubeconfig), "--leader-elect=false"),
        *(f"--webhook-bind-address={LOOPBACK}:{port}", f"--webhook-cert-dir={folder}"),
        *("--health-bind-address=127.0.0.1:0", "--metrics-bind-address=0"),
    ]
    process = started(place.stack, "webhook", command, place.directory)
    wait(process, lambda: listens(port))
    body = json.dumps(_REVIEW).encode()
    fields = f"Host: a\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    return FrontEnd(
        name="webhook",
        process=process,
        port=port,
        most_memory=container("manager")[1],
        request=lambda: f"POST {REVIEWS} HTTP/1.1\r\n{fields}".encode() + body,
        path=REVIEWS,
        tls=_trust(place.plane),
        ca=str(place.plane.ca_certificate),
    )


@dataclass(frozen=True, slots=True)
class _Place:
    """Where servers are started."""

    stack: ExitStack
    directory: Path
    plane: ControlPlane

    def over_tls(
        self,
        name: str,
        command: list[str],
        asked: tuple[str, Callable[[], bytes]],
        limits: tuple[list[str], int],
        tls: ssl.SSLContext | None = None,
    ) -> FrontEnd:
        """Start a server; ``asked``: a path, and what writes an honest request for it."""
        [port] = free_ports(1)
        flags = [
            *(f"--bind-address={LOOPBACK}:{port}", f"--tls-cert-file={self.plane.pki.server_certificate}"),
            *(f"--tls-private-key-file={self.plane.pki.server_key}", *limits[0]),
        ]
        process = started(self.stack, name.replace(" ", "-"), [*command, *flags], self.directory)
        wait(process, lambda: listens(port))
        return FrontEnd(
            name=name,
            process=process,
            port=port,
            most_memory=limits[1],
            path=asked[0],
            request=asked[1],
            tls=tls or _trust(self.plane),
            ca=str(self.plane.ca_certificate),
        )


def _trust(plane: ControlPlane) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=plane.ca_certificate)
