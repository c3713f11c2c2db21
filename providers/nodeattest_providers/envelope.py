"""The envelope: the content of ``spec.request`` of a CertificateSigningRequest.

``decode`` accepts exactly the bytes that ``encode`` writes, in linear time.
Source: docs/wire-format.md, "The envelope"; the proposal's table of PEM labels.
"""

from __future__ import annotations

import re
from typing import Final

from nodeattest_providers import canonical_json, pem
from nodeattest_providers.errors import Denied, Reason
from nodeattest_providers.identifiers import PROVIDER_ID_OID, ProviderName, Purpose
from nodeattest_providers.node_interface import Evidence, NodeCsr
from nodeattest_providers.pkcs10 import parse_csr

LABEL_CSR: Final = "CERTIFICATE REQUEST"
LABEL_PROVIDER: Final = "KUBELET AUTHENTICATOR ATTESTATION PROVIDER"
LABEL_DATA: Final = "KUBELET AUTHENTICATOR ATTESTATION DATA"
LABELS: Final = (LABEL_CSR, LABEL_PROVIDER, LABEL_DATA)

MAX_SIZE: Final = 256 * 1024
"""Bytes of the whole envelope: enough for a server's event log, and well below etcd's limit of 1.5 MiB."""

_OTHER_LABEL: Final = b"-----BEGIN ATTESTATION DATA-----"
"""The proposal's example spells the third label so; its table, which is normative, does not."""
_PROVIDER: Final = re.compile(rb"([a-z0-9](?:[-a-z0-9]{0,61}[a-z0-9])?)/v([1-9][0-9]{0,3})")
"""An RFC 1123 label, since it ends a signer's name, and a version from 1 to 9999."""
_REMEDY: Final = "send the three blocks of docs/wire-format.md; kubelet-authenticator does"


def encode(csr_der: bytes, evidence: Evidence) -> bytes:
    """Write the envelope; ``ValueError`` for what ``decode`` would refuse in provider, version or size."""
    provider = evidence.block.encode()
    if not _PROVIDER.fullmatch(provider):
        raise ValueError("a provider is an RFC 1123 label and its version is from 1 to 9999")
    envelope = pem.encode(zip(LABELS, (csr_der, provider, canonical_json.dumps(evidence.data)), strict=True))
    if len(envelope) > MAX_SIZE:
        raise ValueError(f"an envelope has at most {MAX_SIZE} bytes")
    return envelope


def decode(
    request: bytes, *, purpose: Purpose = Purpose.CLIENT, provider_id_oid: str = PROVIDER_ID_OID
) -> tuple[NodeCsr, Evidence]:
    """Read the envelope.

    1. At most ``MAX_SIZE`` bytes.
    2. The three blocks in their canonical spelling, nothing around them.
    3. The provider and the version of its evidence.
    4. The evidence is one canonical JSON object.
    5. The certificate request, last because it is the only costly one.
    """
    # 1
    if len(request) > MAX_SIZE:
        raise Denied(
            Reason.ENVELOPE_TOO_LARGE,
            expected=f"at most {MAX_SIZE} bytes",
            got=f"{len(request)} bytes",
            remedy="send less evidence; event logs are the large part",
        )
    # 2
    if _OTHER_LABEL in request:
        raise Denied(
            Reason.ENVELOPE_MALFORMED,
            expected=f"the label {LABEL_DATA}",
            got="the label ATTESTATION DATA",
            remedy=f"label the third block {LABEL_DATA}: the proposal's table is normative, its example is not",
        )
    csr_der, provider, data = pem.decode(request, LABELS)
    # 3
    match = _PROVIDER.fullmatch(provider)
    if match is None:
        raise Denied(
            Reason.ENVELOPE_MALFORMED,
            expected="<provider>/v<version>, such as tpm/v1, in the provider block",
            got=f"other content of {len(provider)} bytes",
            remedy=_REMEDY,
        )
    # 4
    evidence = Evidence(ProviderName(match[1].decode()), int(match[2]), canonical_json.loads(data))
    # 5
    return parse_csr(csr_der, purpose=purpose, provider_id_oid=provider_id_oid), evidence
