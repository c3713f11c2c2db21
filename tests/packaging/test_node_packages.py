"""The agent for nodes without Python: nodes join by each of its packages, which can be replaced while in use."""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import pytest
from needs import lacks, not_possible, released
from world import Agent, World, built_world

from images.debian import ARCHITECTURES, CACHE, TREE, native
from nodeattest_sandbox.apiserver.jsonvalue import text_at
from nodeattest_sandbox.control_plane import start_real

HOME: Final = "opt/nodeattest"
PYTHON: Final = f"/{HOME}/current/bin/python3.13"
NATIVE: Final = native().debian
[FOREIGN] = ARCHITECTURES.keys() - {NATIVE}
EMULATOR: Final = f"qemu-{ARCHITECTURES[FOREIGN].machine}-static"
_ENTER: Final = """\
set -e
root=$1; shift
for shared in /dev /proc "$SHARED"; do mkdir -p "$root$shared"; mount --bind "$shared" "$root$shared"; done
exec chroot "$root" "$@"
"""


def needs(*programs: str) -> None:
    """Skip where a machine cannot be made: without root, namespaces or a program of the group ``packages``."""
    if os.geteuid() != 0:
        lacks("root, for a chroot")
    if subprocess.run(["/usr/bin/unshare", "--mount", "true"], capture_output=True, check=False).returncode:
        not_possible("no mount namespace can be made")
    for program in programs:
        if shutil.which(program) is None:
            lacks(f"{program} is not installed: tools/system-packages packages")


