"""The ``azure`` provider's verifier: a document that Azure signed for this machine and this request.

Embedded certificates help to build chains. No address in a certificate is ever asked.
Source: docs/wire-format.md, "azure/v1"; docs/providers/azure.md; RFC 5280 §6.1; Azure, "Instance Metadata Service".
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from nodeattest_providers import cms
from nodeattest_providers.azure import protocol
from nodeattest_providers.azure.api import Machine, Machines, ResourceManager, Tokens
from nodeattest_providers.azure.config import AzurePlatform, AzurePolicy, parse_platform, parse_policy
from nodeattest_providers.certificate_chain import (
    X509_ERRORS,
    chain_problem,
    check_readable,
    extension,
    leaf_problem,
)
from nodeattest_providers.checks import Checks, Rules, check_block, check_parsed
from nodeattest_providers.errors import Reason
from nodeattest_providers.identifiers import NodeName, is_dns_name, printable
from nodeattest_providers.platform import Platform, nobody_trusted, offline, read_authorities
from nodeattest_providers.verifier_interface import (
    Addresses,
    AttestedNode,
    BootState,
    CheckedSigner,
    Facts,
    NodeRequest,
)

SECTION: Final = "wire format, azure/v1"
FINGERPRINT: Final = "vm"
"""What the ledger pins: the vmId, which a machine recreated under its old name has not."""
TOLERANCE: Final = timedelta(minutes=5)
"""Between the document's time and the request's: two clocks, Azure's and the API server's."""
_RUNNING: Final = frozenset({"creating", "updating", "succeeded", "failed", "migrating"})
"""Provisioning states of a machine that is to stay; ``Failed`` describes the last change, not the machine."""
_OWN: Final = "let the machine that the provider ID names ask for itself"
_RESET: Final = "if the machine was recreated under its old name, reset its record (nodeattest machines reset)"
_NEW: Final = "file a new request; kubelet-authenticator asks the metadata service again"


def check_document(checks: Checks, request: NodeRequest, facts: Facts, document: protocol.AttestedDocument) -> None:
    rules = Rules(checks, SECTION, Reason.PLATFORM_PROOF_NOT_BOUND, _NEW)
    nonces = {protocol.nonce_for(request.binding(pin).digest) for pin in facts.cluster.pins}
    remedy = f"{_NEW}; if this comes back, the node trusts another cluster CA than the cluster has"
    rules.require(
        document.nonce in nonces, "nonce", "that of this request, cluster and signer", "another", remedy=remedy
    )
    distance = abs(document.created - request.created)
    lives = document.created <= document.expires and request.created <= document.expires + TOLERANCE
    expected = f"made within {TOLERANCE} of the request, and not expired then"
    got = f"made {distance} away from it" + ("" if lives else ", expired")
    remedy = f"{_NEW}; if this comes back, set the clocks of the API server's machines"
    in_time, reason = distance <= TOLERANCE and lives, Reason.PLATFORM_PROOF_EXPIRED
    rules.require(in_time, "time of the document", expected, got, reason=reason, remedy=remedy)


def check_place(checks: Checks, facts: Facts) -> protocol.InstanceRef:
    """Check the Machine's provider ID against the policy's subscriptions and groups, before anybody is asked."""
    rules = page_rules(checks, Reason.PLATFORM_ACCOUNT_NOT_ALLOWED, "add them to spec.azure of the policy")
    name = rules.parsed("provider ID", lambda: protocol.parse_provider_id(facts.machine.provider_id))
    policy = parse_policy(facts.settings)
    allowed = name.subscription in policy.subscriptions and name.key[1] in policy.groups
    got = printable(f"{name.subscription}, {name.group}")
    rules.require(allowed, "subscription and resource group", "some that spec.azure lists", got)
    return name


def check_subscription(checks: Checks, name: protocol.InstanceRef, document: protocol.AttestedDocument) -> None:
    rules = Rules(checks, SECTION, Reason.PLATFORM_INSTANCE_MISMATCH, _OWN)
    rules.equal("subscription of the document", name.subscription, document.subscription)


def check_pin(checks: Checks, machine: Machine, facts: Facts) -> None:
    rules = page_rules(checks, Reason.PLATFORM_INSTANCE_MISMATCH, _RESET)
    rules.equal("pinned vmId", facts.ledger.fingerprints.get(FINGERPRINT, machine.vm_id), machine.vm_id)


def check_machine(checks: Checks, machine: Machine, document: protocol.AttestedDocument, policy: AzurePolicy) -> None:
    """Check that the document is the machine's, and state, scale set and tags are what the policy demands."""
    rules = page_rules(checks, Reason.PLATFORM_INSTANCE_MISMATCH, _OWN)
    rules.equal("vmId", machine.vm_id, document.vm_id)
    stays, got = machine.provisioning_state.lower() in _RUNNING, printable(machine.provisioning_state)
    reason, remedy = Reason.PLATFORM_INSTANCE_NOT_RUNNING, "nothing, if the machine is being deleted on purpose"
    rules.require(stays, "provisioning state", "a machine that is to stay", got, reason=reason, remedy=remedy)
    allowed = policy.scale_sets is None or machine.scale_set in policy.scale_sets
    expected, got = "one that spec.azure.scaleSets lists", printable(machine.scale_set) if machine.scale_set else "none"
    reason, remedy = Reason.PLATFORM_ACCOUNT_NOT_ALLOWED, "add it to spec.azure.scaleSets of the policy"
    rules.require(allowed, "scale set", expected, got, reason=reason, remedy=remedy)
    missing = sorted(name for name, value in policy.tags.items() if machine.tags.get(name) != value)
    expected, got = "each tag of spec.azure.tags", f"others or none of {printable(', '.join(missing))}"
    reason, remedy = Reason.PLATFORM_TAGS_NOT_ALLOWED, "let Cluster API tag the machine as the policy says"
    rules.require(not missing, "tags", expected, got, reason=reason, remedy=remedy)


