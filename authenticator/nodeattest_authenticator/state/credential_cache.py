"""The credential file, replaced atomically. ``cache_files`` describes its layout.

It ends with the certificate chain and its key in PEM, so ``openssl x509 -in credential`` reads it.
Out of scope: whether the certificate matches key, node and cluster (``certificate``).
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Final

from nodeattest_authenticator.formats import client_go
from nodeattest_authenticator.state.cache_files import CREDENTIAL_FILE, MAGIC, parse_header
from nodeattest_authenticator.state.storage import Storage

MAX_RESPONSES: Final = 4
"""Exec infos with a stored answer: kubelet's, and a few of operators."""
_BEGIN_KEY: Final = b"-----BEGIN PRIVATE KEY-----"


@dataclass(frozen=True, slots=True, kw_only=True)
class CachedCredential:
    """A certificate with its key. Times are seconds since the epoch."""

    certificate_pem: bytes
    """The chain, leaf first."""
    key_pem: bytes = field(repr=False)
    not_before: int
    renew_at: int
    """When renewal starts. Equals ``not_after`` if the certificate cannot be renewed."""
    not_after: int

    def answer(self, *, expires_at: float | None = None) -> bytes:
        """Render the ExecCredential. client-go keeps it until ``expires_at``, by default until the renewal time."""
        return client_go.render_credential(
            expires_at=self.renew_at if expires_at is None else expires_at,
            certificate_pem=self.certificate_pem,
            key_pem=self.key_pem,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheEntry:
    """The file's content: the credential, its configuration's fingerprint, and stored answers by exec info."""

    credential: CachedCredential
    config_fingerprint: bytes
    responses: tuple[tuple[bytes, bytes], ...] = ()

    def with_response(self, info: bytes) -> CacheEntry:
        """Add the answer for an exec info. The oldest one is dropped at the limit."""
        others = tuple(pair for pair in self.responses if pair[0] != info)[-(MAX_RESPONSES - 1) :]
        return replace(self, responses=(*others, (info, self.credential.answer())))

    def has_response(self, info: bytes) -> bool:
        """Return whether the fast path can answer this exec info."""
        return any(pair[0] == info for pair in self.responses)


def load(storage: Storage) -> CacheEntry | None:
    """Read the file. Return None if it is absent. Raises ``UnsafeFileError``, and ValueError if it is incomplete."""
    data = storage.read(CREDENTIAL_FILE)
    return None if data is None else parse(data)


def parse(data: bytes) -> CacheEntry:
    """Parse the file's content. Raises ValueError."""
    (not_before, renew_at, not_after), config_fingerprint, spans, position = parse_header(data)
    certificate, begin, key = data[position:].partition(_BEGIN_KEY)
    if not begin:
        raise ValueError("no private key in it")
    credential = CachedCredential(
        certificate_pem=certificate,
        key_pem=begin + key,
        not_before=not_before,
        renew_at=renew_at,
        not_after=not_after,
    )
    responses = tuple((data[start:middle], data[middle:end]) for start, middle, end in spans)
    return CacheEntry(credential=credential, config_fingerprint=config_fingerprint, responses=responses)


def save(storage: Storage, cached: CacheEntry) -> None:
    """Replace the file durably. Raises OSError and keeps the old file, for example if the disk is full.

    The caller holds the lock.
    """
    storage.write(CREDENTIAL_FILE, render(cached))


def render(cached: CacheEntry) -> bytes:
    """Serialize the file's content."""
    credential = cached.credential
    body = b"".join(part for pair in cached.responses for part in pair)
    body += credential.certificate_pem + credential.key_pem
    lengths = b"".join(b" %d" % len(part) for pair in cached.responses for part in pair)
    times = b"%d %d %d" % (credential.not_before, credential.renew_at, credential.not_after)
    return _sized(b"%b %b%b\n" % (times, cached.config_fingerprint, lengths), body)


def _sized(rest_of_header: bytes, body: bytes) -> bytes:
    # The header contains the total length, including its own ten digits.
    size = len(MAGIC) + 1 + 10 + 1 + len(rest_of_header) + len(body)
    return b"%b %010d %b%b" % (MAGIC, size, rest_of_header, body)
