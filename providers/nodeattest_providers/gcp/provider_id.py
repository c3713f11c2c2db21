"""The name of the ``gcp`` provider, and its provider IDs: ``gce://<project>/<zone>/<name>``.

An ``InstanceRef`` has one spelling, which is safe in a URL's path and in a filter expression.
Source: cloud-provider-gcp ``providers/gce/gce_util.go``; Google, "Creating and managing projects", "Naming resources".
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from nodeattest_providers.errors import Denied, Reason
from nodeattest_providers.identifiers import ProviderID, ProviderName, printable

PROVIDER: Final = ProviderName("gcp")


_LABEL: Final = "[a-z](?:[-a-z0-9]{0,61}[a-z0-9])?"
PROJECT: Final = re.compile(r"(?:[a-z0-9][-.a-z0-9]{0,62}:)?[a-z][-a-z0-9]{4,28}[a-z0-9]")
"""Of 6 to 30 characters; projects of some old domains have the domain before it."""
REGION: Final = re.compile(r"[a-z]{2,20}-[a-z]{2,20}[0-9]{1,3}")
ZONE: Final = re.compile(REGION.pattern + r"-[a-z0-9]{1,8}")
"""Region and letter, such as ``europe-west4-a``."""
_PROVIDER_ID: Final = re.compile(f"gce://(?P<project>{PROJECT.pattern})/(?P<zone>{ZONE.pattern})/(?P<name>{_LABEL})")


@dataclass(frozen=True, slots=True, order=True)
class InstanceRef:
    """A project, a zone in it, and an instance's name there."""

    project: str
    zone: str
    name: str

    @property
    def region(self) -> str:
        return self.zone.rpartition("-")[0]

    @property
    def provider_id(self) -> ProviderID:
        return ProviderID(f"gce://{self.project}/{self.zone}/{self.name}")


def parse_provider_id(provider_id: str) -> InstanceRef:
    found = _PROVIDER_ID.fullmatch(provider_id)
    if found is None:
        raise Denied(
            Reason.PROVIDER_ID_INVALID,
            expected="gce://<project>/<zone>/<instance name>",
            got=printable(provider_id),
            remedy="give the Machine the provider ID that its infrastructure provider for Google Cloud writes",
        )
    return InstanceRef(found["project"], found["zone"], found["name"])
