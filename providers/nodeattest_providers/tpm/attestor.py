"""The ``tpm`` provider's attestor: shows the TPM's keys, activates the challenge, quotes the CSR.

A challenge is activated only on this node's own first request: an attestor that activates anything is a decryption
oracle. A persistent key is used only if it is the certified one of the template: its handle proves nothing.
Source: docs/wire-format.md, "tpm/v1", §2, §3, §4; TCG EK Credential Profile 2.5, §2.2.1.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice, takewhile
from typing import Final

from nodeattest_providers.challenge_response import check_own
from nodeattest_providers.config_fields import check_keys, invalid, text
from nodeattest_providers.errors import Denied, Reason, Unavailable, platform_unavailable
from nodeattest_providers.identifiers import ProviderName
from nodeattest_providers.node_interface import (
    Attestor,
    Binding,
    Evidence,
    FirstRequestRef,
    JsonValue,
    PublishedChallenge,
)
from nodeattest_providers.tpm import protocol
from nodeattest_providers.tpm.key_templates import (
    AK_TEMPLATE,
    EK_CHAIN_INDEX,
    EK_CHAIN_LAST,
    EK_TEMPLATES,
    EndorsementTemplate,
    parse_quote,
)
from nodeattest_providers.tpm.node.device import Device, LoadedKey
from nodeattest_providers.tpm.structures import Reader, parse_public

TPM_SETTINGS: Final = ("tcti", "endorsementKey", "eventLog")
DEFAULT_TCTI: Final = "device:/dev/tpmrm0"
"""The kernel's resource manager: shared with other users of the TPM."""
DEFAULT_EVENT_LOG: Final = "/sys/kernel/security/tpm0/binary_bios_measurements"
"""Where Linux shows what the firmware logged; root reads it."""
_QUOTE_ATTEMPTS: Final = 3
"""An extend between reading the PCRs and quoting them is rare; three in a row are a fault."""
AUTO: Final = "auto"
_SEQUENCE: Final = 0x30
_LONG_FORM: Final = 0x80
_HEADER: Final = 2
_STORED_CERT: Final = bytes.fromhex("100100")
"""TCG_TAG_PCCLIENT_STORED_CERT and TCG_FULL_CERT; two bytes of length follow."""
_FULL_CERT: Final = bytes.fromhex("1002")
"""TCG_TAG_PCCLIENT_FULL_CERT, which the length includes; some TPMs leave it out."""
_MAX_NUMBER: Final = 512


@dataclass(frozen=True, slots=True)
class _Opened:
    """The connection, and the two keys that are loaded there."""

    device: Device = field(repr=False)
    template: EndorsementTemplate
    ek: LoadedKey
    ak: LoadedKey


