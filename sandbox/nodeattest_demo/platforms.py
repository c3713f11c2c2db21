"""The demo's platforms, one for each provider: a rack of TPMs, or a cloud with its metadata service and APIs.

A platform starts what the provider needs besides the two clusters, makes machines, and says what the operator has to
configure. Its services end with the exit stack.
"""

from __future__ import annotations

import secrets
import shutil
import uuid
from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Final, cast

from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from nodeattest_demo.machines import AttestorSettings, ClaimedIdentity, MachineSpec, write_private_file
from nodeattest_parsing.values import JsonObject
from nodeattest_providers.identifiers import ANNOTATION_TPM_ENDORSEMENT_KEY, ProviderName
from nodeattest_sandbox.clouds.aws.cloud import ACCOUNT, REGION, Instance, SandboxAws
from nodeattest_sandbox.clouds.azure.cloud import SandboxAzure
from nodeattest_sandbox.clouds.azure.state import SandboxMachine
from nodeattest_sandbox.clouds.gcp.cloud import GoogleCloud
from nodeattest_sandbox.clouds.gcp.instances import CloudInstance
from nodeattest_sandbox.swtpm import SoftwareTpm

AWS_ROLE: Final = "demo-nodes"
"""Of the instances that may join."""
_AWS_TAG: Final = {"kubernetes.io/cluster/demo": "owned"}
_AZURE_GROUP: Final = "Demo-RG"
_AZURE_TAGS: Final = MappingProxyType({"sigs.k8s.io_cluster-api-provider-azure_cluster_demo": "owned"})
"""What Cluster API's Azure provider tags its machines with."""
_GCP_PROJECT: Final = "demo-project"
"""Whose instances may join."""
_GCP_ZONE: Final = "europe-west4-a"
_GCP_LABELS: Final = {"capg-cluster-demo": "owned"}
_GCP_NODES: Final = f"nodes@{_GCP_PROJECT}.iam.gserviceaccount.com"
_GCP_CONTROLLER: Final = f"node-attestation@{_GCP_PROJECT}.iam.gserviceaccount.com"
_GCP_FIRST_NUMBER: Final = 4_520_031_799_277_582_000
_THIRD_OCTETS: Final = 250
_TPM_PROGRAMS: Final = ("swtpm", "swtpm_setup", "swtpm_localca")
_PROGRAM_PATH: Final = "/usr/local/bin:/usr/bin:/bin:/usr/sbin"


class DemoPlatform:
    """Machines with nothing but their tokens, the ``insecure`` provider's; and what every platform has."""

    things = "nothing but tokens"
    """What its machines have, for the display."""
    has_tpms = False

    def __init__(self, directory: Path, stack: ExitStack) -> None:
        """Start its services."""
        self.directory: Final = directory
        self.stack: Final = stack
        self.policy: JsonObject = {}
        """The provider's section of the NodeAttestationPolicy, by its name."""
        self.platforms: JsonObject = {}
        """``platforms`` of the controller's configuration."""
        self.environment: Mapping[str, str] = {}
        """Further environment variables of the controller: those of the cloud's SDK."""

    @classmethod
    def missing(cls) -> Iterable[str]:
        """Name programs that are missing here, with how to install them."""
        absent = [name for name in _TPM_PROGRAMS if cls.has_tpms and shutil.which(name, path=_PROGRAM_PATH) is None]
        if absent:
            yield f"{', '.join(absent)} (apt-get install swtpm swtpm-tools), or choose another --provider"

    def create_machine(self, number: int) -> MachineSpec:
        """Make one machine, which boots when its agent runs; called from several threads."""
        return self.on_rack(number, AttestorSettings(provider=ProviderName("insecure")))

    @staticmethod
    def on_rack(number: int, attestor: AttestorSettings, *, tpm: SoftwareTpm | None = None) -> MachineSpec:
        """Return a machine of the demo's rack."""
        identity = ClaimedIdentity(node=f"worker-{number}", provider_id=f"demo://rack-1/{number}")
        annotations = {ANNOTATION_TPM_ENDORSEMENT_KEY: tpm.endorsement_fingerprint()} if tpm else {}
        addresses = (("Hostname", identity.node),)
        return MachineSpec(attestor=attestor, identity=identity, addresses=addresses, tpm=tpm, annotations=annotations)

    def start_tpm(self, number: int) -> SoftwareTpm:
        """Make a TPM and switch it on."""
        tpm = SoftwareTpm.create(self.directory / "tpms", name=f"tpm-{number}")
        self.stack.callback(tpm.stop)
        return tpm.start()


