"""Challenge and response over two CSRs: what every two-step provider shares.

Everything between the rounds is derived again from immutable fields (UID, creation time, spec), so no state is kept and
any replica can finish what another began.
Source: docs/wire-format.md, "Two steps", §3 (steps 10, 11), §4 (8, 11, 14, 15, 17).
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from datetime import timedelta
from typing import TYPE_CHECKING, Final

from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from nodeattest_providers.binding import length_prefix
from nodeattest_providers.canonical_json import Fields
from nodeattest_providers.errors import Denied, Reason, Unavailable
from nodeattest_providers.identifiers import is_dns_name, printable
from nodeattest_providers.node_interface import FirstRequestRef, SecretBytes

if TYPE_CHECKING:  # the node has no use for them
    from nodeattest_providers.checks import Checks
    from nodeattest_providers.verifier_interface import Facts, NodeRequest

MAX_NAME: Final = 253
MAX_UID: Final = 64
"""Characters; a UID is an RFC 4122 UUID (apimachinery pkg/types/uid.go)."""
_UID: Final = re.compile(r"[0-9A-Za-z-]+", re.ASCII)


def parse_first_request_ref(fields: Fields) -> FirstRequestRef:
    """Read ``{"name", "uid"}``; the name becomes part of a URL, so it is a DNS name as our agent writes them."""
    name, uid = fields.text("name", 1, MAX_NAME), fields.text("uid", 1, MAX_UID)
    if not is_dns_name(name) or _UID.fullmatch(uid) is None:
        raise Denied(
            Reason.EVIDENCE_MALFORMED,
            expected="the first request's name (RFC 1123 subdomain) and UID",
            got=f"{printable(name)} and {printable(uid)}",
            remedy="file the request with the agent, which names its requests so",
        )
    return FirstRequestRef(name=name, uid=uid)


CHALLENGE_TTL: Final = timedelta(seconds=300)
"""From the first request's creation to the second's, both by the API server's clock."""
CLOCK_SKEW: Final = timedelta(seconds=30)
"""How much earlier than the first the second request may seem, when two API servers' clocks differ."""
LABEL_NONCE: Final = b"nodeattest/v1/nonce"
"""The label of the nonce N, which the challenge shows."""
LABEL_SECRET: Final = b"nodeattest/v1/secret"
"""The label of the secret S, which only the node's TPM can decrypt."""

_DERIVED_SIZE: Final = 32
"""Bytes; TPM2_MakeCredential takes at most the nameAlg's digest size."""

_SECTION: Final = "wire format, Two steps"
_START_OVER: Final = "file a new first request and answer its own challenge"


def challenge_context(facts: Facts, first: NodeRequest, *extra: bytes) -> bytes:
    """Fix what a challenge is for: cluster, first request, requester, the provider's ``extra`` fields, machine, time.

    For ``tpm`` the extras are the attestation key's Name and the SHA-256 of the endorsement key's SPKI.
    """
    return length_prefix(
        facts.cluster.uid.encode(),
        first.uid.encode(),
        hashlib.sha256(first.request).digest(),
        first.username.encode(),
        *extra,
        facts.machine.uid.encode(),
        str(int(first.created.timestamp())).encode(),
    )


def derive(label: bytes, key: SecretBytes, ctx: bytes) -> bytes:
    """Derive the 32 bytes of one purpose from a master key: HKDF-SHA256 without salt, info ``lp(label) || ctx``."""
    return HKDF(algorithm=SHA256(), length=_DERIVED_SIZE, salt=None, info=length_prefix(label) + ctx).derive(
        key.reveal()
    )


def master_keys(facts: Facts) -> tuple[SecretBytes, ...]:
    """Return the challenge master keys, newest first and never none; ``Unavailable`` while there is none."""
    if not facts.challenge_keys:
        raise Unavailable(
            Reason.API_UNAVAILABLE,
            "no challenge master key is loaded",
            remedy="wait; an operator checks the controller's challenge key Secret if this stays",
        )
    return facts.challenge_keys


def check_first_request(checks: Checks, request: NodeRequest, facts: Facts, ref: FirstRequestRef) -> NodeRequest:
    """Link the second request to the live first one that it names, and return that.

    1. The first request exists, under the claimed name and UID.
    2. The same requester (username and groups; ``uid`` and ``extra`` change with the credential, §4.17) asked the
       same signer, with the same evidence provider and version.
    3. Both carry the same PKCS#10 bytes, hence the same key, subject and provider ID (§4.11).
    4. The answer is fresh: created at most ``CHALLENGE_TTL`` after the first and not before it but for ``CLOCK_SKEW``.
    """
    # 1
    first = checks.present(
        facts.first_request,
        "first request exists",
        section=_SECTION,
        reason=Reason.FIRST_REQUEST_MISSING,
        expected="the first request that the evidence names",
        got="no such request" if facts.first_request is None else "one request",
        remedy=_START_OVER,
    )
    for name, expected, got, same in _link_rules(request, first, ref):
        checks.require(
            same,
            name,
            section=_SECTION,
            reason=Reason.FIRST_REQUEST_MISMATCH,
            expected=expected,
            got=got,
            remedy=_START_OVER,
        )
    _check_fresh(checks, request, first)
    return first


def _link_rules(request: NodeRequest, first: NodeRequest, ref: FirstRequestRef) -> Iterator[tuple[str, str, str, bool]]:
    """List name, expected, got and outcome of each rule, in order."""
    # 1
    yield "first request name", ref.name, first.name, ref.name == first.name
    yield "first request uid", ref.uid, first.uid, ref.uid == first.uid
    yield "two requests", "another request than the first", request.uid, request.uid != first.uid
    # 2
    yield "same username", first.username, request.username, first.username == request.username
    groups = sorted(first.groups), sorted(request.groups)
    yield "same groups", ", ".join(groups[0]), ", ".join(groups[1]), groups[0] == groups[1]
    yield "same signer", first.signer_name, request.signer_name, first.signer_name == request.signer_name
    blocks = first.evidence.block, request.evidence.block
    yield "same provider", blocks[0], blocks[1], blocks[0] == blocks[1]
    # 3
    yield "same PKCS#10 bytes", first.csr.sha256.hex(), request.csr.sha256.hex(), first.csr.der == request.csr.der


def _check_fresh(checks: Checks, request: NodeRequest, first: NodeRequest) -> None:
    # 4
    age = request.created - first.created
    checks.require(
        -CLOCK_SKEW <= age <= CHALLENGE_TTL,
        "challenge answered in time",
        section=_SECTION,
        reason=Reason.CHALLENGE_EXPIRED,
        expected=f"{-CLOCK_SKEW.total_seconds():.0f} to {CHALLENGE_TTL.total_seconds():.0f} s after the first request",
        got=f"{age.total_seconds():.0f} s",
        remedy=_START_OVER,
    )
