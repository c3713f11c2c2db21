"""Seeds of a TPM's responses: one conversation for each operation, and failures."""

from __future__ import annotations

from typing import Final

from fuzz.tpm import AK_PREFIX, public_area
from nodeattest_providers.tpm.node.commands import NULL, uint16, uint32
from nodeattest_providers.tpm.structures import Alg, PcrSelection, sized

__all__ = ["listed", "response", "seeds"]

_AUTHORISED: Final = sized(b"") + b"\x01" + sized(b"")
_CONTINUED: Final = b"\x01"


def response(parameters: bytes = b"", *, handle: bytes = b"", authorised: bool = False, code: int = 0) -> bytes:
    """Write a response with its header."""
    body = handle + (uint32(len(parameters)) + parameters + _AUTHORISED if authorised else parameters)
    return uint16(0x8002 if authorised else 0x8001) + uint32(10 + len(body)) + uint32(code) + body


def listed(*handles: int, more: bytes = b"\0") -> bytes:
    """Write a response to TPM2_GetCapability of handles."""
    return response(more + uint32(1) + uint32(len(handles)) + b"".join(map(uint32, handles)))


def seeds() -> dict[str, list[bytes]]:
    """Return seeds by target."""
    index, key = 0x01C00002, sized(public_area(AK_PREFIX))
    public = sized(uint32(index) + uint16(Alg.SHA256) + uint32(0) + sized(b"") + uint16(600))
    read = [response(sized(bytes(size)), authorised=True) for size in (512, 88)]
    session, done = response(sized(bytes(16)), handle=uint32(0x03000000)), response()
    secret = response(sized(b"") + uint16(0x8024) + uint32(NULL) + sized(b""), authorised=True)
    created = response(key + sized(bytes(60)) + sized(bytes(32)), handle=uint32(0x80000000), authorised=True)
    quoted = response(
        sized(bytes(100)) + uint16(Alg.ECDSA) + uint16(Alg.SHA256) + 2 * sized(bytes(32)), authorised=True
    )
    selection = PcrSelection(Alg.SHA256, tuple(range(8))).marshal()
    values = response(uint32(7) + selection + uint32(8) + 8 * sized(bytes(32)))
    refused = response(code=0x1DF)
    conversations = [
        b"\0" + listed(index, more=_CONTINUED) + listed(index + 1),
        b"\1" + response(public + sized(bytes(34))) + b"".join(read),
        b"\2" + listed(0x81010001, 0x81010016) + response(key + 2 * sized(bytes(34))) + response(code=0x18B),
        b"\3" + created + done,
        b"\4" + session + secret + done + response(sized(bytes(32)), authorised=True),
        b"\4" + session + secret + done + refused + done,
        b"\5" + quoted,
        b"\6" + 3 * values,
        b"\0" + 2 * response(code=0x922) + listed(index),
        b"\5" + response(code=0x921),
        b"\0" + listed(index)[:-1],
    ]
    return {"tpm-responses": conversations}
