"""What a fuzz target is: a parser, and a law about its values that any bytes must keep.

A refusal that the parser declares is no value. Every other exception, a broken promise, and time or memory beyond the
runner's bounds are findings. The seeds of a target are in ``tests/vectors/fuzz/<name>``.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Final, Protocol, TypeVar

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from nodeattest_kube.answers import parse_json
from nodeattest_providers import canonical_json
from nodeattest_providers.errors import Denied, Reason
from nodeattest_providers.node_interface import JsonObject, JsonValue

NODE_KEY: Final = ec.derive_private_key(0xC0FFEE, ec.SECP256R1())
"""The same as that of the published vectors."""
AUTHORITY_KEY: Final = ec.derive_private_key(0xCA, ec.SECP256R1())
TPM_KEY: Final = ec.derive_private_key(0xE4, ec.SECP256R1())
"""An endorsement key."""
NOW: Final = datetime(2026, 6, 1, tzinfo=UTC)
_BEGIN: Final = datetime(2026, 1, 1, tzinfo=UTC)
_END: Final = datetime(2036, 1, 1, tzinfo=UTC)


def certificate(
    subject: list[tuple[x509.ObjectIdentifier, str]],
    key: ec.EllipticCurvePublicKey,
    *extensions: tuple[x509.ExtensionType, bool],
) -> x509.Certificate:
    """Make a certificate of the fixed authority."""
    name = x509.Name([x509.NameAttribute(kind, value) for kind, value in subject])
    builder = x509.CertificateBuilder().subject_name(name).issuer_name(_ISSUER).public_key(key)
    builder = builder.serial_number(7).not_valid_before(_BEGIN).not_valid_after(_END)
    for extension, critical in extensions:
        builder = builder.add_extension(extension, critical=critical)
    return builder.sign(AUTHORITY_KEY, hashes.SHA256(), ecdsa_deterministic=True)


@cache
def authority() -> x509.Certificate:
    """Return the authority's own certificate."""
    usages = {name: name in {"key_cert_sign", "crl_sign"} for name in USAGES}
    key = AUTHORITY_KEY.public_key()
    return certificate(
        [(NameOID.COMMON_NAME, "authority")],
        key,
        (x509.BasicConstraints(ca=True, path_length=None), True),
        (x509.KeyUsage(**usages), True),
        (x509.SubjectKeyIdentifier.from_public_key(key), False),
        (x509.AuthorityKeyIdentifier.from_issuer_public_key(key), False),
    )


@cache
def kubelets_certificate() -> x509.Certificate:
    """Return a client certificate of the node ``node-0``."""
    subject = [(NameOID.ORGANIZATION_NAME, "system:nodes"), (NameOID.COMMON_NAME, "system:node:node-0")]
    usage = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.CLIENT_AUTH])
    return certificate(subject, NODE_KEY.public_key(), (usage, True))


def pem_of(found: x509.Certificate) -> bytes:
    """Write a certificate as PEM."""
    return found.public_bytes(Encoding.PEM)


def key_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    """Write a private key as PEM."""
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


_ISSUER: Final = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "authority")])
USAGES: Final = (
    *("digital_signature", "content_commitment", "key_encipherment", "data_encipherment", "key_agreement"),
    *("key_cert_sign", "crl_sign", "encipher_only", "decipher_only"),
)


T = TypeVar("T")
Law = Callable[[bytes], bool]
Plain = Callable[[bytes, int], bytes]
"""libFuzzer's own mutation of bytes, to at most so many."""
_LONGEST_MESSAGE: Final = 2048
"""Characters of a refusal of foreign bytes: it goes into conditions, Events and logs."""


class BrokenLawError(Exception):
    """A parser gave a value, but not the one that it promises."""


@dataclass(frozen=True, slots=True)
class Target:
    """One parser under its law, which says whether the parser gave a value."""

    name: str
    law: Law
    max_len: int
    """Bytes of an input."""


TARGETS: Final[dict[str, Target]] = {}
"""Every target by its name; ``catalogue`` imports the modules that fill it."""


def require(kept: bool, promise: str) -> None:
    """Raise ``BrokenLawError`` unless the promise is kept."""
    if not kept:
        raise BrokenLawError(promise)


def target(
    name: str,
    parse: Callable[[bytes], T],
    *reasons: Reason,
    refusals: tuple[type[Exception], ...] = (Denied,),
    max_len: int = 4096,
) -> Callable[[Callable[[T, bytes], object]], None]:
    """Declare a target; the decorated function checks the value of some bytes, and returns False if it is of no use.

    ``refusals``: exceptions by which ``parse`` may refuse. ``reasons``: those that its ``Denied`` may have; none: any.
    """

    def declare(check: Callable[[T, bytes], object]) -> None:
        def law(data: bytes) -> bool:
            try:
                value = parse(data)
            except refusals as refusal:
                refused(refusal, *reasons)
                return False
            return check(value, data) is not False

        TARGETS[name] = Target(name, law, max_len)

    return declare


def refused(refusal: Exception, *reasons: Reason) -> None:
    """Hold a refusal to a few words, and to the parser's own reasons where they are given."""
    require(len(str(refusal)) <= _LONGEST_MESSAGE, "a refusal of a few words")
    if reasons and isinstance(refusal, Denied):
        require(refusal.reason in reasons, f"{' or '.join(reasons)} and no other reason")


def attempt(parse: Callable[[T], object], value: T, *reasons: Reason) -> bool:
    """Return whether a parser accepts a value; it may refuse it."""
    try:
        parse(value)
    except Denied as denied:
        refused(denied, *reasons)
        return False
    return True


def text_of(data: bytes) -> str:
    """Read any bytes as text."""
    return data.decode(errors="surrogateescape")


def settings_target(
    name: str,
    parse: Callable[[Mapping[str, JsonValue]], object],
    *,
    skipped: frozenset[str] = frozenset(),
    max_len: int = 4096,
) -> None:
    """Declare a provider's settings: a value, or ``PolicyInvalid``; objects with ``skipped`` keys are not tried."""

    def read(settings: JsonObject, _data: bytes) -> bool:
        return not skipped & settings.keys() and attempt(parse, settings, Reason.POLICY_INVALID)

    target(name, parse_json, refusals=(ValueError,), max_len=max_len)(read)  # fractions, too: they must do no harm


def text_target(
    name: str, parse: Callable[[str], T], spell: Callable[[T], str], reason: Reason, *, max_len: int = 4096
) -> None:
    """Declare a text that has one spelling."""
    target(name, lambda data: parse(text_of(data)), reason, max_len=max_len)(
        lambda value, data: require(spell(value) == text_of(data), "one spelling")
    )


class Written(Protocol):
    """Evidence that can be written again."""

    def to_json(self) -> JsonObject:
        """Write the object."""
        ...


def evidence_target(name: str, parse: Callable[[JsonObject], Written], *, max_len: int = 4096) -> None:
    """Declare evidence, which has one spelling."""
    read: Callable[[bytes], Written] = lambda data: parse(canonical_json.loads(data))  # noqa: E731 - it has a type here
    target(name, read, Reason.EVIDENCE_MALFORMED, max_len=max_len)(
        lambda value, data: require(canonical_json.dumps(value.to_json()) == data, "one spelling of evidence")
    )


def by_file(read: Callable[[Path], T]) -> Callable[[bytes], T]:
    """Make a parser of bytes out of a reader of a file."""

    def parse(data: bytes) -> T:
        with tempfile.NamedTemporaryFile() as file:
            file.write(data)
            file.flush()
            return read(Path(file.name))

    return parse
