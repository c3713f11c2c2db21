"""``spec.oci`` of a policy, and ``platforms.oci`` of the controller's configuration; empty lists admit nobody.

Source: manifests/crd/nodeattestationpolicies.yaml; docs/providers/oci.md; Oracle, "Resource Identifiers".
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from cryptography import x509

from nodeattest_providers.certificate_chain import parse_authorities
from nodeattest_providers.config_fields import check_keys, string_set
from nodeattest_providers.node_interface import JsonValue
from nodeattest_providers.platform import absolute_path

Roots = tuple[x509.Certificate, ...]

_LISTS: Final = ("tenancies", "compartments")
_TENANCY: Final = re.compile(r"ocid1\.tenancy\.oc[0-9]{1,4}\.[-a-z0-9]{0,30}\.[a-z0-9.]{1,160}")
_COMPARTMENT: Final = re.compile(r"ocid1\.(?:compartment|tenancy)\.oc[0-9]{1,4}\.[-a-z0-9]{0,30}\.[a-z0-9.]{1,160}")
"""A tenancy is its own root compartment."""
TRUST_BUNDLE: Final = "platforms.oci.trustBundle"


@dataclass(frozen=True, slots=True, kw_only=True)
class OciPolicy:
    """Which instances may join."""

    tenancies: frozenset[str] = frozenset()
    compartments: frozenset[str] = frozenset()


def parse_policy(settings: Mapping[str, JsonValue]) -> OciPolicy:
    """Read ``spec.oci``; no settings admit nobody."""
    if not settings:
        return OciPolicy()
    check_keys(settings, "spec.oci", _LISTS, _LISTS)
    return OciPolicy(
        tenancies=string_set(settings["tenancies"], "spec.oci.tenancies", _TENANCY, "OCIDs of tenancies"),
        compartments=string_set(
            settings["compartments"], "spec.oci.compartments", _COMPARTMENT, "OCIDs of compartments"
        ),
    )


def parse_platform(settings: Mapping[str, JsonValue]) -> Path | None:
    """Read ``platforms.oci``; returns the path of the trust bundle, None where nobody is trusted."""
    check_keys(settings, "platforms.oci", ("trustBundle",))
    return absolute_path(settings, "trustBundle", "platforms.oci")


def parse_roots(pem: bytes) -> Roots:
    """Read PEM certificates of CAs."""
    return parse_authorities(pem.decode(errors="replace"), TRUST_BUNDLE)
