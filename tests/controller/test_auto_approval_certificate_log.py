"""What the in-tree signer issued: each certificate that no attestation covers is found once, and no other."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import AsyncIterator
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from uuid import uuid4

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import NameOID
from polling import until

from nodeattest_controller.controllers.auto_approval.approval_block import IN_TREE_SIGNER
from nodeattest_controller.controllers.auto_approval.certificate_log import (
    MAX_GAP,
    NAMED,
    CertificateLog,
    IssuedInTree,
    UncoveredCertificates,
)
from nodeattest_controller.runtime.indexes import Inventory, cluster_key
from nodeattest_kube.client import ApiClient
from nodeattest_sandbox.apiserver.jsonvalue import JsonMap, JsonValue
from nodeattest_sandbox.control_plane import ControlPlane

CSRS = "/apis/certificates.k8s.io/v1/certificatesigningrequests"
LONG_AGO = datetime(2020, 1, 1, tzinfo=UTC)
KEY = cluster_key("fleet", "c")


class Watched:
    """A log of one control plane, and clocks that a test moves."""

    def __init__(self, client: ApiClient) -> None:
        self.skipped = 0.0
        self.woken = asyncio.Event()
        loop = asyncio.get_running_loop()
        self.log = CertificateLog(
            KEY,
            client,
            Inventory(),
            now=lambda: datetime.now(UTC) + timedelta(seconds=self.skipped),
            clock=lambda: loop.time() + self.skipped,
        )
        self.log.subscribe(self.woken.set)


@pytest.fixture
async def watched(control_plane: ControlPlane) -> AsyncIterator[Watched]:
    async with ApiClient.from_kubeconfig_file(control_plane.admin_kubeconfig) as client:
        made = Watched(client)
        task = asyncio.create_task(made.log.run())
        await until(lambda: not made.log.trouble())
        yield made
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


def issue(
    plane: ControlPlane,
    node: str,
    user: str = "system:bootstrap:abcdef",
    *,
    approved: bool = True,
    readable: bool = True,
) -> str:
    """File, approve and issue as kube-controller-manager would; returns the request's name."""
    key, admin = ec.generate_private_key(ec.SECP256R1()), plane.client()
    subject = x509.Name(
        [
            x509.NameAttribute(NameOID.ORGANIZATION_NAME, "system:nodes"),
            x509.NameAttribute(NameOID.COMMON_NAME, f"system:node:{node}"),
        ]
    )
    csr = x509.CertificateSigningRequestBuilder().subject_name(subject).sign(key, hashes.SHA256())
    name = f"tests-issued-{uuid4().hex[:8]}"
    body: JsonMap = {
        "apiVersion": "certificates.k8s.io/v1",
        "kind": "CertificateSigningRequest",
        "metadata": {"name": name},
        "spec": {
            "signerName": IN_TREE_SIGNER,
            "usages": ["digital signature", "key encipherment", "client auth"],
            "request": base64.b64encode(csr.public_bytes(Encoding.PEM)).decode(),
        },
    }
    made = plane.client(plane.client_kubeconfig(user, ("system:masters",))).create(CSRS, body)
    if not approved:
        return name
    approval: JsonValue = [{"type": "Approved", "status": "True", "reason": "t", "message": "t"}]
    admin.send("PUT", f"{CSRS}/{name}/approval", {**made, "status": {"conditions": approval}})
    now = datetime.now(UTC)
    builder = x509.CertificateBuilder(subject, subject, key.public_key(), 0xABC, now, now + timedelta(days=365))
    pem = builder.sign(key, hashes.SHA256()).public_bytes(Encoding.PEM)
    if readable:
        status: JsonMap = {
            **admin.get(f"{CSRS}/{name}"),
            "status": {"conditions": approval, "certificate": base64.b64encode(pem).decode()},
        }
        admin.send("PUT", f"{CSRS}/{name}/status", status)
    return name


async def test_what_a_token_got_is_found_once_with_serial_and_end(
    watched: Watched, control_plane: ControlPlane
) -> None:
    name = issue(control_plane, "victim")
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


async def test_what_is_older_than_the_policy_is_no_violation(watched: Watched, control_plane: ControlPlane) -> None:
    issue(control_plane, "old")
    await asyncio.wait_for(watched.woken.wait(), 60)
    assert list(watched.log.review(datetime.now(UTC) + timedelta(seconds=5), None)) == []
    assert not watched.log.found


async def test_a_node_that_is_not_in_the_ledger_renews_as_before(watched: Watched, control_plane: ControlPlane) -> None:
    name = issue(control_plane, "renews", "system:node:renews")
    await asyncio.wait_for(watched.woken.wait(), 60)
    waiting = issue(control_plane, "waits", approved=False)
    witness, seen = issue(control_plane, "witness"), set[str]()

    def witnessed() -> bool:
        seen.update(one.request for one in watched.log.review(LONG_AGO, {}))
        return witness in seen  # the watch told of the other one before

    await until(witnessed)
    assert seen.isdisjoint({name, waiting})


async def test_an_approval_counts_before_the_certificate_is_there(
    watched: Watched, control_plane: ControlPlane
) -> None:
    issue(control_plane, "approved-only", readable=False)
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
    found = UncoveredCertificates(earlier="before", earlier_reported=LONG_AGO)
    found.add(certificate(10), is_new=True)
    found.accept(None)
    found.accept(LONG_AGO)
    assert found.count == 1
    assert found.earlier
    found.accept(LONG_AGO + timedelta(seconds=5))
    assert (found.count, found.earlier) == (1, "")
    found.accept(LONG_AGO + timedelta(seconds=11))
    assert not found
