"""The controller halves by name. Names no attestor half; see ``catalog`` for the rules."""

from __future__ import annotations

from types import MappingProxyType
from typing import Final, cast

from nodeattest_providers import catalog
from nodeattest_providers.interface import ClusterAPISigner
from nodeattest_providers.names import ProviderName

__all__ = ["ENTRY_POINTS", "IN_TREE", "signer"]

ENTRY_POINTS: Final = "nodeattest.signers"
IN_TREE: Final = MappingProxyType(
    {
        "challenge": "nodeattest_providers.challenge.verifier:ChallengeSigner",
        "insecure": "nodeattest_providers.insecure.verifier:InsecureSigner",
        "tpm": "nodeattest_providers.tpm.verifier:TpmSigner",
    }
)
"""``null`` is not here: it is for tests, which name its class."""

_METHODS: Final = ("verify_client_attestation_data", "verify_serving_attestation_data", "machine_name")


def signer(provider: ProviderName) -> ClusterAPISigner:
    """Make the controller half of a provider; ``Denied`` for an unknown one."""
    half = catalog.find(provider, group=ENTRY_POINTS, in_tree=IN_TREE)()
    catalog.check_half(half, provider, _METHODS)
    return cast("ClusterAPISigner", half)
