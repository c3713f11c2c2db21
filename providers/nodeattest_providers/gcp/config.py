"""``spec.gcp`` of a policy, and ``platforms.gcp`` of the controller's configuration.

Without projects nobody is admitted. Files are read once, so that a mistake shows at the start.
Source: manifests/crd/nodeattestationpolicies.yaml; docs/providers/gcp.md; Google, "Application Default Credentials".
"""

from __future__ import annotations

import re
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

from nodeattest_parsing import strict_json
from nodeattest_parsing.values import IntegerJsonObject, ParseError
from nodeattest_providers.config_fields import boolean, check_keys, invalid, mapping, string_set
from nodeattest_providers.gcp.provider_id import PROJECT, REGION, ZONE
from nodeattest_providers.node_interface import JsonValue
from nodeattest_providers.platform import absolute_path, origin, read_file
from nodeattest_providers.tpm.config import PROTOCOL_SETTINGS, ProtocolPolicy, parse_protocol_policy

_WHERE: Final = "spec.gcp"
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
        protocol=parse_protocol_policy(settings, _WHERE),
    )


def _names(
    settings: Mapping[str, JsonValue], key: str, form: re.Pattern[str], what: str, *, may_be_empty: bool = False
) -> frozenset[str]:
    """Read a list; one that is there and empty would restrict nothing where it seems to restrict everything."""
    where = f"{_WHERE}.{key}"
    if key not in settings:
        return frozenset()
    found = string_set(settings[key], where, form, what)
    if not found and not may_be_empty:
        raise invalid(where, f"at least one of {what}, or no such field", "an empty list")
    return found


def _labels(value: JsonValue) -> Mapping[str, str]:
    where = f"{_WHERE}.labels"
    found: dict[str, str] = {}
    for key, wanted in mapping(value, where).items():
        if not _LABEL_KEY.fullmatch(key) or not isinstance(wanted, str) or not _LABEL_VALUE.fullmatch(wanted):
            raise invalid(where, "labels as Google Cloud spells them, lower case", f"{key!r}: {wanted!r}"[:160])
        found[key] = wanted
    return found


_PLATFORM: Final = "platforms.gcp"
_COMPUTE: Final = "https://compute.googleapis.com"


class CredentialsKind(Enum):
    """What a credentials file holds."""

    KEY = "service account key"
    FEDERATION = "workload identity federation by a file or URL"
    AWS = "workload identity federation of AWS"


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
    """Read the settings; unknown keys are errors that name the nearest known one."""
    check_keys(settings, _PLATFORM, ("endpoints", "caBundle", "credentialsFile", "proxy"))
    endpoints = mapping(settings.get("endpoints", {}), f"{_PLATFORM}.endpoints")
    check_keys(endpoints, f"{_PLATFORM}.endpoints", ("compute",))
    return GcpPlatform(
        compute=origin(endpoints, "compute", f"{_PLATFORM}.endpoints", ("https",)) or _COMPUTE,
        authorities=_authorities(settings),
        credentials=_credentials(settings),
        proxy=origin(settings, "proxy", _PLATFORM, ("http",)),
    )


def _authorities(settings: Mapping[str, JsonValue]) -> str | None:
    where = f"{_PLATFORM}.caBundle"
    path = absolute_path(settings, "caBundle", _PLATFORM)
    if path is None:
        return None
    try:
        pem = read_file(path, where).decode("ascii", "backslashreplace")  # ssl takes ASCII; comments may be more
        ssl.create_default_context(cadata=pem)
    except (ssl.SSLError, ValueError):
        raise invalid(where, "PEM certificates", "a file that holds none") from None
    return pem


def _credentials(settings: Mapping[str, JsonValue]) -> str | None:
    path = absolute_path(settings, "credentialsFile", _PLATFORM)
    if path is None:
        return None
    credentials_kind(read_file(path, f"{_PLATFORM}.credentialsFile"))
    return str(path)


def credentials_kind(content: bytes) -> tuple[CredentialsKind, IntegerJsonObject]:
    """Return what a credentials file holds; anything else is ``Denied``, as is what would run a program."""
    try:
        fields = strict_json.parse_object(content, max_size=None)
    except ParseError:
        fields = {}
    source = fields.get("credential_source")
    sources = source if isinstance(source, dict) else {}
    match fields.get("type"):
        case "service_account":
            return CredentialsKind.KEY, fields
        case "external_account" if "executable" not in sources:
            return (CredentialsKind.AWS if "environment_id" in sources else CredentialsKind.FEDERATION), fields
        case _:
            expected = "a service account's key, or a workload identity federation's configuration without a program"
            raise invalid(f"{_PLATFORM}.credentialsFile", expected, "another file")