def build(out: Path, *options: str) -> dict[str, Path]:
    """Build packages of this tree; returns them by their kind."""
    command = [sys.executable, "-m", "images.node", "--out", out, *options]
    done = subprocess.run(command, cwd=TREE, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return by_kind(out.iterdir())


def by_kind(files: Iterable[Path]) -> dict[str, Path]:
    """Return files by architecture and suffix, such as ``amd64.deb``."""
    found: dict[str, Path] = {}
    for file in files:
        for architecture in ARCHITECTURES.values():
            if architecture.debian in file.name or architecture.machine in file.name:
                found[f"{architecture.debian}{file.suffix}"] = file
    return found


def debian(suite: str, into: Path, *, variant: str = "essential", include: str = "dpkg,systemd") -> None:
    """Unpack a release's essential packages and ``include``, no Python; with variant ``extract`` ``include`` only."""
    CACHE.mkdir(parents=True, exist_ok=True)
    kept = CACHE / f"root-{suite}-{variant}-{include.replace(',', '+')}.tar"
    with (CACHE / f"{suite}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not kept.exists():
            made = kept.with_suffix(".new.tar")
            command = ["mmdebstrap", "--quiet", f"--variant={variant}", f"--include={include}", suite, str(made)]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            assert done.returncode == 0, done.stderr
            made.rename(kept)
    into.mkdir()
    subprocess.run(["/usr/bin/tar", "-xf", kept, "-C", into, "--exclude=./dev/*"], check=True)
    assert not list(into.glob("usr/bin/python*"))


def _in_namespaces(root: Path, *words: str) -> tuple[str, ...]:
    """Return a command that runs ``words`` with ``root`` as its root directory."""
    return ("env", f"SHARED={tempfile.gettempdir()}", "unshare", "--mount", "sh", "-c", _ENTER, "sh", str(root), *words)


@dataclass(frozen=True, slots=True)
class Machine:
    """A root directory, and the path of the agent in it."""

    root: Path
    program: str
    is_emulated: bool = False

    @property
    def agent(self) -> tuple[str, ...]:
        """The command of the agent."""
        return self.command(PYTHON, "-IS", self.program) if self.is_emulated else self.command(self.program)

    def command(self, *words: str) -> tuple[str, ...]:
        """Return the command that runs a program of the machine."""
        emulator = [f"/{EMULATOR}"] if self.is_emulated else []
        return _in_namespaces(self.root, *emulator, *words)

    def python(self, program: str) -> str:
        """Run a program of the agent's interpreter; returns what it printed."""
        return self.run(PYTHON, "-IS", "-c", program).stdout

    def run(self, *words: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        """Run a program of the machine."""
        done = subprocess.run(self.command(*words), capture_output=True, text=True, check=False)
        assert not check or done.returncode == 0, done.stdout + done.stderr
        return done

    def current(self) -> str:
        """Return the name of the folder of the version that runs."""
        return str(self.path(f"/{HOME}/current").readlink())

    def path(self, name: str) -> Path:
        """Return where a file of the machine is here."""
        return self.root / name.lstrip("/")


pytestmark = [pytest.mark.conformance, pytest.mark.swtpm, pytest.mark.timeout(900)]
EXEC_INFO = '{"apiVersion":"client.authentication.k8s.io/v1","kind":"ExecCredential","spec":{"interactive":false}}'
STATE = "/var/lib/kubelet-authenticator"
INSTALLED = "/usr/bin/kubelet-authenticator"
UNPACKED = f"/{HOME}/current/bin/kubelet-authenticator"
PROGRAMS = {
    "deb-12": INSTALLED,
    "deb-13": INSTALLED,
    "rpm": INSTALLED,
    "tarball": UNPACKED,
    "bare": UNPACKED,
    "foreign": UNPACKED,
}
UNITS = {"nodeattest-join.service", "nodeattest-refresh.service", "nodeattest-refresh.timer"} | {
    "kubelet-serving-certificate.service",
    "kubelet-serving-certificate.timer",
}
FIPS = """\
openssl_conf = init
[init]
alg_section = algorithms
[algorithms]
default_properties = fips=yes
"""
USES_TLS = "import ssl; ssl.create_default_context()"


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """By architecture and suffix, such as ``amd64.deb``."""
    needs("mmdebstrap", "patchelf", "rpmbuild", EMULATOR)
    ends = ".deb", ".rpm", ".tar.gz", ".packages.txt"
    files = [file for end in ends for file in released(f"nodeattest-agent*{end}")]
    return by_kind(files) or build(tmp_path_factory.mktemp("packages"))


@pytest.fixture(scope="module")
def machines(packages: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Machine]:
    """Machines by what was installed how.

    ``bare`` and ``foreign`` have no C library and no shell, as no library fits a musl system. ``foreign`` is of the
    other architecture, under qemu-user. No rpm distribution is at hand: the .rpm is installed in a Debian 12.
    """
    roots = tmp_path_factory.mktemp("machines")
    for name, suite in {"deb-12": "bookworm", "deb-13": "trixie", "rpm": "bookworm"}.items():
        debian(suite, roots / name)
    debian("bookworm", roots / "tarball", variant="extract", include="base-files,libc-bin,coreutils,dash")
    for name in ("deb-12", "deb-13"):
        install(Machine(roots / name, INSTALLED), packages[f"{NATIVE}.deb"])
    rpm = ["/usr/bin/rpm", "--root", roots / "rpm", "--install", "--nodeps", "--ignorearch", packages[f"{NATIVE}.rpm"]]
    installed = subprocess.run(rpm, capture_output=True, text=True, check=False)
    assert installed.returncode == 0, installed.stderr
    for name, architecture in {"tarball": NATIVE, "bare": NATIVE, "foreign": FOREIGN}.items():
        (roots / name / "opt").mkdir(parents=True, exist_ok=True)
        subprocess.run(["/usr/bin/tar", "-C", roots / name / "opt", "-xzf", packages[f"{architecture}.gz"]], check=True)
    shutil.copy(f"/usr/bin/{EMULATOR}", roots / "foreign")
    return {name: Machine(roots / name, program, name == "foreign") for name, program in PROGRAMS.items()}


@pytest.fixture(scope="module")
def world(assets: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    directory = tmp_path_factory.mktemp("world")
    with built_world(lambda name: start_real(directory / name, assets, name=name), directory) as built:
        yield built


@pytest.fixture
def deb_root(packages: dict[str, Path], tmp_path: Path) -> Machine:
    """A Debian 12 of the test's own, with the package."""
    debian("bookworm", tmp_path / "root")
    machine = Machine(tmp_path / "root", INSTALLED)
    install(machine, packages[f"{NATIVE}.deb"])
    return machine


def install(machine: Machine, package: Path) -> None:
    shutil.copy(package, machine.root)
    machine.run("dpkg", "--install", f"/{package.name}")


def join(world: World, machine: Machine, name: str, *environment: str) -> Agent:
    """Join a machine by a TPM of its own, with variables ``NAME=value`` of the agent's environment."""
    tpm = world.tpm(name)
    world.machine(name, tpm=tpm)
    agent = replace(world.agent(name, "tpm", tcti=tpm.tcti), program=("env", *environment, *machine.agent))
    joined = agent.join(world.token(), timeout=180)
    assert joined.returncode == 0, joined.stderr
    assert text_at(world.ledger(name), "spec", "fingerprints", "tpm.ek") == tpm.endorsement_fingerprint()
    return agent


@pytest.mark.parametrize("kind", PROGRAMS)
@pytest.mark.usefixtures("controller")
def test_a_node_without_python_joins_with_its_tpm_and_kubelets_call_is_answered(
    world: World, machines: dict[str, Machine], kind: str
) -> None:
    agent = join(world, machines[kind], f"packaged-{kind}")
    assert f'"{PROGRAMS[kind]}"' in agent.kubeconfig.read_text()
    called = agent.run("credential", *agent.files(), exec_info=EXEC_INFO)
    assert called.returncode == 0, called.stderr
    assert "clientCertificateData" in called.stdout


@pytest.mark.usefixtures("controller")
def test_the_machines_openssl_settings_do_not_reach_the_agent(world: World, machines: dict[str, Machine]) -> None:
    """The same settings leave the folder's interpreter, started without the command, no cipher."""
    machine = machines["bare"]
    machine.path("/fips.cnf").write_text(FIPS)
    variables = "OPENSSL_CONF=/fips.cnf", "OPENSSL_MODULES=/nowhere"
    program = machine.command(PYTHON, "-IS", "-c", USES_TLS)
    steered = subprocess.run(["/usr/bin/env", *variables, *program], capture_output=True, text=True, check=False)
    assert "LIBRARY_HAS_NO_CIPHERS" in steered.stderr
    agent = join(world, machine, "packaged-fips", *variables)
    called = agent.run("credential", *agent.files(), exec_info=EXEC_INFO)
    assert called.returncode == 0, called.stderr


@pytest.mark.usefixtures("controller")
def test_no_call_fails_while_the_package_is_replaced_or_mended_and_the_version_before_stays(
    world: World, deb_root: Machine, packages: dict[str, Path], tmp_path: Path
) -> None:
    options = "--formats=deb", "--mark=another version", f"--architectures={NATIVE}"
    other = build(tmp_path / "other", *options)[f"{NATIVE}.deb"]
    agent = join(world, deb_root, "upgraded")
    failed: list[str] = []
    calls = 0
    ended = threading.Event()

    def call() -> None:
        nonlocal calls
        while not ended.is_set():
            for words in (["credential", *agent.files()], ["status", *agent.files()]):
                done = agent.run(*words, exec_info=EXEC_INFO)
                calls += 1
                if done.returncode:
                    failed.append(done.stderr)

    kubelet = threading.Thread(target=call)
    kubelet.start()
    before = deb_root.current()
    try:
        for package in (other, packages[f"{NATIVE}.deb"], other):
            install(deb_root, package)
        changed = deb_root.path(f"/{HOME}/{deb_root.current()}/packages.txt")
        content = changed.read_text()
        changed.unlink()
        changed.write_text("changed")
        changed.with_name("added").touch()
        install(deb_root, other)
    finally:
        ended.set()
        kubelet.join()
    assert failed == []
    assert calls > 0
    assert deb_root.current() != before
    assert (changed.read_text(), changed.with_name("added").exists()) == (content, False)
    folders = {path.name for path in deb_root.path(f"/{HOME}").iterdir()}
    assert folders == {"package", "current", before, deb_root.current()}


def test_remove_keeps_the_nodes_keys_and_purge_removes_them(deb_root: Machine, packages: dict[str, Path]) -> None:
    state = deb_root.path(STATE)
    state.mkdir(mode=0o700)
    (state / "credential").write_text("key")
    deb_root.run("dpkg", "--remove", "nodeattest-agent")
    assert (state / "credential").read_text() == "key"
    assert not deb_root.path(INSTALLED).is_symlink()
    assert not deb_root.path(f"/{HOME}").exists()
    install(deb_root, packages[f"{NATIVE}.deb"])
    for unit in ("nodeattest-join.service", "nodeattest-refresh.timer"):
        assert deb_root.run("systemctl", "is-enabled", unit).stdout == "enabled\n"
    deb_root.run("dpkg", "--purge", "nodeattest-agent")
    assert not state.exists()
    assert not list(deb_root.path("/etc/systemd/system").glob("*/nodeattest-*"))


def test_the_same_commit_gives_the_same_bytes(packages: dict[str, Path], tmp_path: Path) -> None:
    made = build(tmp_path, "--formats=tar,rpm")
    assert len(made) == 6
    for name, file in made.items():
        assert file.name == packages[name].name
        assert hashlib.sha256(file.read_bytes()).digest() == hashlib.sha256(packages[name].read_bytes()).digest()


def test_units_and_folders_are_installed_and_systemd_finds_no_fault(machines: dict[str, Machine]) -> None:
    machine = machines["deb-12"]
    units = machine.path("/usr/lib/systemd/system")
    assert {path.name for path in units.iterdir() if "nodeattest" in path.name or "kubelet" in path.name} == UNITS
    assert "0700" in machine.path("/usr/lib/tmpfiles.d/nodeattest.conf").read_text()
    services = sorted(units / name for name in UNITS if name.endswith(".service"))
    for path in services:
        assert f"ExecStart={UNPACKED} " in path.read_text()
        assert "@HARDENING@" not in path.read_text()
    if shutil.which("systemd-analyze") is None:
        not_possible("no systemd-analyze")
    for path in services:
        command = ["systemd-analyze", "security", "--offline=yes", "--threshold=40", "--root", machine.root, path.name]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout[-2000:] + done.stderr
