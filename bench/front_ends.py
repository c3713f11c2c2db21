"""The servers of ours that strangers reach, as processes with the limits of their manifests."""

from __future__ import annotations

import ssl
import sys
import time
from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from cryptography.hazmat.primitives.asymmetric import ec

from nodeattest_controller import manifests
from nodeattest_identity.issuer.documents import documents
from nodeattest_identity.tokens.signing import SigningKey, mint, signing_key
from nodeattest_kube.jsontypes import JsonObject, dig
from nodeattest_sandbox.child_process import LOOPBACK, Process, wait
from nodeattest_sandbox.control_plane import free_ports, listens

ISSUER = "https://bench.invalid"
AUDIENCE = "apps/dashboard"
LIFETIME = 3600
NAMESPACE = "nodeattest-addon-auth"
FRONT_PROXY = "front-proxy-client"
_UNITS = {"Mi": 1 << 20, "Gi": 1 << 30}
_PROGRAM = (sys.executable, "-m", "nodeattest_cli.main")
_CONTROLLER = (sys.executable, "-m", "nodeattest_controller.main")


@dataclass(frozen=True, slots=True, kw_only=True)
class FrontEnd:
    """One that listens."""

    name: str
    process: Process
    port: int
    most_memory: int
    """Bytes, of its manifest."""
    request: bytes
    """Of an honest client; answered with 200."""
    tls: ssl.SSLContext | None
    """Of an honest client; None: plain HTTP."""
    stranger: ssl.SSLContext | None
    """Of a client without any credential."""

    def memory(self) -> int:
        """Return its bytes of memory (VmRSS, proc(5))."""
        lines = Path(f"/proc/{self.process.pid()}/status").read_text(encoding="ascii").splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS:")) << 10


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
def sidecar(directory: Path) -> Generator[tuple[FrontEnd, Users]]:
    """Run a sidecar as manifests/addon-sidecar has it, before ``echo_upstream``."""
    port, upstream = free_ports(2)
    users = Users(signing_key(ec.generate_private_key(ec.SECP256R1())))
    jwks = directory / "jwks.json"
    jwks.write_bytes(documents(ISSUER, f"{ISSUER}/openid/v1/jwks", (users.key.verifying,)).jwks)
    flags, most_memory = container("addon-sidecar")
    with ExitStack() as stack:
        add_on = _started(stack, "add-on", [sys.executable, "-m", "bench.echo_upstream", str(upstream)], directory)
        wait(add_on, lambda: listens(upstream))
        command = [
            *(*_PROGRAM, "addon-auth", "sidecar", "--plain-http", f"--bind-address={LOOPBACK}:{port}"),
            *(f"--upstream={LOOPBACK}:{upstream}", f"--issuer={ISSUER}", f"--jwks-file={jwks}"),
            *(f"--audience={AUDIENCE}", f"--longest-lifetime={LIFETIME}", "--log-level=warning", *flags),
        ]
        process = _started(stack, "sidecar", command, directory)
        wait(process, lambda: listens(port))
        yield (
            FrontEnd(
                name="sidecar",
                process=process,
                port=port,
                most_memory=most_memory,
                request=f"GET / HTTP/1.1\r\nHost: a\r\n{users.line('honest')}\r\n".encode(),
                tls=None,
                stranger=None,
            ),
            users,
        )


def _started(stack: ExitStack, name: str, command: list[str], directory: Path) -> Process:
    process = Process(name, command, directory, environment={"PYTHONPATH": str(Path(__file__).parents[1])})
    stack.callback(process.stop)
    return process
