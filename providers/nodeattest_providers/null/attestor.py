"""The ``null`` provider's attestor, for tests; absent from the wheel and from the registry."""

from __future__ import annotations

from collections.abc import Mapping

from nodeattest_providers.identifiers import ProviderName
from nodeattest_providers.node_interface import Attestor, Binding, Evidence, JsonValue, PublishedChallenge


class NullAttestor(Attestor):
    """Makes empty evidence."""

    provider = ProviderName("null")
    versions: tuple[int, ...] = (1,)

    def __init__(self, settings: Mapping[str, JsonValue]) -> None:
        del settings

    def attest(self, binding: Binding, challenge: PublishedChallenge | None = None) -> Evidence:
        return Evidence(self.provider, self.versions[0], {})
