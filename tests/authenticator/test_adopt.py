"""``adopt``: a node that joined without attestation, from its kubelet's kubeconfig to the exec plugin's."""

from __future__ import annotations

import base64
import json
from dataclasses import dataclass
from pathlib import Path

import pytest
from agent_cluster import Authority, FakeApi
from agent_machine import NODE
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from test_join import in_process

from nodeattest_authenticator.commands.existing_kubeconfig import read_access
from nodeattest_authenticator.errors import AgentError
from nodeattest_authenticator.formats.kubeconfig import is_ours

Key = ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey


def key_pem(key: Key) -> bytes:
    """Write a key as kubelet does: SEC 1, or PKCS #1."""
    return key.private_bytes(Encoding.PEM, PrivateFormat.TraditionalOpenSSL, NoEncryption())


def encoded(data: bytes) -> str:
    """Encode in lines, which Go overlooks."""
    return base64.encodebytes(data).decode()


@dataclass
class OldNode:
    """A machine whose kubelet joined by kubeadm."""

    folder: Path
    api: FakeApi
    key: Key
    certificate: bytes

    @classmethod
    def make(cls, folder: Path, api: FakeApi, *, key: Key | None = None, lasts: float = 86400) -> OldNode:
        key = key or ec.generate_private_key(ec.SECP256R1())
        made = cls(folder, api, key, api.authority.client(key.public_key(), NODE, lasts=lasts))
        folder.joinpath("pki").mkdir()
        folder.joinpath("pki", "kubelet-client-current.pem").write_bytes(made.certificate + key_pem(key))
        made.kubeconfig.write_text(json.dumps(made.document()))
        return made

    @property
    def kubeconfig(self) -> Path:
        return self.folder / "kubelet.conf"

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

    def adopt(self, *more: str, provider: str = "challenge") -> tuple[int, str, str]:
        done = in_process(*self.words(*more, provider=provider))
        return done.returncode, done.stdout, done.stderr

    def words(self, *more: str, provider: str = "challenge") -> list[str]:
        secret = self.folder / "secret"
        secret.write_bytes(b"s" * 40)
        secret.chmod(0o600)
        return [
            *("adopt", "--provider", provider, "--provider-id", "sandbox://machine-0"),
            *("--timeout", "60", "--set", f"secretFile={secret}"),
            *("--kubeconfig", str(self.kubeconfig), "--config", str(self.folder / "agent.json")),
            *("--cache-dir", str(self.folder / "cache"), *more),
        ]

    def backups(self) -> list[Path]:
        return sorted(self.folder.glob("kubelet.conf.before-nodeattest-*"))


@pytest.fixture
def old(tmp_path: Path, api: FakeApi) -> OldNode:
    return OldNode.make(tmp_path, api)


def signs_for_the_node(api: FakeApi) -> list[str]:
    """Let the cluster sign, and note who asked."""
    asked: list[str] = []

    def sign(cluster: FakeApi, name: str) -> None:
        asked.append(cluster.objects[name]["spec"]["username"])
        cluster.sign(name)

    api.on_create = sign
    return asked


def test_a_node_is_adopted_by_the_certificate_that_it_has(old: OldNode, api: FakeApi) -> None:
    asked = signs_for_the_node(api)
    before = old.kubeconfig.read_bytes()
    code, said, complained = old.adopt()
    assert code == 0, complained
    assert asked == [f"system:node:{NODE}"]
    assert is_ours(old.kubeconfig.read_bytes())
    [backup] = old.backups()
    assert backup.read_bytes() == before
    assert backup.stat().st_mode & 0o777 == 0o600
    for word in ("rotateCertificates: false", "--bootstrap-kubeconfig", "systemctl restart kubelet", backup.name):
        assert word in said
    assert b"PRIVATE KEY" not in said.encode() + complained.encode()
    files = {path: path.read_bytes() for path in old.folder.rglob("*") if path.is_file()}
    code, said, _ = old.adopt()
    assert (code, len(asked)) == (0, 1)
    assert "already" in said
    assert {path: path.read_bytes() for path in old.folder.rglob("*") if path.is_file()} == files


