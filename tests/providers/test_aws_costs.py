"""What a verification costs before anybody is asked: lines run are counted, so that a slow machine does not matter."""

from __future__ import annotations

import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest
from aws_world import INSTANCE, Node, facts_of, filed_aws, trust_bundle
from handmade import oid, seq, tlv
from work import lines_run

from nodeattest_providers.aws.checks import check_evidence
from nodeattest_providers.aws.config import parse_policy
from nodeattest_providers.aws.protocol import MAX_DOCUMENT, MAX_PKCS7, AwsEvidence
from nodeattest_providers.aws.trust_bundle import TrustBundle
from nodeattest_providers.checks import Checks
from nodeattest_providers.errors import Denied

NODE = Node(instance_id=INSTANCE)
HONEST = NODE.evidence()
ROOM = MAX_PKCS7 - 300
SHA256 = seq(oid("2.16.840.1.101.3.4.2.1"))


def swollen(
    *, version: bytes = b"\2\1\1", content: bytes = HONEST.document, certificates: bytes = b"", attributes: bytes = b""
) -> bytes:
    """A PKCS#7 that nobody signed, with one of its places as full as it can be."""
    signer = seq(version, seq(seq(), b"\2\1\1"), SHA256, attributes, seq(oid("1.2.840.113549.1.1.1")), tlv(4, b"\1"))
    wrapped = seq(oid("1.2.840.113549.1.7.1"), tlv(0xA0, tlv(4, content)))
    signed = seq(version, tlv(0x31, SHA256), wrapped, certificates, tlv(0x31, signer))
    return seq(oid("1.2.840.113549.1.7.2"), tlv(0xA0, signed))


SWOLLEN: dict[str, AwsEvidence] = {
    "a content like attributes": replace(HONEST, pkcs7=swollen(content=tlv(0x31, b"\5\0" * (ROOM // 2)))),
    "certificates that are none": replace(HONEST, pkcs7=swollen(certificates=tlv(0xA0, seq() * 3000))),
    "attributes": replace(HONEST, pkcs7=swollen(attributes=tlv(0xA0, seq() * 3000))),
    "a version": replace(HONEST, pkcs7=swollen(version=tlv(2, b"\x7f" * 3000))),
    "a document of levels": replace(HONEST, document=b"[" * (MAX_DOCUMENT // 2) + b"]" * (MAX_DOCUMENT // 2)),
    "a document of digits": replace(HONEST, document=b'{"a":' + b"9" * (MAX_DOCUMENT - 6) + b"}"),
    "a document of keys": replace(HONEST, document=b"{" + b",".join(b'"%03x":1' % n for n in range(500)) + b"}"),
}


@pytest.fixture
def trust(tmp_path: Path) -> TrustBundle:
    return TrustBundle(trust_bundle(tmp_path / "trust"), time.monotonic)


def work(evidence: AwsEvidence, trust: TrustBundle) -> int:
    request, facts = filed_aws(NODE, evidence), facts_of(NODE)

    def attest() -> None:
        with suppress(Denied):
            check_evidence(Checks(), request, facts, parse_policy(facts.settings), trust)

    attest()  # what is remembered between requests is no cost of one
    return lines_run(attest)


def test_an_honest_request_costs_well_below_two_milliseconds(trust: TrustBundle) -> None:
    assert check_evidence(Checks(), filed_aws(NODE), facts_of(NODE), parse_policy(facts_of(NODE).settings), trust)
    assert work(HONEST, trust) < 6_000  # lines; 3,000 of them and one RSA signature take 0.3 ms


@pytest.mark.parametrize("evidence", SWOLLEN.values(), ids=SWOLLEN)
def test_no_swollen_evidence_costs_much_more_than_honest(evidence: AwsEvidence, trust: TrustBundle) -> None:
    assert len(evidence.pkcs7) <= MAX_PKCS7
    assert len(evidence.document) <= MAX_DOCUMENT
    assert work(evidence, trust) < 20 * work(HONEST, trust)
