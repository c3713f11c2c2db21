"""``platforms.aws`` of the controller's configuration: where AWS is, by whom it is trusted, with which credentials.

Promises: a value, or ``Denied`` that names the field and the nearest known one. Whatever is left out is AWS's own: the
endpoints of each region, the system's CAs, the credentials that boto3 finds. No proxy unless one is named.
Leaves to others: reading the files (``trust_bundle``, the clients).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Final
from urllib.parse import urlsplit

from nodeattest_providers.config_fields import check_keys, invalid, mapping, text
from nodeattest_providers.node_interface import JsonValue

__all__ = ["AwsConfiguration", "parse_configuration"]

_WHERE: Final = "platforms.aws"
_SETTINGS: Final = ("trustBundle", "endpoints", "caBundle", "proxy", "profile", "assumeRoles")
_ENDPOINTS: Final = ("sts", "ec2")
_ACCOUNT: Final = re.compile(r"[0-9]{12}")
_ROLE_ARN: Final = re.compile(r"arn:(?:aws|aws-cn|aws-us-gov):iam::(?P<account>[0-9]{12}):role/[\x21-\x7e]{1,576}")


@dataclass(frozen=True, slots=True, kw_only=True)
class AwsConfiguration:
    """How the controller reaches AWS."""

    trust_bundle: Path | None = None
    """Certificates of the regions that sign identity documents; None: none is trusted."""
    sts: str | None = None
    """``https://host[:port]`` in place of every region's STS; what is signed stays the region's own host."""
    ec2: str | None = None
    ca_bundle: Path | None = None
    """PEM certificates of CAs for both; None: the system's."""
    proxy: str | None = field(default=None, repr=False)
    profile: str | None = None
    """A profile of the shared AWS configuration files; None: boto3's own chain."""
    assume_roles: Mapping[str, str] = field(default_factory=dict[str, str])
    """By account: the role to assume for reading its instances."""


def parse_configuration(settings: Mapping[str, JsonValue]) -> AwsConfiguration:
    """Read the settings; ``{}`` is AWS itself."""
    check_keys(settings, _WHERE, _SETTINGS)
    endpoints = mapping(settings.get("endpoints", {}), f"{_WHERE}.endpoints")
    check_keys(endpoints, f"{_WHERE}.endpoints", _ENDPOINTS)
    return AwsConfiguration(
        trust_bundle=_path(settings, "trustBundle"),
        sts=_url(endpoints, "sts", f"{_WHERE}.endpoints.sts", ("https",)),
        ec2=_url(endpoints, "ec2", f"{_WHERE}.endpoints.ec2", ("https",)),
        ca_bundle=_path(settings, "caBundle"),
        proxy=_url(settings, "proxy", f"{_WHERE}.proxy", ("http", "https")),
        profile=text(settings["profile"], f"{_WHERE}.profile") if "profile" in settings else None,
        assume_roles=_roles(settings.get("assumeRoles", {})),
    )


def _path(settings: Mapping[str, JsonValue], name: str) -> Path | None:
    if name not in settings:
        return None
    path = Path(text(settings[name], f"{_WHERE}.{name}"))
    if not path.is_absolute():
        raise invalid(f"{_WHERE}.{name}", "an absolute path", repr(str(path)))
    return path


def _url(settings: Mapping[str, JsonValue], name: str, where: str, schemes: tuple[str, ...]) -> str | None:
    """Read scheme, host and port; anything more in a URL would change what is asked."""
    if name not in settings:
        return None
    url = text(settings[name], where)
    expected = f"{' or '.join(f'{scheme}://' for scheme in schemes)} and a host, perhaps a port"
    try:
        parts = urlsplit(url)
        is_plain = bool(parts.hostname) and (parts.port or 1) > 0
    except ValueError:
        raise invalid(where, expected, "another URL") from None
    rest = parts.path.strip("/") + parts.query + parts.fragment
    if not is_plain or parts.scheme not in schemes or rest or "@" in parts.netloc:
        raise invalid(where, expected, "another URL")
    return f"{parts.scheme}://{parts.netloc}"


def _roles(value: JsonValue) -> Mapping[str, str]:
    where = f"{_WHERE}.assumeRoles"
    roles: dict[str, str] = {}
    for account, role in mapping(value, where).items():
        if not _ACCOUNT.fullmatch(account):
            raise invalid(where, "account IDs of 12 digits", repr(account[:40]))
        arn = text(role, f"{where}[{account}]")
        match = _ROLE_ARN.fullmatch(arn)
        if match is None or match["account"] != account:
            raise invalid(f"{where}[{account}]", "the ARN of a role of that account", repr(arn[:120]))
        roles[account] = arn
    return MappingProxyType(roles)
