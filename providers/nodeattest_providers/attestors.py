"""The node halves by name. Names no verifier half; see ``catalog`` for the rules."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final, cast

from nodeattest_providers import catalog
from nodeattest_providers.names import ProviderName
from nodeattest_providers.node_interface import Attestor, JsonValue

__all__ = ["ENTRY_POINTS", "IN_TREE", "attestor"]

ENTRY_POINTS: Final = "nodeattest.attestors"
IN_TREE: Final = MappingProxyType(
    {
        "aws": "nodeattest_providers.aws.attestor:AwsAttestor",
        "azure": "nodeattest_providers.azure.attestor:AzureAttestor",
        "challenge": "nodeattest_providers.challenge.attestor:ChallengeAttestor",
        "gcp": "nodeattest_providers.gcp.attestor:GcpAttestor",
        "composite": "nodeattest_providers.composite.attestor:CompositeAttestor",
        "insecure": "nodeattest_providers.insecure.attestor:InsecureAttestor",
        "tpm": "nodeattest_providers.tpm.attestor:TpmAttestor",
    }
)
"""``null`` is not here: it is for tests, which name its class."""


def attestor(provider: ProviderName, settings: Mapping[str, JsonValue]) -> Attestor:
    """Make the node half of a provider from its settings; ``Denied`` for an unknown provider or a wrong setting."""
    half = catalog.find(provider, group=ENTRY_POINTS, in_tree=IN_TREE)(settings)
    catalog.check_half(half, provider, ("attest",))
    return cast("Attestor", half)
