"""A machine in a temporary folder: the files that join writes, and the real command run on them."""

from __future__ import annotations

import base64
import io
import json
import os
import subprocess
import sys
import time
from collections.abc import Generator, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

from agent_cluster import TOKEN, FakeApi, challenge_then_sign
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from lying_servers import Ca

from nodeattest_authenticator.commands.cli import main
from nodeattest_authenticator.context import AgentContext
from nodeattest_authenticator.settings import Settings, load
from nodeattest_authenticator.state import credential_cache
from nodeattest_authenticator.state.credential_cache import CachedCredential, CacheEntry
from nodeattest_discovery import clusterinfo, jws, token
from nodeattest_discovery.node.clock import Clock

COMMAND = Path(sys.executable).parent / "kubelet-authenticator"
NODE = "node-0"
Done = subprocess.CompletedProcess[str]
KILLED = """
import os, sys
left = int(sys.argv.pop(1))
def count(event, arguments):
    global left
    if event == "os.rename":
        left -= 1
        if left < 0:
            os.kill(os.getpid(), 9)
sys.addaudithook(count)
from nodeattest_authenticator.commands.cli import main
sys.exit(main(sys.argv[1:]))
"""
"""Runs the command, which dies of SIGKILL when it is about to put one more file in its place."""


def in_process(*words: str, stdin: str = "") -> Done:
    """Run a command without the 0.2 s of a process of its own."""
    said, complained, before = io.StringIO(), io.StringIO(), sys.stdin
    sys.stdin = io.TextIOWrapper(io.BytesIO(stdin.encode()))
    try:
        with redirect_stdout(said), redirect_stderr(complained):
            code = main([str(COMMAND), *words])
    except SystemExit as end:
        code = int(end.code or 0)
    finally:
        sys.stdin = before
    return Done(words, code, said.getvalue(), complained.getvalue())


def killed(deaths: int, *words: str) -> Done:
    """Run a command that dies before it puts its file number ``deaths`` in its place, if it comes so far."""
    command = [sys.executable, "-c", KILLED, str(deaths), str(COMMAND), *words]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def certificate(answer: str) -> str:
    """Return the certificate in an ExecCredential."""
    return str(json.loads(answer)["status"]["clientCertificateData"])


