"""The node names that a policy's sections give to machines, whichever provider attests. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from nodeattest_providers.errors import Denied
from nodeattest_providers.names import NodeName, ProviderID, ProviderName
from nodeattest_providers.node_interface import JsonValue
from nodeattest_providers.pins import COMPOSITE
from nodeattest_providers.platform import provable_names
from nodeattest_providers.verifier_interface import ClusterAPISigner

__all__ = ["registered_names"]


def registered_names(
    sections: Mapping[ProviderName, Mapping[str, JsonValue]], find: Callable[[ProviderName], ClusterAPISigner]
) -> Iterator[tuple[ProviderID, NodeName]]:
    """Yield each machine to which a section gives a name; ``find`` raises Denied for a provider that is not here.

    ``composite`` has no names of its own: those of its parts are in the parts' sections.
    """
    for provider in sections.keys() - {COMPOSITE}:
        try:
            verifier = find(provider)
        except Denied:
            continue
        yield from (provable_names(verifier, sections) or {}).items()
