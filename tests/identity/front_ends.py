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

from token_kit import elliptic

from nodeattest_controller import manifests
from nodeattest_controller.controllers.bootstrap_config.config_reviewer import PATH as REVIEWS
from nodeattest_discovery import clusterinfo, jwt
from nodeattest_discovery.secret import SECRET_TYPE, TokenSecret, Usage, encode, secret_name
from nodeattest_discovery.token import generate
from nodeattest_identity.addon.gateway.target import ROOT
from nodeattest_identity.issuer.documents import documents
from nodeattest_identity.tokens.jwt import mint
from nodeattest_parsing.objects import dig
from nodeattest_parsing.values import JsonObject
from nodeattest_sandbox.apiserver.jsonvalue import JsonMap
from nodeattest_sandbox.child_process import LOOPBACK, Process, free_ports, listens, wait
from nodeattest_sandbox.control_plane import ControlPlane, start_sandbox
from nodeattest_sandbox.definitions import install_cluster_api, install_definitions
from nodeattest_sandbox.fleet import create_namespace

NAMES = ("sidecar", "sidecar over TLS", "gateway", "issuer", "discovery front", "webhook")
ISSUER = "https://issuer.invalid"
NAMESPACE = "nodeattest-addon-auth"
FRONT_PROXY = "front-proxy-client"
PROGRAM = (sys.executable, "-m", "nodeattest_cli.main")
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


@dataclass(frozen=True, slots=True, kw_only=True)
class FrontEnd:
    """One that listens."""

    process: Process
    port: int
    most_memory: int
    """Bytes, of its manifest."""
    request: Callable[[], bytes]
    """Writes that of an honest client; it is answered with 200."""
    path: str
    tls: ssl.SSLContext | None
    """Of an honest client; None: plain HTTP."""
    ca: str
    """File of the CA of its certificate; empty: plain HTTP."""

    def memory(self) -> int:
        """Return its bytes of memory (VmRSS, proc(5))."""
        lines = Path(f"/proc/{self.process.pid()}/status").read_text(encoding="ascii").splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS:")) << 10


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


def started(stack: ExitStack, name: str, command: list[str], directory: Path) -> Process:
    """Start a program of ours; it stops with ``stack``."""
    process = Process(name, command, directory, environment={"PYTHONPATH": str(Path(__file__).parent)})
    stack.callback(process.stop)
    return process


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


def get(path: str, *fields: str) -> bytes:
    return "".join(f"{line}\r\n" for line in (f"GET {path} HTTP/1.1", "Host: a", *fields, "")).encode()


@contextmanager
def front_ends(directory: Path) -> Generator[dict[str, FrontEnd]]:
    """Run gateway, sidecar (also over TLS), issuer, discovery front and webhook, beside the sandbox's API server."""
    with ExitStack() as stack:
        place = _Place(stack, directory, stack.enter_context(start_sandbox(directory / "plane", name="neighbours")))
        sidecar = place.sidecar_command()
        made = (
            place.sidecar([*sidecar, "--plain-http"]), place.sidecar(sidecar), place.gateway(), place.issuer(),
            place.discovery_front(), place.webhook(),
        )  # fmt: skip
        yield dict(zip(NAMES, made, strict=True))


