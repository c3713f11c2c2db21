"""The controller halves by name. Names no attestor half; see ``catalog`` for the rules."""

from __future__ import annotations

from types import MappingProxyType
from typing import Final, cast

from nodeattest_providers import catalog
from nodeattest_providers.errors import Denied, Reason
from nodeattest_providers.identifiers import printable
from nodeattest_providers.names import ProviderName
from nodeattest_providers.platform import Platform
from nodeattest_providers.verifier_interface import ClusterAPISigner

__all__ = ["ENTRY_POINTS", "IN_TREE", "check", "reads_infrastructure", "reads_secret", "signer"]

ENTRY_POINTS: Final = "nodeattest.signers"
IN_TREE: Final = MappingProxyType(
    {
        "aws": "nodeattest_providers.aws.verifier:AwsSigner",
        "azure": "nodeattest_providers.azure.verifier:AzureSigner",
        "challenge": "nodeattest_providers.challenge.verifier:ChallengeSigner",
        "gcp": "nodeattest_providers.gcp.verifier:GcpSigner",
        "composite": "nodeattest_providers.composite.verifier:CompositeSigner",
        "insecure": "nodeattest_providers.insecure.verifier:InsecureSigner",
        "tpm": "nodeattest_providers.tpm.verifier:TpmSigner",
    }
)
"""``null`` is not here: it is for tests, which name its class."""

_METHODS: Final = ("verify_client_attestation_data", "verify_serving_attestation_data", "machine_name")


def signer(provider: ProviderName, platform: Platform | None = None) -> ClusterAPISigner:
    """Make the controller half of a provider; ``Denied`` for an unknown one or wrong settings of its platform.

    ``platform`` goes to the factories that say ``takes_platform``; without it they get an empty one.
    """
    factory = catalog.find(provider, group=ENTRY_POINTS, in_tree=IN_TREE)
    takes_platform = getattr(factory, "takes_platform", False) is True
    if platform is not None and platform.settings and not takes_platform:
        raise Denied(
            Reason.POLICY_INVALID,
            expected="no settings: this provider asks no platform",
            got=", ".join(map(printable, platform.settings)),
            remedy=f"take the section platforms.{provider} out of the controller's configuration",
        )
    half = factory(platform=platform or Platform()) if takes_platform else factory()
    check(half, provider)
    return cast("ClusterAPISigner", half)


def check(half: object, provider: ProviderName) -> None:
    """Refuse what is no controller half of the provider; raises Denied."""
    catalog.check_half(half, provider, _METHODS)


def reads_infrastructure(half: object) -> bool:
    """Tell whether a half looks at a machine's infrastructure object, so that the machine must wait for it."""
    return getattr(half, "reads_infrastructure", True) is not False


def reads_secret(half: object) -> bool:
    """Tell whether a half needs the Machine's own attestation secret."""
    return getattr(half, "reads_secret", False) is True
