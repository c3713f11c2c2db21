"""Seeds of what the node agent reads."""

from __future__ import annotations

import base64
import json
from typing import Final

from fuzz.agent import configuration
from fuzz.keys import NODE_KEY, authority, key_pem, kubelets_certificate, pem_of
from fuzz.mutators.der_tree import read, write
from fuzz.seeds.objects import request_object
from nodeattest_authenticator.config import settings
from nodeattest_authenticator.formats import pem
from nodeattest_authenticator.state.credential_format import FAILURE_MAGIC, MAGIC

__all__ = ["seeds"]

_EXEC: Final = "client.authentication.k8s.io/"


def seeds() -> dict[str, list[bytes]]:
    """Return seeds by target."""
    kubelets = [pem_of(kubelets_certificate()), _of_version(9), pem_of(kubelets_certificate()) + pem_of(authority())]
    answer = request_object()
    answer["status"] = {"certificate": base64.b64encode(kubelets[0]).decode()}
    refusal = {"type": "Denied", "reason": "ProofInvalid", "message": "a remedy"}
    refused = {**request_object(), "status": {"conditions": [refusal]}}
    return {
        "agent-settings": [settings.settings_to_json(configuration()), *map(_text, _settings())],
        "agent-exec-info": [*map(_text, _exec_infos())],
        "agent-credential": _credentials(kubelets[0]),
        "agent-draft": [*map(_text, _drafts())],
        "agent-failure": _failures(),
        "agent-csr-object": [_text(answer), _text(refused)],
        "agent-certificate": kubelets,
        "agent-authorities": [pem_of(authority()), pem_of(authority()) * 2, *kubelets],
        "agent-bootstrap-token": [b"abcdef.0123456789abcdef\n", b"abcdef.0123456789ABCDEF", b"\xff"],
        "agent-kubeadm-configuration": [*map(str.encode, _kubeadms())],
        "agent-kubeconfig": [_text({"current-context": "kubelet-authenticator"}), _text({"current-context": 1})],
    }


def _kubeadms() -> list[str]:
    """Write what Cluster API puts on machines, in the shapes of kubeadm's versions."""
    head = "kind: JoinConfiguration\napiVersion: kubeadm.k8s.io/"
    token = (
        f"apiServerEndpoint: blue.example:6443, token: abcdef.0123456789abcdef, caCertHashes: ['sha256:{'ab' * 32}']"
    )
    by_token = f"discovery: {{bootstrapToken: {{{token}}}}}\n"
    by_file = "discovery: {tlsBootstrapToken: abcdef.0123456789abcdef, file: {kubeConfigPath: /etc/discovery.conf}}\n"
    named = "nodeRegistration: {name: node-7, kubeletExtraArgs: "
    return [
        f"---\n{head}v1beta3\n{by_token}{named}{{provider-id: 'metal://7', v: '4'}}}}\n",
        f"{head}v1beta4\n{by_token}{named}[{{name: hostname-override, value: x}}]}}\n",
        f"{head}v1beta3\n{by_file}",
        "kind: ClusterConfiguration\n---\nkind: InitConfiguration\n---\n",
    ]


def _text(value: object) -> bytes:
    return json.dumps(value).encode()


def _of_version(number: int) -> bytes:
    """Write a certificate of an X.509 version that does not exist."""
    (der,) = pem.decode(pem_of(kubelets_certificate()), pem.CERTIFICATE)
    nodes = read(der)
    nodes[0].inside[0].inside[0].inside[0].content = bytes([number])
    return pem.encode(write(nodes[0]), pem.CERTIFICATE)


def _settings() -> list[dict[str, object]]:
    document = json.loads(settings.settings_to_json(configuration()))
    source = {"providerID": {"command": ["/bin/id", "-u"]}, "bootstrapTokenFile": "/t", "expirationSeconds": 3600}
    named = {
        "tlsServerName": "kubernetes",
        "providerID": {"value": "metal://7"},
        "nodeName": "node-7",
        "timeoutSeconds": 5,
    }
    return [document | source, document | named, document | {"server": "https://[fe80::1%25eth0]:6443/a/"}]


def _exec_infos() -> list[object]:
    ca = base64.b64encode(pem_of(authority())).decode()
    cluster = {"server": "https://10.0.0.1:6443", "certificate-authority-data": ca}
    made = [
        {
            "apiVersion": f"{_EXEC}{version}",
            "kind": "ExecCredential",
            "spec": {"interactive": False, "cluster": cluster},
        }
        for version in ("v1", "v1beta1")  # the second one is refused
    ]
    skips = {**cluster, "insecure-skip-tls-verify": True, "tls-server-name": "x", "config": None}
    return [*made, {**made[0], "spec": {}}, {**made[0], "spec": {"cluster": skips}}]


def _credentials(found: bytes) -> list[bytes]:
    """Write cache files: one with two ready answers, and such whose header lies."""
    key = key_pem(NODE_KEY)
    body = b"info" + b"answer" + b"other" + b"reply" + found + key
    rest = b"1767225600 1770000000 2082758400 1.2.3.4 4 6 5 5\n" + body
    whole = b"%b %010d %b" % (MAGIC, len(MAGIC) + 12 + len(rest), rest)
    few = b"%b %010d 1 2 3 i\n" % (MAGIC, len(MAGIC) + 12 + 8)
    return [whole, whole.replace(b" 4 6 5 5", b" 4 9 5 9"), whole.replace(b" 4 6 5 5", b" 4 6 -5 5"), few]


def _drafts() -> list[object]:
    filed = {"name": "node-csr-0", "request": base64.b64encode(b"request").decode()}
    draft = {"purpose": "p", "key": key_pem(NODE_KEY).decode(), "csr": filed["request"]}
    both = {**draft, "first": filed, "second": filed}
    return [draft, {**draft, "first": filed}, both, {**draft, "key": "é"}, {**both, "assignedProviderID": "m://7"}]


def _failures() -> list[bytes]:
    text = b"\nagain\nAPIUnavailable\nno answer"
    made = [b"%b 1780272100 1.2.3.4 2" % FAILURE_MAGIC + text, b"%b 99 1.2.3.4 -3" % FAILURE_MAGIC + text]
    return [*made, b"%b 1780272100 1.2.3.4 -%b" % (FAILURE_MAGIC, b"9" * 400) + text, FAILURE_MAGIC]
