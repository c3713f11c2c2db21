"""The checks of the ``azure`` provider. Pure: what is compared was read before.

Source: docs/wire-format.md, "azure/v1"; docs/providers/azure.md.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Final

from nodeattest_providers.azure.api.machines import Machine
from nodeattest_providers.azure.attested_document import AttestedDocument, nonce_for
from nodeattest_providers.azure.config import AzurePolicy, parse_policy
from nodeattest_providers.azure.provider_id import InstanceRef, parse_provider_id
from nodeattest_providers.checks import Checks, check_parsed
from nodeattest_providers.errors import Reason
from nodeattest_providers.identifiers import printable
from nodeattest_providers.verifier_interface import Facts, NodeRequest

SECTION: Final = "wire format, azure/v1"
_PAGE: Final = "providers/azure"
TOLERANCE: Final = timedelta(minutes=5)
"""Between the document's time and the request's: two clocks, Azure's and the API server's."""
_RUNNING: Final = frozenset({"creating", "updating", "succeeded", "failed", "migrating"})
"""Provisioning states of a machine that is to stay; ``Failed`` describes the last change, not the machine."""
FINGERPRINT: Final = "vm"
"""What the ledger pins: the vmId, which a machine recreated under its old name has not."""
_RESET: Final = "if the machine was made anew under its old name, reset its record (nodeattest machines reset)"
_ANEW: Final = "file anew; kubelet-authenticator asks the metadata service again"


def check_signature(checks: Checks, passed: bool, name: str, expected: str, got: str) -> None:
    """Record a check of the signature or of who signed."""
    checks.require(
        passed,
        name,
        section="RFC 5280 §6.1",
        reason=Reason.PLATFORM_DOCUMENT_SIGNATURE_INVALID,
        expected=expected,
        got=expected if passed else got,
        remedy="if Azure changed its authorities, renew platforms.azure.trustBundle (docs/providers/azure.md)",
    )


def check_nonce(checks: Checks, request: NodeRequest, facts: Facts, document: AttestedDocument) -> None:
    """Hold the document to this request, by one of the cluster's authorities."""
    nonces = {nonce_for(request.binding(pin).digest) for pin in facts.cluster.pins}
    checks.require(
        document.nonce in nonces,
        "nonce",
        section=SECTION,
        reason=Reason.PLATFORM_PROOF_NOT_BOUND,
        expected="that of this request, cluster and signer",
        got="that one" if document.nonce in nonces else "another",
        remedy=f"{_ANEW}; if this comes back, the node trusts another cluster CA than the cluster has",
    )


def check_time(checks: Checks, request: NodeRequest, document: AttestedDocument) -> None:
    """Hold the document to the time of the request, by the API server's clock."""
    distance = abs(document.created - request.created)
    lives = document.created <= document.expires and request.created <= document.expires + TOLERANCE
    checks.require(
        distance <= TOLERANCE and lives,
        "time of the document",
        section=SECTION,
        reason=Reason.PLATFORM_PROOF_EXPIRED,
        expected=f"made within {TOLERANCE} of the request, and not expired then",
        got=f"made {distance} away from it" + ("" if lives else ", expired"),
        remedy=f"{_ANEW}; if this comes back, set the clocks of the API server's machines",
    )


def check_place(checks: Checks, facts: Facts) -> InstanceRef:
    """Hold the Machine's provider ID to the policy's subscriptions and groups, before anybody is asked about it."""
    name = check_parsed(checks, "provider ID", SECTION, lambda: parse_provider_id(facts.machine.provider_id))
    policy = parse_policy(facts.settings)
    allowed = name.subscription in policy.subscriptions and name.key[1] in policy.groups
    checks.require(
        allowed,
        "subscription and resource group",
        section=_PAGE,
        reason=Reason.PLATFORM_ACCOUNT_NOT_ALLOWED,
        expected="some that spec.azure lists",
        got=printable(f"{name.subscription}, {name.group}"),
        remedy="add them to spec.azure of the policy, if machines from there may join",
    )
    return name


def check_subscription(checks: Checks, name: InstanceRef, document: AttestedDocument) -> None:
    """Hold the document to the subscription of the provider ID."""
    checks.require(
        document.subscription == name.subscription,
        "subscription of the document",
        section=SECTION,
        reason=Reason.PLATFORM_INSTANCE_MISMATCH,
        expected=name.subscription,
        got=document.subscription,
        remedy="let the machine that the provider ID names ask for itself",
    )


def check_found(checks: Checks, machine: Machine | None) -> Machine:
    """Refuse a machine that Azure does not have."""
    return checks.present(
        machine,
        "machine",
        section=_PAGE,
        reason=Reason.PLATFORM_INSTANCE_NOT_FOUND,
        expected="one that Azure's Resource Manager lists",
        got="none" if machine is None else "one",
        remedy="compare the Machine's spec.providerID with Azure; the controller's identity must be able to read it",
    )


def check_machine(checks: Checks, machine: Machine, document: AttestedDocument, facts: Facts) -> None:
    """Hold the document to the one machine of that name, and to the one that the ledger pins."""
    checks.require(
        document.vm_id == machine.vm_id,
        "vmId",
        section=_PAGE,
        reason=Reason.PLATFORM_INSTANCE_MISMATCH,
        expected=machine.vm_id,
        got=document.vm_id,
        remedy="let the machine that the provider ID names ask for itself",
    )
    check_pin(checks, machine, facts)


def check_pin(checks: Checks, machine: Machine, facts: Facts) -> None:
    """Hold the machine of that name to the one that the ledger pins, if it pins any."""
    pinned = facts.ledger.fingerprints.get(FINGERPRINT, machine.vm_id)
    checks.require(
        machine.vm_id == pinned,
        "pinned vmId",
        section=_PAGE,
        reason=Reason.PLATFORM_INSTANCE_MISMATCH,
        expected=pinned,
        got=machine.vm_id,
        remedy=_RESET,
    )


def check_policy(checks: Checks, machine: Machine, policy: AzurePolicy) -> None:
    """Hold the machine to what the policy demands of its state, scale set and tags."""
    checks.require(
        machine.provisioning_state.lower() in _RUNNING,
        "provisioning state",
        section=_PAGE,
        reason=Reason.PLATFORM_INSTANCE_NOT_RUNNING,
        expected="a machine that is to stay",
        got=printable(machine.provisioning_state),
        remedy="nothing, if the machine is being deleted on purpose",
    )
    checks.require(
        policy.scale_sets is None or machine.scale_set in policy.scale_sets,
        "scale set",
        section=_PAGE,
        reason=Reason.PLATFORM_ACCOUNT_NOT_ALLOWED,
        expected="one that spec.azure.scaleSets lists",
        got=printable(machine.scale_set) if machine.scale_set else "none",
        remedy="add it to spec.azure.scaleSets of the policy, if its machines may join",
    )
    missing = sorted(name for name, value in policy.tags.items() if machine.tags.get(name) != value)
    checks.require(
        not missing,
        "tags",
        section=_PAGE,
        reason=Reason.PLATFORM_TAGS_NOT_ALLOWED,
        expected="each tag of spec.azure.tags with its value",
        got=f"others or none of {printable(', '.join(missing))}" if missing else "all of them",
        remedy="let Cluster API tag the machine as the policy says",
    )
