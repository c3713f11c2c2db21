"""The ``null`` provider's verifier: a rubber stamp for tests, absent from the wheel and from the registry.

Unlike ``insecure`` it allows rotation and serving certificates, so that tests reach the code behind them.
"""

from __future__ import annotations

from nodeattest_providers.checks import Checks, check_block
from nodeattest_providers.identifiers import ProviderName
from nodeattest_providers.verifier_interface import AttestedNode, ClusterAPISigner, Facts, NodeRequest


class NullSigner(ClusterAPISigner):
    """Accepts everything."""

    provider = ProviderName("null")
    versions: tuple[int, ...] = (1,)
    secure = False

    async def verify_client_attestation_data(self, request: NodeRequest, facts: Facts) -> AttestedNode:
        checks = Checks()
        check_block(checks, request.evidence, self.provider, self.versions)
        return AttestedNode(provider=self.provider, provider_id=request.csr.provider_id, checks=checks.record())

    async def verify_serving_attestation_data(self, request: NodeRequest, facts: Facts) -> AttestedNode:
        return await self.verify_client_attestation_data(request, facts)
