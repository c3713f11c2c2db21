"""The ``insecure`` provider's verifier: always allows a first join, so it is exactly as safe as Cluster API is today.

Source: the proposal, "Insecure providers", which forbids rotation and serving certificates.
"""

from __future__ import annotations

from typing import Final

from nodeattest_providers.canonical_json import Fields
from nodeattest_providers.checks import Checks, Rules, check_block, check_parsed
from nodeattest_providers.errors import Denied, Reason
from nodeattest_providers.identifiers import ProviderName
from nodeattest_providers.verifier_interface import AttestedNode, BootState, ClusterAPISigner, Facts, NodeRequest

_SECTION: Final = "proposal, Insecure providers"


class InsecureSigner(ClusterAPISigner):
    """Accepts empty evidence for a first join."""

    provider = ProviderName("insecure")
    versions: tuple[int, ...] = (1,)
    secure = False
    reads_infrastructure = False

    async def verify_client_attestation_data(self, request: NodeRequest, facts: Facts) -> AttestedNode:
        checks = Checks()
        check_block(checks, request.evidence, self.provider, self.versions)
        check_parsed(checks, "empty evidence", _SECTION, lambda: Fields.of(request.evidence.data, "insecure/v1", ()))
        _check_first_join(checks, is_renewal=request.is_renewal)
        return AttestedNode(provider=self.provider, provider_id=request.csr.provider_id, checks=checks.record())

    async def verify_serving_attestation_data(self, request: NodeRequest, facts: Facts) -> AttestedNode:
        """Refuse: without proof nobody confirms a node's addresses."""
        raise Denied(
            Reason.SERVING_NOT_ALLOWED,
            expected="a secure provider",
            got=self.provider,
            remedy="use a secure attestation provider for serving certificates",
        )

    def check_recorded(self, facts: Facts, boot: BootState | None) -> tuple[str, ...]:
        del facts, boot
        return _check_first_join(Checks(), is_renewal=True)


def _check_first_join(checks: Checks, *, is_renewal: bool) -> tuple[str, ...]:
    remedy = "use a secure attestation provider, whose certificates rotate, or replace the machine"
    rules = Rules(checks, _SECTION, Reason.ROTATION_NOT_ALLOWED, remedy)
    rules.require(not is_renewal, "first join", "a bootstrap token's request", "a node's own")
    return ()
