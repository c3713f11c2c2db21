"""The ``azure`` provider's verifier: a document that Azure signed for this machine and this request.

Source: docs/wire-format.md, "azure/v1"; docs/providers/azure.md.
"""

from __future__ import annotations

from typing import Final

from nodeattest_providers import cms
from nodeattest_providers.azure.api import Machine, Machines, ResourceManager, Tokens
from nodeattest_providers.azure.checks import (
    FINGERPRINT,
    SECTION,
    TRUST_BUNDLE,
    check_document,
    check_machine,
    check_pin,
    check_place,
    check_subscription,
    foreign_name,
    page_rules,
    parse_bundle,
    signer_problem,
)
from nodeattest_providers.azure.config import AzurePlatform, parse_platform, parse_policy
from nodeattest_providers.azure.protocol import (
    MAX_SIGNATURE,
    PROVIDER,
    VERSION,
    AttestedDocument,
    InstanceRef,
    parse_attested_document,
    parse_evidence,
)
from nodeattest_providers.checks import Checks, Rules, check_block, check_parsed
from nodeattest_providers.errors import Reason, platform_unavailable
from nodeattest_providers.identifiers import NodeName, is_dns_name
from nodeattest_providers.platform import Platform, read_file
from nodeattest_providers.verifier_interface import (
    Addresses,
    AttestedNode,
    BootState,
    CheckedSigner,
    Facts,
    NodeRequest,
)

_RENEW: Final = "if Azure changed its authorities, renew platforms.azure.trustBundle (docs/providers/azure.md)"
_MAY_READ: Final = "compare the Machine's spec.providerID with Azure; the controller's identity must be able to read it"


class AzureSigner(CheckedSigner):
    """Verifies attested documents."""

    provider = PROVIDER
    versions: tuple[int, ...] = (VERSION,)
    read_section = staticmethod(parse_policy)
    takes_platform = True
    tells_addresses = True
    reads_infrastructure = False

    def __init__(self, *, platform: Platform) -> None:
        """Read the configuration and the trust bundle; ``Denied`` when they cannot be used."""
        self._configuration: AzurePlatform = parse_platform(platform.settings)
        path = self._configuration.trust_bundle
        self._authorities = None if path is None else parse_bundle(read_file(path, TRUST_BUNDLE))
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
        """Hold the machine's subscription and resource group to the settings; raises Denied."""
        del boot
        check_place(Checks(), facts)
        return ("Azure's Resource Manager is not asked: machine, tags and location",)

    async def aclose(self) -> None:
        """Close connections."""
        await self._machines.aclose()

    async def _verify(self, checks: Checks, request: NodeRequest, facts: Facts) -> AttestedNode:
        """Verify one request.

        1. Evidence of this provider, a known version, a closed schema.
        2. The document is signed, by somebody whom this cloud's authorities call its metadata service.
        3. It is for this request, cluster and signer, and was made at its time.
        4. The provider ID names a machine of a subscription and group that the policy lists, and of the document's.
        5. Azure's Resource Manager has this very machine, as the policy wants it, and the ledger pins no other.
        """
        check_block(checks, request.evidence, PROVIDER, (VERSION,))  # 1
        evidence = check_parsed(checks, "evidence schema", SECTION, lambda: parse_evidence(request.evidence.data))
        document = self._check_document(checks, evidence.signature, facts)  # 2
        check_document(checks, request, facts, document)  # 3
        name = check_place(checks, facts)  # 4
        check_subscription(checks, name, document)
        machine = await self._machine(checks, name, document.vm_id)  # 5
        check_machine(checks, machine, document, parse_policy(facts.settings))
        check_pin(checks, machine, facts)
        return AttestedNode(
            provider=PROVIDER,
            provider_id=request.csr.provider_id,
            proven_node_name=NodeName(machine.computer_name) if is_dns_name(machine.computer_name) else None,
            fingerprints={FINGERPRINT: machine.vm_id},
            checks=checks.record(),
        )

    def _check_document(self, checks: Checks, signature: bytes, facts: Facts) -> AttestedDocument:
        """Read the document and hold its signer to the cloud.

        1. A well-formed message, which holds the certificate of its one signer.
        2. That certificate's key signed the content.
        3. Its names are the cloud's metadata service's, it is for TLS servers, and it chains to a trusted authority.
        4. The content is an attested document.
        """
        rules = Rules(checks, "RFC 5652 §5", Reason.PLATFORM_DOCUMENT_SIGNATURE_INVALID, _RENEW)
        # 1
        signed = rules.parsed("signed document", lambda: cms.parse(signature, limit=MAX_SIGNATURE))
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
            raise platform_unavailable(
                "nobody is trusted to sign Azure's attested documents: no platforms.azure.trustBundle",
                remedy="set platforms.azure.trustBundle in the controller's configuration (docs/providers/azure.md)",
                retry_after=60.0,
            )
        problem = signer_problem(signer, signed.certificates, self._authorities, facts.verified_at)
        rules.require(problem is None, "certificate chain", "one to a trusted root", problem or "")
        # 4
        return check_parsed(checks, "attested document", SECTION, lambda: parse_attested_document(signed.content))

    async def _machine(self, checks: Checks, name: InstanceRef, vm_id: str | None) -> Machine:
        if not self._may_call:
            detail = "Azure's Resource Manager is not asked offline"
            raise platform_unavailable(detail, remedy="let the controller verify the request")
        rules = page_rules(checks, Reason.PLATFORM_INSTANCE_NOT_FOUND, _MAY_READ)
        machine = await self._machines.find(name, vm_id=vm_id)
        return rules.present(machine, "machine", "one that Azure's Resource Manager lists")
