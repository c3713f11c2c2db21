"""The credential on disk: one file, replaced atomically, laid out so that the fast path needs no parser.

Layout: see ``cache_files``. The PEM record at the end holds the certificate (chain, leaf first) and its key:
``openssl x509 -in credential`` reads it. Promises: what ``load`` returns was written whole by us and is private; leaves
to ``certificate`` whether it fits key, node and cluster.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Final

from nodeattest_authenticator.formats import exec_credential
from nodeattest_authenticator.state.cache_files import CREDENTIAL_FILE, MAGIC, is_time_valid, parse_header
from nodeattest_authenticator.state.storage import Storage

MAX_RESPONSES: Final = 4
"""Different exec infos that are remembered: kubelet's, and a few of a person's."""
_BEGIN_KEY: Final = b"-----BEGIN PRIVATE KEY-----"


@dataclass(frozen=True, slots=True, kw_only=True)
class CachedCredential:
    """A certificate with its key. Times are seconds since the epoch."""

    certificate_pem: bytes
    """The leaf, then any intermediates."""
    key_pem: bytes = field(repr=False)
    not_before: int
    renew_at: int
    """From here on a new one is wanted; equals ``not_after`` when there is no renewal."""
    not_after: int

    def is_valid(self, now: float) -> bool:
        """Whether its times admit it now."""
        return is_time_valid(self.not_before, self.not_after, now)

    def answer(self, *, expires_at: float | None = None) -> bytes:
        """Write the ExecCredential; client-go keeps it until the renewal moment unless another moment is given."""
        return exec_credential.render(
            expires_at=self.renew_at if expires_at is None else expires_at,
            certificate_pem=self.certificate_pem,
            key_pem=self.key_pem,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheEntry:
    """The file's content: the credential, the configuration it was made under, and ready answers by exec info."""

    credential: CachedCredential
    config_fingerprint: bytes
    responses: tuple[tuple[bytes, bytes], ...] = ()

    def with_response(self, info: bytes) -> CacheEntry:
        """Add the ready answer for an exec info, the oldest giving way."""
        others = tuple(pair for pair in self.responses if pair[0] != info)[-(MAX_RESPONSES - 1) :]
        return replace(self, responses=(*others, (info, self.credential.answer())))

    def has_response(self, info: bytes) -> bool:
        """Whether the fast path can serve this exec info."""
        return any(pair[0] == info for pair in self.responses)


def load(storage: Storage) -> CacheEntry | None:
    """Read the file; None when it is absent. Raises ``UnsafeFileError``, and ValueError when it is not whole."""
    data = storage.read(CREDENTIAL_FILE)
    return None if data is None else parse(data)


def parse(data: bytes) -> CacheEntry:
    """Read what ``render`` wrote; raises ValueError for anything that is not whole."""
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
    """Replace the file durably; raises OSError (a full disk) and leaves the old one then. Hold the lock."""
    storage.write(CREDENTIAL_FILE, render(cached))


def render(cached: CacheEntry) -> bytes:
    """Write the file's content."""
    credential = cached.credential
    body = b"".join(part for pair in cached.responses for part in pair)
    body += credential.certificate_pem + credential.key_pem
    lengths = b"".join(b" %d" % len(part) for pair in cached.responses for part in pair)
    times = b"%d %d %d" % (credential.not_before, credential.renew_at, credential.not_after)
    return _sized(b"%b %b%b\n" % (times, cached.config_fingerprint, lengths), body)


def _sized(rest_of_header: bytes, body: bytes) -> bytes:
    # The header states the whole length, its own digits included: a fixed point that ten digits make trivial.
    size = len(MAGIC) + 1 + 10 + 1 + len(rest_of_header) + len(body)
    return b"%b %010d %b%b" % (MAGIC, size, rest_of_header, body)
