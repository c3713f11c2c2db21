"""Whether an instance, as the platform knows it, may be this Machine and join this cluster. Pure.

Source: docs/providers/gcp.md, "What is checked".
"""

from __future__ import annotations

from typing import Final

from nodeattest_providers.checks import Checks, Rules, one_of
from nodeattest_providers.errors import Reason
from nodeattest_providers.gcp.api.instance import RUNNING, ComputeInstance
from nodeattest_providers.gcp.config import GcpPolicy
from nodeattest_providers.gcp.provider_id import InstanceRef, parse_provider_id
from nodeattest_providers.tpm.structures import PublicArea
from nodeattest_providers.verifier_interface import Facts, LedgerFacts

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
    """Check that the platform knows the instance."""
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
    """Check that the endorsement key is one that the platform gave this very instance."""
    name, reason = "endorsement key: the instance's", Reason.ENDORSEMENT_KEY_UNTRUSTED
    _rules(checks).member(name, keys, ek.fingerprint, reason=reason, remedy=_OWN_KEY)


def _rules(checks: Checks) -> Rules:
    return Rules(checks, "Google Cloud, What is checked", Reason.PLATFORM_INSTANCE_MISMATCH, _COMPARE)
