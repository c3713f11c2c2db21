"""The endorsement key in use: the one that the TPM keeps, if it is the template's, else one made from the template.

Promises: a persistent object is used only if its public area is exactly the template's and, where the TPM holds a
certificate for that template, the certificate is for it; its handle proves nothing. The controller checks the key by
what it is, wherever it was.
Source: TCG TPM v2.0 Provisioning Guidance 1.0, §7.8 (handles); TCG EK Credential Profile 2.5, §2.2.1.4 (nonces).
"""

from __future__ import annotations

from nodeattest_providers.errors import Denied, Reason
from nodeattest_providers.tpm.key_templates import EndorsementTemplate
from nodeattest_providers.tpm.node.device import Device, LoadedKey
from nodeattest_providers.tpm.node.nv_certificates import read_certificate, read_nonce
from nodeattest_providers.tpm.structures import Reader

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