def page_rules(checks: Checks, reason: Reason, remedy: str) -> Rules:
    return Rules(checks, "providers/azure", reason, remedy)


TRUST_BUNDLE: Final = "platforms.azure.trustBundle"
Authorities = tuple[x509.Certificate, ...]


def foreign_name(signer: x509.Certificate, domain: str) -> str | None:
    """Name a name of the signer that is neither the cloud's own nor below it; None when there is none.

    1. It has DNS names, and nothing else is named besides.
    2. Each is the domain or below it, without a wildcard.
    3. So is its common name, where it has one.
    """
    try:
        check_readable(signer)
        subject = [str(each.value) for each in signer.subject.get_attributes_for_oid(NameOID.COMMON_NAME)]
        names = list(extension(signer, x509.SubjectAlternativeName) or ())
    except X509_ERRORS:
        return "no names that can be read"
    if not names or not all(isinstance(each, x509.DNSName) for each in names):
        return "no DNS names only"
    for name in (*(str(each.value) for each in names), *subject):
        if not is_dns_name(name) or not (name == domain or name.endswith(f".{domain}")):
            return printable(name)
    return None


def signer_problem(
    signer: x509.Certificate, embedded: Sequence[x509.Certificate], authorities: Authorities, now: datetime
) -> str | None:
    """Say why a signer whose names can be read is no TLS server that an authority certified; None where it is one."""
    problem, purposes = leaf_problem(signer), extension(signer, x509.ExtendedKeyUsage)
    if problem is not None:
        return problem
    if purposes is None or ExtendedKeyUsageOID.SERVER_AUTH not in purposes:
        return "a certificate that is not for TLS servers"
    between = [each.public_bytes(Encoding.DER) for each in embedded if each != signer]
    return chain_problem(signer, between, authorities, now, ExtendedKeyUsageOID.SERVER_AUTH)


_RENEW: Final = "if Azure changed its authorities, renew platforms.azure.trustBundle (docs/providers/azure.md)"
_MAY_READ: Final = "compare the Machine's spec.providerID with Azure; the controller's identity must be able to read it"


