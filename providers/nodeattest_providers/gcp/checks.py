"""Whether an instance, as the platform knows it, may be this Machine and join this cluster. Pure.

Source: docs/providers/gcp.md, "What is checked".
"""

from __future__ import annotations

from typing import Final

from nodeattest_providers.checks import Checks
from nodeattest_providers.errors import Reason
from nodeattest_providers.gcp.api.instance import ComputeInstance
from nodeattest_providers.gcp.config import GcpPolicy
from nodeattest_providers.gcp.provider_id import InstanceRef
from nodeattest_providers.tpm.structures import PublicArea
from nodeattest_providers.verifier_interface import LedgerFacts

PIN: Final = "instance"
"""The ledger's name for an instance's numeric ID."""
_SECTION: Final = "Google Cloud, What is checked"
_RUNNING: Final = "RUNNING"
_RESET: Final = (
    "if the machine was made anew under its old name, an operator resets the ledger (nodeattest machines reset)"
)
_SHIELDED: Final = "stop the instance, set its Shielded VM options as the policy demands, and start it again"


def check_policy(checks: Checks, place: InstanceRef, policy: GcpPolicy) -> None:
    """Check that machines from there may join, before the platform is asked.

    1. The policy lists the project; no list, nobody.
    2. It lists the zone or its region, if it lists any.
    """
    # 1
    _require(
        checks,
        place.project in policy.projects,
        "project",
        Reason.PLATFORM_ACCOUNT_NOT_ALLOWED,
        (_any_of(policy.projects, "no project: spec.gcp.projects is empty"), place.project),
        remedy="list the project in the policy's spec.gcp.projects, if its machines may join",
    )
    # 2
    everywhere = not policy.zones and not policy.regions
    _require(
        checks,
        everywhere or place.zone in policy.zones or place.region in policy.regions,
        "zone",
        Reason.PLATFORM_REGION_NOT_ALLOWED,
        (_any_of(policy.zones | policy.regions, "any zone"), place.zone),
        remedy="list the zone in the policy's spec.gcp.zones or its region in spec.gcp.regions",
    )


def check_found(checks: Checks, place: InstanceRef, instance: ComputeInstance | None) -> ComputeInstance:
    """Check that the platform knows the instance."""
    got = "no such instance" if instance is None else place.provider_id
    _require(
        checks,
        instance is not None,
        "instance",
        Reason.PLATFORM_INSTANCE_NOT_FOUND,
        (place.provider_id, got),
        remedy="compare the Machine's spec.providerID with the instance, and see whether it is of this project",
    )
    if instance is None:
        raise AssertionError("a failed check raises Denied")
    return instance


def check_instance(checks: Checks, instance: ComputeInstance, policy: GcpPolicy, ledger: LedgerFacts) -> None:
    """Check what the platform says of the instance.

    1. It is the one that the ledger pins, if it pins any: a VM recreated under the name is another machine.
    2. It runs.
    3. It has the labels that the policy demands.
    4. It runs as a service account that the policy lists, if it lists any, and as no other besides.
    5. It has a vTPM, and the Shielded VM options that the policy demands.
    """
    # 1
    pinned = ledger.fingerprints.get(PIN, instance.number)
    reason = Reason.PLATFORM_INSTANCE_MISMATCH
    _require(checks, pinned == instance.number, "pinned instance", reason, (pinned, instance.number), remedy=_RESET)
    # 2
    reason, remedy = Reason.PLATFORM_INSTANCE_NOT_RUNNING, "start the instance; it files anew when it boots"
    runs = instance.status == _RUNNING
    _require(checks, runs, "instance runs", reason, (_RUNNING, instance.status), remedy=remedy)
    # 3
    reason, remedy = Reason.PLATFORM_TAGS_NOT_ALLOWED, "label the instance as the policy's spec.gcp.labels says"
    for key, wanted in sorted(policy.labels.items()):
        got = instance.labels.get(key)
        compared = (f"{key}={wanted}", "no such label" if got is None else f"{key}={got}")
        _require(checks, got == wanted, f"label {key}", reason, compared, remedy=remedy)
    # 4
    accounts, listed = instance.service_accounts, policy.service_accounts
    compared = (_any_of(listed, "any service account"), ", ".join(sorted(accounts)) or "none")
    passed = not listed or (bool(accounts) and accounts <= listed)
    remedy = "run the instance as a service account of the policy's spec.gcp.serviceAccounts, or list its own there"
    _require(checks, passed, "service account", Reason.PLATFORM_ROLE_NOT_ALLOWED, compared, remedy=remedy)
    # 5
    reason = Reason.PLATFORM_CONFIGURATION_NOT_ALLOWED
    for name, demanded, has in (
        ("vTPM", True, instance.has_vtpm),
        ("Secure Boot", policy.secure_boot, instance.has_secure_boot),
        ("integrity monitoring", policy.integrity_monitoring, instance.has_integrity_monitoring),
    ):
        compared = ("on" if demanded else "on or off", "on" if has else "off")
        _require(checks, has or not demanded, name, reason, compared, remedy=_SHIELDED)


def check_key(checks: Checks, ek: PublicArea, keys: frozenset[str]) -> None:
    """Check that the endorsement key is one that the platform gave this very instance."""
    got = ek.fingerprint
    expected = " or ".join(sorted(keys))
    _require(
        checks,
        got in keys,
        "endorsement key: the instance's",
        Reason.ENDORSEMENT_KEY_UNTRUSTED,
        (expected, expected if got in keys else got),
        remedy="attest with the vTPM of the instance that the Machine's provider ID names; the agent's endorsementKey "
        "is rsa2048, or ecc-p256 where the Compute API shows an eccP256EncryptionKey",
    )


def _any_of(names: frozenset[str], none: str) -> str:
    return " or ".join(sorted(names)) or none


def _require(
    checks: Checks, passed: bool, name: str, reason: Reason, compared: tuple[str, str], *, remedy: str
) -> None:
    expected, got = compared
    checks.require(passed, name, section=_SECTION, reason=reason, expected=expected, got=got, remedy=remedy)
