"""The ``gcp`` section of a NodeAttestationPolicy, read into one frozen value.

Promises: a value, or ``Denied`` with ``PolicyInvalid`` that says which setting and what it should be. Without projects
nobody gets in; no setting names a host.
Leaves to others: applying it (``checks``; boot states as in ``tpm``), where the API is (``config``).
Source: manifests/crd/nodeattestationpolicies.yaml; docs/providers/gcp.md.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from nodeattest_providers.config_fields import boolean, check_keys, invalid, items, mapping, text
from nodeattest_providers.gcp.provider_id import PROJECT, REGION, ZONE
from nodeattest_providers.node_interface import JsonValue
from nodeattest_providers.tpm.config import BOOT_SETTINGS, BootPolicy, parse_boot_policy

__all__ = ["GcpPolicy", "parse_policy"]

_WHERE: Final = "spec.gcp"
_SETTINGS: Final = (
    "projects",
    "zones",
    "regions",
    "labels",
    "serviceAccounts",
    "requireSecureBoot",
    "requireIntegrityMonitoring",
    *BOOT_SETTINGS,
)
_LABEL_KEY: Final = re.compile(r"[a-z][-_a-z0-9]{0,62}")
"""Google, "Labels overview": the international letters that it allows too are in no cluster's labels."""
_LABEL_VALUE: Final = re.compile(r"[-_a-z0-9]{0,63}")
_EMAIL: Final = re.compile(r"[a-z0-9][-.a-z0-9]{0,62}@[a-z0-9][-.:a-z0-9]{0,252}")


@dataclass(frozen=True, slots=True, kw_only=True)
class GcpPolicy:
    """Which instances a cluster's operator lets in."""

    projects: frozenset[str]
    """Nobody gets in where this is empty."""
    zones: frozenset[str] = frozenset()
    regions: frozenset[str] = frozenset()
    """Where neither has an entry, every zone of the projects will do; else one of the two must name the instance's."""
    labels: Mapping[str, str] = field(default_factory=dict[str, str])
    service_accounts: frozenset[str] = frozenset()
    """Where there is an entry, the instance runs as one of these and as no other."""
    secure_boot: bool = False
    integrity_monitoring: bool = False
    boot: BootPolicy


def parse_policy(settings: Mapping[str, JsonValue]) -> GcpPolicy:
    """Read the settings; unknown keys are errors that name the nearest known one."""
    check_keys(settings, _WHERE, _SETTINGS)
    return GcpPolicy(
        projects=_names(settings, "projects", PROJECT, "project IDs", may_be_empty=True),
        zones=_names(settings, "zones", ZONE, "zones such as europe-west4-a"),
        regions=_names(settings, "regions", REGION, "regions such as europe-west4"),
        labels=_labels(settings.get("labels", {})),
        service_accounts=_names(settings, "serviceAccounts", _EMAIL, "service accounts' e-mail addresses"),
        secure_boot=boolean(settings.get("requireSecureBoot", False), f"{_WHERE}.requireSecureBoot"),
        integrity_monitoring=boolean(
            settings.get("requireIntegrityMonitoring", False), f"{_WHERE}.requireIntegrityMonitoring"
        ),
        boot=parse_boot_policy(settings, _WHERE),
    )


def _names(
    settings: Mapping[str, JsonValue], key: str, form: re.Pattern[str], what: str, *, may_be_empty: bool = False
) -> frozenset[str]:
    """Read a list; one that is there and empty would restrict nothing where it seems to restrict everything."""
    where = f"{_WHERE}.{key}"
    if key not in settings:
        return frozenset()
    found = [text(item, where) for item in items(settings[key], where)]
    for name in found:
        if not form.fullmatch(name):
            raise invalid(where, what, repr(name[:80]))
    if not found and not may_be_empty:
        raise invalid(where, f"at least one of {what}, or no such field", "an empty list")
    return frozenset(found)


def _labels(value: JsonValue) -> Mapping[str, str]:
    where = f"{_WHERE}.labels"
    found: dict[str, str] = {}
    for key, wanted in mapping(value, where).items():
        if not _LABEL_KEY.fullmatch(key) or not isinstance(wanted, str) or not _LABEL_VALUE.fullmatch(wanted):
            raise invalid(where, "labels as Google Cloud spells them, lower case", f"{key!r}: {wanted!r}"[:160])
        found[key] = wanted
    return found
