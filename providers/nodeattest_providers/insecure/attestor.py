"""The ``insecure`` provider's attestor: proves nothing and says so."""

from __future__ import annotations

from collections.abc import Mapping

from nodeattest_providers.errors import Denied, Reason
from nodeattest_providers.identifiers import ProviderName
from nodeattest_providers.node_interface import Attestor, Binding, Evidence, JsonValue, PublishedChallenge


class InsecureAttestor(Attestor):
    """Makes empty evidence. Has no settings."""

    provider = ProviderName("insecure")
    versions: tuple[int, ...] = (1,)

    def __init__(self, settings: Mapping[str, JsonValue]) -> None:
        if settings:
            raise Denied(
                Reason.POLICY_INVALID,
                expected="no settings for the insecure provider",
                got=", ".join(map(repr, settings)),
                remedy="take them out of the configuration",
            )

    def attest(self, binding: Binding, challenge: PublishedChallenge | None = None) -> Evidence:
        return Evidence(self.provider, self.versions[0], {})
