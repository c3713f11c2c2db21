"""What the in-tree signer issued: each certificate that no attestation covers is found, and no other."""

from __future__ import annotations

import base64
import time
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
from node_attested_world import document, ledger, machine, record
from polling import until
from virtual import run_virtually

from nodeattest_controller.controllers.auto_approval.approval_block import IN_TREE_SIGNER
from nodeattest_controller.controllers.auto_approval.certificates import (
    MAX_FOREIGN,
    InTreeCertificate,
    InTreeCertificates,
    describe,
    last_approval,
    parse_summary,
    summarize,
)
from nodeattest_controller.controllers.auto_approval.decide import MAX_LISTED
from nodeattest_controller.runtime.indexes import Inventory, cluster_key
from nodeattest_kube.errors import ApiError, Unreachable, WatchHung
from nodeattest_parsing.objects import rfc3339
from nodeattest_parsing.values import JsonObject

CSRS = "/apis/certificates.k8s.io/v1/certificatesigningrequests"
LONG_AGO = datetime(2020, 1, 1, tzinfo=UTC)
KEY = cluster_key("fleet", "c")
RECORDED = machine(0)
"""A machine with an attestation record, which has other keys."""


def certificates(api: FakeApi) -> InTreeCertificates:
    inventory = Inventory()
    inventory.put_machine("fleet/m", document(RECORDED))
    inventory.put_attestation("fleet/a", record(RECORDED, ledger(RECORDED)))
    return InTreeCertificates(KEY, api, inventory, clock=time.monotonic, on_change=lambda: None)


