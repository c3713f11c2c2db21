"""The ``azure`` section of a NodeAttestationPolicy: which virtual machines may join, read into one frozen value.

Promises: a value, or ``Denied`` with ``PolicyInvalid`` that says which setting and what it should be. What is not
listed is not allowed: an empty list lets nobody in. Nothing in it says where Azure is or by whom it is trusted.
Leaves to others: applying it (``verifier``), the controller's own side (``config``).
Source: manifests/crd/nodeattestationpolicies.yaml; docs/providers/azure.md.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final

from nodeattest_providers.config_fields import check_keys, invalid, mapping, string_set
from nodeattest_providers.node_interface import JsonValue

__all__ = ["AzurePolicy", "parse_policy"]

_REQUIRED: Final = ("subscriptions", "resourceGroups")
_SETTINGS: Final = (*_REQUIRED, "scaleSets", "tags")
_SUBSCRIPTION: Final = re.compile(r"[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")
_GROUP: Final = re.compile(r"[-A-Za-z0-9_.()]{0,89}[-A-Za-z0-9_()]")
_NAME: Final = re.compile(r"[A-Za-z0-9_][-A-Za-z0-9_.]{0,63}")
_MAX_TAG_NAME: Final = 512
_MAX_TAG_VALUE: Final = 256
"""Characters; Azure, "Use tags to organize your Azure resources"."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AzurePolicy:
    """What a cluster's operator decided about virtual machines; names in lower case, as Azure does not tell them."""

    subscriptions: frozenset[str] = frozenset()
    groups: frozenset[str] = frozenset()
    scale_sets: frozenset[str] | None = None
    """Names of scale sets; None: machines of any, and of none."""
    tags: Mapping[str, str] = field(default_factory=dict[str, str])
    """By name in lower case, each with exactly this value."""


def parse_policy(settings: Mapping[str, JsonValue]) -> AzurePolicy:
    """Read the settings; unknown keys are errors that name the nearest known one. No settings let nobody in."""
    if not settings:
        return AzurePolicy()
    check_keys(settings, "spec.azure", _SETTINGS, _REQUIRED)
    sets = settings.get("scaleSets")
    return AzurePolicy(
        subscriptions=_lower(
            string_set(settings["subscriptions"], "spec.azure.subscriptions", _SUBSCRIPTION, "IDs of subscriptions")
        ),
        groups=_lower(
            string_set(settings["resourceGroups"], "spec.azure.resourceGroups", _GROUP, "names of resource groups")
        ),
        scale_sets=None
        if sets is None
        else _lower(string_set(sets, "spec.azure.scaleSets", _NAME, "names of scale sets")),
        tags=_tags(settings.get("tags", {})),
    )


def _lower(names: frozenset[str]) -> frozenset[str]:
    return frozenset(name.lower() for name in names)


def _tags(value: JsonValue) -> Mapping[str, str]:
    where = "spec.azure.tags"
    tags: dict[str, str] = {}
    for name, wanted in mapping(value, where).items():
        if not 1 <= len(name) <= _MAX_TAG_NAME or name.lower() in tags:
            raise invalid(where, f"names of 1 to {_MAX_TAG_NAME} characters, none twice", repr(name[:80]))
        if not isinstance(wanted, str) or len(wanted) > _MAX_TAG_VALUE:
            raise invalid(f"{where}[{name}]", f"a string of at most {_MAX_TAG_VALUE} characters", "another value")
        tags[name.lower()] = wanted
    return MappingProxyType(tags)
