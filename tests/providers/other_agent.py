"""Another agent on a node's host, whose attestation key has the shape of ours and which answers whoever asks.

Agents for remote attestation do just that: they activate a credential for a verifier that they do not know, and quote
over the nonce that it sends. Who holds a bootstrap token, and reaches one, has the host's TPM attest a key of his own.
"""

from __future__ import annotations

import hashlib
from dataclasses import replace

from tpm_tss import P384, activate, connected, primary, quote
from tpm_world import CSR, challenge_of, digest_of, request_of

from nodeattest_providers.node_interface import FirstRequestRef
from nodeattest_providers.tpm.key_templates import AK_TEMPLATES
from nodeattest_providers.tpm.protocol import Challenge, FirstEvidence, SecondEvidence, proof, qualifying_data
from nodeattest_providers.tpm.structures import sized
from nodeattest_providers.verifier_interface import Facts, NodeRequest
from nodeattest_sandbox.swtpm import SoftwareTpm

_UNIQUE = sized(hashlib.sha256(b"the key of another agent").digest()) + sized(bytes(32))
OTHERS_TEMPLATE = AK_TEMPLATES[1][: -len(_UNIQUE)] + _UNIQUE
"""Restricted, signing, without dictionary-attack protection, of the endorsement hierarchy: all that ours is in
version 1."""
STRANGER = replace(CSR, der=b"PKCS#10 with the stranger's key", spki=b"SPKI of the stranger's key")


def strangers_first(tpm: SoftwareTpm, *, version: int) -> NodeRequest:
    """Show the host's endorsement key and the other agent's attestation key, for a key of one's own."""
    with connected(tpm.tcti) as esys, primary(esys, P384.creation()) as ek, primary(esys, OTHERS_TEMPLATE) as ak:
        evidence = FirstEvidence(ek_public=ek.public, ak_public=ak.public)
    return request_of(evidence, version=version, csr=STRANGER)


def strangers_answer(tpm: SoftwareTpm, first: NodeRequest, facts: Facts) -> NodeRequest:
    """Let the other agent activate the challenge and quote for the stranger."""
    challenge = Challenge.parse(challenge_of(first, facts).challenge)
    version, binding = challenge.version, digest_of(first)
    with connected(tpm.tcti) as esys, primary(esys, P384.creation()) as ek, primary(esys, OTHERS_TEMPLATE) as ak:
        secret = activate(esys, ek, ak, challenge.blob, challenge.secret)
        extra = qualifying_data(challenge.nonce, first.uid, binding, version=version)
        attest, signature = quote(esys, ak, challenge.pcrs.marshal(), extra)
        values = tuple(bytes(value) for value in esys.pcr_read("sha256:0,7")[2])
    answer = SecondEvidence(
        first=FirstRequestRef(name=first.name, uid=first.uid),
        mac=proof(secret, first.uid, first.csr.sha256, binding, version=version),
        quote=attest,
        signature=signature,
        pcrs=values,
    )
    return request_of(answer, version=version, csr=STRANGER)
