"""Runs the commands of a runbook or of the tutorial as they stand there, against the control planes of a world.

Promises: each shell block runs as a whole, in the page's order, and ends at the first command that fails; ``finished``
says whether the test ran all of them. Only what names a machine or an address of the example is replaced.
"""

from __future__ import annotations

import base64
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from textwrap import dedent
from typing import Final, TypedDict, cast

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from needs import not_possible
from polling import eventually
from world import BIN, CLUSTER, LOOPBACK_FLAGS, NAMESPACE, OWN, Agent, Controller, World

from nodeattest_sandbox.apiserver.jsonvalue import JsonMap, maps_at, text_at
from nodeattest_sandbox.swtpm import SoftwareTpm

DOCS: Final = Path(__file__).parents[2] / "docs"
SERVER: Final = "https://10.0.0.1:6443"
"""The workload cluster's API server in the pages."""
_BLOCK: Final = re.compile(r"^ *```sh\n(.*?)^ *```", re.DOTALL | re.MULTILINE)
_SHELL: Final = ("/bin/bash", "-euo", "pipefail", "-c")
_AGENT: Final = """\
#!/bin/sh
# What stands at its usual place on a node is in a folder here, and the TPM is a software TPM.
case $1 in
join) exec {program} "$@" {files} {join} {settings} ;;
adopt) exec {program} "$@" {files} {kubeconfig} {settings} ;;
evidence) exec {program} "$@" {settings} ;;
*) exec {program} "$@" {files} ;;
esac
"""


class _Place(TypedDict):
    """Where a block runs."""

    cwd: Path
    env: dict[str, str]
    stdin: int


class Runbook:
    """One page or section, and the folder of the operator who follows it."""

    def __init__(self, world: World, page: str, section: str = "", *, names: Mapping[str, str] | None = None) -> None:
        if world.management.kubectl is None:
            not_possible("kubectl runs beside real API servers only")
        self.folder = world.directory / re.sub(r"\W+", "-", section or page)
        self.folder.mkdir(exist_ok=True)
        self._world = world
        self._names = {SERVER: world.workload.server, **(names or {})}
        text = (DOCS / f"{page}.md").read_text()
        if section:
            _, _, text = text.partition(f"\n## {section}\n")
            assert text, f"{page}.md has no section {section!r}"
            text = text.partition("\n## ")[0]
        self._blocks = iter(_BLOCK.findall(text))
        self._programs = self.folder / "bin"
        self._programs.mkdir(exist_ok=True)
        (self._programs / "kubectl").symlink_to(world.management.kubectl)
        _write_program(
            self._programs / "node-attestation-controller",
            f'#!/bin/sh\nexec {BIN}/node-attestation-controller "$@" {shlex.join(LOOPBACK_FLAGS)}\n',
        )
        shutil.copy(world.workload.ca_certificate, self.folder / "ca.crt")
        (self.folder / "manifests").symlink_to(DOCS.parent / "manifests")

    def run(self, *, node: Agent | None = None, expected: int = 0) -> str:
        """Run the next block, as the operator or on a node, and return what it printed."""
        if node is not None:
            _install(node, self._programs / "kubelet-authenticator")
        script = self._script()
        done = subprocess.run(
            [*_SHELL, script], **self._place(), capture_output=True, text=True, timeout=120, check=False
        )
        assert done.returncode == expected, f"{script}\n{done.stdout}{done.stderr}"
        return done.stdout + done.stderr

    @contextmanager
    def start(self) -> Generator[Path]:
        """Run the next block until the end of the context, and yield the file with what it prints."""
        log = self.folder / "started.log"
        with log.open("wb") as out:
            process = subprocess.Popen(
                [*_SHELL, self._script()], **self._place(), stdout=out, stderr=out, start_new_session=True
            )
        try:
            yield log
        finally:
            os.killpg(process.pid, signal.SIGINT)
            process.wait(30)

    def _script(self) -> str:
        script = dedent(next(self._blocks))
        for name, replacement in self._names.items():
            script = script.replace(name, replacement)
        return script

    def _place(self) -> _Place:
        path = f"{self._programs}:{BIN}:{os.environ['PATH']}"
        env = {
            **os.environ,
            "PATH": path,
            "HOME": str(self.folder),
            "KUBECONFIG": str(self._world.management.admin_kubeconfig),
        }
        return {"cwd": self.folder, "env": env, "stdin": subprocess.DEVNULL}

    def bring(self, printed: str) -> None:
        """Carry the token of ``machines rejoin`` to the node, as the file ``token``."""
        found = re.search(r"^ *([a-z0-9]{6}\.[a-z0-9]{16})$", printed, re.MULTILINE)
        assert found, printed
        file = self.folder / "token"
        file.write_text(found[1])
        file.chmod(0o600)

    def finished(self) -> bool:
        """Tell whether every block was run."""
        return next(self._blocks, None) is None