class TpmAttestor(Attestor):
    """Makes TPM evidence."""

    provider = protocol.PROVIDER
    versions: tuple[int, ...] = (protocol.VERSION,)
    two_step = True
    holds_device = True

    def __init__(
        self,
        settings: Mapping[str, JsonValue],
        *,
        connect: Callable[[str], Device] = Device,
        provider: ProviderName = protocol.PROVIDER,
        certificates: bool = True,
    ) -> None:
        """Read the settings ``TPM_SETTINGS``; the TPM is opened at the first use.

        ``provider`` is the one whose evidence this is; ``certificates`` says whether the endorsement key's are sent.
        """
        self.provider = where = provider
        check_keys(settings, where, TPM_SETTINGS)
        self._certificates = certificates
        self._tcti = text(settings.get("tcti", DEFAULT_TCTI), f"{where}.tcti")
        self._wanted = text(settings.get("endorsementKey", AUTO), f"{where}.endorsementKey")
        self._event_log = text(settings.get("eventLog", DEFAULT_EVENT_LOG), f"{where}.eventLog")
        known = (AUTO, *(template.name for template in EK_TEMPLATES))
        if self._wanted not in known:
            raise invalid(f"{where}.endorsementKey", f"one of {', '.join(known)}", repr(self._wanted))
        self._connect = connect
        self._opened: _Opened | None = None

    def attest(self, binding: Binding, challenge: PublishedChallenge | None = None) -> Evidence:
        evidence = self._first() if challenge is None else self._second(binding, challenge)
        return Evidence(self.provider, protocol.VERSION, evidence.to_json())

    def endorsement_fingerprint(self) -> str:
        return parse_public(
            self._open().ek.public, what="endorsement key", reason=Reason.ENDORSEMENT_KEY_MALFORMED
        ).fingerprint

    def close(self) -> None:
        opened, self._opened = self._opened, None
        if opened is not None:
            opened.device.close()

    def _open(self) -> _Opened:
        if self._opened is None:
            device = self._connect(self._tcti)
            try:
                template = choose_template(device, self._wanted)
                ek = load_endorsement_key(device, template)
                ak = device.create(AK_TEMPLATE, "the attestation key")
            except BaseException:  # a TPM has three slots: nothing may stay in them, whatever ended this
                device.close()
                raise
            self._opened = _Opened(device, template, ek, ak)
        return self._opened

    def _first(self) -> protocol.FirstEvidence:
        opened = self._open()
        certificate = read_certificate(opened.device, opened.template) if self._certificates else None
        return protocol.FirstEvidence(
            ek_public=opened.ek.public,
            ak_public=opened.ak.public,
            ek_certificate=certificate,
            ek_chain=() if certificate is None else read_chain(opened.device),
        )

    def _second(self, binding: Binding, published: PublishedChallenge) -> protocol.SecondEvidence:
        """Answer a challenge.

        1. It hangs on our own first request: the same PKCS#10 bytes, its UID, its key (TPM protocol §3, step 7).
        2. The TPM activates it.
        3. M under the secret and the quote's X cover this binding.
        4. The firmware's event log goes along where the challenge asks for it, and only there.
        """
        # 1
        challenge = _own_challenge(binding, published)
        # 4, before the TPM is bothered
        event_log = _read_event_log(self._event_log) if challenge.log else None
        # 2
        opened = self._open()
        secret = opened.device.activate(opened.ek, opened.ak, opened.template, challenge.blob, challenge.secret)
        # 3
        extra_data = protocol.qualifying_data(challenge.nonce, published.uid, binding.digest)
        quote, signature, pcrs = _consistent_quote(opened, challenge, extra_data)
        return protocol.SecondEvidence(
            first=FirstRequestRef(name=published.name, uid=published.uid),
            mac=protocol.proof(secret, published.uid, published.csr_sha256, binding.digest),
            quote=quote,
            signature=signature,
            pcrs=pcrs,
            event_log=event_log,
        )


def _own_challenge(binding: Binding, published: PublishedChallenge) -> protocol.Challenge:
    challenge = protocol.Challenge.parse(published.text)
    check_own(
        binding,
        published,
        ("UID", challenge.uid == published.uid),
        ("key", published.spki_sha256 in (None, challenge.spki_sha256)),
    )
    return challenge


def _consistent_quote(
    opened: _Opened, challenge: protocol.Challenge, extra_data: bytes
) -> tuple[bytes, bytes, tuple[bytes, ...]]:
    """Quote and read the PCRs so that both show the same state (TPM protocol §4.4)."""
    for _ in range(_QUOTE_ATTEMPTS):
        pcrs = opened.device.read_pcrs(challenge.pcrs)
        quote, signature = opened.device.quote(opened.ak, challenge.pcrs, extra_data)
        if parse_quote(quote).pcr_digest == hashlib.sha256(b"".join(pcrs)).digest():
            return quote, signature, pcrs
    raise platform_unavailable(
        "the PCRs keep changing while they are quoted",
        remedy="wait until the machine has booted, or let the policy select PCRs that do not change",
    )


