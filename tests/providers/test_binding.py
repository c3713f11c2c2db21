"""One binding for all providers: no proof of one is a value of another."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import replace
from itertools import combinations

import pytest
from tpm_world import CSR, OTHER_PIN, PIN, binding_of, sound_round

from nodeattest_providers.binding import Binding, length_prefix
from nodeattest_providers.errors import Denied, Reason
from nodeattest_providers.names import ClusterPin, EvidenceBlock, ProviderName, Purpose, signer_for
from nodeattest_providers.tpm.protocol import proof, qualifying_data

TPM, GCP = ProviderName("tpm"), ProviderName("gcp")
BINDING = Binding(EvidenceBlock("tpm/v1"), PIN, signer_for(TPM, Purpose.CLIENT), CSR.sha256)
OTHERS: Mapping[str, Binding] = {
    "another provider": replace(BINDING, evidence_block=EvidenceBlock("gcp/v1")),
    "another version": replace(BINDING, evidence_block=EvidenceBlock("tpm/v2")),
    "another cluster": replace(BINDING, cluster_pin=OTHER_PIN),
    "another signer": replace(BINDING, signer_name=signer_for(GCP, Purpose.CLIENT)),
    "another purpose": replace(BINDING, signer_name=signer_for(TPM, Purpose.SERVING)),
    "another request": replace(BINDING, csr_sha256=bytes(32)),
    "another border": replace(BINDING, evidence_block=EvidenceBlock("tpm/v"), cluster_pin=ClusterPin("1" + PIN)),
}


def test_the_digest_is_that_of_the_label_and_four_fields() -> None:
    fields = b"tpm/v1", PIN.encode(), BINDING.signer_name.encode(), CSR.sha256
    assert BINDING.digest == hashlib.sha256(length_prefix(b"nodeattest/v1/binding", *fields)).digest()


def test_no_two_bindings_have_one_digest() -> None:
    bindings = (BINDING, *OTHERS.values())
    assert all(one.digest != other.digest for one, other in combinations(bindings, 2))


def test_a_requests_binding_has_its_own_evidence_block() -> None:
    assert binding_of(sound_round().first) == BINDING


@pytest.mark.parametrize("other", OTHERS)
def test_an_answer_over_another_binding_is_denied(other: str) -> None:
    sound, bound = sound_round(), OTHERS[other].digest
    mac = proof(sound.secret, sound.first.uid, CSR.sha256, bound)
    extra = qualifying_data(sound.challenge.nonce, sound.first.uid, bound)
    with pytest.raises(Denied) as denied:
        sound.verify(sound.second(mac=mac, parts=replace(sound.parts, extra=extra)))
    assert denied.value.reason is Reason.CHALLENGE_UNKNOWN