def _install(node: Agent, program: Path) -> None:
    """Put the node's agent on the path."""
    settings = [word for key, value in node.settings.items() for word in ("--set", f"{key}={value}")]
    kubeconfig = ["--kubeconfig", str(node.kubeconfig)]
    join = ["--node-name", node.node_name, *kubeconfig]
    node.directory.mkdir(parents=True, exist_ok=True)
    words = {
        "program": node.program,
        "files": node.files(),
        "join": join,
        "kubeconfig": kubeconfig,
        "settings": settings,
    }
    _write_program(program, _AGENT.format(**{key: shlex.join(value) for key, value in words.items()}))


def _write_program(path: Path, text: str) -> None:
    path.write_text(text)
    path.chmod(0o755)


def nodeattest(world: World, *words: str) -> subprocess.CompletedProcess[str]:
    """Run one of the operator's commands against the management cluster."""
    access = ["--kubeconfig", str(world.management.admin_kubeconfig), "-n", NAMESPACE]
    command = [BIN / "nodeattest", *words, *access]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


def reset(world: World, name: str, reason: str = "a test") -> None:
    """Reset a machine's ledger."""
    done = nodeattest(world, "machines", "reset", name, "--reason", reason, "--yes")
    assert done.returncode == 0, done.stderr


def rejoin_token(world: World, name: str) -> str:
    """Make a token for one machine and wait until the server takes it."""
    done = nodeattest(world, "machines", "rejoin", name, "-o", "json")
    assert done.returncode == 0, done.stderr
    return world.workload.await_token(text_at(cast("JsonMap", json.loads(done.stdout)), "token"))


def shorten_certificates(world: World, seconds: int) -> None:
    """Let the cluster's CA end soon, hence every certificate that it signs from now on."""
    pki = world.workload.pki
    ca = x509.load_pem_x509_certificate(pki.ca_certificate.read_bytes())
    key = serialization.load_pem_private_key(pki.ca_key.read_bytes(), None)
    assert isinstance(key, ec.EllipticCurvePrivateKey)
    builder = (
        x509.CertificateBuilder()
        .subject_name(ca.subject)
        .issuer_name(ca.subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(ca.not_valid_before_utc)
        .not_valid_after(datetime.now(UTC) + timedelta(seconds=seconds))
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
    )
    pem = builder.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)
    data = {"tls.crt": base64.b64encode(pem).decode(), "tls.key": base64.b64encode(pki.ca_key.read_bytes()).decode()}
    world.admin.patch(f"/api/v1/namespaces/{NAMESPACE}/secrets/{CLUSTER}-ca", {"data": {**data}})


SPENT: Final = "gone00.0123456789abcdef"
"""A bootstrap token of the past: a node renews by its own certificate."""


@contextmanager
def serving(world: World, log: str, policy: JsonMap | None = None, *, elected: bool = False) -> Generator[Controller]:
    """Run a controller under a policy that authorizes TPMs, or under this one."""
    world.set_policy(**(policy or {"authorizedAttestors": ["tpm"]}))
    with world.controller(*(() if elected else ("--leader-elect", "false")), log=log) as controller:
        world.await_service(controller)
        yield controller


def joined(
    world: World, name: str, *, tpm: SoftwareTpm | None = None, registered: bool = True, token: str = ""
) -> Agent:
    """Let a machine join by its TPM; one that is not ``registered`` is trusted on first use."""
    tpm = tpm or world.tpm(name)
    world.machine(name, tpm=tpm if registered else None)
    agent = world.agent(name, "tpm", tcti=tpm.tcti)
    done = agent.join(token or world.token())
    assert done.returncode == 0, done.stderr
    return agent


def status(agent: Agent) -> JsonMap:
    """Return what the agent says of its certificate."""
    return cast("JsonMap", json.loads(agent.run("status", "--json", *agent.files()).stdout))


def ended(agent: Agent) -> None:
    """Wait until the node's certificate has ended."""
    eventually(lambda: status(agent)["state"] == "none", what="the end of the certificate")


def serials(world: World) -> dict[str, list[str]]:
    """Return the certificates on record, by machine."""
    return {
        text_at(one, "spec", "machineName"): [text_at(entry, "serial") for entry in maps_at(one, "spec", "issued")]
        for one in world.admin.list(f"{OWN}/machineattestations")
    }
