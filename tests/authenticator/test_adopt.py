"""``adopt``: a node that joined without attestation, from its kubelet's kubeconfig to the exec plugin's."""

from __future__ import annotations

import base64
import json
import os
import subprocess
from pathlib import Path

import pytest
from agent_cluster import FakeApi
from agent_machine import COMMAND, NODE, Done, Machine, in_process, killed
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from lying_servers import Ca

from nodeattest_authenticator.commands.adopt import read_access
from nodeattest_authenticator.errors import AgentError
from nodeattest_authenticator.formats.client_go import is_ours

Key = ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey


def key_pem(key: Key) -> bytes:
    """Write a key as kubelet does: SEC 1, or PKCS #1."""
    return key.private_bytes(Encoding.PEM, PrivateFormat.TraditionalOpenSSL, NoEncryption())


def encoded(data: bytes) -> str:
    """Encode in lines, which Go overlooks."""
    return base64.encodebytes(data).decode()


class OldNode(Machine):
    """A machine whose kubelet joined by kubeadm; the cluster notes who asks for a certificate."""

    def __init__(self, folder: Path, api: FakeApi, *, key: Key | None = None, lasts: float = 86400) -> None:
        super().__init__(folder, api)
        self.key = key or ec.generate_private_key(ec.SECP256R1())
        self.pem = api.authority.client(self.key.public_key(), NODE, lasts=lasts) + key_pem(self.key)
        self.kubeconfig = folder / "kubelet.conf"
        self.asked: list[str] = []
        api.on_create = self._sign
        folder.joinpath("pki").mkdir()
        self.has(self.pem)
        self.kubeconfig.write_text(json.dumps(self.document()))

    def _sign(self, api: FakeApi, name: str) -> None:
        self.asked.append(api.objects[name]["spec"]["username"])
        api.sign(name)

    def has(self, pem: bytes) -> None:
        """Give it another file of certificate and key."""
        self.folder.joinpath("pki", "kubelet-client-current.pem").write_bytes(pem)

    def document(self, **user: str) -> dict[str, object]:
        """Write it as kubeadm join leaves it: certificate and key in one file that kubelet rotates."""
        pem = "pki/kubelet-client-current.pem"
        cluster = {"server": self.api.url, "certificate-authority-data": encoded(self.api.authority.pem)}
        context = {"cluster": "default-cluster", "user": "default-auth"}
        return {
            "apiVersion": "v1",
            "kind": "Config",
            "preferences": {},
            "current-context": "default-context",
            "clusters": [{"name": "other", "cluster": {}}, {"name": "default-cluster", "cluster": cluster}],
            "contexts": [{"name": "default-context", "context": context}],
            "users": [{"name": "default-auth", "user": user or {"client-certificate": pem, "client-key": pem}}],
        }

    def words(self, *more: str) -> list[str]:
        return [
            *("adopt", "--provider", "challenge", "--provider-id", "sandbox://machine-0"),
            *("--timeout", "60", "--set", f"secretFile={self.secret()}", "--kubeconfig", str(self.kubeconfig)),
            *("--config", str(self.config), "--cache-dir", str(self.cache), *more),
        ]

    def adopt(self, *more: str) -> Done:
        return in_process(*self.words(*more))

    def backups(self) -> list[bytes]:
        return [path.read_bytes() for path in self.folder.glob("kubelet.conf.before-nodeattest-" + 12 * "?")]


@pytest.fixture
def old(tmp_path: Path, api: FakeApi) -> OldNode:
    return OldNode(tmp_path, api)


def test_a_node_is_adopted_by_the_certificate_that_it_has(old: OldNode) -> None:
    before = old.kubeconfig.read_bytes()
    done = old.adopt()
    assert done.returncode == 0, done.stderr
    assert old.asked == [f"system:node:{NODE}"]
    assert is_ours(old.kubeconfig.read_bytes())
    assert old.backups() == [before]
    [backup] = old.folder.glob("kubelet.conf.before-nodeattest-*")
    assert backup.stat().st_mode & 0o777 == 0o600
    for word in ("rotateCertificates: false", "--bootstrap-kubeconfig", "systemctl restart kubelet", backup.name):
        assert word in done.stdout
    assert "PRIVATE KEY" not in done.stdout + done.stderr
    files = old.files()
    again = old.adopt()
    assert (again.returncode, len(old.asked), old.files()) == (0, 1, files)
    assert "already" in again.stdout


