"""The endorsement key in use, and the certificates that the TPM's NV memory has for it.

Promises: a choice that is the same at each call on the same TPM; certificates without the padding that NV areas have. A
persistent object is used only if its public area is exactly the template's and, where the TPM holds a certificate for
that template, the certificate is for it; its handle proves nothing. The controller checks the key by what it is.
Source: TCG EK Credential Profile 2.5, §2.2.1.4 "NV Index handles", §2.2.1.5 "EK certificate chains"; TCG PC Client
Specific Implementation Specification 1.21, §7.3.2 "TCG_PCCLIENT_STORED_CERT"; TCG TPM v2.0 Provisioning Guidance 1.0,
§7.8 (handles).
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice, takewhile
from typing import Final

from nodeattest_providers.errors import Denied, Reason
from nodeattest_providers.tpm.key_templates import EK_CHAIN_INDEX, EK_CHAIN_LAST, EK_TEMPLATES, EndorsementTemplate
from nodeattest_providers.tpm.node.device import Device, LoadedKey
from nodeattest_providers.tpm.structures import Reader

AUTO: Final = "auto"
_MAX_CHAIN: Final = 4
"""Certificates that the evidence may carry (docs/wire-format.md, "tpm/v1")."""
_SEQUENCE: Final = 0x30
_LONG_FORM: Final = 0x80
_HEADER: Final = 2
_STORED_CERT: Final = bytes.fromhex("100100")
"""TCG_TAG_PCCLIENT_STORED_CERT and TCG_FULL_CERT; two bytes of length follow."""
_FULL_CERT: Final = bytes.fromhex("1002")
"""TCG_TAG_PCCLIENT_FULL_CERT, which the length includes; some TPMs leave it out."""


def choose_template(device: Device, wanted: str) -> EndorsementTemplate:
    """Choose the named template; ``auto`` is the first that has a certificate, else P-256, which every TPM has."""
    for template in EK_TEMPLATES:
        if wanted == template.name or (wanted == AUTO and read_certificate(device, template) is not None):
            return template
    return EK_TEMPLATES[0]


def read_nonce(device: Device, template: EndorsementTemplate) -> bytes:
    """Read the nonce that the manufacturer put into the key's template, mostly none; without it the key is another."""
    index = template.nonce_index
    return device.nv_read(index, is_optional=False) if index is not None and index in device.nv_indices() else b""


def read_certificate(device: Device, template: EndorsementTemplate) -> bytes | None:
    """Read the endorsement key's certificate (DER), if the TPM has one."""
    if template.certificate_index not in device.nv_indices():
        return None
    return next(split_der(device.nv_read(template.certificate_index)), None)


def read_chain(device: Device) -> tuple[bytes, ...]:
    """Read the intermediates (DER), which are concatenated over consecutive indices; an unreadable one ends them."""
    indices = sorted(index for index in device.nv_indices() if EK_CHAIN_INDEX <= index <= EK_CHAIN_LAST)
    data = b"".join(takewhile(bool, map(device.nv_read, indices)))
    return tuple(islice(split_der(data), _MAX_CHAIN))


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


_MAX_NUMBER = 512
"""Bytes of a modulus or coordinate."""


def load_endorsement_key(device: Device, template: EndorsementTemplate) -> LoadedKey:
    """Return the endorsement key; it stays loaded until the device is closed. Raises ``Unavailable``.

    A manufacturer's nonce goes into the key, but is not in its public area: with one, the key is always made.
    """
    nonce = read_nonce(device, template)
    if not nonce:
        certificate = read_certificate(device, template)
        for key in device.persistent_keys():
            if _is_of(template, key.public) and (certificate is None or _number(template, key.public) in certificate):
                return key
    return device.create(template.creation(nonce), "the endorsement key")


def _is_of(template: EndorsementTemplate, public: bytes) -> bool:
    """Compare type, name algorithm, attributes, policy and parameters: all but the key's own number."""
    return public.startswith(template.prefix) and bool(_number(template, public))


def _number(template: EndorsementTemplate, public: bytes) -> bytes:
    """Return the modulus or the point's x; empty where there is none."""
    reader = Reader(public[len(template.prefix) :], what="endorsement key", reason=Reason.ENDORSEMENT_KEY_MALFORMED)
    try:
        return reader.sized("unique", _MAX_NUMBER)
    except Denied:
        return b""