def test_a_death_between_backup_and_replacement_is_taken_up_without_another_request(old: OldNode, api: FakeApi) -> None:
    asked = signs_for_the_node(api)
    before = old.kubeconfig.read_bytes()
    assert old.adopt()[0] == 0
    old.kubeconfig.write_bytes(before)  # as it was when the process died before its last write
    assert old.adopt()[0] == 0
    assert is_ours(old.kubeconfig.read_bytes())
    assert len(asked) == 1
    assert [path.read_bytes() for path in old.backups()] == [before]


def test_a_refusal_leaves_kubelets_kubeconfig_alone(old: OldNode, api: FakeApi) -> None:
    api.on_create = lambda cluster, name: cluster.deny(name, "MachineNotReady")
    before = old.kubeconfig.read_bytes()
    code, _, complained = old.adopt()
    assert code == 1
    assert "MachineNotReady" in complained
    assert old.kubeconfig.read_bytes() == before
    assert not old.backups()


def test_certificate_and_key_may_stand_in_the_kubeconfig_itself(tmp_path: Path, api: FakeApi) -> None:
    """The node of ``kubeadm init``; its key is RSA."""
    old = OldNode.make(tmp_path, api, key=rsa.generate_private_key(65537, 2048))
    data = {"client-certificate-data": encoded(old.certificate), "client-key-data": encoded(key_pem(old.key))}
    old.kubeconfig.write_text(json.dumps(old.document(**data)))
    asked = signs_for_the_node(api)
    code, _, complained = old.adopt()
    assert code == 0, complained
    assert asked == [f"system:node:{NODE}"]


def test_the_insecure_provider_adopts_nobody(old: OldNode, api: FakeApi) -> None:
    before = old.kubeconfig.read_bytes()
    code, _, complained = old.adopt(provider="insecure")
    assert code == 2
    assert "nodeattest machines adopt --open" in complained
    assert old.kubeconfig.read_bytes() == before
    assert not api.posts()


def test_a_certificate_that_has_ended_says_who_can_help(tmp_path: Path, api: FakeApi) -> None:
    old = OldNode.make(tmp_path, api, lasts=-60)
    code, _, complained = old.adopt()
    assert code == 1
    assert "has expired" in complained
    assert "nodeattest machines adopt --open" in complained
    assert not api.posts()


def user(**fields: object) -> dict[str, object]:
    return {"users": [{"name": "default-auth", "user": fields}]}


def cluster(**fields: object) -> dict[str, object]:
    return {"clusters": [{"name": "default-cluster", "cluster": {k.replace("_", "-"): v for k, v in fields.items()}}]}


NONE: list[object] = []


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"current-context": "none"}, "expected the context"),
        ({"clusters": NONE}, "expected the cluster"),
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
    old: OldNode, api: FakeApi, changes: dict[str, object], says: str
) -> None:
    old.kubeconfig.write_text(json.dumps(old.document() | changes))
    code, _, complained = old.adopt()
    assert code == 2
    assert says in complained
    assert "secret-word" not in complained
    assert not api.posts()


def test_a_certificate_of_another_cluster_another_key_or_no_node_is_refused(tmp_path: Path, api: FakeApi) -> None:
    key, other = (ec.generate_private_key(ec.SECP256R1()) for _ in range(2))
    stranger = Authority().client(key.public_key(), NODE)
    no_node = api.authority.client(key.public_key(), NODE, organization="system:masters")
    another_key = api.authority.client(other.public_key(), NODE)
    for number, certificate in enumerate((stranger, no_node, another_key)):
        folder = tmp_path / str(number)
        folder.mkdir()
        old = OldNode.make(folder, api, key=key)
        folder.joinpath("pki", "kubelet-client-current.pem").write_bytes(certificate + key_pem(key))
        code, _, complained = old.adopt()
        assert (code, "CertificateRefused" in complained) == (1, True), complained
    assert not api.posts()


@pytest.mark.parametrize("data", [b"", b"\xff", b"- a", b"{", b"a: &x 1", b"x" * (1 << 21), b"{}"])
def test_any_bytes_are_an_access_or_a_failure(data: bytes) -> None:
    with pytest.raises(AgentError):
        read_access("/etc/kubernetes/kubelet.conf", data, lambda _path: b"")
