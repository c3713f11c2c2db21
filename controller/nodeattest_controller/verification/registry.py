"""The providers' verifiers: each made once, when a policy first names it, with its platform's settings."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from nodeattest_controller.metrics import Metrics
from nodeattest_providers.identifiers import ProviderName
from nodeattest_providers.node_interface import JsonValue
from nodeattest_providers.platform import Platform, make_signer
from nodeattest_providers.registry import SIGNERS, installed
from nodeattest_providers.verifier_interface import ClusterAPISigner


class VerifierRegistry:
    """Looks up verifiers by the provider's name."""

    def __init__(
        self,
        platforms: Mapping[str, Mapping[str, JsonValue]],
        metrics: Metrics,
        given: Mapping[ProviderName, ClusterAPISigner],
    ) -> None:
        """``given`` are those that the embedding program made and will close (``library``)."""
        self._given = given
        self._installed = installed(SIGNERS)
        self._platforms = platforms
        self._metrics = metrics
        self._made: dict[ProviderName, ClusterAPISigner] = {}

    def has(self, provider: ProviderName) -> bool:
        """Return whether this is the name of a provider, and so its signers are ours: no prefix makes them so."""
        return provider in self._given or provider in self._installed

    def __call__(self, provider: ProviderName) -> ClusterAPISigner:
        """Return the provider's verifier; raises Denied for an unknown provider or wrong settings of its platform."""
        if provider in self._given:
            return self._given[provider]
        if provider not in self._made:
            platform = Platform(
                settings=self._platforms.get(provider, {}),
                observe=partial(self._metrics.platform_call, provider),
                find_signer=self,
            )
            self._made[provider] = make_signer(provider, platform)
        return self._made[provider]

    async def aclose(self) -> None:
        """Close what they hold."""
        for signer in self._made.values():
            await signer.aclose()
        self._made.clear()