class Machine:
    """A machine whose configuration is written."""

    def __init__(self, folder: Path, api: FakeApi) -> None:
        self.folder, self.api = folder, api
        self.cache, self.config = folder / "cache", folder / "config.json"

    def prepare(self, **changes: object) -> Machine:
        document = {
            "apiVersion": "config.nodeattest.x-k8s.io/v1alpha1",
            "kind": "KubeletAuthenticatorConfiguration",
            "server": self.api.url,
            "certificateAuthority": self.api.authority.pem.decode(),
            "nodeName": NODE,
            "provider": {"name": "insecure"},
            "providerID": {"value": "sandbox://machine-0"},
            "timeoutSeconds": 60,
        } | changes
        self.config.write_text(json.dumps({name: value for name, value in document.items() if value is not None}))
        self.cache.mkdir(mode=0o700, exist_ok=True)
        self.write("bootstrap-token", TOKEN.encode())
        return self

    def secret(self) -> str:
        """Write the secret of the provider challenge."""
        path = self.folder / "secret"
        path.write_bytes(b"s" * 40)
        path.chmod(0o600)
        return str(path)

    def challenged(self, **changes: object) -> Machine:
        """Use a provider of two steps, whose certificates are renewed."""
        self.api.on_create = challenge_then_sign
        return self.prepare(provider={"name": "challenge", "settings": {"secretFile": self.secret()}}, **changes)

    def write(self, name: str, data: bytes) -> None:
        path = self.cache / name
        path.unlink(missing_ok=True)
        path.write_bytes(data)
        path.chmod(0o600)

    def store(self, *, authority: Ca | None = None, node: str = NODE, other_key: bool = False) -> None:
        """Write a whole credential file, good unless told otherwise."""
        keys = [ec.generate_private_key(ec.SECP256R1()) for _ in range(2)]
        pem = (authority or self.api.authority).client(keys[0].public_key(), node)
        leaf = x509.load_pem_x509_certificate(pem)
        made = CachedCredential(
            certificate_pem=pem,
            key_pem=keys[other_key].private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()),
            not_before=int(leaf.not_valid_before_utc.timestamp()),
            renew_at=int(time.time()) + 1000,
            not_after=int(leaf.not_valid_after_utc.timestamp()),
        )
        self.write("credential", credential_cache.render(CacheEntry(credential=made, config_fingerprint=b"1.2.3.4")))

    def stored(self) -> x509.Certificate:
        """Return the certificate in the credential file."""
        return x509.load_pem_x509_certificate(
            credential_cache.parse(self.file("credential")).credential.certificate_pem
        )

    def file(self, name: str) -> bytes:
        """Read a file of the cache directory."""
        return self.cache.joinpath(name).read_bytes()

    def make_due(self, name: str = "credential") -> None:
        """Let the renewal moment of a stored certificate be past."""
        head, _, rest = self.file(name).partition(b"\n")
        fields = head.split(b" ")
        fields[3] = (b"%d" % (int(time.time()) - 5)).rjust(len(fields[3]), b"0")
        self.write(name, b" ".join(fields) + b"\n" + rest)

    def info(self, version: str = "v1", **cluster: object) -> str:
        """What client-go asks for this cluster, unless told otherwise."""
        ca = base64.b64encode(self.api.authority.pem).decode()
        spec = {"cluster": {"server": self.api.url, "certificate-authority-data": ca} | cluster, "interactive": False}
        version = f"client.authentication.k8s.io/{version}"
        return json.dumps({"kind": "ExecCredential", "apiVersion": version, "spec": spec}) + "\n"

    def environment(self, info: str | None) -> dict[str, str]:
        environment = {key: value for key, value in os.environ.items() if key != "KUBERNETES_EXEC_INFO"}
        return environment if info is None else environment | {"KUBERNETES_EXEC_INFO": info}

    def arguments(self, command: str = "credential", *more: str) -> list[str]:
        return [str(COMMAND), command, "--config", str(self.config), "--cache-dir", str(self.cache), *more]

    def start(self, *arguments: str, info: str | None = None) -> subprocess.Popen[str]:
        """Start a command, by default ``credential``."""
        environment, pipe = self.environment(self.info() if info is None else info), subprocess.PIPE
        return subprocess.Popen(self.arguments(*arguments), env=environment, stdout=pipe, stderr=pipe, text=True)

    def run(self, *arguments: str, info: str | None = None) -> Done:
        """Run a command, by default ``credential``, as a process of its own."""
        environment = self.environment(self.info() if info is None else info)
        words = self.arguments(*arguments)
        return subprocess.run(words, env=environment, capture_output=True, text=True, timeout=120, check=False)

    def do(self, command: str, *more: str) -> Done:
        """Run a command in this process."""
        return in_process(*self.arguments(command, *more)[1:])

    def agent(self, *, clock: Clock | None = None, said: list[str] | None = None) -> AgentContext:
        notes = said if said is not None else []
        return AgentContext.open(
            str(self.config), str(self.cache), hostname="host", clock=clock or Clock(), log=notes.append
        )

    @property
    def settings(self) -> Settings:
        return load(str(self.config), hostname="host")

    def files(self) -> dict[str, bytes]:
        paths = (path for path in self.folder.rglob("*") if path.is_file())
        return {str(path.relative_to(self.folder)): path.read_bytes() for path in paths}


