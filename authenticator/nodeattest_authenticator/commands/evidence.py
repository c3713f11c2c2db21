"""Shows the evidence that this machine would send, and the endorsement key's fingerprint for registration.

The PKCS#10 request is over a key that is discarded, so nobody can use the output to join.
"""

from __future__ import annotations

import hashlib

from nodeattest_authenticator import certificate
from nodeattest_authenticator.config.settings import Settings
from nodeattest_authenticator.enrollment import provider_id
from nodeattest_authenticator.enrollment.enroll import CertificateSpec, new_pending_request
from nodeattest_authenticator.enrollment.issue import attestor_of
from nodeattest_authenticator.enrollment.provider_id import parts_of
from nodeattest_authenticator.errors import attestation_unavailable
from nodeattest_providers.errors import Denied, Unavailable
from nodeattest_providers.identifiers import evidence_block
from nodeattest_providers.node_interface import Attestor, Binding, JsonObject


def evidence(settings: Settings) -> JsonObject:
    """Return the evidence of a first request. Raises ``AgentError``."""
    with attestor_of(settings.provider, settings.provider_settings) as attestor:
        spec = CertificateSpec(
            node_name=settings.node_name,
            provider_id=provider_id.resolve(settings.provider_id, attestor),  # None: the controller tells it
            signer=settings.signer,
            ca_pem=settings.ca_pem,
            pin=certificate.select_ca_pin(settings.ca_pem),
        )
        pending = new_pending_request(spec, version=attestor.versions[0])
        try:
            block = evidence_block(attestor.provider, attestor.versions[0])
            made = attestor.attest(Binding(block, spec.pin, spec.signer, hashlib.sha256(pending.csr_der).digest()))
        except (Denied, Unavailable) as error:
            raise attestation_unavailable(error) from None
        document: JsonObject = {
            "node": spec.node_name,
            "providerID": spec.provider_id,
            "signer": spec.signer,
            "clusterPin": spec.pin,
            "provider": made.block,
            "data": made.data,
        }
        return fingerprint(attestor) | document


def fingerprint(attestor: Attestor) -> JsonObject:
    """Return the endorsement key's fingerprint and the provider ID, as far as the provider knows them.

    Raises ``AgentError``.
    """
    found: JsonObject = {}
    try:
        for part in parts_of(attestor):
            if "endorsementFingerprint" not in found and (key := part.endorsement_fingerprint()) is not None:
                found["endorsementFingerprint"] = key
        for part in parts_of(attestor):
            if "providerID" not in found and (machine := part.provider_id()) is not None:
                found["providerID"] = machine
    except (Denied, Unavailable) as error:
        raise attestation_unavailable(error) from None
    return found