def test_a_death_before_any_of_its_writes_keeps_the_old_kubeconfig_and_is_taken_up_by_the_next(old: OldNode) -> None:
    before, deaths = old.kubeconfig.read_bytes(), 0
    while killed(1, *old.words()).returncode:  # each adds one file
        assert old.kubeconfig.read_bytes() == before or old.backups() == [before]
        deaths += 1
    assert deaths >= 4
    assert is_ours(old.kubeconfig.read_bytes())
    assert (len(old.asked), old.backups()) == (1, [before])


def test_a_refusal_leaves_kubelets_kubeconfig_alone(old: OldNode) -> None:
    old.api.on_create = lambda cluster, name: cluster.deny(name, "MachineNotReady")
    before = old.kubeconfig.read_bytes()
    done = old.adopt()
    assert done.returncode == 1
    assert "MachineNotReady" in done.stderr
    assert (old.kubeconfig.read_bytes(), old.backups()) == (before, [])


def test_certificate_and_key_may_stand_in_the_kubeconfig_itself(tmp_path: Path, api: FakeApi) -> None:
    """The node of ``kubeadm init``; its key is RSA."""
    old = OldNode(tmp_path, api, key=rsa.generate_private_key(65537, 2048))
    data = {"client-certificate-data": encoded(old.pem), "client-key-data": encoded(key_pem(old.key))}
    old.kubeconfig.write_text(json.dumps(old.document(**data)))
    done = old.adopt()
    assert done.returncode == 0, done.stderr
    assert old.asked == [f"system:node:{NODE}"]


def test_the_insecure_provider_adopts_nobody(old: OldNode) -> None:
    before = old.kubeconfig.read_bytes()
    done = old.adopt("--provider", "insecure")
    assert done.returncode == 2
    assert "nodeattest machines adopt --open" in done.stderr
    assert (old.kubeconfig.read_bytes(), old.api.posts()) == (before, 0)


def test_a_certificate_that_has_ended_says_who_can_help(tmp_path: Path, api: FakeApi) -> None:
    done = OldNode(tmp_path, api, lasts=-60).adopt()
    assert done.returncode == 1
    assert "has expired" in done.stderr
    assert "nodeattest machines adopt --open" in done.stderr
    assert not api.posts()


def test_an_adoption_that_hangs_is_ended(old: OldNode) -> None:
    os.mkfifo(old.config)
    words = [COMMAND, *old.words("--timeout", "3")]
    done = subprocess.run(words, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode != 0
    assert "Timeout: the TPM, a metadata service or name resolution did not answer" in done.stderr


def user(**fields: object) -> dict[str, object]:
    return {"users": [{"name": "default-auth", "user": fields}]}


def cluster(**fields: object) -> dict[str, object]:
    return {"clusters": [{"name": "default-cluster", "cluster": {k.replace("_", "-"): v for k, v in fields.items()}}]}


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"current-context": "none"}, "expected the context"),
        ({"clusters": None}, "expected the cluster"),
        ({"users": "x"}, "expected the user"),
        (user(token="secret-word"), "a client certificate and its key"),
        (user(exec="secret-word"), "a client certificate and its key"),
        (user(), "client-certificate"),
        (user(**{"client-certificate-data": "%", "client-key-data": "%"}), "base64"),
        (cluster(insecure_skip_tls_verify=True), "verified"),
        (cluster(proxy_url="http://p"), "directly"),
        (cluster(server="https://s"), "certificate-authority"),
    ],
)
def test_a_kubeconfig_of_another_kind_is_refused_and_none_of_it_quoted(
    old: OldNode, changes: dict[str, object], says: str
) -> None:
    old.kubeconfig.write_text(json.dumps(old.document() | changes))
    done = old.adopt()
    assert done.returncode == 2
    assert says in done.stderr
    assert "secret-word" not in done.stderr
    assert not old.api.posts()


def test_a_certificate_of_another_cluster_another_key_or_no_node_is_refused(old: OldNode) -> None:
    public, other = old.key.public_key(), ec.generate_private_key(ec.SECP256R1()).public_key()
    stranger = Ca().client(public, NODE)
    no_node = old.api.authority.client(public, NODE, organization="system:masters")
    another_key = old.api.authority.client(other, NODE)
    for certificate in (stranger, no_node, another_key):
        old.has(certificate + key_pem(old.key))
        done = old.adopt()
        assert (done.returncode, "CertificateRefused" in done.stderr) == (1, True), done.stderr
    assert not old.api.posts()


@pytest.mark.parametrize("data", [b"", b"\xff", b"- a", b"{", b"a: &x 1", b"x" * (1 << 21), b"{}"])
def test_any_bytes_are_an_access_or_a_failure(data: bytes) -> None:
    with pytest.raises(AgentError):
        read_access("/etc/kubernetes/kubelet.conf", data, lambda _path: b"")
