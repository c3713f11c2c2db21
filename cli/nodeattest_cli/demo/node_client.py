"""What a kubelet does with its kubeconfig: run the exec plugin, take the credential, talk to the API server as a node.

Promises: the plugin is called as client-go calls it (same arguments, KUBERNETES_EXEC_INFO with the cluster); what comes
back is used as it is. Source: client-go plugin/pkg/client/auth/exec; client.authentication.k8s.io/v1.
"""

from __future__ import annotations

import json
import ssl
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from cryptography import x509

from nodeattest_cli.demo.children import Children
from nodeattest_controller.model.objects import items, mapping, rfc3339, strings, text
from nodeattest_kube.jsontypes import JsonObject, parse_json
from nodeattest_sandbox.client import ApiRefusal, Client

__all__ = ["DemoFailure", "NodeCredential", "call_plugin", "node_client", "prove", "register"]

_PLUGIN_LIMIT: Final = 30.0
"""Seconds; a warm plugin takes a fortieth of one."""


class DemoFailure(Exception):
    """Something went otherwise than the demo promises; one line."""


@dataclass(frozen=True, slots=True)
class NodeCredential:
    """What the plugin handed out."""

    certificate_pem: str
    key_pem: str = field(repr=False)

    @property
    def not_after(self) -> str:
        """RFC 3339."""
        return rfc3339(x509.load_pem_x509_certificate(self.certificate_pem.encode()).not_valid_after_utc)


def call_plugin(children: Children, kubeconfig: Path) -> NodeCredential:
    """Run the exec plugin of a kubelet's kubeconfig; raises ``DemoFailure``."""
    document = parse_json(kubeconfig.read_bytes())
    plugin = mapping(items(document, "users")[0], "user", "exec")
    info: JsonObject = {
        "kind": "ExecCredential",
        "apiVersion": text(plugin, "apiVersion"),
        "spec": {"cluster": mapping(items(document, "clusters")[0], "cluster"), "interactive": False},
    }
    command = [text(plugin, "command"), *strings(plugin, "args")]
    ended = children.run(command, limit=_PLUGIN_LIMIT, environment={"KUBERNETES_EXEC_INFO": json.dumps(info)})
    if ended.code:
        raise DemoFailure(f"the credential plugin failed: {ended.last_line}")
    status = mapping(parse_json(ended.output.encode()), "status")
    return NodeCredential(text(status, "clientCertificateData"), text(status, "clientKeyData"))


def node_client(server: str, ca: Path, credential: NodeCredential) -> Client:
    """Make a client that presents the node's certificate."""
    tls = ssl.create_default_context(cafile=str(ca))
    with tempfile.NamedTemporaryFile() as file:  # ssl reads certificate and key from a file only
        file.write((credential.certificate_pem + credential.key_pem).encode())
        file.flush()
        tls.load_cert_chain(file.name)
    return Client(server, tls, {})


def register(client: Client, node: str, provider_id: str) -> None:
    """Create the Node, as kubelet does first of all; NodeRestriction lets a node create no other."""
    body: JsonObject = {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": node},
        "spec": {"providerID": provider_id},
    }
    try:
        client.create("/api/v1/nodes", body)
    except ApiRefusal as refusal:
        raise DemoFailure(f"node {node} may not register itself: {refusal}") from None


def prove(client: Client, node: str) -> str:
    """Ask the API server whose credential this is; returns its answer, raises ``DemoFailure``."""
    review: JsonObject = {"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"}
    try:
        answer = client.create("/apis/authentication.k8s.io/v1/selfsubjectreviews", review)
    except ApiRefusal as refusal:
        raise DemoFailure(f"the API server does not accept the credential of {node}: {refusal}") from None
    user, groups = text(answer, "status", "userInfo", "username"), strings(answer, "status", "userInfo", "groups")
    if user != f"system:node:{node}" or "system:nodes" not in groups:
        raise DemoFailure(f"the API server takes {node} for {user or 'nobody'} in {', '.join(groups)}")
    return f"{user} in system:nodes"