class SecretDemoPlatform(DemoPlatform):
    """Machines with a secret each: the ``challenge`` provider."""

    things = "secrets"

    def create_machine(self, number: int) -> MachineSpec:
        """Make a machine, and leave its secret where cloud-init would."""
        path, secret = self.directory / "secrets" / f"worker-{number}", secrets.token_hex(32)
        write_private_file(path, secret)
        attestor = AttestorSettings(provider=ProviderName("challenge"), settings={"secretFile": str(path)})
        return replace(self.on_rack(number, attestor), secret=secret.encode())


class TpmDemoPlatform(DemoPlatform):
    """Machines with TPMs, whose endorsement keys the platform knows."""

    things = "TPMs"
    has_tpms = True

    def create_machine(self, number: int) -> MachineSpec:
        """Make a machine and switch its TPM on."""
        tpm = self.start_tpm(number)
        attestor = AttestorSettings(provider=ProviderName("tpm"), settings={"tcti": tpm.tcti})
        return self.on_rack(number, attestor, tpm=tpm)


class CompositeDemoPlatform(DemoPlatform):
    """Machines that must prove themselves by their TPM and by a secret of their own."""

    things = "TPMs and secrets"
    has_tpms = True

    def __init__(self, directory: Path, stack: ExitStack) -> None:
        super().__init__(directory, stack)
        self._parts = TpmDemoPlatform(directory, stack), SecretDemoPlatform(directory, stack)
        self.policy = {"composite": {"allOf": ["challenge", "tpm"]}}

    def create_machine(self, number: int) -> MachineSpec:
        """Make a machine with both."""
        tpm, secret = (part.create_machine(number) for part in self._parts)
        settings = {
            f"{made.attestor.provider}.{name}": value
            for made in (tpm, secret)
            for name, value in made.attestor.settings.items()
        }
        attestor = AttestorSettings(provider=ProviderName("composite"), settings=settings)
        return replace(tpm, attestor=attestor, secret=secret.secret)


class AwsDemoPlatform(DemoPlatform):
    """EC2 instances with a metadata service each; STS and EC2 verify every signature."""

    things = "instance roles"

    def __init__(self, directory: Path, stack: ExitStack) -> None:
        super().__init__(directory, stack)
        self.cloud: Final = stack.enter_context(SandboxAws(directory / "aws"))
        self.policy = {"aws": {"accounts": [ACCOUNT], "regions": [REGION], "roles": [AWS_ROLE], "tags": dict(_AWS_TAG)}}
        self.platforms = {
            "aws": {
                "endpoints": {"sts": self.cloud.front, "ec2": self.cloud.front},
                "caBundle": str(self.cloud.ca_file),
                "trustBundle": str(self.cloud.regions),
            }
        }
        reader = self.cloud.session("demo-controller", "replica-1", may=["DescribeInstances"])
        self.environment = {**self.cloud.settings_only, **reader.environment}

    def create_machine(self, number: int) -> MachineSpec:
        """Run an instance."""
        instance = self.cloud.launch(role=AWS_ROLE, tags=_AWS_TAG)
        identity = ClaimedIdentity(node=instance.private_dns, provider_id=instance.provider_id)
        return MachineSpec(attestor=aws_attestor(instance), identity=identity, addresses=instance.addresses)


