"""What a rendered node shall do: by which provider it attests, and how it finds what that needs.

Promises: values only. Leaves to others where they come from (a policy, flags) and what they turn into (``payload``).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from nodeattest_kube.jsontypes import JsonObject
from nodeattest_providers.errors import Denied, Reason
from nodeattest_providers.names import ProviderName
from nodeattest_providers.node_interface import JsonValue
from nodeattest_providers.provider_id_template import has_sources
from nodeattest_providers.registry import BUILT_IN

__all__ = [
    "FINDS_PROVIDER_ID",
    "NEEDS_PROVIDER_ID",
    "RenderOptions",
    "Rendered",
    "RenderingRefused",
    "ServingOptions",
    "refusal",
]

NEEDS_PROVIDER_ID: Final = frozenset(name for name, row in BUILT_IN.items() if not row.knows_provider_id)
"""Providers whose attestor does not find the machine's provider ID; third parties' attestors may."""
FINDS_PROVIDER_ID: Final = BUILT_IN.keys() - NEEDS_PROVIDER_ID - {"composite"}
"""Providers whose attestor always finds it; a composite's does if one of its parts does."""


class ServingOptions(StrEnum):
    """Where kubelet's serving certificate comes from."""

    KUBELET = "kubelet"
    """kubelet asks the in-tree signer (``serverTLSBootstrap``), and the policy's ``serving.kubelet`` decides."""
    NONE = "none"
    """Left to the user: self-signed, or files of their own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RenderOptions:
    """What to render into a bootstrap configuration."""

    provider: ProviderName
    settings: Mapping[str, JsonValue] = field(default_factory=dict[str, JsonValue])
    """The provider's settings on the node (``--set``)."""
    provider_id: str | None = None
    """Given to kubelet and, by way of kubeadm's configuration, to the agent; may hold cloud-init's templates.

    With sources that the machine fills in, as ``{dmi:product_uuid}``, it is given to the agent only.
    """
    provider_id_file: str | None = None
    provider_id_command: str | None = None
    serving: ServingOptions = ServingOptions.KUBELET
    challenge_secret: str = ""
    """The Secret from which the bootstrap provider takes the machine's secret for ``challenge``; empty: from none."""
    program: str = "kubelet-authenticator"
    """The agent, on the node's PATH or by an absolute path."""

    @property
    def agent_provider_id(self) -> str | None:
        """The provider ID that the agent alone can read; kubelet would take the braces as they are."""
        return self.provider_id if self.provider_id is not None and has_sources(self.provider_id) else None

    @property
    def tells_agent(self) -> bool:
        """Whether the agent has a source of its own, besides kubelet's argument."""
        return bool(self.agent_provider_id or self.provider_id_file or self.provider_id_command)

    @property
    def adopts(self) -> bool:
        """Whether the node of ``kubeadm init`` is taken over: a provider that proves nothing renews nothing."""
        return self.provider != "insecure"


@dataclass(frozen=True, slots=True)
class Rendered:
    """A rendered object and what was changed, one line each; no lines: it was so already."""

    document: JsonObject
    changes: tuple[str, ...]


class RenderingRefused(Exception):
    """A configuration that cannot be rendered without breaking what its author wrote; every reason, not the first."""

    def __init__(self, refusals: tuple[Denied, ...]) -> None:
        super().__init__("; ".join(str(refusal) for refusal in refusals))
        self.refusals = refusals


def refusal(expected: str, got: str, remedy: str) -> Denied:
    """Say why a configuration is not rendered."""
    return Denied(Reason.BOOTSTRAP_CONFIG_REFUSED, expected=expected, got=got, remedy=remedy)
