"""``spec.gcp`` of a policy, and ``platforms.gcp`` of the controller's configuration.

Without projects nobody is admitted. Files are read once, so that a mistake shows at the start.
Source: manifests/crd/nodeattestationpolicies.yaml; docs/providers/gcp.md; Google, "Application Default Credentials".
"""

from __future__ import annotations

import re
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from nodeattest_parsing import strict_json
from nodeattest_parsing.values import IntegerJsonObject, ParseError
from nodeattest_providers.config_fields import Section, invalid
from nodeattest_providers.gcp.provider_id import PROJECT, REGION, ZONE
from nodeattest_providers.node_interface import JsonValue
from nodeattest_providers.platform import read_file
from nodeattest_providers.tpm.config import PROTOCOL_SETTINGS, ProtocolPolicy, parse_protocol_policy

_SETTINGS: Final = (
    "projects",
    "zones",
    "regions",
    "labels",
    "serviceAccounts",
    "requireSecureBoot",
    "requireIntegrityMonitoring",
    *PROTOCOL_SETTINGS,
)
_LABEL_KEY: Final = re.compile(r"[a-z][-_a-z0-9]{0,62}")
"""Google, "Labels overview": the international letters that it allows too are in no cluster's labels."""
_LABEL_VALUE: Final = re.compile(r"[-_a-z0-9]{0,63}")
_EMAIL: Final = re.compile(r"[a-z0-9][-.a-z0-9]{0,62}@[a-z0-9][-.:a-z0-9]{0,252}")


@dataclass(frozen=True, slots=True, kw_only=True)
class GcpPolicy:
    """Which instances a cluster's operator admits."""

    projects: frozenset[str]
    """Nobody is admitted where this is empty."""
    zones: frozenset[str] = frozenset()
    regions: frozenset[str] = frozenset()
    """Where neither has an entry, every zone of the projects will do; else one of the two must name the instance's."""
    labels: Mapping[str, str] = field(default_factory=dict[str, str])
    service_accounts: frozenset[str] = frozenset()
    """Where there is an entry, the instance runs as one of these and as no other."""
    secure_boot: bool = False
    integrity_monitoring: bool = False
    protocol: ProtocolPolicy


def parse_policy(settings: Mapping[str, JsonValue]) -> GcpPolicy:
    section = Section(settings, "spec.gcp", _SETTINGS)
    return GcpPolicy(
        projects=section.strings("projects", PROJECT, "project IDs"),
        zones=_names(section, "zones", ZONE, "zones such as europe-west4-a"),
        regions=_names(section, "regions", REGION, "regions such as europe-west4"),
        labels=_labels(section),
        service_accounts=_names(section, "serviceAccounts", _EMAIL, "service accounts' e-mail addresses"),
        secure_boot=section.boolean("requireSecureBoot"),
        integrity_monitoring=section.boolean("requireIntegrityMonitoring"),
        protocol=parse_protocol_policy(section),
    )


def _names(section: Section, key: str, form: re.Pattern[str], what: str) -> frozenset[str]:
    """Read a list; an empty one would restrict nothing where it seems to restrict everything."""
    found = section.strings(key, form, what)
    if key in section and not found:
        raise invalid(section.at(key), f"at least one of {what}, or no such field", "an empty list")
    return found


def _labels(section: Section) -> Mapping[str, str]:
    found: dict[str, str] = {}
    for key, wanted in section.mapping("labels").items():
        if not _LABEL_KEY.fullmatch(key) or not isinstance(wanted, str) or not _LABEL_VALUE.fullmatch(wanted):
            expected = "labels as Google Cloud spells them, lower case"
            raise invalid(section.at("labels"), expected, f"{key!r}: {wanted!r}"[:160])
        found[key] = wanted
    return found


_PLATFORM: Final = "platforms.gcp"
_COMPUTE: Final = "https://compute.googleapis.com"


@dataclass(frozen=True, slots=True, kw_only=True)
class GcpPlatform:
    """How the controller reaches Google Cloud."""

    compute: str = _COMPUTE
    """Scheme, host and port, without a path."""
    authorities: str | None = field(default=None, repr=False)
    """The only authorities to trust, in PEM; None: those of the system."""
    credentials: str | None = None
    """File with a service account's key or a workload identity federation's configuration; None: Application Default
    Credentials, which on Google Cloud are the controller's own service account."""
    proxy: str | None = None


def parse_platform(settings: Mapping[str, JsonValue]) -> GcpPlatform:
    section = Section(settings, _PLATFORM, ("endpoints", "caBundle", "credentialsFile", "proxy"))
    credentials = section.path("credentialsFile")
    if credentials is not None:
        read_credentials(read_file(credentials, section.at("credentialsFile")))
    return GcpPlatform(
        compute=section.section("endpoints", ("compute",)).origin("compute") or _COMPUTE,
        authorities=_authorities(section),
        credentials=None if credentials is None else str(credentials),
        proxy=section.origin("proxy", ("http",)),
    )


def _authorities(section: Section) -> str | None:
    path = section.path("caBundle")
    if path is None:
        return None
    try:
        pem = read_file(path, section.at("caBundle")).decode("ascii", "backslashreplace")  # comments may be more
        ssl.create_default_context(cadata=pem)
    except (ssl.SSLError, ValueError):
        raise invalid(section.at("caBundle"), "PEM certificates", "a file that holds none") from None
    return pem


def read_credentials(content: bytes) -> IntegerJsonObject:
    """Read a service account's key or a federation's configuration; else ``Denied``, as is what would run a program."""
    try:
        fields = strict_json.parse_object(content, max_size=None)
    except ParseError:
        fields = {}
    is_federation = fields.get("type") == "external_account" and "executable" not in credential_source(fields)
    if fields.get("type") != "service_account" and not is_federation:
        expected = "a service account's key, or a workload identity federation's configuration without a program"
        raise invalid(f"{_PLATFORM}.credentialsFile", expected, "another file")
    return fields


def credential_source(fields: IntegerJsonObject) -> IntegerJsonObject:
    source = fields.get("credential_source")
    return source if isinstance(source, dict) else {}
