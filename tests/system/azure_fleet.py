"""Virtual machines of the sandbox's Azure as machines of the world: a Machine each, and an agent of its own."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence

from world import Agent, World

from clouds.azure.cloud import SandboxAzure
from clouds.azure.state import SandboxMachine
from nodeattest_controller import configfile
from nodeattest_sandbox import fleet
from nodeattest_sandbox.apiserver.jsonvalue import JsonMap

GROUP = "System-RG"
TAGS = {"cluster": "c1"}


class AzureFleet:
    """Machines in the sandbox's Azure."""

    def __init__(self, world: World, cloud: SandboxAzure) -> None:
        self.world = world
        self.cloud = cloud

    def authorize(self, *others: str) -> None:
        """Let machines of the group join, and machines of other providers."""
        self.world.set_policy(authorizedAttestors=["azure", *others], azure=self.section())

    def section(self) -> JsonMap:
        """Return the policy's section: which machines may join."""
        return {"subscriptions": [self.cloud.subscription], "resourceGroups": [GROUP.lower()], "tags": dict(TAGS)}

    def flags(self, file: str) -> tuple[str, ...]:
        """Write the controller's configuration, and return the flags with which it is started."""
        path = self.world.directory / file
        head = {"apiVersion": configfile.API_VERSION, "kind": configfile.KIND}
        path.write_text(json.dumps({**head, "platforms": {"azure": self.cloud.configuration}}))
        return "--config", str(path), "--leader-elect", "false"

    def launch(
        self,
        name: str,
        *,
        scale_set: str | None = None,
        tags: dict[str, str] = TAGS,
        addresses: Sequence[tuple[str, str]] = (),
    ) -> SandboxMachine:
        """Run a machine and create its Machine, whose addresses may be made up."""
        made = self.run(name, scale_set=scale_set, tags=tags)
        self._register(name, made, addresses)
        return made

    def run(self, name: str, *, scale_set: str | None = None, tags: dict[str, str] = TAGS) -> SandboxMachine:
        """Run a machine."""
        number = str(len(self.cloud.state.machines))
        return self.cloud.launch(
            number if scale_set else name, group=GROUP, computer_name=name, scale_set=scale_set, tags=tags
        )

    def _register(self, name: str, made: SandboxMachine, addresses: Sequence[tuple[str, str]]) -> None:
        fleet.create_machine(
            self.world.admin,
            name,
            cluster=self.world.cluster,
            provider_id=made.provider_id,
            addresses=[("Hostname", made.computer_name), *addresses],
        )

    def agent(self, machine: SandboxMachine) -> Agent:
        """Make the agent of a machine; it is not told its provider ID."""
        made = self.world.agent(machine.computer_name, "azure", metadataEndpoint=machine.metadata)
        return dataclasses.replace(made, provider_id="")