def _read_event_log(path: str) -> bytes:
    """Read the firmware's event log; raises ``Unavailable``, since only the machine's owner can bring one about."""
    try:
        with open(path, "rb") as file:  # noqa: PTH123 - pathlib costs the agent 9 ms
            log = file.read(protocol.MAX_EVENT_LOG + 1)
    except OSError as error:
        raise _no_event_log(f"{path} cannot be read ({error.strerror})") from None
    if not log:
        raise _no_event_log(f"{path} is empty")
    if len(log) > protocol.MAX_EVENT_LOG:
        raise _no_event_log(f"{path} has more than {protocol.MAX_EVENT_LOG} bytes")
    return log


def _no_event_log(problem: str) -> Unavailable:
    return platform_unavailable(
        f"the policy asks for the event log, and {problem}",
        remedy="run as root with securityfs mounted on firmware that measures its boot, set tpm.eventLog to where the "
        "log is, or let the policy's eventLog be Ignore",
    )


def choose_template(device: Device, wanted: str) -> EndorsementTemplate:
    """Choose the named template; ``auto`` is the first that has a certificate, else P-256, which every TPM has."""
    for template in EK_TEMPLATES:
        if wanted == template.name or (wanted == AUTO and read_certificate(device, template) is not None):
            return template
    return EK_TEMPLATES[0]


def read_certificate(device: Device, template: EndorsementTemplate) -> bytes | None:
    if template.certificate_index not in device.nv_indices():
        return None
    return next(split_der(device.nv_read(template.certificate_index)), None)


def read_chain(device: Device) -> tuple[bytes, ...]:
    """Read the intermediates (DER), which are concatenated over consecutive indices; an unreadable one ends them."""
    indices = sorted(index for index in device.nv_indices() if EK_CHAIN_INDEX <= index <= EK_CHAIN_LAST)
    data = b"".join(takewhile(bool, map(device.nv_read, indices)))
    return tuple(islice(split_der(data), protocol.MAX_CHAIN))


def split_der(data: bytes) -> Iterator[bytes]:
    """Cut concatenated DER sequences apart; padding, an empty sequence and one of indefinite length end them.

    A certificate that is stored with the header of TPM 1.2 is the one sequence behind it.
    """
    if data.startswith(_STORED_CERT):
        start = len(_STORED_CERT) + 2
        size = int.from_bytes(data[len(_STORED_CERT) : start], "big")
        data = data[start : start + size].removeprefix(_FULL_CERT)
    at = 0
    while len(data) - at >= _HEADER and data[at] == _SEQUENCE:
        size, begins = data[at + 1], at + _HEADER
        if size >= _LONG_FORM:
            begins += size - _LONG_FORM
            size = int.from_bytes(data[at + _HEADER : begins], "big")
        if not size or len(data) < begins + size:
            return
        yield data[at : begins + size]
        at = begins + size


def load_endorsement_key(device: Device, template: EndorsementTemplate) -> LoadedKey:
    """Return the endorsement key; it stays loaded until the device is closed. Raises ``Unavailable``.

    A manufacturer's nonce goes into the key, but is not in its public area: with one, the key is always made.
    """
    index, nonce = template.nonce_index, b""
    if index is not None and index in device.nv_indices():
        nonce = device.nv_read(index, is_optional=False)  # without it the key is another
    if not nonce:
        certificate = read_certificate(device, template)
        for key in device.persistent_keys():
            number = _number(template, key.public)
            if number and (certificate is None or number in certificate):
                return key
    return device.create(template.creation(nonce), "the endorsement key")


def _number(template: EndorsementTemplate, public: bytes) -> bytes:
    """Return the modulus or the point's x of a key of this template; empty for another key."""
    if not public.startswith(template.prefix):  # type, name algorithm, attributes, policy and parameters
        return b""
    reader = Reader(public[len(template.prefix) :], what="endorsement key", reason=Reason.ENDORSEMENT_KEY_MALFORMED)
    try:
        return reader.sized("unique", _MAX_NUMBER)
    except Denied:
        return b""
