"""An instance as the Compute API writes it, and the two parts of the API's language that clients use on lists.

Source: Compute Engine API v1, ``Instance``; Google AIP-160 (filter) and "Improve performance" (``fields``).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, cast

_TERM: Final = re.compile(r'\(name = "([a-z0-9-]+)"\)')
_NETWORK: Final = "nic0"


@dataclass(slots=True, kw_only=True)
class CloudInstance:
    """One VM; its fields may be changed while the cloud runs."""

    project: str
    zone: str
    name: str
    number: str
    status: str = "RUNNING"
    labels: dict[str, str] = field(default_factory=dict[str, str])
    service_account: str | None = None
    vtpm: bool = True
    secure_boot: bool = True
    integrity_monitoring: bool = True
    internal_ip: str = "10.128.0.2"
    external_ip: str | None = None
    keys: Mapping[str, str] = field(default_factory=dict[str, str])
    """Public keys in PEM by the name in ``ShieldedInstanceIdentity``, such as ``encryptionKey``."""
    user_data: str = "#cloud-config with the bootstrap token"
    """In the instance's metadata, for anyone who may read it."""

    @property
    def provider_id(self) -> str:
        """As Kubernetes names it."""
        return f"gce://{self.project}/{self.zone}/{self.name}"

    def resource(self) -> dict[str, object]:
        """Write the instance."""
        base = f"https://www.googleapis.com/compute/v1/projects/{self.project}/zones/{self.zone}"
        interface: dict[str, object] = {"name": _NETWORK, "networkIP": self.internal_ip, "stackType": "IPV4_ONLY"}
        if self.external_ip is not None:
            interface["accessConfigs"] = [{"name": "External NAT", "natIP": self.external_ip, "type": "ONE_TO_ONE_NAT"}]
        found: dict[str, object] = {
            "kind": "compute#instance",
            "id": self.number,
            "name": self.name,
            "zone": base,
            "selfLink": f"{base}/instances/{self.name}",
            "status": self.status,
            "metadata": {"items": [{"key": "user-data", "value": self.user_data}]},
            "networkInterfaces": [interface],
            "shieldedInstanceConfig": {
                "enableSecureBoot": self.secure_boot,
                "enableVtpm": self.vtpm,
                "enableIntegrityMonitoring": self.integrity_monitoring,
            },
        }
        if self.labels:
            found["labels"] = dict(self.labels)
        if self.service_account is not None:
            scopes = ["https://www.googleapis.com/auth/cloud-platform"]
            found["serviceAccounts"] = [{"email": self.service_account, "scopes": scopes}]
        return found

    def identity(self) -> dict[str, object]:
        """Write its ShieldedInstanceIdentity."""
        entries = {name: {"ekPub": pem} for name, pem in self.keys.items()}
        return {"kind": "compute#shieldedInstanceIdentity", **entries}


def filtered(expression: str) -> frozenset[str] | None:
    """Read a filter by names; None for no filter; ValueError for any other expression."""
    if not expression:
        return None
    terms = expression.split(" OR ")
    found = [_TERM.fullmatch(term) for term in terms]
    if not all(found):
        raise ValueError("the sandbox knows filters by name only")
    return frozenset(match[1] for match in found if match is not None)


def masked(value: object, mask: str) -> object:
    """Leave what a ``fields`` mask names; an empty mask leaves all."""
    return _masked(value, _tree(mask)) if mask else value


def _tree(mask: str) -> dict[str, str]:
    """Cut a mask at its outermost commas: name to the mask of what is inside, empty for everything."""
    found: dict[str, str] = {}
    depth, word = 0, ""
    for character in mask + ",":
        depth += {"(": 1, ")": -1}.get(character, 0)
        if character == "," and not depth:
            name, slash, inside = word.partition("/")
            if "(" in name or not slash:
                name, _, inside = word.partition("(")
                inside = inside.removesuffix(")")
            found[name] = inside
            word = ""
        else:
            word += character
    return found


def _masked(value: object, tree: Mapping[str, str]) -> object:
    if isinstance(value, list):
        return [_masked(item, tree) for item in cast("list[object]", value)]
    if not isinstance(value, dict):
        return value
    fields = cast("dict[str, object]", value)
    return {
        name: _masked(fields[name], _tree(inside)) if inside else fields[name]
        for name, inside in tree.items()
        if name in fields
    }