def aws_attestor(instance: Instance) -> AttestorSettings:
    """Say what an instance proves itself with."""
    settings = {"metadataEndpoint": instance.metadata_endpoint}
    return AttestorSettings(provider=ProviderName("aws"), settings=settings, discovers_provider_id=True)


class AzureDemoPlatform(DemoPlatform):
    """Virtual machines of one resource group with a metadata service each, and the Resource Manager."""

    things = "metadata services of Azure"

    def __init__(self, directory: Path, stack: ExitStack) -> None:
        super().__init__(directory, stack)
        self.cloud: Final = stack.enter_context(SandboxAzure(directory / "azure"))
        self.policy = {
            "azure": {
                "subscriptions": [self.cloud.subscription],
                "resourceGroups": [_AZURE_GROUP],
                "tags": dict(_AZURE_TAGS),
            }
        }
        self.platforms = cast("JsonObject", {"azure": self.cloud.configuration})

    def create_machine(self, number: int) -> MachineSpec:
        """Launch a machine."""
        machine = self.cloud.launch(f"worker-{number}", group=_AZURE_GROUP, tags=_AZURE_TAGS)
        return MachineSpec(
            attestor=azure_attestor(machine),
            identity=ClaimedIdentity(node=machine.computer_name, provider_id=machine.provider_id),
            addresses=(("InternalIP", machine.address), ("Hostname", machine.computer_name)),
        )

    def foreign(self) -> SandboxMachine:
        """Launch a machine of somebody else's subscription, in a group and by a name of the same spelling."""
        return self.cloud.launch("worker-1", group=_AZURE_GROUP, subscription=str(uuid.uuid4()), tags=_AZURE_TAGS)


def azure_attestor(machine: SandboxMachine) -> AttestorSettings:
    """Say what a machine proves itself with."""
    settings = {"metadataEndpoint": machine.metadata}
    return AttestorSettings(provider=ProviderName("azure"), settings=settings, discovers_provider_id=True)


class GcpDemoPlatform(DemoPlatform):
    """Shielded VMs with a vTPM and a metadata server each, and a Compute API that names the keys."""

    things = "vTPMs"
    has_tpms = True

    def __init__(self, directory: Path, stack: ExitStack) -> None:
        super().__init__(directory, stack)
        self.cloud: Final = stack.enter_context(GoogleCloud(directory / "gcp"))
        key = self.cloud.account(_GCP_CONTROLLER, project=_GCP_PROJECT, reads=(_GCP_PROJECT,))
        self.policy = {
            "gcp": {
                "projects": [_GCP_PROJECT],
                "regions": [_GCP_ZONE.rpartition("-")[0]],
                "labels": dict(_GCP_LABELS),
                "serviceAccounts": [_GCP_NODES],
                "requireSecureBoot": True,
            }
        }
        self.platforms = {
            "gcp": {
                "endpoints": {"compute": self.cloud.endpoint},
                "caBundle": str(self.cloud.ca_file),
                "credentialsFile": str(key),
            }
        }

    def create_machine(self, number: int, *, project: str = _GCP_PROJECT, status: str = "RUNNING") -> MachineSpec:
        """Create an instance; whatever its status is, its vTPM answers to anyone who has it."""
        tpm = self.start_tpm(number)
        key = tpm.endorsement_certificate("rsa2048").public_key()
        instance = CloudInstance(
            project=project,
            zone=_GCP_ZONE,
            name=f"worker-{number}",
            number=str(_GCP_FIRST_NUMBER + number),
            status=status,
            labels=dict(_GCP_LABELS),
            service_account=_GCP_NODES,
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


PLATFORMS: Final[Mapping[str, type[DemoPlatform]]] = MappingProxyType(
    {
        "tpm": TpmDemoPlatform,
        "challenge": SecretDemoPlatform,
        "aws": AwsDemoPlatform,
        "gcp": GcpDemoPlatform,
        "composite": CompositeDemoPlatform,
        "azure": AzureDemoPlatform,
        "insecure": DemoPlatform,
    }
)
"""By provider."""
