"""No request costs much more than an honest one: work is counted, in lines run, so that a slow machine does not matter.

Each list that PKCS#10 has is filled with as many elements as 16 KiB hold; so is each value with bytes.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from contextlib import suppress

import pytest
from handmade import (
    CN,
    ECDSA_SHA256,
    EXTENSION_REQUEST,
    NODES,
    OU,
    PROVIDER_ID,
    SAN,
    Made,
    attribute,
    extended,
    extension,
    extension_request,
    integer,
    named,
    oid,
    rdn,
    seq,
    tlv,
    utf8,
    with_san,
)
from work import lines_run

from nodeattest_providers import der, pkcs10
from nodeattest_providers.csr import parse_csr
from nodeattest_providers.errors import Denied, Reason
from nodeattest_providers.names import PROVIDER_ID_OID, Purpose

HONEST = {
    Purpose.CLIENT: Made().der(),
    Purpose.SERVING: with_san(*(tlv(0x82, b"n-%d" % number) for number in range(pkcs10.MAX_NAMES))).der(),
}
RSA_ALGORITHM = seq(oid("1.2.840.113549.1.1.1"), b"\x05\x00")
ROOM = pkcs10.MAX_SIZE - 600
"""Bytes that the rest of a request leaves to the swollen place."""

UNITS: dict[str, bytes] = {
    "NULLs": b"\x05\x00",
    "SEQUENCEs": seq(),
    "SETs": tlv(0x31),
    "integers": integer(1),
    "RDNs": rdn(attribute(OU, utf8(""))),
    "attributes": attribute(OU, utf8("")),
    "attributes of requests": extension_request(PROVIDER_ID),
    "extensions": PROVIDER_ID,
    "DNS names": tlv(0x82, b"a"),
    "levels": functools.reduce(lambda inner, _: seq(inner), range(ROOM // 4), b""),
    "one string": utf8("a" * (ROOM - 4)),
    "short arcs": bytes([1]) * ROOM,
    "one arc": bytes([0x81]) * (ROOM - 1) + bytes([1]),
}


def object_identifier(content: bytes) -> bytes:
    return Made(subject=(rdn(seq(tlv(6, b"\x2a", content), utf8(""))),)).der()


PLACES: dict[str, Callable[[bytes], bytes]] = {
    "the request": seq,
    "its first part": lambda swollen: seq(seq(swollen), ECDSA_SHA256, tlv(3, b"\0")),
    "the subject": lambda swollen: Made(subject=(swollen,)).der(),
    "an RDN": lambda swollen: Made(subject=(NODES, rdn(swollen))).der(),
    "an attribute of the subject": lambda swollen: Made(subject=(NODES, rdn(seq(swollen)))).der(),
    "a common name": lambda swollen: Made(subject=(NODES, rdn(seq(oid(CN), swollen)))).der(),
    "an object identifier": object_identifier,
    "the attributes": lambda swollen: Made(attributes=(swollen,)).der(),
    "an attribute": lambda swollen: Made(attributes=(seq(swollen),)).der(),
    "the values": lambda swollen: Made(attributes=(attribute(EXTENSION_REQUEST, tlv(0x31, swollen)),)).der(),
    "the extensions": lambda swollen: extended(PROVIDER_ID, swollen).der(),
    "an extension": lambda swollen: extended(seq(swollen)).der(),
    "the provider ID": lambda swollen: extended(extension(PROVIDER_ID_OID, swollen)).der(),
    "the names": lambda swollen: with_san(swollen).der(),
    "the name's extension": lambda swollen: extended(PROVIDER_ID, extension(SAN, swollen)).der(),
    "the key": lambda swollen: Made(spki=seq(swollen)).der(),
    "an RSA key": lambda swollen: Made(spki=seq(RSA_ALGORITHM, tlv(3, b"\0", seq(swollen)))).der(),
    "an RSA modulus": lambda swollen: Made(
        spki=seq(RSA_ALGORITHM, tlv(3, b"\0", seq(tlv(2, b"\1", swollen), integer(65537))))
    ).der(),
    "the signature": lambda swollen: Made(sign=lambda _: swollen).der(),
}


def first_reading(request: bytes, purpose: Purpose) -> int:
    """Count the lines that reading a request runs when nothing is remembered."""
    pkcs10._parsed.cache_clear()  # pyright: ignore[reportPrivateUsage] - what is remembered would cost nothing
    der.oid.cache_clear()
    return lines_run(lambda: _read(request, purpose))


def _read(request: bytes, purpose: Purpose) -> None:
    with suppress(Denied):
        parse_csr(request, purpose=purpose)


@pytest.mark.parametrize("purpose", Purpose)
@pytest.mark.parametrize("place", PLACES)
def test_a_request_swollen_in_one_place_costs_little_more_than_an_honest_one(place: str, purpose: Purpose) -> None:
    honest = first_reading(HONEST[purpose], purpose)
    for name, unit in UNITS.items():
        bomb = PLACES[place](unit * (ROOM // len(unit)))
        assert ROOM - 600 < len(bomb) <= pkcs10.MAX_SIZE, name
        with pytest.raises(Denied):
            parse_csr(bomb, purpose=purpose)
        assert first_reading(bomb, purpose) < 1.5 * honest, name


def test_a_thousand_names_in_the_subject_cost_less_than_an_honest_request() -> None:
    """A real API server takes this one; opening all of it once took 190 ms."""
    bomb = Made(subject=(NODES, *(rdn(attribute(CN, utf8("a"))) for _ in range(1_100)))).der()
    with pytest.raises(Denied) as denied:
        parse_csr(bomb)
    assert denied.value.reason is Reason.SUBJECT_NOT_ALLOWED
    assert first_reading(bomb, Purpose.CLIENT) < first_reading(named("system:node:n-0").der(), Purpose.CLIENT)
