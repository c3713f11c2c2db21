"""CA pins: ``sha256:<hex>`` of a certificate's SubjectPublicKeyInfo, as kubeadm's ``--discovery-token-ca-cert-hash``.

Promises: text gives a pin or ``Denied``; ``select_pinned`` returns only certificates that are pinned themselves, so a
bundle into which somebody mixed a CA of their own is worth no more than the pinned part of it. kubeadm trusts the whole
bundle as soon as one certificate matches.
Source: kubeadm app/util/pubkeypin; RFC 7469 §2.4.

TLS towards API servers: whose certificates pass, and for which name; one place for discovery and the agent.

Promises: TLS 1.2 or newer, no DHE; each CA that is given is an anchor, self-signed or not, and names count in the SAN
only, both as in Go, so that what kubelet trusts is trusted here; nothing from the environment; no key touches a disk.
Standard library only: every call of the agent pays for it.
Source: Go crypto/x509 Certificate.Verify; RFC 9525 §2; OpenSSL X509_V_FLAG_PARTIAL_CHAIN.
"""

from __future__ import annotations

import hashlib
import os
import re
import ssl
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final, cast

from cryptography import x509

from nodeattest_providers import der
from nodeattest_providers.errors import Denied, Reason
from nodeattest_providers.identifiers import NODE_USER_PREFIX, NODES_GROUP

_PIN: Final = re.compile(r"sha256:([0-9a-f]{64})", re.ASCII | re.IGNORECASE)
_MOST_FIELDS: Final = 10
"""Fields of a TBSCertificate (RFC 5280 §4.1)."""
_VERSION: Final = 0xA0
"""Its first field, [0] EXPLICIT; a certificate of version 1 has none."""
_FIELDS_BEFORE_KEY: Final = 5
"""serialNumber, signature, issuer, validity, subject."""


@dataclass(frozen=True, slots=True)
class CaPin:
    """The SHA-256 of a public key."""

    digest: bytes

    def __str__(self) -> str:
        return f"sha256:{self.digest.hex()}"


def parse(text: str) -> CaPin:
    """Read a pin; prefix and digits in either case, as kubeadm reads them. Raises ``Denied``."""
    found = _PIN.fullmatch(text)
    if found is None:
        raise Denied(
            Reason.CA_PIN_MALFORMED,
            expected="sha256: and 64 hexadecimal digits",
            got=f"{text[:80]!a} of {len(text)} characters",
            remedy="take it from: nodeattest cluster-info show, or nodeattest token create --print-join-command",
        )
    return CaPin(bytes.fromhex(found[1]))


def require_pins(pins: frozenset[CaPin] | None) -> None:
    """Refuse no pins at all, which are not the explicit wish to do without (None); raises ``Denied``."""
    if pins is not None and not pins:
        raise Denied(
            Reason.CA_PIN_MALFORMED,
            expected="at least one pin, or an explicit wish to do without",
            got="none",
            remedy="take the pin from: nodeattest cluster-info show",
        )


def pin_of(certificate: x509.Certificate) -> CaPin:
    """Compute a certificate's pin over its key as it is encoded there, whatever kind of key it is."""
    fields = der.elements(certificate.tbs_certificate_bytes, der.Tag.SEQUENCE, at_most=_MOST_FIELDS)
    spki = fields[_FIELDS_BEFORE_KEY + (der.tag_of(fields[0]) == _VERSION)]
    return CaPin(hashlib.sha256(spki).digest())


def select_pinned(bundle: Sequence[x509.Certificate], pins: Iterable[CaPin]) -> tuple[x509.Certificate, ...]:
    """Return the certificates of a bundle that are pinned; raises ``Denied`` if none is."""
    wanted = frozenset(pins)
    kept = tuple(certificate for certificate in bundle if pin_of(certificate) in wanted)
    if not kept:
        raise Denied(
            Reason.CA_NOT_PINNED,
            expected=f"a CA with the pin {' or '.join(sorted(map(str, wanted))) or 'none'}",
            got=", ".join(sorted({str(pin_of(certificate)) for certificate in bundle})) or "no certificate",
            remedy="the server is not the cluster that was pinned, or its CA was replaced: compare the pins on "
            "the control plane",
        )
    return kept


@dataclass(frozen=True, slots=True)
class ClientCertificate:
    """Who asks, by certificate; in PEM."""

    certificate_pem: bytes = field(repr=False)
    key_pem: bytes = field(repr=False)


def unverified_context() -> ssl.SSLContext:
    """Accept any server: only for an answer that proves itself, to a request without secrets."""
    context = _context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


def client_context(ca_pem: bytes | None, client: ClientCertificate | None = None) -> ssl.SSLContext:
    """Take whom these CAs vouch for; None: whom this machine trusts, as compiled into OpenSSL.

    Raises ``ssl.SSLError`` (an ``OSError``) or ``ValueError`` for PEM that cannot be used.
    """
    context = _context()
    context.hostname_checks_common_name = False
    if ca_pem is None:
        _load_machines(context)
    else:
        context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
        context.load_verify_locations(cadata=ca_pem.decode("ascii"))
    if client is not None:
        # OpenSSL takes a path only; an anonymous file has one and leaves no key on any disk.
        with os.fdopen(os.memfd_create("credential", os.MFD_CLOEXEC), "wb") as memory:
            memory.write(client.certificate_pem + b"\n" + client.key_pem)
            memory.flush()
            context.load_cert_chain(f"/proc/self/fd/{memory.fileno()}", password=_no_password)
    return context


def _context() -> ssl.SSLContext:
    """TLS 1.2 or newer, without DHE, where the server chooses a group of any size, and we compute with it."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    names = (cipher["name"] for cipher in context.get_ciphers())
    context.set_ciphers(":".join(name for name in names if not name.startswith("DHE-")))
    return context


def is_kubelet_certificate(peer: ssl.SSLSocket) -> bool:
    """Return whether a verified server shows a certificate that Kubernetes signs for kubelets.

    The cluster's CA signs these, too (kubernetes.io/kubelet-serving): who has taken over one node must not pass for
    the API server.
    """
    subject = cast("tuple[tuple[tuple[str, str], ...], ...]", (peer.getpeercert() or {}).get("subject", ()))
    return any(
        (kind == "organizationName" and value == NODES_GROUP)
        or (kind == "commonName" and value.startswith(NODE_USER_PREFIX))
        for relative in subject
        for kind, value in relative
    )


def _load_machines(context: ssl.SSLContext) -> None:
    paths = ssl.get_default_verify_paths()
    # pathlib costs the agent's calls 9 ms.
    file = paths.openssl_cafile if os.path.isfile(paths.openssl_cafile) else None  # noqa: PTH113 - without pathlib
    folder = paths.openssl_capath if os.path.isdir(paths.openssl_capath) else None  # noqa: PTH112 - without pathlib
    if file is not None or folder is not None:  # with neither nobody is trusted, which is what there is to say
        context.load_verify_locations(cafile=file, capath=folder)


def _no_password() -> str:
    """Answer OpenSSL in a person's place: a node must not stop at a prompt."""
    return ""
