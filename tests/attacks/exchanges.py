"""Attestation in two requests, taken apart: each step by whoever holds a client, with whatever could be observed.

All that a node sends stands in its requests, which every bootstrap token may read; its key and its secret do not.
"""

from __future__ import annotations

import base64
from dataclasses import dataclass
from typing import Final

from attacked_world import file_object
from filing_requests import Filed
from polling import eventually
from serving_requests import USAGES, Asked, Node, pin_of
from world import World

from nodeattest_providers import envelope, pkcs10
from nodeattest_providers.binding import Binding
from nodeattest_providers.identifiers import ANNOTATION_CHALLENGE, Purpose, evidence_block, signer_for
from nodeattest_providers.node_interface import Evidence, PublishedChallenge
from nodeattest_sandbox.apiserver.jsonvalue import JsonMap, text_at
from nodeattest_sandbox.client import Client

SECONDS: Final = 60.0


@dataclass(frozen=True, slots=True)
class Exchange:
    """The steps by which ``seat`` proves one PKCS#10 request; the bytes may be another's."""

    seat: Node
    der: bytes
    purpose: Purpose = Purpose.CLIENT

    @property
    def binding(self) -> Binding:
        """What evidence is bound to."""
        signer = signer_for(self.seat.provider, self.purpose)
        return Binding(
            evidence_block(self.seat.provider, 1),
            pin_of(self.seat.world),
            signer,
            pkcs10.parse_csr(self.der, purpose=self.purpose).sha256,
        )

    def file(self, client: Client, evidence: Evidence, metadata: JsonMap | None = None) -> Filed:
        """File the request with this evidence."""
        spec: JsonMap = {
            "signerName": signer_for(self.seat.provider, self.purpose),
            "usages": ["digital signature", USAGES[self.purpose]],
            "request": base64.b64encode(envelope.encode(self.der, evidence)).decode(),
        }
        return file_object(self.seat.world, client, spec, metadata)

    def first(self, client: Client, metadata: JsonMap | None = None) -> Filed:
        """File the first request."""
        return self.file(client, self.seat.attestor.attest(self.binding), metadata)

    def answer(self, first: Filed, *, before: str = "") -> Evidence:
        """Answer the challenge that replaces what stood there ``before``; raises AssertionError where none comes."""
        text = settled(first, before=before)
        assert text, f"no challenge but {first.state()}"
        parsed = pkcs10.parse_csr(self.der, purpose=self.purpose)
        published = PublishedChallenge(
            name=first.name,
            uid=text_at(first.read(), "metadata", "uid"),
            csr_sha256=parsed.sha256,
            text=text,
            spki_sha256=parsed.spki_sha256,
        )
        return self.seat.attestor.attest(self.binding, published)

    def carry_out(self, client: Client) -> Filed:
        """File both requests; the first one is the last where it is refused."""
        first = self.first(client)
        return self.file(client, self.answer(first)) if settled(first) else first


def opened(seat: Node, *, node: str = "", provider_id: str = "", asked: Asked | None = None) -> Exchange:
    """Make the request of a machine for itself, or for whatever it says instead."""
    wanted = asked or Asked()
    der = pkcs10.build_csr(
        wanted.key,
        node or seat.name,
        provider_id or f"sandbox://{seat.name}",
        dns_names=wanted.dns_names,
        ip_addresses=wanted.ip_addresses,
    )
    return Exchange(seat, der, wanted.purpose)


def settled(first: Filed, *, before: str = "") -> str:
    """Wait for the challenge, and return it, or for the end, and return an empty string."""

    def seen() -> tuple[str, str] | None:
        text = first.annotation(ANNOTATION_CHALLENGE)
        found = (text if text != before else "", first.state())
        return found if any(found) else None

    text, state = eventually(seen, seconds=SECONDS, what=f"the answer to {first.name}")
    return "" if state else text


def token_client(world: World, *groups: str) -> Client:
    """Act with a bootstrap token that was never used, in these groups."""
    return world.workload.client(world.workload.token_kubeconfig(world.token(*groups)))


def node_client(world: World, name: str) -> Client:
    """Act with a node's own certificate."""
    return world.workload.client(world.workload.client_kubeconfig(f"system:node:{name}", ["system:nodes"]))
