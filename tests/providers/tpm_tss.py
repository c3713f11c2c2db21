"""What an attacker with root on a node does with its TPM, in the TPM software stack's own words."""

from __future__ import annotations

import importlib
import os
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from nodeattest_providers.tpm.key_templates import EK_TEMPLATES
from nodeattest_providers.tpm.node.device import LoadedKey

os.environ.setdefault("TSS2_LOG", "all+none")
tss: Any = importlib.import_module("tpm2_pytss")  # it has no types
tss_utils: Any = importlib.import_module("tpm2_pytss.utils")

P384 = next(template for template in EK_TEMPLATES if template.name == "ecc-p384")
"""Its use takes the empty password, which keeps these attacks short."""
_ALL_BUT_ONE_BYTE = 8 * 31
"""Bits of a P-256 number that begins with a zero byte, at most."""


@contextmanager
def connected(tcti: str) -> Generator[Any]:
    with tss.ESAPI(tcti) as esys:
        yield esys


@contextmanager
def primary(esys: Any, template: bytes, hierarchy: Any = None) -> Generator[LoadedKey]:
    area, _ = tss.TPMT_PUBLIC.unmarshal(template)
    where = tss.ESYS_TR.ENDORSEMENT if hierarchy is None else hierarchy
    handle, public, *_ = esys.create_primary(None, tss.TPM2B_PUBLIC(publicArea=area), where)
    try:
        yield LoadedKey(handle, bytes(public.publicArea.marshal()))
    finally:
        esys.flush_context(handle)


def _full_size_key() -> ec.EllipticCurvePrivateKey:
    """Make a key none of whose numbers begins with a zero byte, which this stack would leave out."""
    while True:
        key = ec.generate_private_key(ec.SECP256R1())
        numbers = key.private_numbers()
        point = numbers.public_numbers
        if min(numbers.private_value, point.x, point.y).bit_length() > _ALL_BUT_ONE_BYTE:
            return key


@contextmanager
def imported_key(esys: Any) -> Generator[tuple[LoadedKey, ec.EllipticCurvePrivateKey]]:
    """Bring a software key under a storage key: whoever made it keeps a copy."""
    software = _full_size_key()
    pem = software.private_bytes(Encoding.PEM, PrivateFormat.TraditionalOpenSSL, NoEncryption())
    sensitive = tss.TPM2B_SENSITIVE.from_pem(pem)
    attributes = tss.TPMA_OBJECT.USERWITHAUTH | tss.TPMA_OBJECT.SIGN_ENCRYPT | tss.TPMA_OBJECT.RESTRICTED
    scheme = tss.TPMT_ASYM_SCHEME(scheme=tss.TPM2_ALG.ECDSA)
    scheme.details.anySig.hashAlg = tss.TPM2_ALG.SHA256
    public = tss.TPM2B_PUBLIC.from_pem(pem, objectAttributes=attributes, scheme=scheme)
    parent, parent_public, *_ = esys.create_primary(None, "ecc:aes128cfb")
    try:
        key, duplicate, seed = tss_utils.wrap(parent_public.publicArea, public, sensitive)
        no_inner = tss.TPMT_SYM_DEF_OBJECT(algorithm=tss.TPM2_ALG.NULL)
        private = esys.import_(parent, key, public, duplicate, seed, no_inner)
        handle = esys.load(parent, private, public)
    finally:
        esys.flush_context(parent)
    try:
        yield LoadedKey(handle, bytes(public.publicArea.marshal())), software
    finally:
        esys.flush_context(handle)


def activate(esys: Any, ek: LoadedKey, ak: LoadedKey, blob: bytes, secret: bytes) -> bytes:
    blob_of, secret_of = tss.TPM2B_ID_OBJECT(blob), tss.TPM2B_ENCRYPTED_SECRET(secret)
    return bytes(esys.activate_credential(ak.handle, ek.handle, blob_of, secret_of))


def sign(esys: Any, ak: LoadedKey, message: bytes) -> bytes:
    """Sign any bytes, as far as the TPM lets this key."""
    digest, ticket = esys.hash(message, tss.TPM2_ALG.SHA256, tss.ESYS_TR.OWNER)
    scheme = tss.TPMT_SIG_SCHEME(scheme=tss.TPM2_ALG.ECDSA)
    scheme.details.any.hashAlg = tss.TPM2_ALG.SHA256
    return bytes(esys.sign(ak.handle, digest, scheme, ticket).marshal())


def quote(esys: Any, ak: LoadedKey, selection: bytes, extra: bytes) -> tuple[bytes, bytes]:
    selected, _ = tss.TPML_PCR_SELECTION.unmarshal(selection)
    attest, signature = esys.quote(ak.handle, selected, extra)
    return bytes(attest), bytes(signature.marshal())


def extend_with(esys: Any, pcr: int) -> None:
    measured = tss.TPMT_HA(hashAlg=tss.TPM2_ALG.SHA256, digest=tss.TPMU_HA(sha256=bytes(32)))
    esys.pcr_extend(tss.ESYS_TR(pcr), tss.TPML_DIGEST_VALUES([measured]))
