"""Software TPMs for the demo and the tests: one swtpm process a machine, with endorsement certificates of a sandbox CA.

Promises: every TPM of one folder has its RSA-2048 and ECC P-384 endorsement keys certified by that folder's own CA
(root and issuer, made on first use); several may be made and run at the same time; nothing outside the folder is
touched but a short-lived socket folder where the folder's own path is too long for a Unix socket. Processes end by
their own id.
Leaves to others: everything that speaks to the TPM.
Source: swtpm(8), swtpm_setup(8), swtpm_localca(8) of swtpm 0.7; sun_path of unix(7).
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import socket
import subprocess  # swtpm is a program, not a library
import tempfile
import time
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Final, Literal, Self

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat

from nodeattest_sandbox.pki import certify_ca

EndorsementKind = Literal["rsa2048", "ecc-p384"]

_CERTIFICATES: Final[dict[EndorsementKind, str]] = {"rsa2048": "ek-rsa2048.crt", "ecc-p384": "ek-secp384r1.crt"}
"""Files that ``swtpm_setup --write-ek-cert-files`` writes."""
_MAX_SOCKET_PATH: Final = 107
"""Bytes of sun_path without its final zero, unix(7)."""
_CONTROL_SUFFIX: Final = ".ctrl"
"""Where libtss2's swtpm TCTI looks for the control channel."""
_PROGRAM_PATH: Final = "/usr/local/bin:/usr/bin:/bin:/usr/sbin"
_START_SECONDS: Final = 10.0
_STOP_SECONDS: Final = 5.0
_POLL_SECONDS: Final = 0.002
_GET_CAPABILITY: Final = (1).to_bytes(4, "big")
"""CMD_GET_CAPABILITY of swtpm's control channel: answered as soon as the TPM listens."""


class SoftwareTpmError(RuntimeError):
    """A software TPM could not be made or started; the message says what to do."""


class SoftwareTpm:
    """One TPM: its state in ``<directory>/<name>``, its CA in ``<directory>/ca``, shared by all TPMs of the folder."""

    def __init__(self, directory: Path, *, name: str) -> None:
        self._ca = directory.absolute() / "ca"
        self._state = directory.absolute() / name
        self._process: subprocess.Popen[bytes] | None = None
        self._short: Path | None = None

    @classmethod
    def create(cls, directory: Path, *, name: str) -> SoftwareTpm:
        """Manufacture a TPM, or find the one made before; it does not run yet."""
        tpm = cls(directory, name=name)
        _make_authority(tpm._ca)
        if not tpm._certificate("ecc-p384").exists():
            tpm._manufacture()
        return tpm

    def _manufacture(self) -> None:
        self._state.mkdir(parents=True, exist_ok=True)
        self._state.chmod(0o700)
        config = self._state / "swtpm_setup.conf"
        config.write_text(
            f"create_certs_tool = {_program('swtpm_localca')}\n"
            f"create_certs_tool_config = {self._ca / 'swtpm-localca.conf'}\n"
            f"create_certs_tool_options = {self._ca / 'swtpm-localca.options'}\n"
            "active_pcr_banks = sha256\n",
            encoding="utf-8",
        )
        command = [_program("swtpm_setup"), "--tpm2", "--overwrite", "--create-ek-cert", "--pcr-banks", "sha256"]
        command += ["--tpmstate", str(self._state), "--config", str(config), "--tpm", f"{_program('swtpm')} socket"]
        command += ["--write-ek-cert-files", str(self._state)]
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
        if done.returncode:
            raise SoftwareTpmError(f"swtpm_setup failed: {(done.stdout + done.stderr)[-2000:]}")

    @property
    def tcti(self) -> str:
        """The TCTI that reaches this TPM while it runs."""
        return f"swtpm:path={self._socket()}"

    @property
    def pid(self) -> int | None:
        """Process id while it runs."""
        return self._process.pid if self._process else None

    @property
    def authority_pem(self) -> str:
        """The CA certificates, issuer and root, that vouch for the endorsement keys."""
        return (self._ca / "issuercert.pem").read_text("ascii") + (self._ca / "rootcert.pem").read_text("ascii")

    def endorsement_certificate(self, kind: EndorsementKind = "ecc-p384") -> x509.Certificate:
        """Return the endorsement key's certificate."""
        return x509.load_der_x509_certificate(self._certificate(kind).read_bytes())

    def endorsement_fingerprint(self, kind: EndorsementKind = "ecc-p384") -> str:
        """Return ``sha256:<hex>`` over the endorsement key's SubjectPublicKeyInfo: what an operator registers."""
        key = self.endorsement_certificate(kind).public_key()
        spki = key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
        return "sha256:" + hashlib.sha256(spki).hexdigest()

    def _certificate(self, kind: EndorsementKind) -> Path:
        return self._state / _CERTIFICATES[kind]

    def start(self) -> Self:
        """Power the TPM on and wait until it answers."""
        if self._process is not None:
            return self
        path = self._socket()
        control = Path(f"{path}{_CONTROL_SUFFIX}")
        for stale in (path, control):
            stale.unlink(missing_ok=True)
        command = [_program("swtpm"), "socket", "--tpm2", "--flags", "not-need-init,startup-clear"]
        command += ["--tpmstate", f"dir={self._state}", "--log", f"file={self._state / 'swtpm.log'},level=1"]
        command += ["--server", f"type=unixio,path={path}", "--ctrl", f"type=unixio,path={control}"]
        self._process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        self._wait_until_it_answers(control)
        return self

    def _wait_until_it_answers(self, control: Path) -> None:
        deadline = time.monotonic() + _START_SECONDS
        while not _answers(control):
            if self._process is None or self._process.poll() is not None or time.monotonic() > deadline:
                self.kill()
                raise SoftwareTpmError(f"swtpm did not start; see {self._state / 'swtpm.log'}")
            time.sleep(_POLL_SECONDS)

    def stop(self) -> None:
        """Power the TPM off, in order; harmless when it does not run."""
        if self._process is not None:
            self._process.terminate()
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(_STOP_SECONDS)
        self.kill()

    def kill(self) -> None:
        """Cut the power: the TPM gets no chance to save its state."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait()
        if self._short is not None:
            shutil.rmtree(self._short, ignore_errors=True)
            self._short = None

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _socket(self) -> Path:
        """Choose the socket's path: in the state folder, or in a short one where that path is too long."""
        path = self._state / "tpm"
        if _fits(path):
            return path
        if self._short is None:
            self._short = Path(tempfile.mkdtemp(prefix="tpm-"))
        path = self._short / "tpm"
        if not _fits(path):
            raise SoftwareTpmError(f"{path} is too long for a socket; set TMPDIR to a shorter folder")
        return path


