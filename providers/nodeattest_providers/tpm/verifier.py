"""The ``tpm`` provider's verifier. Policy and annotations in the management cluster say whose an endorsement key is.

Where the policy says so, EC2 names the keys of its instances: the ``aws`` provider's signer asks it.
Source: docs/wire-format.md, "tpm/v1", §3.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from typing import Final

from nodeattest_providers.checks import Checks
from nodeattest_providers.errors import Denied, Reason, Unavailable
from nodeattest_providers.identifiers import NodeName, ProviderID, ProviderName, printable
from nodeattest_providers.keys import PublicKey
from nodeattest_providers.node_interface import FirstRequestRef, JsonValue
from nodeattest_providers.platform import OFFLINE, Platform
from nodeattest_providers.tpm.config import PolicyCache, TpmPolicy, parse_policy
from nodeattest_providers.tpm.endorsement_key import check_recorded_key, check_trust, parse_endorsement_key
from nodeattest_providers.tpm.event_log_checks import check_recorded_boot
from nodeattest_providers.tpm.protocol import PROVIDER, VERSION, FirstEvidence
from nodeattest_providers.tpm.protocol_verifier import TpmProtocolVerifier
from nodeattest_providers.tpm.structures import PublicArea
from nodeattest_providers.verifier_interface import (
    AttestedNode,
    BootState,
    CheckedSigner,
    Facts,
    NodeRequest,
)

THREADS: Final = 4
"""Verifications at once: they compute, so more would only wait for a core."""
_LONG: Final = frozenset({"ekCert", "ekChain", "eventLog"})
"""Members of evidence whose check takes milliseconds, when they are of the worst kind."""
_EC2: Final = "EC2"
_EC2_PROVIDER: Final = ProviderName("aws")
_FEW_CAS: Final = 4
"""The answer is compared under each CA of the cluster."""


class TpmSigner(CheckedSigner):
    """Evaluates TPM evidence."""

    provider = PROVIDER
    versions: tuple[int, ...] = (VERSION,)
    read_section = staticmethod(parse_policy)
    two_step = True
    takes_platform = True

    def __init__(self, *, platform: Platform = OFFLINE, random: Callable[[int], bytes] = secrets.token_bytes) -> None:
        """Raise Denied for settings: there are none."""
        if platform.settings:
            raise Denied(
                Reason.POLICY_INVALID,
                expected="no settings of its own",
                got=", ".join(map(printable, platform.settings)),
                remedy="remove the section platforms.tpm; EC2 is configured by platforms.aws",
            )
        self._platform = platform
        self._protocol = TpmProtocolVerifier(provider=PROVIDER, certificates=True, random=random)
        self._policies = PolicyCache()
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="tpm")
        """Apart from the loop's own threads, which others may keep busy."""

    def first_request(self, request: NodeRequest) -> FirstRequestRef | None:
        """Return the first request that this one answers, None for a first one; Denied on malformed evidence."""
        return self._protocol.first_request(request)

    def check_recorded(self, facts: Facts, boot: BootState | None) -> tuple[str, ...]:
        """Hold the endorsement key and the registers on record to the settings; raises Denied."""
        policy, unknown = self._policies.get(facts.settings), list[str]()
        fingerprint = facts.ledger.fingerprints.get("ek")
        if fingerprint is None:
            unknown.append("the endorsement key is not on record")
        else:
            try:
                check_recorded_key(fingerprint, facts, policy)
            except Unavailable as unavailable:
                unknown.append(unavailable.detail)
        return (*unknown, *check_recorded_boot(boot, policy))

    def provable_names(
        self, settings: Mapping[str, JsonValue], sections: Mapping[ProviderName, Mapping[str, JsonValue]]
    ) -> Mapping[ProviderID, NodeName]:
        """Return the node names of registered keys; a TPM proves no other. Raises Denied for invalid settings."""
        del sections
        return self._policies.get(settings).node_names

    async def aclose(self) -> None:
        """End the threads; verifications under way are not waited for."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def _verify(self, checks: Checks, request: NodeRequest, facts: Facts) -> AttestedNode:
        """Verify here what takes less than a millisecond: to hand it to a thread would cost half of that again."""
        policy = self._policies.get(facts.settings)
        ec2_key = await self._ask_ec2(checks, request, facts, policy)
        verify = partial(self._compute, checks, request, facts, policy, ec2_key)
        if not _takes_long(request, facts):
            return verify()
        return await asyncio.get_running_loop().run_in_executor(self._threads, verify)

    async def _ask_ec2(self, checks: Checks, request: NodeRequest, facts: Facts, policy: TpmPolicy) -> str:
        """Return the fingerprint that EC2 names for the machine; empty where it is not asked. Raises as it does."""
        accounts, machine = policy.ec2_accounts, facts.machine.provider_id
        if accounts is None or not policy.asks_ec2(machine) or not self._platform.may_call:
            return ""
        shown = self._shown_key(request, facts)
        if shown is None or self._platform.find_signer is None:
            return ""
        aws = self._platform.find_signer(_EC2_PROVIDER)
        try:
            named = await aws.endorsement_key(machine, accounts=accounts, shown=shown)
        except Denied as denied:
            checks.adopt(_EC2, denied.checks)
            raise Denied(
                denied.reason, expected=denied.expected, got=denied.got, remedy=denied.remedy, checks=checks.record()
            ) from denied
        except Unavailable as unavailable:
            checks.adopt(_EC2, unavailable.checks)
            raise
        checks.adopt(_EC2, named.checks)
        return named.fingerprint

    def _shown_key(self, request: NodeRequest, facts: Facts) -> PublicKey | None:
        """Return the endorsement key that the first request shows; None where verifying will find no such request."""
        for shown in (request, facts.first_request):
            if shown is None:
                break
            try:
                evidence = self._protocol.read(Checks(), shown.evidence)
                if isinstance(evidence, FirstEvidence):
                    return parse_endorsement_key(evidence.ek_public).key
            except Denied:
                break
        return None

    def _compute(
        self, checks: Checks, request: NodeRequest, facts: Facts, policy: TpmPolicy, ec2_key: str
    ) -> AttestedNode:
        def trust(checks: Checks, ek: PublicArea, evidence: FirstEvidence) -> None:
            check_trust(checks, ek, evidence, facts, policy, is_renewal=request.is_renewal, ec2_key=ec2_key)

        attested = self._protocol.verify(checks, request, facts, policy=policy, trust=trust)
        machine = request.csr.provider_id
        if attested.fingerprints["ek"] not in policy.registered.get(machine, ()):
            return attested  # trusted by another source, which gives no name
        return replace(attested, proven_node_name=policy.node_names.get(machine))


def _takes_long(request: NodeRequest, facts: Facts) -> bool:
    """Whether more is checked than two keys and one signature."""
    first = () if facts.first_request is None else (facts.first_request,)
    evidence_is_long = any(not _LONG.isdisjoint(each.evidence.data) for each in (request, *first))
    return evidence_is_long or len(facts.cluster.pins) > _FEW_CAS
