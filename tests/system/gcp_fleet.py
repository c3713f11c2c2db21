"""Shielded VMs as machines of the world: a Machine and a vTPM each, an agent that is not told its provider ID."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from itertools import count

from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from world import Agent, World

from clouds.gcp.cloud import GoogleCloud
from clouds.gcp.instances import CloudInstance
from nodeattest_controller import configfile
from nodeattest_sandbox import fleet
from nodeattest_sandbox.apiserver.jsonvalue import JsonMap
from nodeattest_sandbox.swtpm import SoftwareTpm

PROJECT = "system-project"
ZONE = "europe-west4-a"
LABELS = {"capg-cluster-c1": "owned"}
NUMBERS = count(10)
"""Of instances: never two alike in a world that several modules share."""


class GcpFleet:
    """Machines in the sandbox's Google Cloud."""

    def __init__(self, world: World, cloud: GoogleCloud, projects: Sequence[str]) -> None:
        self.world = world
        self.cloud = cloud
        self.projects = projects
        controller = f"controller@{PROJECT}.iam.gserviceaccount.com"
        self._key = cloud.account(controller, project=PROJECT, reads=tuple(projects))

    def authorize(self, *others: str) -> None:
        """Let instances join, and machines of other providers."""
        self.world.set_policy(authorizedAttestors=["gcp", *others], gcp=self.section())

    def section(self) -> JsonMap:
        """Return the policy's section: which instances may join."""
        return {"projects": list(self.projects), "labels": dict(LABELS), "requireSecureBoot": True}

    def flags(self, file: str) -> tuple[str, ...]:
        """Write the controller's configuration, and return the flags with which it is started."""
        gcp = {
            "endpoints": {"compute": self.cloud.endpoint},
            "caBundle": str(self.cloud.ca_file),
            "credentialsFile": str(self._key),
        }
        path = self.world.directory / file
        head = {"apiVersion": configfile.API_VERSION, "kind": configfile.KIND}
        path.write_text(json.dumps({**head, "platforms": {"gcp": gcp}}))
        return "--config", str(path), "--leader-elect", "false"

    def launch(self, name: str, *, project: str = PROJECT, addresses: Sequence[tuple[str, str]] = ()) -> CloudInstance:
        """Create an instance with a vTPM, and its Machine, whose addresses may be made up."""
        instance = self.run(name, project=project)
        fleet.create_machine(
            self.world.admin,
            name,
            cluster=self.world.cluster,
            provider_id=instance.provider_id,
            addresses=[("InternalDNS", name), *addresses],
        )
        return instance

    def run(self, name: str, *, project: str = PROJECT) -> CloudInstance:
        """Create an instance with a vTPM."""
        number = next(NUMBERS)
        return self.cloud.add(
            CloudInstance(
                project=project,
                zone=ZONE,
                name=name,
                number=str(number),
                labels=dict(LABELS),
                internal_ip=f"10.128.0.{number}",
                keys={"encryptionKey": pem_of(self.world.tpm(f"gcp-{name}"))},
            )
        )

    def agent(self, instance: CloudInstance, *, tpm: SoftwareTpm | None = None, directory: str = "") -> Agent:
        """Make the agent of an instance."""
        settings = {
            "tcti": (tpm or self.world.tpm(f"gcp-{instance.name}")).tcti,
            "metadataEndpoint": self.cloud.metadata_endpoint(instance),
        }
        made = self.world.agent(instance.name, "gcp", directory=directory, **settings)
        return replace(made, provider_id="")


def pem_of(tpm: SoftwareTpm) -> str:
    """Write the endorsement key as the Compute API shows it."""
    key = tpm.endorsement_certificate("rsa2048").public_key()
    return key.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo).decode()