def _fits(path: Path) -> bool:
    return len(os.fsencode(path)) + len(_CONTROL_SUFFIX) <= _MAX_SOCKET_PATH


def _program(name: str) -> str:
    path = shutil.which(name, path=_PROGRAM_PATH)
    if path is None:
        raise SoftwareTpmError(f"{name} is not installed; install the packages swtpm and swtpm-tools")
    return path


def _answers(control: Path) -> bool:
    """Ask the control channel for its capabilities."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as channel:
        channel.settimeout(1.0)
        try:
            channel.connect(str(control))
            channel.sendall(_GET_CAPABILITY)
            return bool(channel.recv(64))
        except OSError:
            return False


@contextmanager
def _locked(folder: Path) -> Generator[None]:
    """Hold the folder's lock: several processes may make TPMs in one folder."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / ".nodeattest.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _make_authority(folder: Path) -> None:
    """Make root, issuer and the settings of swtpm_localca, once a folder; the issuer's certificate comes last."""
    with _locked(folder):
        if (folder / "issuercert.pem").exists():
            return
        folder.chmod(0o700)
        root_key, issuer_key = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
        root = certify_ca("nodeattest sandbox TPM root CA", root_key)
        issuer = certify_ca("nodeattest sandbox TPM issuer CA", issuer_key, root.subject, root_key)
        (folder / "swtpm-localca.conf").write_text(
            f"statedir = {folder}\nsigningkey = {folder / 'signkey.pem'}\n"
            f"issuercert = {folder / 'issuercert.pem'}\ncertserial = {folder / 'certserial'}\n",
            encoding="utf-8",
        )
        (folder / "swtpm-localca.options").write_text("", encoding="utf-8")
        signing_key = issuer_key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
        (folder / "signkey.pem").touch(mode=0o600)
        (folder / "signkey.pem").write_bytes(signing_key)
        (folder / "rootcert.pem").write_bytes(root.public_bytes(Encoding.PEM))
        (folder / "issuercert.pem").write_bytes(issuer.public_bytes(Encoding.PEM))
