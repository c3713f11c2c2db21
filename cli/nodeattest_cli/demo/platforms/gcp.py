"""Shielded VMs in a Google Cloud on loopback: a vTPM and a metadata server each, a Compute API that names the keys."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from nodeattest_cli.demo.machine_spec import INSTALL, AttestorSettings, ClaimedIdentity, MachineSpec
from nodeattest_cli.demo.platforms.tpm import missing_tpm_programs
from nodeattest_kube.jsontypes import JsonObject
from nodeattest_providers.names import ProviderName
from nodeattest_sandbox.clouds.gcp.cloud import GoogleCloud
from nodeattest_sandbox.clouds.gcp.instances import CloudInstance
from nodeattest_sandbox.swtpm import SoftwareTpm

__all__ = ["PROJECT", "GcpDemoPlatform"]

PROJECT: Final = "demo-project"
"""Whose instances may join."""
_ZONE: Final = "europe-west4-a"
_LABELS: Final = {"capg-cluster-demo": "owned"}
_NODES: Final = f"nodes@{PROJECT}.iam.gserviceaccount.com"
_CONTROLLER: Final = f"node-attestation@{PROJECT}.iam.gserviceaccount.com"
_FIRST_NUMBER: Final = 4_520_031_799_277_582_000
_THIRD_OCTETS: Final = 250


class GcpDemoPlatform:
    """Machines in Google Cloud."""

    things = "vTPMs"

    def __init__(self, directory: Path, stack: ExitStack) -> None:
        self.cloud: Final = stack.enter_context(GoogleCloud(directory / "gcp"))
        self._tpms = directory / "tpms"
        self._stack = stack
        key = self.cloud.account(_CONTROLLER, project=PROJECT, reads=(PROJECT,))
        self.policy: JsonObject = {
            "gcp": {
                "projects": [PROJECT],
                "regions": [_ZONE.rpartition("-")[0]],
                "labels": dict(_LABELS),
                "serviceAccounts": [_NODES],
                "requireSecureBoot": True,
            }
        }
        self.platforms: JsonObject = {
            "gcp": {
                "endpoints": {"compute": self.cloud.endpoint},
                "caBundle": str(self.cloud.ca_file),
                "credentialsFile": str(key),
            }
        }
        self.environment: Mapping[str, str] = {}

    @staticmethod
    def missing() -> Iterable[str]:
        """Need software TPMs, and Google's library for the controller."""
        yield from missing_tpm_programs()
        if find_spec("google.auth") is None:
            yield f"google-auth ({INSTALL}), or choose another --provider"

    def create_machine(self, number: int, *, project: str = PROJECT, status: str = "RUNNING") -> MachineSpec:
        """Create an instance; whatever its status is, its vTPM answers to anyone who has it."""
        tpm = SoftwareTpm.create(self._tpms, name=f"tpm-{number}")
        self._stack.callback(tpm.stop)
        tpm.start()
        key = tpm.endorsement_certificate("rsa2048").public_key()
        instance = CloudInstance(
            project=project,
            zone=_ZONE,
            name=f"worker-{number}",
            number=str(_FIRST_NUMBER + number),
            status=status,
            labels=dict(_LABELS),
            service_account=_NODES,
            internal_ip=f"10.128.{number // _THIRD_OCTETS}.{number % _THIRD_OCTETS + 2}",
            keys={"encryptionKey": key.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo).decode()},
        )
        self.cloud.add(instance)
        settings = {"tcti": tpm.tcti, "metadataEndpoint": self.cloud.metadata_endpoint(instance)}
        return MachineSpec(
            attestor=AttestorSettings(provider=ProviderName("gcp"), settings=settings, discovers_provider_id=True),
            identity=ClaimedIdentity(node=instance.name, provider_id=instance.provider_id),
            addresses=(("InternalIP", instance.internal_ip), ("InternalDNS", instance.name)),
            tpm=tpm,
        )
