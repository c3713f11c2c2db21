from __future__ import annotations

import dataclasses

import pytest
from worlds import FACTS, PIN, filed

from nodeattest_providers.errors import Denied, Reason
from nodeattest_providers.insecure.attestor import InsecureAttestor
from nodeattest_providers.insecure.verifier import InsecureSigner
from nodeattest_providers.names import ProviderName
from nodeattest_providers.node_interface import Evidence
from nodeattest_providers.null.attestor import NullAttestor
from nodeattest_providers.null.verifier import NullSigner

REQUEST = filed(Evidence(ProviderName("insecure"), 1, {}))
SIGNER = InsecureSigner()


async def test_a_first_join_is_attested_without_proof() -> None:
    evidence = InsecureAttestor({}).attest(REQUEST.binding(PIN))
    attested = await SIGNER.verify_client_attestation_data(filed(evidence), FACTS)
    assert (attested.provider, attested.provider_id) == ("insecure", REQUEST.csr.provider_id)
    assert attested.proven_node_name is None
    assert not attested.fingerprints
    assert attested.checks
    assert not SIGNER.secure
    assert SIGNER.machine_name(REQUEST, attested) is None


@pytest.mark.parametrize(
    ("evidence", "reason"),
    [
        (Evidence(ProviderName("tpm"), 1, {}), Reason.PROVIDER_MISMATCH),
        (Evidence(ProviderName("insecure"), 2, {}), Reason.EVIDENCE_VERSION_UNSUPPORTED),
        (Evidence(ProviderName("insecure"), 1, {"x": 1}), Reason.EVIDENCE_MALFORMED),
    ],
)
async def test_other_evidence_is_denied(evidence: Evidence, reason: Reason) -> None:
    with pytest.raises(Denied) as denied:
        await SIGNER.verify_client_attestation_data(dataclasses.replace(REQUEST, evidence=evidence), FACTS)
    assert denied.value.reason is reason
    assert not denied.value.checks[-1].passed


async def test_rotation_is_denied() -> None:
    with pytest.raises(Denied) as denied:
        await SIGNER.verify_client_attestation_data(dataclasses.replace(REQUEST, username="system:node:n-0"), FACTS)
    assert denied.value.reason is Reason.ROTATION_NOT_ALLOWED


async def test_a_serving_certificate_is_denied() -> None:
    with pytest.raises(Denied) as denied:
        await SIGNER.verify_serving_attestation_data(REQUEST, FACTS)
    assert denied.value.reason is Reason.SERVING_NOT_ALLOWED


def test_a_setting_is_refused() -> None:
    with pytest.raises(Denied) as denied:
        InsecureAttestor({"x": 1})
    assert denied.value.reason is Reason.POLICY_INVALID


async def test_the_rubber_stamp_of_the_tests_allows_all() -> None:
    request = filed(NullAttestor({}).attest(REQUEST.binding(PIN)))
    renewal = dataclasses.replace(request, username="system:node:n-0")
    assert (await NullSigner().verify_client_attestation_data(renewal, FACTS)).checks
    assert (await NullSigner().verify_serving_attestation_data(renewal, FACTS)).checks
    with pytest.raises(Denied):
        await NullSigner().verify_client_attestation_data(REQUEST, FACTS)
