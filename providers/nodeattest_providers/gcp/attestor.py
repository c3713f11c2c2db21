"""The ``gcp`` provider's attestor: the TPM provider's evidence from a Shielded VM's vTPM, and the VM's own name.

No identity token, which every holder of a bootstrap token could show elsewhere, and no endorsement certificate.
Source: Google, "View and query VM metadata"; docs/wire-format.md, "gcp/v1"; docs/decisions.md.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from nodeattest_providers.config_fields import Section
from nodeattest_providers.errors import Denied, Unavailable, platform_unavailable
from nodeattest_providers.gcp.provider_id import PROVIDER
from nodeattest_providers.metadata_service import MetadataService
from nodeattest_providers.node_interface import Attestor, Binding, Evidence, JsonValue, PublishedChallenge
from nodeattest_providers.tpm.attestor import TPM_SETTINGS, TpmAttestor
from nodeattest_providers.tpm.node.device import Device
from nodeattest_providers.tpm.protocol import VERSION

DEFAULT_ENDORSEMENT_KEY: Final = "rsa2048"
"""TCG's template L-1: the Compute API names this key of every vTPM, and the P-256 one of the newer only."""
_FLAVOR: Final = {"Metadata-Flavor": "Google"}
_PROJECT: Final = "/computeMetadata/v1/project/project-id"
_ZONE: Final = "/computeMetadata/v1/instance/zone"
"""``projects/<number>/zones/<zone>``."""
_NAME: Final = "/computeMetadata/v1/instance/name"


class GcpAttestor(Attestor):
    """Makes a Shielded VM's evidence, and finds the provider ID."""

    provider = PROVIDER
    versions: tuple[int, ...] = (VERSION,)
    two_step = True
    holds_device = True

    def __init__(self, settings: Mapping[str, JsonValue], *, connect: Callable[[str], Device] = Device) -> None:
        origin = Section(settings, "gcp", (*TPM_SETTINGS, "metadataEndpoint")).origin("metadataEndpoint", ("http",))
        tpm = {"endorsementKey": DEFAULT_ENDORSEMENT_KEY, **settings}
        tpm.pop("metadataEndpoint", None)
        self._metadata = MetadataService(origin, name="Google Cloud's metadata service")
        self._tpm = TpmAttestor(tpm, connect=connect, provider=PROVIDER, certificates=False)

    def attest(self, binding: Binding, challenge: PublishedChallenge | None = None) -> Evidence:
        return self._tpm.attest(binding, challenge)

    def provider_id(self) -> str:
        """Ask the metadata service which instance this is; raises Unavailable."""
        from nodeattest_providers.gcp.provider_id import InstanceRef, parse_provider_id

        zone = self._ask(_ZONE).rpartition("/")[2]
        place = InstanceRef(self._ask(_PROJECT), zone, self._ask(_NAME))
        try:
            return parse_provider_id(place.provider_id).provider_id
        except Denied:
            raise _unreadable() from None

    def endorsement_fingerprint(self) -> str:
        return self._tpm.endorsement_fingerprint()

    def close(self) -> None:
        self._tpm.close()

    def _ask(self, path: str) -> str:
        try:
            return self._metadata.get(path, _FLAVOR).decode("ascii").strip()
        except UnicodeDecodeError:
            raise _unreadable() from None


def _unreadable() -> Unavailable:
    return platform_unavailable(
        "the metadata service did not name a project, a zone and an instance",
        remedy="check that this machine is a Compute Engine instance, or give the agent its provider ID",
    )
