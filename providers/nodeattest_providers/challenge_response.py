"""Challenge and response over two CSRs: what every two-step provider shares.

Everything between the rounds is derived again from immutable fields (UID, creation time, spec), so no state is kept and
any replica can finish what another began.
Source: docs/wire-format.md, "Two steps", §3 (steps 10, 11), §4.4 to §4.7.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Collection, Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Final

from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from nodeattest_providers import canonical_json
from nodeattest_providers.canonical_json import Fields
from nodeattest_providers.errors import Denied, Reason, Unavailable
from nodeattest_providers.identifiers import is_dns_name, printable
from nodeattest_providers.node_interface import (
    Binding,
    FirstRequestRef,
    JsonObject,
    JsonValue,
    PublishedChallenge,
    SecretBytes,
    length_prefix,
)

if TYPE_CHECKING:  # the node has no use for them
    from nodeattest_providers.checks import Checks
    from nodeattest_providers.verifier_interface import Facts, NodeRequest

MAX_NAME: Final = 253
MAX_UID: Final = 64
"""Characters; a UID is an RFC 4122 UUID (apimachinery pkg/types/uid.go)."""
_UID: Final = re.compile(r"[0-9A-Za-z-]+", re.ASCII)


def phase_fields(
    data: JsonObject, form: str, required: Mapping[int, Collection[str]], optional: Mapping[int, Collection[str]]
) -> tuple[int, Fields]:
    """Read the phase of evidence, and its fields by that phase's closed schema; ``form`` names the provider."""
    phase = data.get("phase")
    if not isinstance(phase, int) or isinstance(phase, bool) or phase not in required:
        raise Denied(
            Reason.EVIDENCE_MALFORMED,
            expected=f"{form}: phase {' or '.join(map(str, required))}",
            got="another phase or none",
            remedy="send evidence as docs/wire-format.md says",
        )
    return phase, Fields.of(data, f"{form} phase {phase}", ("phase", *required[phase]), optional.get(phase, ()))


def parse_challenge(text: str) -> JsonValue:
    """Read the value of a challenge annotation.

    A str may hold lone surrogates, which have no UTF-8: what replaces them here is no UTF-8 either.
    """
    return canonical_json.loads(text.encode(errors="surrogatepass"))


def check_own(binding: Binding, published: PublishedChallenge, *others: tuple[str, bool]) -> None:
    """Refuse a challenge that is not for this node's own first request: to answer it would make the node an oracle.

    ``others`` are further rules: what the challenge must be for, and whether it is.
    """
    for expected, is_own in (("PKCS#10 request", published.csr_sha256 == binding.csr_sha256), *others):
        if not is_own:
            raise Denied(
                Reason.CHALLENGE_UNKNOWN,
                expected=f"a challenge for this node's own first request: its {expected}",
                got="a challenge for another",
                remedy="wait for the controller to publish the challenge again, or file a new first request",
            )


def ref_to_json(first: FirstRequestRef) -> JsonObject:
    return {"name": first.name, "uid": first.uid}


def parse_first_request_ref(evidence: Fields) -> FirstRequestRef:
    """Read ``first`` of the evidence; the name becomes part of a URL, so it is a DNS name as our agent writes them."""
    fields = evidence.nested("first", ("name", "uid"))
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
LABEL_SECRET: Final = b"nodeattest/v1/secret"
"""The label of the secret S, which only the node's TPM can decrypt."""

_DERIVED_SIZE: Final = 32
"""Bytes; TPM2_MakeCredential takes at most the nameAlg's digest size."""

_SECTION: Final = "wire format, Two steps"


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
    2. The same requester (username and groups; ``uid`` and ``extra`` change with the credential) asked the
       same signer, with the same evidence provider and version.
    3. Both carry the same PKCS#10 bytes, hence the same key, subject and provider ID (§4.5).
    4. The answer is fresh: created at most ``CHALLENGE_TTL`` after the first and not before it but for ``CLOCK_SKEW``.
    """
    from nodeattest_providers.checks import Rules

    rules = Rules(
        checks, _SECTION, Reason.FIRST_REQUEST_MISMATCH, "file a new first request and answer its own challenge"
    )
    # 1
    named = "the first request that the evidence names"
    first = rules.present(facts.first_request, "first request exists", named, reason=Reason.FIRST_REQUEST_MISSING)
    rules.equal("first request name", ref.name, first.name)
    rules.equal("first request uid", ref.uid, first.uid)
    rules.require(request.uid != first.uid, "two requests", "another request than the first", request.uid)
    # 2
    rules.equal("same username", first.username, request.username)
    groups = [", ".join(sorted(each.groups)) for each in (first, request)]
    rules.require(first.groups == request.groups, "same groups", *groups)
    rules.equal("same signer", first.signer_name, request.signer_name)
    rules.equal("same provider", first.evidence.block, request.evidence.block)
    # 3
    digests = first.csr.sha256.hex(), request.csr.sha256.hex()
    rules.require(first.csr.der == request.csr.der, "same PKCS#10 bytes", *digests)
    # 4
    age = request.created - first.created
    rules.require(
        -CLOCK_SKEW <= age <= CHALLENGE_TTL,
        "challenge answered in time",
        f"{-CLOCK_SKEW.total_seconds():.0f} to {CHALLENGE_TTL.total_seconds():.0f} s after the first request",
        f"{age.total_seconds():.0f} s",
        reason=Reason.CHALLENGE_EXPIRED,
    )
    return first
