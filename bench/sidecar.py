"""What the sidecar of an add-on costs: requests a second, time for each, memory of WebSockets.

The sidecar is the command as users start it, on one core, with a token that it has verified once; load and the least
possible add-on share the other core. Requests are counted against the sidecar's own CPU time, so that the rest of the
machine does not weigh in. Of times, the least disturbed round counts, the add-on alone is measured in the
same rounds, and root measures at a higher priority than the rest of the machine.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Generator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from cryptography.hazmat.primitives.asymmetric import ec

from bench.figures import Figure
from nodeattest_identity.issuer.documents import documents
from nodeattest_identity.tokens.signing import mint, signing_key
from nodeattest_sandbox.child_process import Process, wait
from nodeattest_sandbox.control_plane import free_ports, listens

ISSUER = "https://bench.invalid"
AUDIENCE = "bench/dashboard"
LIFETIME = 600
ROUNDS = 3
PRIORITY = -15
"""Of all processes of a measurement, nice(2)."""
CONNECTIONS = 32
REQUESTS = 8_000
PACED_RATE = 500.0
PACED_REQUESTS = 2_500
PACED_ROUNDS = 4
WEBSOCKETS = 1_000
TICKS = 100
"""A second, in /proc (USER_HZ)."""
UPGRADE = (
    "Connection: Upgrade",
    "Upgrade: websocket",
    "Sec-WebSocket-Version: 13",
    "Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==",
)


@dataclass(frozen=True)
class Stage:
    """The processes of a measurement."""

    sidecar: Process
    port: int
    direct: int
    cpu: int
    token: str

    def load(self, port: int, kind: str, **more: object) -> dict[str, object]:
        """Run a load to its end."""
        with self.loading(port, kind, **more) as told:
            return told

    @contextmanager
    def loading(self, port: int, kind: str, *lines: str, **more: object) -> Generator[dict[str, object]]:
        """Run a load; what is held is held for the length of the block."""
        head = "\r\n".join(("GET /a HTTP/1.1", "Host: bench", f"Authorization: Bearer {self.token}", *lines, "", ""))
        wanted = json.dumps({"port": port, "head": head, "kind": kind, "connections": CONNECTIONS, **more})
        command = [sys.executable, "-m", "bench.http_load", str(self.cpu)]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:
            _prefer(child.pid)
            assert child.stdin is not None
            assert child.stdout is not None
            child.stdin.write(wanted + "\n")
            child.stdin.flush()
            yield cast("dict[str, object]", json.loads(child.stdout.readline()))
            child.stdin.close()

    def cpu_seconds(self) -> float:
        """Return the CPU time that the sidecar has taken."""
        told = Path(f"/proc/{self.sidecar.pid()}/stat").read_text(encoding="ascii").rpartition(") ")[2].split()
        return (int(told[11]) + int(told[12])) / TICKS  # utime and stime, proc(5)

    def memory(self) -> float:
        """Return the sidecar's resident memory in MiB."""
        lines = Path(f"/proc/{self.sidecar.pid()}/status").read_text(encoding="ascii").splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS:")) / 1024


def measure() -> list[Figure]:
    with tempfile.TemporaryDirectory(prefix="nodeattest-bench-") as name, _stage(Path(name)) as stage:
        rates = [_rates(stage) for _ in range(ROUNDS)]
        rounds = [_milliseconds(stage) for _ in range(PACED_ROUNDS)]
        before = stage.memory()
        with stage.loading(stage.port, "held", *UPGRADE, connections=WEBSOCKETS):
            time.sleep(1)
            held = stage.memory()
    added, through, alone = _added(rounds, "99")
    note = f"{CONNECTIONS} connections, a cached token; 1 / CPU time of the sidecar"
    return [
        Figure("sidecar: requests, one core", max(each[0] for each in rates), "1/s", ">= 1500", note),
        Figure("… by the clock, load beside it", max(each[1] for each in rates), "1/s", "", f"{REQUESTS} requests"),
        Figure(
            "sidecar: 99th percentile added at 500 requests/s",
            added,
            "ms",
            "<= 3",
            f"{through:.3g} ms with it, {alone:.3g} ms without",
        ),
        Figure("… median", _added(rounds, "50")[0], "ms", "", f"{PACED_ROUNDS} rounds of {PACED_REQUESTS} requests"),
        Figure("sidecar: memory with 1,000 idle WebSockets", held, "MiB", "<= 120", f"{before:.3g} MiB without them"),
    ]


def _rates(stage: Stage) -> tuple[float, float]:
    """Return requests for each second of the sidecar's CPU time, and of the clock."""
    before = stage.cpu_seconds()
    told = stage.load(stage.port, "flat", requests=REQUESTS)
    return REQUESTS / (stage.cpu_seconds() - before), cast("float", told["rate"])


def _milliseconds(stage: Stage) -> tuple[dict[str, float], dict[str, float]]:
    """Return percentiles through the sidecar and without it."""
    through, alone = (
        stage.load(port, "paced", requests=PACED_REQUESTS, rate=PACED_RATE)["milliseconds"]
        for port in (stage.port, stage.direct)
    )
    return cast("dict[str, float]", through), cast("dict[str, float]", alone)


def _added(rounds: list[tuple[dict[str, float], dict[str, float]]], percentile: str) -> tuple[float, float, float]:
    """Return what the sidecar adds, and of what: the least disturbed round of each side."""
    through, alone = (min(each[side][percentile] for each in rounds) for side in (0, 1))
    return through - alone, through, alone


@contextmanager
def _stage(directory: Path) -> Generator[Stage]:
    cpus = sorted(os.sched_getaffinity(0))
    ours, others = cpus[0], cpus[-1]
    direct, port = free_ports(2)
    key = signing_key(ec.generate_private_key(ec.SECP256R1()))
    jwks = directory / "jwks.json"
    jwks.write_bytes(documents(ISSUER, f"{ISSUER}/openid/v1/jwks", (key.verifying,)).jwks)
    token = mint(
        key,
        issuer=ISSUER,
        subject="alice",
        audience=AUDIENCE,
        now=time.time(),
        lifetime=LIFETIME,
        jwt_id="1",
    )
    with ExitStack() as stack:
        add_on = Process(
            "add-on",
            [sys.executable, "-m", "bench.http_upstream", str(direct), str(others)],
            directory,
            environment={"PYTHONPATH": str(Path(__file__).parents[1])},
        )
        stack.callback(add_on.stop)
        _prefer(add_on.pid())
        wait(add_on, lambda: listens(direct))
        sidecar = Process("sidecar", _command(port, direct, jwks), directory)
        stack.callback(sidecar.stop)
        os.sched_setaffinity(sidecar.pid(), {ours})
        _prefer(sidecar.pid())
        wait(sidecar, lambda: listens(port))
        yield Stage(sidecar, port, direct, others, token)


def _prefer(pid: int) -> None:
    with suppress(PermissionError):
        os.setpriority(os.PRIO_PROCESS, pid, PRIORITY)


def _command(port: int, add_on: int, jwks: Path) -> list[str]:
    flags = {
        "bind-address": f"127.0.0.1:{port}",
        "upstream": f"127.0.0.1:{add_on}",
        "issuer": ISSUER,
        "jwks-file": jwks,
        "audience": AUDIENCE,
        "longest-lifetime": LIFETIME,
        "requests-per-user": 2 * WEBSOCKETS,
        "log-level": "warning",
    }
    program = Path(sysconfig.get_path("scripts")) / "nodeattest"
    return [
        str(program),
        "addon-auth",
        "sidecar",
        "--plain-http",
        *(f"--{name}={value}" for name, value in flags.items()),
    ]