@dataclass(frozen=True, slots=True)
class _Place:
    """Where servers are started."""

    stack: ExitStack
    directory: Path
    plane: ControlPlane

    def _run(
        self,
        base: str,
        command: list[str],
        path: str,
        request: Callable[[], bytes],
        *,
        tls: ssl.SSLContext | None = None,
        port: int = 0,
    ) -> FrontEnd:
        """Start a server with the limits of its manifest; ``tls`` is an honest client's, ``port`` one of its flags."""
        limits, most_memory = container(base)
        has_tls, pki = "--plain-http" not in command, self.plane.pki
        if not port:
            [port] = free_ports(1)
            command = [*PROGRAM, *command, f"--bind-address={LOOPBACK}:{port}", *limits]
            if has_tls:
                command += [f"--tls-cert-file={pki.server_certificate}", f"--tls-private-key-file={pki.server_key}"]
        process = started(self.stack, f"{base}-{port}", command, self.directory)
        wait(process, lambda: listens(port))
        return FrontEnd(
            process=process,
            port=port,
            most_memory=most_memory,
            request=request,
            path=path,
            tls=(tls or ssl.create_default_context(cafile=self.plane.ca_certificate)) if has_tls else None,
            ca=str(self.plane.ca_certificate) if has_tls else "",
        )

    def _keys(self) -> Path:
        """Write the key set of ``elliptic`` where an issuer serves it."""
        jwks = self.directory / "issuer" / "openid" / "v1" / "jwks"
        jwks.parent.mkdir(parents=True, exist_ok=True)
        jwks.write_bytes(documents(ISSUER, f"{ISSUER}/openid/v1/jwks", (elliptic().verifying,)).jwks)
        return jwks

    def sidecar_command(self) -> list[str]:
        """Run ``echo_upstream``, and write the command of a sidecar before it."""
        [upstream] = free_ports(1)
        add_on = started(self.stack, "add-on", [sys.executable, "-m", "echo_upstream", str(upstream)], self.directory)
        wait(add_on, lambda: listens(upstream))
        return [
            *("addon-auth", "sidecar", f"--upstream={LOOPBACK}:{upstream}", f"--issuer={ISSUER}"),
            *(f"--jwks-file={self._keys()}", "--audience=a/b", "--longest-lifetime=3600", "--log-level=warning"),
        ]

    def sidecar(self, command: list[str]) -> FrontEnd:
        now = time.time()
        token = mint(elliptic(), issuer=ISSUER, subject="honest", audience="a/b", now=now, lifetime=3600)
        return self._run("addon-sidecar", command, "/", lambda: get("/", f"Authorization: Bearer {token}"))

    def gateway(self) -> FrontEnd:
        admin = self.plane.client()
        create_namespace(admin, NAMESPACE)
        admin.create("/api/v1/namespaces/kube-system/configmaps", front_proxy_config(self.plane))
        command = [
            *("addon-auth", "gateway", f"--kubeconfig={self.plane.admin_kubeconfig}"),
            *("--issuer=https://gateway.invalid", f"--namespace={NAMESPACE}"),
        ]
        tls = ssl.create_default_context(cafile=self.plane.ca_certificate)
        tls.load_cert_chain(*self.plane.pki.files(FRONT_PROXY))
        return self._run("addon-gateway", command, ROOT, lambda: get(ROOT, "X-Remote-User: honest"), tls=tls)

    def issuer(self) -> FrontEnd:
        """Run an issuer with the limits of the discovery front: it has no manifest."""
        command = ["issuer", "serve", f"--issuer-base={ISSUER}", f"--dir={self._keys().parents[2]}"]
        return self._run("discovery-front", command, "/openid/v1/jwks", lambda: get("/openid/v1/jwks"))

    def discovery_front(self) -> FrontEnd:
        admin, token = self.plane.client(), generate()
        kubeconfig = clusterinfo.build(self.plane.server, self.plane.ca_certificate.read_bytes())
        public: JsonMap = {"metadata": {"name": clusterinfo.NAME}, "data": {"kubeconfig": kubeconfig}}
        admin.create("/api/v1/namespaces/kube-public/configmaps", public)
        data: JsonMap = {**encode(TokenSecret(token=token, usages=frozenset(Usage)))}
        secret: JsonMap = {"metadata": {"name": secret_name(token.id)}, "type": SECRET_TYPE, "data": data}
        admin.create("/api/v1/namespaces/kube-system/secrets", secret)
        command = ["discovery", "serve", f"--kubeconfig={self.plane.admin_kubeconfig}"]
        path = clusterinfo.PATH
        return self._run(
            "discovery-front", command, path, lambda: get(path, f"Authorization: Bearer {jwt.mint(token, time.time())}")
        )

    def webhook(self) -> FrontEnd:
        admin, pki, folder = self.plane.client(), self.plane.pki, self.directory / "webhook"
        install_cluster_api(admin)
        install_definitions(admin, manifests.crds())  # pyright: ignore[reportArgumentType] - the sandbox's own JSON type
        folder.mkdir()
        (folder / "tls.crt").write_bytes(pki.server_certificate.read_bytes())
        (folder / "tls.key").write_bytes(pki.server_key.read_bytes())
        [port] = free_ports(1)
        command = [
            *(sys.executable, "-m", "nodeattest_controller.main", "run", "--leader-elect=false"),
            *("--kubeconfig", str(self.plane.admin_kubeconfig), f"--webhook-bind-address={LOOPBACK}:{port}"),
            *(f"--webhook-cert-dir={folder}", "--health-bind-address=127.0.0.1:0", "--metrics-bind-address=0"),
        ]
        body = json.dumps(_REVIEW).encode()
        head = f"POST {REVIEWS} HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\nContent-Length: {len(body)}"
        data = f"{head}\r\n\r\n".encode() + body
        return self._run("manager", command, REVIEWS, lambda: data, port=port)
