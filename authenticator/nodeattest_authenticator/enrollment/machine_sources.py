"""What the machine itself says of its provider ID: SMBIOS, host name and cloud-init's instance data.

Promises: a value is visible ASCII without spaces, quotes and braces, or ``AgentError`` names the file and why not.
Source: Linux drivers/firmware/dmi-id.c; cloud-init doc "Instance metadata" (/run/cloud-init/instance-data.json), and
for names cloudinit/handlers/jinja_template.py ``convert_jinja_instance_data``; kubernetes/cloud-provider-vsphere for
VMware.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from typing import Final

from nodeattest_authenticator.errors import AgentError, AgentReason, FailureKind
from nodeattest_parsing import strict_json
from nodeattest_parsing.values import JsonValue, ParseError
from nodeattest_providers.identifiers import printable

_VALUE: Final = re.compile(r"[!#-&(-\[\]-z|~]{1,1024}")
"""Visible ASCII without quotes, backslash and braces."""
_UUID: Final = re.compile(r"[0-9a-f]{8}-(?:[0-9a-f]{4}-){3}[0-9a-f]{12}")
_UNSET_UUIDS: Final = frozenset({"0" * 32, "f" * 32, "03000200040005000006000700080009"})
"""What firmware has that nobody configured; the last is common to boards of several makers."""
_VMWARE: Final = re.compile(r"vmware-((?:[0-9a-f]{2} ){7}[0-9a-f]{2})-((?:[0-9a-f]{2} ){7}[0-9a-f]{2})")
_MAX_DMI: Final = 4096
_MAX_INSTANCE_DATA: Final = 1 << 22
"""Bytes; cloud-init keeps the user data there, too."""
_MAX_DEPTH: Final = 64
_MAX_VALUES: Final = 50_000


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineSources:
    """Where the machine is read."""

    dmi: str = "/sys/class/dmi/id"
    instance_data: str = "/run/cloud-init/instance-data.json"

    def value(self, source: str) -> str:
        """Return the value of a source as ``provider_id_template`` names it; raises ``AgentError``."""
        kind, _, key = source.partition(":")
        if kind == "dmi":
            return self._dmi(key)
        if kind == "cloud-init":
            return self._cloud_init(key)
        return _checked(os.uname().nodename.strip().lower(), "the host name")

    def _dmi(self, key: str) -> str:
        path = f"{self.dmi}/{key}"
        text = _read(path, _MAX_DMI).decode("ascii", "replace").strip()
        if key == "product_serial":
            vmware = _VMWARE.fullmatch(text.lower())
            return _uuid(bytes.fromhex(vmware[1] + vmware[2]).hex(), path) if vmware else _checked(text, path)
        if not _UUID.fullmatch(text.lower()):
            raise _unknown(f"{path}: expected a UUID, got {printable(text)}")
        return _uuid(text.lower().replace("-", ""), path)

    def _cloud_init(self, key: str) -> str:
        path = self.instance_data
        try:
            found: JsonValue = strict_json.parse_object(
                _read(path, _MAX_INSTANCE_DATA),
                max_size=None,
                max_depth=_MAX_DEPTH,
                max_values=_MAX_VALUES,
                floats=True,
            )
        except ParseError as error:
            raise _unknown(f"{path}: {error}") from None
        names = key.split(".")
        if _member(found, names[0]) is None:  # cloud-init's own short names
            names.insert(0, "v1")
        for name in names:
            found = _member(found, name)
        if isinstance(found, int) and not isinstance(found, bool):
            found = str(found)
        if not isinstance(found, str):
            got = "none" if found is None else type(found).__name__
            raise _unknown(f"{path}: expected a text or whole number for {key}, got {got}")
        return _checked(found, f"{path}: {key}")


def _member(value: JsonValue, name: str) -> JsonValue:
    """Return a member by its name, or by the name that cloud-init's templates give it."""
    if not isinstance(value, dict):
        return None
    if name in value:
        return value[name]
    return next((value[each] for each in sorted(value) if each.replace("-", "_") == name), None)


def _uuid(digits: str, path: str) -> str:
    if digits in _UNSET_UUIDS:
        raise _unknown(f"{path}: expected the machine's own UUID, got one that firmware has by default")
    return "-".join((digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:]))


def _read(path: str, limit: int) -> bytes:
    try:
        with open(path, "rb") as file:
            data = file.read(limit + 1)
    except OSError as error:
        raise _unknown(f"{path}: {error.strerror}") from None
    if len(data) > limit:
        raise _unknown(f"{path}: more than {limit} bytes")
    return data


def _checked(text: str, where: str) -> str:
    if not _VALUE.fullmatch(text):
        raise _unknown(f"{where}: expected visible characters without spaces, quotes and braces, got {printable(text)}")
    return text


def _unknown(message: str) -> AgentError:
    return AgentError(
        AgentReason.PROVIDER_ID_UNKNOWN,
        f"the provider ID is not known: {message}",
        remedy="choose another source in providerID.value (join --provider-id), or none: then the controller tells it",
        kind=FailureKind.TEMPORARY,
    )