class Watched:
    def __init__(self) -> None:
        self.api = FakeApi()
        self.certificates = certificates(self.api)

    async def foreign(self, since: datetime = LONG_AGO, reviewed: datetime | None = None) -> list[str]:
        """Review once all requests are watched."""
        witness = self.issue("witness")
        found: list[InTreeCertificate] = []

        async def has_witness() -> bool:
            found[:] = await self.certificates.review(LONG_AGO, None)
            return any(each.request == witness for each in found)

        await until(has_witness)
        self.certificates.foreign.clear()
        await self.certificates.review(since, reviewed)
        return [str(each) for each in self.certificates.foreign.values() if each.request != witness]

    def issue(
        self,
        node: str,
        user: str = "system:bootstrap:abcdef",
        *,
        request: str = "",
        approved: bool = True,
        issued: bool = True,
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
        if approved and issued:
            status["certificate"] = base64.b64encode(pem).decode()
        meta: JsonObject = {"creationTimestamp": rfc3339(now)}
        self.api.put(f"{CSRS}/{request or node}", {"metadata": meta, "spec": spec, "status": status})
        return node


@pytest.fixture
async def watched() -> AsyncIterator[Watched]:
    made = Watched()
    async with tasks(made.certificates.run()):
        await until(lambda: not made.certificates.trouble())
        yield made


async def test_what_a_token_got_is_found_with_serial_and_end(watched: Watched) -> None:
    watched.issue("victim")
    [found] = await watched.foreign()
    assert found.startswith("victim (serial abc, until ")
    assert found.endswith("request victim of system:bootstrap:abcdef)")


async def test_an_approval_counts_before_the_certificate_is_there_and_nothing_counts_before_the_approval(
    watched: Watched,
) -> None:
    watched.issue("approved", issued=False)
    watched.issue("pending", approved=False)
    assert await watched.foreign() == ["approved (approved, not issued yet, request approved)"]


@pytest.mark.parametrize(
    ("name", "age", "is_found"),
    [
        ("unrecorded", None, False),  # it is counted as an unattested Node
        (RECORDED.name, timedelta(0), True),
        (RECORDED.name, None, True),
        (RECORDED.name, timedelta(days=3650), False),  # it was adopted, and kubelet has not been restarted yet
    ],
)
async def test_a_node_that_renews_itself_is_found_if_it_has_a_record_and_is_younger_than_the_policy(
    watched: Watched, name: str, age: timedelta | None, is_found: bool
) -> None:
    watched.issue(name, f"system:node:{name}")
    if age is not None:
        created: JsonObject = {"creationTimestamp": rfc3339(datetime.now(UTC) - age)}
        watched.api.put(f"/api/v1/nodes/{name}", {"metadata": created})
    assert bool(await watched.foreign()) is is_found


async def test_a_node_is_read_once_for_all_its_requests_and_one_that_cannot_be_read_excuses_none(
    watched: Watched,
) -> None:
    for request in ("first", "second"):
        watched.issue(RECORDED.name, f"system:node:{RECORDED.name}", request=request)
    assert len(await watched.foreign()) == 2
    watched.api.calls.clear()
    await watched.certificates.review(LONG_AGO, None)
    assert watched.api.count("LIST", "/nodes") == 1
    watched.api.fail("LIST", "/nodes", Unreachable("down"))
    with pytest.raises(Unreachable):
        await watched.certificates.review(LONG_AGO, None)


async def test_while_a_request_is_left_out_nobody_knows_all_of_them(watched: Watched) -> None:
    watched.api.put(f"{CSRS}/{'x' * 2000}", {"spec": {"signerName": IN_TREE_SIGNER}})
    await until(lambda: "too large" in watched.certificates.trouble())


@pytest.mark.parametrize("is_issued", [False, True])
def test_a_certificate_of_no_known_version_is_found_as_any_other(is_issued: bool) -> None:
    """The requester chooses the version of a request, which API servers do not check."""
    key, now = ec.generate_private_key(ec.SECP256R1()), datetime.now(UTC)
    if is_issued:
        builder = x509.CertificateBuilder(x509.Name([]), x509.Name([]), key.public_key(), 1, now, now)
        label, der = b"CERTIFICATE", builder.sign(key, hashes.SHA256()).public_bytes(Encoding.DER)
    else:
        csr = x509.CertificateSigningRequestBuilder().subject_name(x509.Name([])).sign(key, hashes.SHA256())
        label, der = b"CERTIFICATE REQUEST", csr.public_bytes(Encoding.DER)
    version = der.index(b"\x02\x01") + 2
    body = base64.encodebytes(der[:version] + b"\x09" + der[version + 1 :])
    pem = base64.b64encode(b"-----BEGIN %b-----\n%b-----END %b-----\n" % (label, body, label)).decode()
    status: JsonObject = {"certificate": pem} if is_issued else {"conditions": [{"type": "Approved"}]}
    found = parse_summary(summarize({"spec": {"request": pem}, "status": status}))
    assert found is not None
    assert (found.node_name, bool(found.serial)) == ("unknown", is_issued)


def certificate(number: int) -> InTreeCertificate:
    return InTreeCertificate(
        request=f"r{number}",
        uid=f"u{number}",
        username="system:bootstrap:abcdef",
        node_name="n",
        spki="sha256:0",
        serial=f"{number:x}",
        not_after=LONG_AGO + timedelta(days=number),
        created=LONG_AGO + timedelta(seconds=number),
    )


async def test_a_flood_of_certificates_is_kept_in_bounded_memory_and_a_short_message(watched: Watched) -> None:
    flood = {each.uid: each for each in map(certificate, range(MAX_FOREIGN))}
    watched.certificates.foreign.update(flood)
    watched.issue("late")
    await watched.certificates.review(LONG_AGO, None)
    assert watched.certificates.foreign == flood
    described = describe(flood.values())
    assert described.count("serial") == MAX_LISTED
    assert "1000 times" in described
    assert "and 990 more; the last certificate ends 2022-09-26" in described
    assert last_approval(described) == LONG_AGO + timedelta(seconds=999)


async def test_an_operators_review_covers_what_is_older_and_nothing_else(watched: Watched) -> None:
    for reviewed, left in ((None, {"u10", "u11"}), (10, {"u10", "u11"}), (11, {"u11"}), (12, set[str]())):
        watched.certificates.foreign = {each.uid: each for each in map(certificate, (10, 11))}
        time = LONG_AGO + timedelta(seconds=reviewed) if reviewed is not None else None
        await watched.certificates.review(LONG_AGO, time)
        assert set(watched.certificates.foreign) == left


def test_requests_count_as_not_watched_from_a_hung_watch_until_the_next_complete_list() -> None:
    async def troubles() -> list[str]:
        api, seen = FakeApi(), list[str]()
        failing: list[ApiError] = [WatchHung("hung"), Unreachable("down")]

        async def fail(_method: str, _path: str) -> None:
            if api.count("WATCH") and failing:
                raise failing.pop(0)
            seen.append(watched.trouble())

        api.on_call = fail
        watched = certificates(api)
        async with tasks(watched.run()):
            await until(lambda: api.count("WATCH") == 2)
        return seen

    assert run_virtually(troubles()) == ["the first list is not complete yet", "Unreachable: hung", ""]
