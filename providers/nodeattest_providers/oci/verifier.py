"""The ``oci`` provider's verifier: the key of an instance's identity certificate signed this very request.

It asks nobody. Out of scope: whether the instance still runs, and revocation. Certificates last about two hours.
Source: docs/wire-format.md, "oci/v1"; docs/providers/oci.md; RFC 5280 §6.1; Oracle, "Resource Identifiers".
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.x509.oid import ExtendedKeyUsageOID

from nodeattest_providers.certificate_chain import chain_problem, extension, leaf_problem
from nodeattest_providers.checks import Checks, Rules, check_block, one_of
from nodeattest_providers.config_fields import Section
from nodeattest_providers.errors import Reason
from nodeattest_providers.identifiers import NodeName, ProviderID, ProviderName, printable
from nodeattest_providers.node_interface import JsonValue
from nodeattest_providers.oci import protocol
from nodeattest_providers.platform import OFFLINE, Platform, nobody_trusted, read_authorities
from nodeattest_providers.verifier_interface import AttestedNode, BootState, CheckedSigner, Facts, NodeRequest

_LISTS: Final = ("tenancies", "compartments")
_TENANCY: Final = re.compile(r"ocid1\.tenancy\.oc[0-9]{1,4}\.[-a-z0-9]{0,30}\.[a-z0-9.]{1,160}")
_COMPARTMENT: Final = re.compile(r"ocid1\.(?:compartment|tenancy)\.oc[0-9]{1,4}\.[-a-z0-9]{0,30}\.[a-z0-9.]{1,160}")
"""A tenancy is its own root compartment."""
TRUST_BUNDLE: Final = "platforms.oci.trustBundle"


@dataclass(frozen=True, slots=True, kw_only=True)
class OciPolicy:
    """Which instances may join."""

    tenancies: frozenset[str] = frozenset()
    compartments: frozenset[str] = frozenset()


def parse_policy(settings: Mapping[str, JsonValue]) -> OciPolicy:
    if not settings:
        return OciPolicy()
    section = Section(settings, "spec.oci", _LISTS, _LISTS)
    return OciPolicy(
        tenancies=section.strings("tenancies", _TENANCY, "OCIDs of tenancies"),
        compartments=section.strings("compartments", _COMPARTMENT, "OCIDs of compartments"),
    )


def parse_platform(settings: Mapping[str, JsonValue]) -> Path | None:
    return Section(settings, "platforms.oci", ("trustBundle",)).path("trustBundle")


_CLIENT: Final = ExtendedKeyUsageOID.CLIENT_AUTH
_OWN: Final = "let the instance that the provider ID names ask for itself"
_ADD_ROOTS: Final = "add the roots of the instance's region to platforms.oci.trustBundle (docs/providers/oci.md)"


class OciSigner(CheckedSigner):
    """Verifies identity certificates of Oracle Cloud instances."""

    provider = protocol.PROVIDER
    versions: tuple[int, ...] = (protocol.VERSION,)
    read_section = staticmethod(parse_policy)
    takes_platform = True
    reads_infrastructure = False

    def __init__(self, *, platform: Platform = OFFLINE) -> None:
        self._roots = read_authorities(parse_platform(platform.settings), TRUST_BUNDLE)

    def check_recorded(self, facts: Facts, boot: BootState | None) -> tuple[str, ...]:
        del boot
        parse_policy(facts.settings)
        return ("tenancy and compartment are not on record: Oracle Cloud's certificate names them",)

    def provable_names(self, sections: Mapping[ProviderName, Mapping[str, JsonValue]]) -> Mapping[ProviderID, NodeName]:
        del sections
        return {}

    async def _verify(self, checks: Checks, request: NodeRequest, facts: Facts) -> AttestedNode:
        """Verify one request.

        1. Evidence of this provider, a known version, a closed schema.
        2. The certificate is an instance's, and chains to a trusted root now.
        3. Its key signed the binding of this request, cluster and signer.
        4. It is the instance of the Machine's provider ID, and of a tenancy and compartment that the policy lists.
        """
        rules = Rules(checks, "wire format, oci/v1", Reason.PLATFORM_INSTANCE_MISMATCH, _OWN)
        # 1
        check_block(checks, request.evidence, protocol.PROVIDER, self.versions)
        evidence = rules.parsed("evidence schema", lambda: protocol.OciEvidence.parse(request.evidence.data))
        # 2
        identity = rules.parsed(
            "identity certificate", lambda: protocol.parse_identity_certificate(evidence.certificate)
        )
        self._check_issuer(checks, identity.certificate, evidence.intermediates, facts)
        # 3
        messages = [protocol.message(request.binding(pin).digest) for pin in facts.cluster.first_pins]
        rules.require(
            any(_is_signed(identity, evidence.signature, each) for each in messages),
            "signed by the instance",
            "a signature by the certificate's key over this request, cluster and signer",
            "another",
            reason=Reason.PLATFORM_PROOF_NOT_BOUND,
            remedy="file a new request; if this comes back, the node trusts another cluster CA than the cluster has",
        )
        # 4
        wanted = rules.parsed("provider ID", lambda: protocol.parse_provider_id(facts.machine.provider_id))
        rules.equal("instance", wanted, identity.instance)
        policy = parse_policy(facts.settings)
        listed = Rules(checks, "providers/oci", Reason.PLATFORM_ACCOUNT_NOT_ALLOWED, "add it to spec.oci of the policy")
        for name, allowed, got in (
            ("tenancy", policy.tenancies, identity.tenancy),
            ("compartment", policy.compartments, identity.compartment),
        ):
            listed.require(got in allowed, name, one_of(allowed, f"OCIDs in spec.oci ({name})"), printable(got, 200))
        return AttestedNode(
            provider=protocol.PROVIDER,
            provider_id=facts.machine.provider_id,
            fingerprints={"instance": identity.instance},
            checks=checks.record(),
        )

    def _check_issuer(
        self, checks: Checks, certificate: x509.Certificate, intermediates: tuple[bytes, ...], facts: Facts
    ) -> None:
        if self._roots is None:
            raise nobody_trusted("certificates of Oracle Cloud's instances", TRUST_BUNDLE, "docs/providers/oci.md")
        rules = Rules(checks, "RFC 5280 §6.1", Reason.PLATFORM_DOCUMENT_SIGNATURE_INVALID, _ADD_ROOTS)
        purposes = extension(certificate, x509.ExtendedKeyUsage)
        is_client = purposes is None or _CLIENT in purposes
        rules.require(is_client, "extended key usage", "clientAuth, or no extended key usage", "others")
        problem = leaf_problem(certificate) or chain_problem(
            certificate, intermediates, self._roots, facts.verified_at, _CLIENT
        )
        rules.require(problem is None, "certificate chain", "one to a trusted root", problem or "")


def _is_signed(identity: protocol.IdentityCertificate, signature: bytes, text: bytes) -> bool:
    try:
        identity.key.verify(signature, text, protocol.PADDING, protocol.HASH)
    except InvalidSignature:
        return False
    return True
