"""D1: bytes that two readers of an envelope could take for different requests, or that cost a reader too much."""

from __future__ import annotations

import base64
import gzip
from collections.abc import Callable, Mapping
from typing import Final

import pytest
from apiserver_kit import encoded
from catalogue import ROWS, Row, attacks, evaluated
from counted_calls import calls
from cryptography.hazmat.primitives.asymmetric import ec

from nodeattest_providers import envelope, pem
from nodeattest_providers.envelope import LABEL_CSR, LABEL_DATA, LABEL_PROVIDER, LABELS, MAX_SIZE
from nodeattest_providers.identifiers import ProviderName
from nodeattest_providers.node_interface import Evidence
from nodeattest_providers.pkcs10 import build_csr
from nodeattest_sandbox.apiserver.jsonvalue import JsonMap

KEY: Final = ec.generate_private_key(ec.SECP256R1())
OWN: Final = build_csr(KEY, "node-0", "metal://node-0")
GOOD: Final = envelope.encode(OWN, Evidence(ProviderName("tpm"), 1, {}))
REQUEST: Final = pem.encode([(LABEL_CSR, OWN)])
VICTIMS: Final = pem.encode([(LABEL_CSR, build_csr(KEY, "victim", "metal://victim"))])
PROVIDER: Final = pem.encode([(LABEL_PROVIDER, b"tpm/v1")])
INSECURE: Final = pem.encode([(LABEL_PROVIDER, b"insecure/v1")])
DATA: Final = pem.encode([(LABEL_DATA, b"{}")])


def block(label: str, text: str, *, end: str = "") -> bytes:
    """A block whose text is written as it is."""
    return f"-----BEGIN {label}-----\n{text}\n-----END {end or label}-----\n".encode()


def text_of(content: bytes) -> str:
    return base64.b64encode(content).decode()


def of_width(columns: int) -> bytes:
    text = text_of(OWN)
    return block(LABEL_CSR, "\n".join(text[at : at + columns] for at in range(0, len(text), columns)))


def says(provider: bytes) -> bytes:
    return pem.encode(zip(LABELS, (OWN, provider, b"{}"), strict=True))


def holds(data: bytes) -> bytes:
    return pem.encode(zip(LABELS, (OWN, b"tpm/v1", data), strict=True))


def beyond(size: int) -> bytes:
    """The envelope of an honest shape that is the first one larger than ``size``."""
    padding = 3 * (size - len(GOOD)) // 4 // 65 * 64
    while len(made := holds(b'{"log":"' + b"x" * padding + b'"}')) <= size:
        padding += 1
    return made


ENVELOPES: Final[Mapping[str, bytes]] = {
    "D1-01": b"a node of mine\n" + GOOD,
    "D1-02": PROVIDER + DATA + REQUEST,
    "D1-03": GOOD + VICTIMS,
    "D1-04": REQUEST + VICTIMS + PROVIDER + DATA,
    "D1-05": GOOD + DATA,
    "D1-06": REQUEST + PROVIDER + INSECURE + DATA,
    "D1-07": REQUEST + DATA + PROVIDER,
    "D1-08": GOOD + pem.encode([("CERTIFICATE", b"x")]),
    "D1-09": REQUEST,
    "D1-10": GOOD.replace(b"REQUEST-----\n", b"REQUEST-----\nProc-Type: 4\n\n", 1),
    "D1-11": GOOD.replace(b"DATA-----\n", b"DATA-----\nX-Node: victim\n\n", 1),
    "D1-12": GOOD.replace(b"CERTIFICATE REQUEST", b"NEW CERTIFICATE REQUEST"),
    "D1-13": GOOD.replace(b"END CERTIFICATE REQUEST", b"END CERTIFICATE"),
    "D1-14": GOOD.replace(b"END KUBELET AUTHENTICATOR ATTESTATION DATA", b"END CERTIFICATE"),
    "D1-15": GOOD.replace(b"\n", b"\r\n"),
    "D1-16": GOOD.replace(b"\n", b"\r"),
    "D1-17": REQUEST + b"\0" + PROVIDER + DATA,
    "D1-18": REQUEST + b"and\n" + PROVIDER + DATA,
    "D1-19": GOOD + b"\n",
    "D1-20": of_width(76) + PROVIDER + DATA,
    "D1-21": GOOD.removesuffix(b"\n"),
    "D1-22": block(LABEL_CSR, text_of(OWN)[:64] + " " + text_of(OWN)[64:]) + PROVIDER + DATA,
    "D1-23": REQUEST + PROVIDER + block(LABEL_DATA, "e31="),
    "D1-24": REQUEST + PROVIDER + block(LABEL_DATA, ""),
    "D1-25": b"see: " + GOOD,
    "D1-26": GOOD.replace(b"CERTIFICATE REQUEST", b"certificate request"),
    "D1-27": GOOD.replace(LABEL_DATA.encode(), b"ATTESTATION DATA"),
    "D1-28": beyond(MAX_SIZE),
    "D1-29": REQUEST + PROVIDER + DATA * 10_000,
    "D1-30": REQUEST + PROVIDER + DATA * 2_000,
    "D1-31": says(b"tpm"),
    "D1-32": says(b"tpm/v01"),
    "D1-33": says(b"tpm/v1\n"),
    "D1-34": says("\uff54\uff50\uff4d/v1".encode()),
    "D1-35": says(b"tpm/v1/v2"),
    "D1-36": holds(base64.b64encode(b"{}")),
    "D1-37": holds(b"[]"),
    "D1-38": holds(gzip.compress(b"{}")),
    "D1-39": holds(b'{"phase":1,"phase":2}'),
    "D1-40": holds(b'{"phase":NaN}'),
    "D1-41": holds(b'{"phase":1.0}'),
    "D1-42": holds(b'{"phase":' + b"9" * 10_000 + b"}"),
    "D1-43": holds(b'{"a":' * 10_000 + b"1" + b"}" * 10_000),
    "D1-44": holds(b'{"phase":1,"mac":""}'),
    "D1-45": holds(b'{"phase": 1}'),
    "D1-46": holds(b'{"phase":"\\u0031"}'),
    "D1-47": holds(b"\xef\xbb\xbf{}"),
    "D1-48": holds("{}".encode("utf-16")),
    "D1-49": holds(b'{"phase":"\\ud800"}'),
    "D1-50": holds(b'{"phase":-0}'),
    "D1-51": holds(b'{"a":[' + b"1," * 5_000 + b"1]}"),
    "D1-52": holds(b'{"phase":9223372036854775808}'),
}


CALLS: Final = 20_000
"""More than any of these costs, of functions and for 256 KiB."""


def test_the_envelope_that_the_attacks_spoil_is_a_good_one() -> None:
    csr, evidence = envelope.decode(GOOD)
    assert (csr.node_name, evidence.provider, evidence.version) == ("node-0", "tpm", 1)


@pytest.mark.parametrize(("row", "request_bytes"), attacks(ENVELOPES))
def test_a_spoilt_envelope_is_denied_in_few_calls(row: Row, request_bytes: bytes) -> None:
    assert evaluated(lambda: envelope.decode(request_bytes)) == row.expected
    assert calls(lambda: evaluated(lambda: envelope.decode(request_bytes))) < CALLS


@pytest.mark.conformance
@pytest.mark.parametrize(
    ("row", "request_bytes"), attacks({row: raw for row, raw in ENVELOPES.items() if ROWS[row].api})
)
def test_the_api_server_does_with_it_what_is_known(
    answer_to: Callable[[JsonMap], str], row: Row, request_bytes: bytes
) -> None:
    assert answer_to({"request": encoded(request_bytes)}) == row.api