class AzureSigner(CheckedSigner):
    """Verifies attested documents."""

    provider = protocol.PROVIDER
    versions: tuple[int, ...] = (protocol.VERSION,)
    read_section = staticmethod(parse_policy)
    takes_platform = True
    tells_addresses = True
    reads_infrastructure = False

    def __init__(self, *, platform: Platform) -> None:
        self._configuration: AzurePlatform = parse_platform(platform.settings)
        self._authorities = read_authorities(self._configuration.trust_bundle, TRUST_BUNDLE)
        self._may_call = platform.may_call
        tokens = Tokens(self._configuration, observe=platform.observe)
        self._machines = Machines(ResourceManager(self._configuration, tokens, observe=platform.observe))

    async def addresses(self, facts: Facts) -> Addresses:
        """Return the machine's private addresses and computer name as Azure has them now; raises the same.

        A machine recreated under the name of one that joined is another, and its addresses are not the node's.
        """
        checks = Checks()
        name = check_place(checks, facts)
        machine = await self._machine(checks, name, facts.ledger.fingerprints.get(FINGERPRINT))
        check_pin(checks, machine, facts)
        names = (("Hostname", machine.computer_name),) if machine.computer_name else ()
        return (*await self._machines.addresses(name), *names)

    def check_recorded(self, facts: Facts, boot: BootState | None) -> tuple[str, ...]:
        del boot
        check_place(Checks(), facts)
        return ("Azure's Resource Manager is not asked: machine, tags and location",)

    async def aclose(self) -> None:
        await self._machines.aclose()

    async def _verify(self, checks: Checks, request: NodeRequest, facts: Facts) -> AttestedNode:
        """Verify one request.

        1. Evidence of this provider, a known version, a closed schema.
        2. The document is signed, by somebody whom this cloud's authorities call its metadata service.
        3. It is for this request, cluster and signer, and was made at its time.
        4. The provider ID names a machine of a subscription and group that the policy lists, and of the document's.
        5. Azure's Resource Manager has this very machine, as the policy wants it, and the ledger pins no other.
        """
        check_block(checks, request.evidence, protocol.PROVIDER, (protocol.VERSION,))  # 1
        evidence = check_parsed(
            checks, "evidence schema", SECTION, lambda: protocol.parse_evidence(request.evidence.data)
        )
        document = self._check_document(checks, evidence.signature, facts)  # 2
        check_document(checks, request, facts, document)  # 3
        name = check_place(checks, facts)  # 4
        check_subscription(checks, name, document)
        machine = await self._machine(checks, name, document.vm_id)  # 5
        check_machine(checks, machine, document, parse_policy(facts.settings))
        check_pin(checks, machine, facts)
        return AttestedNode(
            provider=protocol.PROVIDER,
            provider_id=request.csr.provider_id,
            proven_node_name=NodeName(machine.computer_name) if is_dns_name(machine.computer_name) else None,
            fingerprints={FINGERPRINT: machine.vm_id},
            checks=checks.record(),
        )

    def _check_document(self, checks: Checks, signature: bytes, facts: Facts) -> protocol.AttestedDocument:
        """Read the document and hold its signer to the cloud.

        1. A well-formed message, which holds the certificate of its one signer.
        2. That certificate's key signed the content.
        3. Its names are the cloud's metadata service's, it is for TLS servers, and it chains to a trusted authority.
        4. The content is an attested document.
        """
        rules = Rules(checks, "RFC 5652 §5", Reason.PLATFORM_DOCUMENT_SIGNATURE_INVALID, _RENEW)
        # 1
        signed = rules.parsed("signed document", lambda: cms.parse(signature, limit=protocol.MAX_SIGNATURE))
        signers = [each for each in signed.certificates if signed.signer.is_named_by(each)]
        rules.require(len(signers) == 1, "signer's certificate", "one, embedded", str(len(signers)))
        # 2
        signer = signers[0]
        rules.require(signed.signed_by(signer), "signature", "one over this content", "another")
        # 3
        domain = self._configuration.cloud.signer
        foreign = foreign_name(signer, domain)
        rules.require(foreign is None, "signer's names", f"{domain}, or names below it", foreign or "")
        if self._authorities is None:
            raise nobody_trusted("Azure's attested documents", TRUST_BUNDLE, "docs/providers/azure.md")
        problem = signer_problem(signer, signed.certificates, self._authorities, facts.verified_at)
        rules.require(problem is None, "certificate chain", "one to a trusted root", problem or "")
        # 4
        return check_parsed(
            checks, "attested document", SECTION, lambda: protocol.parse_attested_document(signed.content)
        )

    async def _machine(self, checks: Checks, name: protocol.InstanceRef, vm_id: str | None) -> Machine:
        if not self._may_call:
            raise offline("Azure's Resource Manager")
        rules = page_rules(checks, Reason.PLATFORM_INSTANCE_NOT_FOUND, _MAY_READ)
        machine = await self._machines.find(name, vm_id=vm_id)
        return rules.present(machine, "machine", "one that Azure's Resource Manager lists")