class Joiner(Machine):
    """An empty machine, and the words typed on it to join a cluster that is given."""

    def __init__(self, folder: Path, api: FakeApi) -> None:
        super().__init__(folder / "host", api)
        self.folder.mkdir()
        self.kubeconfig = self.folder / "etc" / "kubelet.conf"
        self.token = folder / "token"
        self.token.write_text(TOKEN + "\n")
        self.token.chmod(0o600)
        self.options: dict[str, str | None] = {
            **self.given(api),
            "--token-file": str(self.token),
            "--provider": "insecure",
            "--provider-id": "sandbox://machine-0",
            "--node-name": NODE,
            "--kubeconfig": str(self.kubeconfig),
            "--config": str(self.config),
            "--cache-dir": str(self.cache),
            "--timeout": "60",
        }

    def given(self, api: FakeApi, *more: Ca) -> dict[str, str | None]:
        """Return the options that name a cluster, with other CAs besides its own."""
        ca_file = self.folder.parent / "ca.crt"
        ca_file.write_bytes(b"".join(ca.pem for ca in (*more, api.authority)))
        return {"--server": api.url, "--ca-file": str(ca_file)}

    def attests(self) -> None:
        """Use a provider of two steps, whose certificates are renewed."""
        self.options |= {"--provider": "challenge", "--set": f"secretFile={self.secret()}"}
        self.api.on_create = challenge_then_sign

    def join(self, *more: str, **changes: str | None) -> Done:
        """Join. Whatever comes of it, the token is not told."""
        done = in_process("join", *self.words(**changes), *more)
        assert TOKEN[7:] not in done.stdout + done.stderr
        return done

    def token_holders(self) -> list[str]:
        """List the machine's files that hold the bootstrap token."""
        return [name for name, data in self.files().items() if TOKEN[7:].encode() in data]

    def words(self, **changes: str | None) -> list[str]:
        options = self.options | {f"--{name.replace('_', '-')}": value for name, value in changes.items()}
        return [word for name, value in options.items() if value is not None for word in (name, value)]

    @property
    def called(self) -> str:
        """What client-go makes of the kubeconfig as it is now."""
        return self.info(**json.loads(self.kubeconfig.read_bytes())["clusters"][0]["cluster"])


class Discoverer(Joiner):
    """An empty machine that has been told a token and a pin."""

    def __init__(self, folder: Path, api: FakeApi) -> None:
        super().__init__(folder, api)
        self.options |= {
            "--server": None,
            "--ca-file": None,
            "--discovery-server": api.endpoint,
            "--discovery-token-ca-cert-hash": str(api.authority.pin),
            "--discovery-timeout": "60",
        }

    def is_given(self, api: FakeApi, *more: Ca) -> None:
        """Name the cluster instead of discovering it."""
        discovery = ("server", "token-ca-cert-hash", "timeout")
        self.options |= {f"--discovery-{name}": None for name in discovery} | self.given(api, *more)

    def by_file(self, text: str | None = None, **user: object) -> None:
        """Discover the cluster by a file; ``user`` is the user in it."""
        path = self.folder.parent / "discovery.conf"
        if text is None:
            ca = base64.b64encode(self.api.authority.pem).decode()
            cluster = {"server": self.api.url, "certificate-authority-data": ca}
            document: dict[str, Any] = {"apiVersion": "v1", "kind": "Config"}
            document["clusters"] = [{"name": "c", "cluster": cluster}]
            if user:
                document["users"] = [{"name": "u", "user": user}]
                document["contexts"] = [{"name": "x", "context": {"cluster": "c", "user": "u"}}]
                document["current-context"] = "x"
            text = json.dumps(document)
        path.write_text(text)
        self.options |= {"--discovery-server": None, "--discovery-token-ca-cert-hash": None}
        self.options["--discovery-file"] = str(path)


# What a cluster publishes


def publish(api: FakeApi, *, server: str | None = None, trusts: Sequence[Ca] = ()) -> str:
    """Publish cluster-info as the cluster would, signed by the token; returns its text."""
    text = clusterinfo.build(server or api.url, b"".join(ca.pem for ca in trusts or (api.authority,)))
    signer = token.parse(TOKEN)
    signatures = {clusterinfo.SIGNATURE_PREFIX + signer.id: jws.sign(text.encode(), signer)}
    metadata = {"name": clusterinfo.NAME, "namespace": clusterinfo.NAMESPACE}
    document = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata}
    api.public[clusterinfo.PATH] = document | {"data": {clusterinfo.KUBECONFIG_KEY: text, **signatures}}
    return text


def give_kubelet_configuration(api: FakeApi, text: str) -> None:
    """Keep kubelet's configuration as kubeadm does."""
    path = "/api/v1/namespaces/kube-system/configmaps/kubelet-config"
    api.readable[path] = {"apiVersion": "v1", "kind": "ConfigMap", "data": {"kubelet": text}}


@contextmanager
def other_server(authority: Ca) -> Generator[FakeApi]:
    """Run another API server that signs for machines that answer a challenge."""
    with FakeApi(authority) as api:
        api.on_create = challenge_then_sign
        yield api
