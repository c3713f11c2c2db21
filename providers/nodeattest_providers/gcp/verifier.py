"""The ``gcp`` provider's verifier: the TPM protocol with an endorsement key that the Compute API names.

What needs no network is checked first.
Source: docs/wire-format.md, "gcp/v1", §3; docs/providers/gcp.md.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from nodeattest_providers.checks import Checks
from nodeattest_providers.errors import Unavailable, platform_unavailable
from nodeattest_providers.gcp.api.instance import ComputeInstance
from nodeattest_providers.gcp.checks import PIN, check_found, check_instance, check_key, check_place
from nodeattest_providers.gcp.config import GcpPolicy, parse_platform, parse_policy
from nodeattest_providers.gcp.provider_id import PROVIDER, InstanceRef
from nodeattest_providers.identifiers import NodeName, is_dns_name
from nodeattest_providers.node_interface import FirstRequestRef
from nodeattest_providers.platform import OFFLINE, Platform
from nodeattest_providers.tpm.event_log_checks import check_recorded_boot
from nodeattest_providers.tpm.protocol import VERSION, FirstEvidence
from nodeattest_providers.tpm.protocol_verifier import TpmProtocolVerifier
from nodeattest_providers.tpm.structures import PublicArea
from nodeattest_providers.verifier_interface import (
    Addresses,
    AttestedNode,
    BootState,
    CheckedSigner,
    Facts,
    NodeRequest,
)

if TYPE_CHECKING:
    from nodeattest_providers.gcp.api.compute import Compute


class GcpSigner(CheckedSigner):
    """Verifies Shielded VMs."""

    provider = PROVIDER
    versions: tuple[int, ...] = (VERSION,)
    read_section = staticmethod(parse_policy)
    two_step = True
    takes_platform = True
    tells_addresses = True
    reads_infrastructure = False

    def __init__(self, *, platform: Platform = OFFLINE, random: Callable[[int], bytes] = secrets.token_bytes) -> None:
        """Read the platform's settings; nothing is loaded or asked before the first request."""
        self._settings = parse_platform(platform.settings)
        self._platform = platform
        self._protocol = TpmProtocolVerifier(provider=PROVIDER, certificates=False, random=random)
        self._compute: Compute | None = None

    def first_request(self, request: NodeRequest) -> FirstRequestRef | None:
        """Return the first request that this one answers, None for a first one; Denied on malformed evidence."""
        return self._protocol.first_request(request)

    def check_recorded(self, facts: Facts, boot: BootState | None) -> tuple[str, ...]:
        """Hold the machine's place and its registers on record to the settings; raises Denied."""
        policy = parse_policy(facts.settings)
        check_place(Checks(), facts, policy)
        unknown = check_recorded_boot(boot, policy.protocol)
        return ("Google Cloud is not asked: instance and endorsement key", *unknown)

    async def addresses(self, facts: Facts) -> Addresses:
        """Return the instance's addresses and names of now; raises Denied or Unavailable."""
        checks, policy = Checks(), parse_policy(facts.settings)
        return (await self._instance(checks, check_place(checks, facts, policy), facts, policy, fresh=True)).addresses

    async def aclose(self) -> None:
        """Close the connections."""
        compute, self._compute = self._compute, None
        if compute is not None:
            await compute.aclose()

    async def _verify(self, checks: Checks, request: NodeRequest, facts: Facts) -> AttestedNode:
        """Verify one request.

        1. The evidence is well-formed.
        2. The Machine's provider ID names an instance of a project and zone that the policy lists.
        3. That instance exists, runs, is the pinned one, and is what the policy demands.
        4. The platform names its endorsement keys, by its numeric ID.
        5. The TPM protocol holds, for one of these keys.

        Offline, 1 and 2 are checked, and of 5 what comes before a key has to be trusted: none is.
        """
        policy = parse_policy(facts.settings)
        # 1
        self._protocol.read(Checks(), request.evidence)  # recorded in step 5
        # 2
        place = check_place(checks, facts, policy)
        if not self._platform.may_call:
            self._protocol.verify(checks, request, facts, policy=policy.protocol, trust=_trust_nobody)
        # 3
        instance = await self._instance(checks, place, facts, policy)
        # 4
        keys = await self._open().endorsement_keys(instance)
        check_found(checks, place, instance if keys else None)

        # 5
        def trust(checks: Checks, ek: PublicArea, _: FirstEvidence) -> None:
            check_key(checks, ek, keys or frozenset())

        node = self._protocol.verify(checks, request, facts, policy=policy.protocol, trust=trust)
        return replace(
            node,
            proven_node_name=NodeName(place.name) if is_dns_name(place.name) else None,
            fingerprints={**node.fingerprints, PIN: instance.number},
        )

    async def _instance(
        self, checks: Checks, place: InstanceRef, facts: Facts, policy: GcpPolicy, *, fresh: bool = False
    ) -> ComputeInstance:
        instance = check_found(checks, place, await self._open().instance(place, fresh=fresh))
        check_instance(checks, instance, policy, facts.ledger)
        return instance

    def _open(self) -> Compute:
        if not self._platform.may_call:
            raise _offline()
        if self._compute is None:
            from nodeattest_providers.gcp.api.compute import Compute

            self._compute = Compute(self._settings, self._platform.observe)
        return self._compute


def _trust_nobody(*_: object) -> None:
    raise _offline()


def _offline() -> Unavailable:
    return platform_unavailable(
        "Google Cloud is not asked offline", remedy="let a running controller verify the request"
    )
