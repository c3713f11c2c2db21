"""A third party's provider that speaks two versions, and the one that it was before: what the tests of skew install.

Evidence is ``{"mac": <HMAC-SHA256 under the key in the policy>}`` over the version's binding. The old halves are
what stands in packages of the time before version 2.
"""

from __future__ import annotations

import hmac
from collections.abc import Mapping

from nodeattest_providers.canonical_json import Fields, b64encode
from nodeattest_providers.checks import Checks, check_block, check_parsed
from nodeattest_providers.errors import Reason
from nodeattest_providers.identifiers import ProviderName
from nodeattest_providers.node_interface import Attestor, Binding, Evidence, JsonValue, PublishedChallenge
from nodeattest_providers.verifier_interface import AttestedNode, ClusterAPISigner, Facts, NodeRequest

PROVIDER = ProviderName("skewed")


class OldAttestor:
    """Makes version 1."""

    provider, two_step = PROVIDER, False
    versions: tuple[int, ...] = (1,)

    def __init__(self, settings: Mapping[str, JsonValue]) -> None:
        self._settings = settings

    def attest(self, binding: Binding, challenge: PublishedChallenge | None = None) -> Evidence:
        """Make the MAC."""
        return Evidence(PROVIDER, self.versions[0], {"mac": b64encode(_mac(self._settings, binding))})


class NewAttestor(OldAttestor):
    """Makes version 2, and version 1 still."""

    versions = (2, 1)

    def in_version(self, version: int) -> Attestor:
        """Return the attestor of the older version."""
        return OldAttestor(self._settings)

    def close(self) -> None:
        """Release nothing; but whoever can be closed has a device, which the agent's commands take turns at."""


class OldSigner(ClusterAPISigner):
    """Understands version 1."""

    provider, secure = PROVIDER, True
    versions: tuple[int, ...] = (1,)

    async def verify_client_attestation_data(self, request: NodeRequest, facts: Facts) -> AttestedNode:
        """Check the MAC."""
        checks = Checks()
        check_block(checks, request.evidence, PROVIDER, self.versions)
        fields = check_parsed(checks, "schema", "skewed", lambda: Fields.of(request.evidence.data, "skewed", ("mac",)))
        got = fields.octets("mac", 32, 32)
        macs = [_mac(facts.settings, request.binding(pin)) for pin in facts.cluster.pins]
        checks.require(
            any(hmac.compare_digest(got, mac) for mac in macs),
            "MAC",
            section="skewed",
            reason=Reason.PROOF_INVALID,
            expected="the MAC under the policy's key",
            got="another",
            remedy="let the keys agree",
        )
        return AttestedNode(provider=PROVIDER, provider_id=request.csr.provider_id, checks=checks.record())

    verify_serving_attestation_data = verify_client_attestation_data


class NewSigner(OldSigner):
    """Understands version 2, and version 1 still."""

    versions = (2, 1)


def _mac(settings: Mapping[str, JsonValue], binding: Binding) -> bytes:
    return hmac.digest(str(settings["key"]).encode(), binding.digest, "sha256")
