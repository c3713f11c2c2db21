"""Requests as an attacker or a simple node files them: plain HTTP with a bootstrap token."""

from __future__ import annotations

import base64
from dataclasses import dataclass, field
from pathlib import Path
from uuid import uuid4

from cryptography.hazmat.primitives.asymmetric import ec
from polling import eventually
from world import CSRS, World

from nodeattest_providers import envelope, pkcs10
from nodeattest_providers.identifiers import CLIENT_SIGNER_PREFIX, ProviderName
from nodeattest_providers.node_interface import Evidence
from nodeattest_sandbox.apiserver.jsonvalue import JsonMap, JsonValue, map_at, text_at


@dataclass(frozen=True, slots=True)
class Filed:
    """A request that stands in the workload cluster."""

    world: World
    name: str

    def read(self) -> JsonMap:
        """Read it now."""
        return self.world.workload_admin.get(f"{CSRS}/{self.name}")

    def state(self) -> str:
        """``Approved``, ``Denied:<reason>``, ``Failed:<reason>``, ``issued`` or an empty string."""
        found = self.read()
        conditions = map_at(found, "status").get("conditions")
        entries: list[JsonValue] = conditions if isinstance(conditions, list) else []
        kinds = {text_at(one, "type"): text_at(one, "reason") for one in entries}
        for kind in ("Denied", "Failed"):
            if kind in kinds:
                return f"{kind}:{kinds[kind]}"
        if text_at(found, "status", "certificate"):
            return "issued"
        return "Approved" if "Approved" in kinds else ""

    def annotation(self, key: str) -> str:
        return text_at(self.read(), "metadata", "annotations", key)


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What is asked for."""

    node: str
    provider_id: str = ""
    provider: str = "insecure"
    version: int = 1
    key: ec.EllipticCurvePrivateKey = field(default_factory=lambda: ec.generate_private_key(ec.SECP256R1()))


def file_request(
    world: World,
    wanted: Wanted,
    *,
    token: str = "",
    name: str = "",
    annotations: dict[str, str] | None = None,
    kubeconfig: Path | None = None,
    **spec: JsonValue,
) -> Filed:
    """File a request with a bootstrap token, or as somebody else."""
    der = pkcs10.build_csr(wanted.key, wanted.node, wanted.provider_id or f"sandbox://{wanted.node}")
    raw = envelope.encode(der, Evidence(ProviderName(wanted.provider), wanted.version, {}))
    body: JsonMap = {
        "apiVersion": "certificates.k8s.io/v1",
        "kind": "CertificateSigningRequest",
        "metadata": {"name": name or f"r-{uuid4().hex[:12]}", "annotations": {**(annotations or {})}},
        "spec": {
            "signerName": CLIENT_SIGNER_PREFIX + wanted.provider,
            "usages": ["digital signature", "client auth"],
            "request": base64.b64encode(raw).decode(),
            **spec,
        },
    }
    client = world.workload.client(kubeconfig or world.workload.token_kubeconfig(token or world.token()))
    return Filed(world, text_at(client.create(CSRS, body), "metadata", "name"))


def ends(filed: Filed) -> str:
    """Wait for the end of a request: ``issued``, ``Denied:<reason>`` or ``Failed:<reason>``."""
    return eventually(lambda: filed.state().removeprefix("Approved"), what=f"the end of {filed.name}")
