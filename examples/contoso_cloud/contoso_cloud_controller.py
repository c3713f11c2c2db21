"""An infrastructure provider that starts nodeattest's controller in its own process, with a signer of its own.

Evidence ``contosocloud/v1`` is ``{"ticket": <32 bytes>}``. An instance gets a ticket for a binding from its metadata
service; Contoso's API, asked over this process's own session, says whose ticket it is, what it is for, and for which
Machine Contoso created the instance.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
from pathlib import Path

import aiohttp

from nodeattest_controller import library
from nodeattest_providers.canonical_json import Fields
from nodeattest_providers.checks import Checks, check_block, check_parsed
from nodeattest_providers.errors import Reason, Unavailable
from nodeattest_providers.identifiers import MachineName, ProviderName
from nodeattest_providers.verifier_interface import AttestedNode, ClusterAPISigner, Facts, NodeRequest


class ContosoCloudSigner(ClusterAPISigner):
    """Asks Contoso's API whose ticket a request has."""

    provider, versions, secure = ProviderName("contosocloud"), (1,), True

    def __init__(self, cloud: aiohttp.ClientSession) -> None:
        self._cloud = cloud

    async def verify_client_attestation_data(self, request: NodeRequest, facts: Facts) -> AttestedNode:
        """Check that Contoso gave the ticket to this Machine's instance, for this key, this cluster and this signer."""
        checks, evidence, provider_id = Checks(), request.evidence, facts.machine.provider_id
        check_block(checks, evidence, self.provider, self.versions)
        fields = ("ticket",)
        ticket = check_parsed(
            checks,
            "evidence schema",
            "contosocloud/v1",
            lambda: Fields.of(evidence.data, "contosocloud/v1", fields).octets("ticket", 32, 32),
        )
        told, _, machine = (await self._whose(ticket.hex())).rpartition(" ")
        wanted = {f"{provider_id} {request.binding(pin).digest.hex()}" for pin in facts.cluster.pins}
        checks.require(
            told in wanted,
            "ticket of the instance",
            section="contosocloud/v1",
            reason=Reason.PROOF_INVALID,
            expected="a ticket that Contoso gave to this instance for this request",
            got="such a ticket" if told in wanted else "another, or none that Contoso knows",
            remedy="see that the Machine's provider ID is the instance that asks",
        )
        proven = MachineName(machine) if machine else None
        checked = checks.record()
        return AttestedNode(provider=self.provider, provider_id=provider_id, proven_machine_name=proven, checks=checked)

    async def _whose(self, ticket: str) -> str:
        try:
            async with self._cloud.get(f"/tickets/{ticket}") as answer:
                if answer.status in {200, 404}:
                    return (await answer.content.read(500)).decode(errors="replace")
        except (aiohttp.ClientError, TimeoutError):
            pass
        raise Unavailable(Reason.PLATFORM_UNAVAILABLE, "Contoso's API does not answer", remedy="see to Contoso's API")


async def control(settings: library.Settings, api: str) -> int:
    """Run the controller beside whatever else this provider runs."""
    async with aiohttp.ClientSession(api, timeout=aiohttp.ClientTimeout(total=5)) as cloud:
        return await library.run(settings, os.environ, signers={"contosocloud": ContosoCloudSigner(cloud)})


def main() -> None:
    """Read Contoso's own flags and nodeattest's configuration file, and run until a signal."""
    parser = argparse.ArgumentParser(prog="contoso-cloud-controller")
    parser.add_argument("--config", type=Path, required=True, help="a NodeAttestationControllerConfiguration")
    parser.add_argument("--api", required=True, help="URL of Contoso's API")
    flags = parser.parse_args()
    try:
        settings = library.read_settings(flags.config)
        library.configure_logs(settings)
        sys.exit(library.serve(control(settings, flags.api)))
    except (library.SettingsError, asyncio.CancelledError) as error:
        sys.exit(f"contoso-cloud-controller: {error}")


if __name__ == "__main__":
    main()
