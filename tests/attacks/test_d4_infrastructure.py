"""D4 at the reconciler: what token, infrastructure machine and host object give a Machine before Cluster API."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Any, Final

import pytest
from catalogue import Expected, Row, attacks
from controller_rows import REFUSED
from controller_scene import MINE, PROVER, Attack, ByKey, Scene, decision, hostname, running
from cryptography import x509
from csr_world import CAPI, attested
from late_machines import FOREIGN_GROUP, put_config

from nodeattest_controller.model.kubeadm_config import bound_group
from nodeattest_parsing.objects import text
from nodeattest_parsing.strict_base64 import decode_base64
from nodeattest_providers.errors import Reason
from nodeattest_providers.identifiers import (
    ANNOTATION_PROVIDER_ID,
    ANNOTATION_TPM_ENDORSEMENT_KEY,
    NodeName,
    ProviderID,
)
from nodeattest_sandbox.pki import ClusterPki

NODE: Final[dict[str, Any]] = {"username": "system:node:mine", "groups": ["system:nodes"]}
KEY: Final = ByKey.tpm.fingerprint


async def asked_without(s: Scene) -> Expected:
    return await s.told(await s.machine().asks(""))


async def annotated(s: Scene) -> Expected:
    await s.machine().world.follow()
    s.world.file("r-1", node=NodeName("mine"), provider_id=ProviderID(""), username="system:bootstrap:aaaaaa")
    s.write("r-1", annotations={ANNOTATION_PROVIDER_ID: "dev://another"})
    s.number = 1
    return await s.told(await s.ended("r-1"))


async def copied(s: Scene) -> Expected:
    """The bytes of the other's request, by one's own token."""
    await s.machine("other", "bbbbbb").machine().asks("", "other", "bbbbbb")
    return await s.told(await s.asks("", request=text(s.world.csr("r-1"), "spec", "request")))


async def approved_elsewhere(s: Scene) -> Expected:
    await s.asks("")
    s.write("r-1", decision("Approved"))
    await s.machine().world.settle()
    return await s.ended("r-1")


async def without_machine(s: Scene) -> Expected:
    put_config(s.machine().world, "stray", "aaaaaa")
    return await s.asks("dev://mine")


async def recorded_before(s: Scene) -> Expected:
    await s.machine("first", "bbbbbb").asks("dev://first", "first", "bbbbbb")
    return await s.machine(spec={"providerID": "dev://first"}).asks("dev://first")


async def suffix_of_a_thief(s: Scene) -> Expected:
    s.byo().world.verifier.answer = REFUSED
    await s.asks("byoh://host/thiefs")
    s.world.verifier.answer = attested()
    return await s.asks("byoh://host/abc123")


async def another_suffix(s: Scene) -> Expected:
    return await (await s.byo().joins("byoh://host/first")).asks("byoh://host/second")


async def for_a_year(s: Scene) -> Expected:
    ended = await s.machine().asks("dev://mine", expirationSeconds=365 * 86400)
    pem = decode_base64(text(s.world.csr("r-1"), "status", "certificate"))
    certificate = x509.load_pem_x509_certificate(pem)
    assert certificate.not_valid_after_utc - certificate.not_valid_before_utc <= timedelta(days=1, minutes=10)
    return ended


async def contradicted(s: Scene, provider_id: str, **spec: Any) -> Expected:
    await s.machine().joins("dev://mine")
    return await s.change(MINE, "spec", providerID="dev://other").asks(provider_id, **spec)


async def no_names(s: Scene) -> Expected:
    s.machine(addresses=[hostname("localhost.localdomain"), hostname("10.9.0.1", "InternalDNS")])
    assert (await s.asks("dev://mine", "10.9.0.1")).reason == Reason.NODE_NAME_MISMATCH
    return await s.asks("dev://mine", "localhost.localdomain")


THERE: Final = f"{CAPI}/machines/there"
OTHER_KEY: Final = {ANNOTATION_TPM_ENDORSEMENT_KEY: "sha256:" + 64 * "0"}
CASES: Final[Mapping[str, Attack]] = {
    # Token and Machine
    "D4-250": lambda s: s.machine().machine("other", "bbbbbb").asks("dev://other"),
    "D4-251": lambda s: s.machine().machine("other", "bbbbbb", provider_id="dev://other").asks("dev://other", "other"),
    "D4-252": lambda s: s.machine().asks("dev://invented"),
    "D4-253": asked_without,
    "D4-254": lambda s: s.machine().asks("", holder="ffffff"),
    "D4-255": lambda s: s.machine().asks("", groups=["system:bootstrappers", bound_group("fleet/blue", "dev://else")]),
    "D4-256": annotated,
    "D4-257": copied,
    "D4-258": approved_elsewhere,
    "D4-259": lambda s: s.machine().change(MINE, "metadata", deletionTimestamp="2026-01-01T00:00:00Z").asks(""),
    "D4-264": lambda s: s.machine().machine("second", config="mine").asks("dev://mine"),
    "D4-265": lambda s: s.machine().machine("second").asks("dev://mine"),
    "D4-266": without_machine,
    "D4-267": lambda s: s.machine().machine("there").change(THERE, "spec", clusterName="green").asks("dev://mine"),
    # Provider ID
    "D4-270": lambda s: s.machine(spec={"providerID": "dev://stated"}).asks("dev://other"),
    "D4-271": lambda s: (
        s.machine("once", "bbbbbb", spec={"providerID": "dev://x"})
        .machine(spec={"providerID": "dev://x"})
        .asks("dev://x")
    ),
    "D4-272": lambda s: s.machine("once", "bbbbbb", spec={"host": "x"}).machine(spec={"host": "x"}).asks("dev://x"),
    "D4-273": recorded_before,
    "D4-274": lambda s: s.machine("owner", "bbbbbb").machine(infra="owner").asks("dev://owner"),
    "D4-275": lambda s: s.machine(spec={"host": "Host/x:1"}).asks("dev://Host/x:1"),
    "D4-276": lambda s: s.machine(kind="KubevirtMachine", group=FOREIGN_GROUP).asks("kubevirt://mine"),
    "D4-277": lambda s: s.byo().asks("byoh://host/a/b"),
    "D4-278": suffix_of_a_thief,
    "D4-279": another_suffix,
    "D4-280": lambda s: s.byo("host", "evil").asks("byoh://evil/abc123"),
    "D4-281": lambda s: s.machine("gives", "bbbbbb").machine(spec={"providerID": "dev://gives"}).asks("dev://gives"),
    # Until Cluster API sets it
    "D4-285": for_a_year,
    "D4-286": lambda s: contradicted(s, "dev://mine", **NODE),
    "D4-287": lambda s: contradicted(s, "dev://other"),
    # Node names
    "D4-290": lambda s: (
        s.machine("robbed", "bbbbbb").machine(addresses=[hostname("robbed")]).asks("dev://mine", "robbed")
    ),
    "D4-291": lambda s: s.machine("guest", "bbbbbb", addresses=[hostname("MINE.")]).machine().asks("dev://mine"),
    "D4-292": no_names,
    "D4-293": lambda s: (
        s.metal().host().machine("guest", "bbbbbb", addresses=[hostname("iron")]).asks("dev://guest", "iron", "bbbbbb")
    ),
    "D4-294": lambda s: s.byo().asks("byoh://host/abc123", "host"),
    "D4-295": lambda s: (
        s.machine("east", "bbbbbb", addresses=[hostname("web.east.example")])
        .machine(addresses=[hostname("web.west.example")])
        .asks("dev://mine", "web")
    ),
    "D4-296": lambda s: s.machine().asks("dev://mine", "mine.example"),
    "D4-297": lambda s: s.machine(addresses=[hostname("db.b.example")]).asks("dev://mine", "db"),
    # Endorsement keys
    "D4-300": lambda s: s.metal().host(key=KEY).asks("metal3://fleet/iron/mine"),
    "D4-301": lambda s: s.metal("away/iron").host(namespace="away", key=KEY).asks("metal3://away/iron/mine"),
    "D4-302": lambda s: s.metal().host(consumer="somebody", key=KEY).asks("metal3://fleet/iron/mine"),
    "D4-303": lambda s: s.metal().host(key=KEY).host("copy", consumer="", key=KEY).asks("metal3://fleet/iron/mine"),
    "D4-304": lambda s: s.metal(**OTHER_KEY).host(key=KEY).asks("metal3://fleet/iron/mine"),
    "D4-305": lambda s: s.byo(key=KEY).asks("byoh://host/abc123"),
}


@pytest.mark.parametrize(("row", "attack"), attacks(CASES))
async def test_what_infrastructure_objects_say_gives_a_machine_no_more_than_its_own(
    pki: ClusterPki, row: Row, attack: Attack
) -> None:
    async with running(pki, ByKey if row.id >= "D4-300" else PROVER, late=True) as scene:
        assert await attack(scene) == row.expected
