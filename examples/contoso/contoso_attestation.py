"""The provider ``contoso``: each rack has a controller that signs for the slot whose cable a request came through.

Evidence ``contoso/v1`` is ``{"signature": <Ed25519>}`` over ``length_prefix("contoso/v1", provider ID, binding)``. The
provider ID is ``contoso://<rack>/<slot>``; the policy lists each rack's public key, in hex, under
``spec.providers.contoso.racks``. One request is enough: the binding covers the node's key, so a replayed signature
serves nobody else.
"""

from __future__ import annotations

import socket
from collections.abc import Iterable, Mapping

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from nodeattest_providers.canonical_json import Fields, b64encode
from nodeattest_providers.checks import Checks, check_block, check_parsed
from nodeattest_providers.errors import Reason, Unavailable
from nodeattest_providers.identifiers import ProviderName
from nodeattest_providers.node_interface import (
    Attestor,
    Binding,
    Evidence,
    JsonValue,
    PublishedChallenge,
    length_prefix,
)
from nodeattest_providers.verifier_interface import AttestedNode, ClusterAPISigner, Facts, NodeRequest

_SIGNATURE = 64
"""Bytes of an Ed25519 signature (RFC 8032 §5.1.6)."""


class ContosoAttestor(Attestor):
    """Makes the evidence on the node; its one setting is the ``socket`` of the rack's controller."""

    provider, versions = ProviderName("contoso"), (1,)

    def __init__(self, settings: Mapping[str, JsonValue]) -> None:
        self._socket = Fields.of(dict(settings), "contoso settings", ("socket",)).text("socket", 1, 100)

    def attest(self, binding: Binding, challenge: PublishedChallenge | None = None) -> Evidence:
        """Have the rack's controller sign the binding."""
        try:
            with socket.socket(socket.AF_UNIX) as rack:
                rack.settimeout(5)
                rack.connect(self._socket)
                rack.sendall(binding.digest)
                signature = rack.recv(_SIGNATURE, socket.MSG_WAITALL)
        except OSError:
            signature = b""
        if len(signature) != _SIGNATURE:
            remedy = "check the rack's controller"
            raise Unavailable(Reason.PLATFORM_UNAVAILABLE, "the rack does not answer", remedy=remedy)
        return Evidence(self.provider, 1, {"signature": b64encode(signature)})


class ContosoSigner(ClusterAPISigner):
    """Verifies the evidence in the controller."""

    provider, versions, secure = ProviderName("contoso"), (1,), True

    async def verify_client_attestation_data(self, request: NodeRequest, facts: Facts) -> AttestedNode:
        """Check that the rack's controller signed for this Machine's slot, this key, this cluster and this signer."""
        checks, provider_id = Checks(), facts.machine.provider_id
        check_block(checks, request.evidence, self.provider, self.versions)
        signature = check_parsed(checks, "evidence schema", "contoso/v1", lambda: _signature(request.evidence))
        rack = provider_id.removeprefix("contoso://").partition("/")[0]
        messages = [
            length_prefix(b"contoso/v1", provider_id.encode(), request.binding(p).digest) for p in facts.cluster.pins
        ]
        signed = _is_signed(facts.settings, rack, signature, messages)
        checks.require(
            signed,
            "signed by the rack",
            section="contoso/v1",
            reason=Reason.PROOF_INVALID,
            expected="a signature under the rack's key in spec.providers.contoso.racks",
            got="such a signature" if signed else "another, or no key there",
            remedy="register the rack's key; the slot must be that of the Machine's provider ID",
        )
        return AttestedNode(provider=self.provider, provider_id=provider_id, checks=checks.record())


def _signature(evidence: Evidence) -> bytes:
    return Fields.of(evidence.data, "contoso/v1", ("signature",)).octets("signature", _SIGNATURE, _SIGNATURE)


def _is_signed(settings: Mapping[str, JsonValue], rack: str, signature: bytes, messages: Iterable[bytes]) -> bool:
    racks = settings.get("racks")
    key = racks.get(rack) if isinstance(racks, dict) else None
    for message in messages:
        try:
            rack_key = Ed25519PublicKey.from_public_bytes(bytes.fromhex(key if isinstance(key, str) else ""))
            rack_key.verify(signature, message)
        except (ValueError, InvalidSignature):  # ValueError: not a key, or not hex
            continue
        return True
    return False
