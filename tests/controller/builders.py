"""Values the controller's tests share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric import ec

from nodeattest_controller.controllers.csr import checks
from nodeattest_controller.model.attestation import Attestation, IssuedCertificate, new_attestation, record_certificate
from nodeattest_controller.model.certificate_authority import SignedCertificate
from nodeattest_controller.model.machine_view import MachineView
from nodeattest_controller.runtime.indexes import Inventory, cluster_key
from nodeattest_controller.verification.checks import RequestCheck
from nodeattest_controller.verification.facts import CSRFacts
from nodeattest_parsing.values import JsonObject, JsonValue
from nodeattest_providers import pkcs10
from nodeattest_providers.errors import Check
from nodeattest_providers.identifiers import NodeName, ProviderID, ProviderName, Purpose, signer_for
from nodeattest_providers.node_interface import Evidence
from nodeattest_providers.verifier_interface import AttestedNode, NodeRequest

CREATED = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
ENTRY = IssuedCertificate(
    request_name="r",
    request_uid="u-1",
    first_request_uid="",
    spki="sha256:old",
    serial="1",
    not_before=CREATED,
    not_after=CREATED + timedelta(days=14),
    issued_at=CREATED,
    certificate="",
)
ATTESTED = AttestedNode(
    provider=ProviderName("tpm"),
    provider_id=ProviderID("sandbox://node-0"),
    fingerprints={"ek": "sha256:e"},
    checks=(Check("c", "s", "e", "g", passed=True),),
)


def make_policy(**spec: JsonValue) -> JsonObject:
    """Make a NodeAttestationPolicy as a file has it."""
    return {
        "apiVersion": "attestation.cluster.x-k8s.io/v1alpha1",
        "kind": "NodeAttestationPolicy",
        "metadata": {"name": "blue"},
        "spec": {"authorizedAttestors": ["tpm"], **spec},
    }


def make_request(
    *,
    node: str = "node-0",
    provider_id: str = "sandbox://node-0",
    username: str = "system:bootstrap:abcdef",
    uid: str = "u-2",
    provider: str = "tpm",
    key: ec.EllipticCurvePrivateKey | None = None,
    dns_names: Sequence[str] = (),
) -> NodeRequest:
    """Make a parsed request; with names it is one for a serving certificate."""
    purpose = Purpose.SERVING if dns_names else Purpose.CLIENT
    key = key or ec.generate_private_key(ec.SECP256R1())
    der = pkcs10.build_csr(key, NodeName(node), ProviderID(provider_id), dns_names=dns_names)
    groups = {"system:nodes"} if username.startswith("system:node:") else {"system:bootstrappers"}
    return NodeRequest(
        name="request",
        uid=uid,
        created=CREATED,
        signer_name=signer_for(ProviderName(provider), purpose),
        purpose=purpose,
        username=username,
        groups=frozenset(groups),
        expiration_seconds=None,
        request=b"",
        csr=pkcs10.parse_csr(der, purpose=purpose),
        evidence=Evidence(ProviderName(provider), 1, {}),
    )


MEMBER = MachineView(
    kind="Machine",
    api_version="cluster.x-k8s.io/v1beta1",
    name="node-0",
    namespace="fleet",
    uid="m-0",
    cluster_name="c",
    provider_id=ProviderID("sandbox://node-0"),
    bootstrap_ready=True,
)


def make_member(**changes: object) -> MachineView:
    return replace(MEMBER, **changes)  # pyright: ignore[reportArgumentType] - the tests name real fields


def bound(member: MachineView, spki: str = "sha256:old") -> Attestation:
    """Return the record of a machine that joined as node-0."""
    return replace(
        new_attestation(member),
        resource_version="7",
        node_name=NodeName("node-0"),
        provider=ProviderName("tpm"),
        issued=(replace(ENTRY, spki=spki),),
    )


def known(request: NodeRequest | None = None, **facts: Any) -> CSRFacts:
    """Return the facts of a request that are given here, and those of an empty cluster besides."""

    async def nothing(*_: object) -> list[str]:
        return []

    def recorded_attestation(_machine: MachineView) -> Attestation:
        return facts["attestation"]

    now: datetime = facts.pop("now", CREATED)
    source: dict[str, Any] = {
        "key": cluster_key("fleet", "c"),
        "inventory": Inventory(),
        "now": lambda: now,
        "hosts_with_name": nothing,
        "others_with_provider_id": nothing,
        "recorded_attestation": recorded_attestation,
        "named_tokens": nothing,
    }
    source |= {name: facts.pop(name) for name in source if name in facts}
    found = CSRFacts(SimpleNamespace(**source), request or make_request())  # pyright: ignore[reportArgumentType]
    found.gathered.update({name: (value, None) for name, value in facts.items()})
    return found


def decide(check: RequestCheck[CSRFacts], request: NodeRequest | None = None, **facts: Any) -> None:
    """Run a check on facts that are all at hand."""
    with pytest.raises(StopIteration):
        check.run(known(request, **facts)).__await__().send(None)


def recorded(
    ledger: Attestation, request: NodeRequest, attested: AttestedNode, issued: SignedCertificate, now: datetime
) -> Attestation:
    """Run the checks of issuing, and record the certificate."""
    issuing = (checks.answered_once, checks.replacement_interval, checks.live_certificates, checks.pinned_fingerprints)
    for check in issuing:
        decide(check, request, attestation=ledger, attested=attested, now=now)
    return record_certificate(ledger, request, attested, issued, now)
