"""Another agent on a node's host, whose attestation key has the shape of ours and which answers whoever asks.

Agents for remote attestation do just that: they activate a credential for a verifier that they do not know, and quote
over the nonce that it sends. Who holds a bootstrap token, and reaches one, has the host's TPM attest a key of his own.
"""

from __future__ import annotations

import hashlib
from dataclasses import replace

from tpm_tss import P384, connected, primary
from tpm_world import CSR, UNMARKED_PREFIX, request_of

from nodeattest_providers.tpm.protocol import FirstEvidence
from nodeattest_providers.tpm.structures import sized
from nodeattest_providers.verifier_interface import NodeRequest
from nodeattest_sandbox.swtpm import SoftwareTpm

_UNIQUE = sized(hashlib.sha256(b"the key of another agent").digest()) + sized(bytes(32))
OTHERS_TEMPLATE = UNMARKED_PREFIX + _UNIQUE
"""Restricted, signing, without dictionary-attack protection, of the endorsement hierarchy: ours without the mark."""
STRANGER = replace(CSR, der=b"PKCS#10 with the stranger's key", spki=b"SPKI of the stranger's key")


def strangers_first(tpm: SoftwareTpm) -> NodeRequest:
    """Show the host's endorsement key and the other agent's attestation key, for a key of one's own."""
    with connected(tpm.tcti) as esys, primary(esys, P384.creation()) as ek, primary(esys, OTHERS_TEMPLATE) as ak:
        evidence = FirstEvidence(ek_public=ek.public, ak_public=ak.public)
    return request_of(evidence, csr=STRANGER)
