"""Reading a recorded join (``v1/``): the requests and facts that a verifier was given, and what it found."""

from __future__ import annotations

import base64
import json
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any

from nodeattest_controller.model.csr_request import parse_request
from nodeattest_providers.identifiers import ClusterPin, ProviderID
from nodeattest_providers.node_interface import SecretBytes
from nodeattest_providers.verifier_interface import ClusterFacts, Facts, MachineFacts, NodeRequest

FOLDER = Path(__file__).parent / "v1"
Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Recorded:
    """One join."""

    document: Json

    @classmethod
    def of(cls, path: Path) -> Recorded:
        return cls(json.loads(path.read_text()))

    @property
    def first(self) -> NodeRequest:
        return parse_request(self.document["requests"][0])

    @property
    def last(self) -> NodeRequest:
        """The request that is certified: the second of two, or the only one."""
        return parse_request(self.document["requests"][-1])

    @property
    def challenge(self) -> str | None:
        """The annotation's value."""
        return self.document["challenge"]

    @property
    def secret(self) -> bytes:
        return base64.b64decode(self.document["facts"]["machine"]["attestationSecret"] or "")

    @property
    def opening(self) -> Facts:
        """What the first request is judged by."""
        facts = self.document["facts"]
        cluster, machine = facts["cluster"], facts["machine"]
        return Facts(
            cluster=ClusterFacts(
                uid=cluster["uid"],
                pins=frozenset(ClusterPin(pin) for pin in cluster["pins"]),
            ),
            machine=MachineFacts(
                uid=machine["uid"],
                provider_id=ProviderID(machine["providerID"]),
                annotations=machine["annotations"],
                attestation_secret=SecretBytes(self.secret) if self.secret else None,
            ),
            settings=facts["settings"],
            challenge_keys=tuple(SecretBytes(bytes.fromhex(key)) for key in facts["challengeKeys"]),
            verified_at=datetime.fromisoformat(facts["verifiedAt"]),
        )

    @property
    def closing(self) -> Facts:
        """What the last request is judged by."""
        return replace(self.opening, first_request=self.first) if self.challenge else self.opening
