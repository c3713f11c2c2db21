"""The ``gcp`` provider's verifier: the TPM protocol with an endorsement key that the Compute API names.

Source: docs/wire-format.md, "gcp/v1", §3; docs/providers/gcp.md, "What is checked".
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from dataclasses import replace
from typing import Final

from nodeattest_providers.checks import Checks, Rules, one_of
from nodeattest_providers.errors import Reason
from nodeattest_providers.gcp.api.compute import RUNNING, Compute, ComputeInstance
from nodeattest_providers.gcp.config import GcpPolicy, parse_platform, parse_policy
from nodeattest_providers.gcp.provider_id import PROVIDER, InstanceRef, parse_provider_id
from nodeattest_providers.identifiers import NodeName, is_dns_name
from nodeattest_providers.platform import OFFLINE, Platform, offline
from nodeattest_providers.tpm.boot_state import check_recorded_boot
from nodeattest_providers.tpm.protocol import FirstEvidence
from nodeattest_providers.tpm.structures import PublicArea
from nodeattest_providers.tpm.verifier import TpmProtocolSigner
from nodeattest_providers.verifier_interface import Addresses, AttestedNode, BootState, Facts, LedgerFacts, NodeRequest

PIN: Final = "instance"
"""The ledger's name for an instance's numeric ID."""
_COMPARE: Final = "compare the Machine's spec.providerID with the instance, and see whether it is of this project"
_RESET: Final = "if the machine was recreated under its old name, reset its record (nodeattest machines reset)"
_SHIELDED: Final = "stop the instance, set its Shielded VM options as the policy demands, and start it again"
_OWN_KEY: Final = (
    "attest with the vTPM of the instance that the Machine's provider ID names; the agent's endorsementKey is rsa2048, "
    "or ecc-p256 where the Compute API shows an eccP256EncryptionKey"
)


def check_place(checks: Checks, facts: Facts, policy: GcpPolicy) -> InstanceRef:
    """Check that machines from there may join, before the platform is asked.

    1. The policy lists the project; no list, nobody.
    2. It lists the zone or its region, if it lists any.
    """
    rules = _rules(checks)
    place = rules.parsed("provider ID", lambda: parse_provider_id(facts.machine.provider_id))
    # 1
    reason, remedy = Reason.PLATFORM_ACCOUNT_NOT_ALLOWED, "list the project in the policy's spec.gcp.projects"
    rules.member("project", policy.projects, place.project, reason=reason, remedy=remedy)
    # 2
    listed = policy.zones | policy.regions
    allowed = not listed or place.zone in policy.zones or place.region in policy.regions
    expected, reason = one_of(listed, "zones and regions") or "any zone", Reason.PLATFORM_REGION_NOT_ALLOWED
    remedy = "list the zone in the policy's spec.gcp.zones or its region in spec.gcp.regions"
    rules.require(allowed, "zone", expected, place.zone, reason=reason, remedy=remedy)
    return place


def check_found(checks: Checks, place: InstanceRef, instance: ComputeInstance | None) -> ComputeInstance:
    return _rules(checks).present(instance, "instance", place.provider_id, reason=Reason.PLATFORM_INSTANCE_NOT_FOUND)


def check_instance(checks: Checks, instance: ComputeInstance, policy: GcpPolicy, ledger: LedgerFacts) -> None:
    """Check what the platform says of the instance.

    1. It is the one that the ledger pins, if it pins any: a VM recreated under the name is another machine.
    2. It runs.
    3. It has the labels that the policy demands.
    4. It runs as a service account that the policy lists, if it lists any, and as no other besides.
    5. It has a vTPM, and the Shielded VM options that the policy demands.
    """
    rules = _rules(checks)
    # 1
    rules.equal("pinned instance", ledger.fingerprints.get(PIN, instance.number), instance.number, remedy=_RESET)
    # 2
    reason, remedy = Reason.PLATFORM_INSTANCE_NOT_RUNNING, "start the instance, which files a request when it boots"
    rules.equal("instance runs", RUNNING, instance.status, reason=reason, remedy=remedy)
    # 3
    reason, remedy = Reason.PLATFORM_TAGS_NOT_ALLOWED, "label the instance as the policy's spec.gcp.labels says"
    for key, wanted in sorted(policy.labels.items()):
        got = instance.labels.get(key, "no such label")
        rules.require(instance.labels.get(key) == wanted, f"label {key}", wanted, got, reason=reason, remedy=remedy)
    # 4
    accounts, listed = instance.service_accounts, policy.service_accounts
    expected, got = one_of(listed, "service accounts") or "any service account", ", ".join(sorted(accounts)) or "none"
    allowed, reason = not listed or (bool(accounts) and accounts <= listed), Reason.PLATFORM_ROLE_NOT_ALLOWED
    remedy = "run the instance as a service account of the policy's spec.gcp.serviceAccounts, or list its own there"
    rules.require(allowed, "service account", expected, got, reason=reason, remedy=remedy)
    # 5
    shielded = Rules(checks, rules.section, Reason.PLATFORM_CONFIGURATION_NOT_ALLOWED, _SHIELDED)
    for name, is_demanded, is_on in (
        ("vTPM", True, instance.has_vtpm),
        ("Secure Boot", policy.secure_boot, instance.has_secure_boot),
        ("integrity monitoring", policy.integrity_monitoring, instance.has_integrity_monitoring),
    ):
        shielded.require(is_on or not is_demanded, name, "on" if is_demanded else "on or off", "off")


def check_key(checks: Checks, ek: PublicArea, keys: frozenset[str]) -> None:
    name, reason = "endorsement key: the instance's", Reason.ENDORSEMENT_KEY_UNTRUSTED
    _rules(checks).member(name, keys, ek.fingerprint, reason=reason, remedy=_OWN_KEY)


def _rules(checks: Checks) -> Rules:
    return Rules(checks, "Google Cloud, What is checked", Reason.PLATFORM_INSTANCE_MISMATCH, _COMPARE)


class GcpSigner(TpmProtocolSigner):
    """Verifies Shielded VMs."""

    provider = PROVIDER
    read_section = staticmethod(parse_policy)
    takes_certificates = False
    tells_addresses = True
    reads_infrastructure = False

    def __init__(self, *, platform: Platform = OFFLINE, random: Callable[[int], bytes] = secrets.token_bytes) -> None:
        super().__init__(platform=platform, random=random)
        self._settings = parse_platform(platform.settings)
        self._compute: Compute | None = None

    def check_recorded(self, facts: Facts, boot: BootState | None) -> tuple[str, ...]:
        policy = parse_policy(facts.settings)
        check_place(Checks(), facts, policy)
        unknown = check_recorded_boot(boot, policy.protocol)
        return ("Google Cloud is not asked: instance and endorsement key", *unknown)

    async def addresses(self, facts: Facts) -> Addresses:
        checks, policy = Checks(), parse_policy(facts.settings)
        return (await self._instance(checks, check_place(checks, facts, policy), facts, policy, fresh=True)).addresses

    async def aclose(self) -> None:
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
        self._read(Checks(), request.evidence)  # recorded in step 5
        # 2
        place = check_place(checks, facts, policy)
        if not self._platform.may_call:
            self._verify_protocol(checks, request, facts, policy=policy.protocol, trust=_trust_nobody)
        # 3
        instance = await self._instance(checks, place, facts, policy)
        # 4
        keys = await self._open().endorsement_keys(instance)
        check_found(checks, place, instance if keys else None)

        # 5
        def trust(checks: Checks, ek: PublicArea, _: FirstEvidence) -> None:
            check_key(checks, ek, keys or frozenset())

        node = self._verify_protocol(checks, request, facts, policy=policy.protocol, trust=trust)
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
            raise offline("Google Cloud")
        if self._compute is None:
            self._compute = Compute(self._settings, self._platform.observe)
        return self._compute


def _trust_nobody(*_: object) -> None:
    raise offline("Google Cloud")
