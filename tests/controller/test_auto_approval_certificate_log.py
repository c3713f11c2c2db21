"""What the in-tree signer issued: each certificate that no attestation covers is found once, and no other."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import NameOID
from fake_api import FakeApi
from management_kit import tasks
from polling import until
from virtual import run_virtually

from nodeattest_controller.controllers.auto_approval.approval_block import IN_TREE_SIGNER
from nodeattest_controller.controllers.auto_approval.certificate_log import (
    MAX_GAP,
    NAMED,
    CertificateLog,
    IssuedInTree,
    UncoveredCertificates,
)
from nodeattest_controller.runtime.indexes import Inventory, cluster_key
from nodeattest_kube.errors import ApiError, Unreachable, WatchHung
from nodeattest_parsing.objects import rfc3339
from nodeattest_parsing.values import JsonObject

CSRS = "/apis/certificates.k8s.io/v1/certificatesigningrequests"
LONG_AGO = datetime(2020, 1, 1, tzinfo=UTC)
KEY = cluster_key("fleet", "c")


class Watched:
    """A log of one control plane, and clocks that a test moves."""

    def __init__(self) -> None:
        self.api = FakeApi()
        self.skipped = 0.0
        self.woken = asyncio.Event()
        loop = asyncio.get_running_loop()
        self.log = CertificateLog(
            KEY,
            self.api,
            Inventory(),
            now=lambda: datetime.now(UTC) + timedelta(seconds=self.skipped),
            clock=lambda: loop.time() + self.skipped,
        )
        self.log.on_change = self.woken.set

    def issue(
        self, node: str, user: str = "system:bootstrap:abcdef", *, approved: bool = True, readable: bool = True
    ) -> str:
        """File, approve and issue as kube-controller-manager would; returns the request's name."""
        key, names = ec.generate_private_key(ec.SECP256R1()), (NameOID.ORGANIZATION_NAME, NameOID.COMMON_NAME)
        values = ("system:nodes", f"system:node:{node}")
        subject = x509.Name(list(map(x509.NameAttribute, names, values)))
        csr = x509.CertificateSigningRequestBuilder().subject_name(subject).sign(key, hashes.SHA256())
        spec: JsonObject = {
            "signerName": IN_TREE_SIGNER,
            "username": user,
            "request": base64.b64encode(csr.public_bytes(Encoding.PEM)).decode(),
        }
        now = datetime.now(UTC)
        builder = x509.CertificateBuilder(subject, subject, key.public_key(), 0xABC, now, now + timedelta(days=365))
        pem = builder.sign(key, hashes.SHA256()).public_bytes(Encoding.PEM)
        status: JsonObject = {"conditions": [{"type": "Approved", "status": "True"}]} if approved else {}
        if approved and readable:
            status["certificate"] = base64.b64encode(pem).decode()
        meta: JsonObject = {"creationTimestamp": rfc3339(now)}
        self.api.put(f"{CSRS}/{node}", {"metadata": meta, "spec": spec, "status": status})
        return node


@pytest.fixture
async def watched() -> AsyncIterator[Watched]:
    made = Watched()
    async with tasks(made.log.run()):
        await until(lambda: not made.log.trouble())
        made.woken.clear()
        yield made


async def test_what_a_token_got_is_found_once_with_serial_and_end(watched: Watched) -> None:
    name = watched.issue("victim")
    found: list[IssuedInTree] = []

    def find() -> bool:
        found.extend(one for one in watched.log.review(LONG_AGO, None) if one.request == name)
        return bool(found)

    await until(find)
    await asyncio.wait_for(watched.woken.wait(), 60)
    assert (found[0].node_name, found[0].serial, found[0].username) == ("victim", "abc", "system:bootstrap:abcdef")
    assert found[0].not_after is not None
    assert list(watched.log.review(LONG_AGO, None)) == []
    assert watched.log.found.count >= 1
    assert "victim (serial abc, until " in str(watched.log.found)


async def test_what_is_older_than_the_policy_is_no_violation(watched: Watched) -> None:
    watched.issue("old")
    await asyncio.wait_for(watched.woken.wait(), 60)
    assert list(watched.log.review(datetime.now(UTC) + timedelta(seconds=5), None)) == []
    assert not watched.log.found.count


async def test_a_node_that_is_not_in_the_ledger_renews_as_before(watched: Watched) -> None:
    name = watched.issue("renews", "system:node:renews")
    await asyncio.wait_for(watched.woken.wait(), 60)
    waiting = watched.issue("waits", approved=False)
    witness, seen = watched.issue("witness"), set[str]()

    def witnessed() -> bool:
        seen.update(one.request for one in watched.log.review(LONG_AGO, {}))
        return witness in seen  # the watch told of the other one before

    await until(witnessed)
    assert seen.isdisjoint({name, waiting})


async def test_an_approval_counts_before_the_certificate_is_there(watched: Watched) -> None:
    watched.issue("approved-only", readable=False)
    await asyncio.wait_for(watched.woken.wait(), 60)

    def counted() -> bool:
        list(watched.log.review(LONG_AGO, None))
        return "approved-only (approved, not issued yet" in str(watched.log.found)

    await until(counted)


async def test_a_record_begins_an_hour_before_the_watch_and_anew_after_a_long_gap(watched: Watched) -> None:
    began = watched.log.observed_from()
    assert began is not None
    assert timedelta(minutes=59) < datetime.now(UTC) - began < timedelta(minutes=61)
    watched.skipped = MAX_GAP / 2
    assert watched.log.observed_from() == began
    watched.skipped = MAX_GAP + 60
    assert watched.log.observed_from() is None  # no contact for so long


def certificate(number: int) -> IssuedInTree:
    return IssuedInTree(
        request=f"r{number}",
        uid=f"u{number}",
        username="system:bootstrap:abcdef",
        node_name="n",
        spki="sha256:0",
        serial=f"{number:x}",
        not_after=LONG_AGO + timedelta(days=number),
        created=LONG_AGO + timedelta(seconds=number),
    )


def test_a_flood_of_certificates_is_counted_in_bounded_memory() -> None:
    found = UncoveredCertificates()
    for number in range(1000):
        found.add(certificate(number), is_new=True)
    assert len(found.named) == NAMED
    assert "1000 times" in str(found)
    assert "and 990 more; the last certificate ends 2022-09-26" in str(found)


def test_an_operators_word_covers_all_or_nothing() -> None:
    found = UncoveredCertificates()
    found.add(certificate(10), is_new=True)
    for word in (None, LONG_AGO, LONG_AGO + timedelta(seconds=10)):
        found.accept(word)
        assert found.count == 1
    found.accept(LONG_AGO + timedelta(seconds=11))
    assert str(found) == ""


def test_requests_count_as_not_watched_from_a_hung_watch_until_the_next_complete_list() -> None:
    async def troubles() -> list[str]:
        api, seen = FakeApi(), list[str]()
        failing: list[ApiError] = [WatchHung("hung"), Unreachable("down")]

        async def fail(_method: str, _path: str) -> None:
            if api.count("WATCH") and failing:
                raise failing.pop(0)
            seen.append(log.trouble())

        api.on_call = fail
        log = CertificateLog(KEY, api, Inventory(), now=lambda: datetime.now(UTC))
        async with tasks(log.run()):
            await until(lambda: api.count("WATCH") == 2)
        return seen

    assert run_virtually(troubles()) == ["the first list is not complete yet", "Unreachable: hung", ""]
