"""D4 at a running controller: what token, infrastructure machine and host object give a Machine before Cluster API."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping
from concurrent.futures import Future
from contextlib import ExitStack, contextmanager
from datetime import timedelta
from typing import Final

import pytest
from apiserver_kit import condition
from attacked_world import attempted, becomes, controlled
from cases import attacks
from catalogue import Row
from exchanges import node_client, settled, token_client, tpm_node
from filing_requests import Filed
from infrastructure_machines import (
    FOREIGN_GROUP,
    Machinery,
    Seat,
    bare_metal_host,
    byo_host,
    install_kinds,
    make_config,
    make_infra,
    make_machine,
    secret_holder,
    take_seat,
)
from polling import eventually
from serving_requests import Node, certificate_of, enrol
from world import CLUSTER, CSRS, NAMESPACE, World

from nodeattest_controller.model.issuance_rules import bound_group
from nodeattest_providers.identifiers import (
    ANNOTATION_CHALLENGE,
    ANNOTATION_PROVIDER_ID,
    ANNOTATION_REASON,
    ANNOTATION_TPM_ENDORSEMENT_KEY,
)
from nodeattest_sandbox.apiserver.jsonvalue import JsonMap, map_at
from nodeattest_sandbox.definitions import INFRASTRUCTURE_GROUP

pytestmark = pytest.mark.swtpm

ELSEWHERE: Final = "d4-elsewhere"
MACHINES: Final = f"/apis/cluster.x-k8s.io/v1beta1/namespaces/{NAMESPACE}/machines"
EXPRESSION: Final = "dev://{infra.spec.address}:{infra.spec.port}"
DAY: Final = timedelta(days=1)
Attempt = Callable[["Scene"], Filed]


class Scene:
    """The world, and TPMs that stay until the end."""

    def __init__(self, world: World, stack: ExitStack) -> None:
        self.world = world
        self._stack = stack

    def tpm(self, name: str) -> tuple[Node, str]:
        """Return what answers by a machine's TPM, and the fingerprint of its endorsement key."""
        node = self._stack.enter_context(tpm_node(self.world, name))
        return node, self.world.tpm(name).endorsement_fingerprint()


@contextmanager
def guarded(world: World) -> Generator[Scene]:
    install_kinds(world, ELSEWHERE)
    infrastructure: JsonMap = {
        "hostObjects": ["BareMetalHost"],
        "shortNodeNames": True,
        "providerIDs": [{"group": INFRASTRUCTURE_GROUP, "kind": "DevMachine", "expression": EXPRESSION}],
    }
    registered: JsonMap = {
        "providerID": "dev://registered",
        "sha256": "sha256:" + 32 * "0a",
        "nodeName": "d4-i-db.a.example",
    }
    policy: JsonMap = {
        "authorizedAttestors": ["challenge", "tpm"],
        "tokenBinding": "Required",
        "infrastructure": infrastructure,
        "tpm": {"endorsementKeys": [registered]},
    }
    with controlled(world, "d4-infrastructure.log", **policy), ExitStack() as stack:
        yield Scene(world, stack)


@pytest.fixture(scope="module")
def scene(world: World) -> Iterator[Scene]:
    """The world, with a controller in it that takes names and keys from BareMetalHosts."""
    with guarded(world) as scene:
        yield scene


def dev(port: int) -> tuple[Machinery, str]:
    """Return an infrastructure machine, and the provider ID that the policy's expression gives it."""
    return Machinery(spec={"address": "10.9.0.1", "port": port}), f"dev://10.9.0.1:{port}"


def metal(scene: Scene, name: str, host: str, *, node: Node | None = None, **annotations: str) -> tuple[Seat, str]:
    """Make a machine of Metal3 on ``namespace/host``, and return its provider ID."""
    noted = {"metal3.io/BareMetalHost": host, **annotations}
    seat = take_seat(scene.world, name, Machinery(kind="Metal3Machine", annotations=noted), node=node)
    return seat, f"metal3://{host}/{name}"


def byo(scene: Scene, name: str, node: Node | None = None, key: str = "") -> Seat:
    """Make a machine of BYOH on the ByoHost ``<name>-host``."""
    world = scene.world
    token, kind = world.token(), Machinery(kind="ByoMachine")
    machine = make_machine(world, name, kind)
    infra = make_infra(world, machine, kind)
    byo_host(world, f"{name}-host", infra, key=key)
    make_config(world, machine, token)
    return Seat(node or secret_holder(world, name), token)


# Token and Machine


def will_be_anothers(scene: Scene) -> Filed:
    mine, other = dev(150), dev(1150)
    take_seat(scene.world, "d4-i-other", other[0])
    seat = take_seat(scene.world, "d4-i-mine", mine[0])
    return seat.asks(other[1]).first(seat.client)


def is_anothers(scene: Scene) -> Filed:
    enrol(scene.world, "d4-i-has", bootstrap_token=scene.world.token())
    seat = take_seat(scene.world, "d4-i-wants", dev(151)[0])
    return seat.asks("sandbox://d4-i-has", node="d4-i-has").first(seat.client)


def is_nobodys(scene: Scene) -> Filed:
    seat = take_seat(scene.world, "d4-i-invents", dev(152)[0])
    return seat.asks("dev://10.9.0.1:1152").first(seat.client)


def asked_without(scene: Scene) -> Filed:
    machinery, provider_id = dev(153)
    seat = take_seat(scene.world, "d4-i-told", machinery)
    first = seat.asks("").first(seat.client)
    return told(first, provider_id)


def told(first: Filed, provider_id: str) -> Filed:
    """Require the answer to a request without provider ID: it names it and challenges nobody."""
    assert settled(first) == ""
    assert (first.annotation(ANNOTATION_PROVIDER_ID), first.annotation(ANNOTATION_CHALLENGE)) == (provider_id, "")
    return first


def nobodys_token(scene: Scene) -> Filed:
    seat = take_seat(scene.world, "d4-i-nobody", dev(154)[0])
    return seat.asks("").first(token_client(scene.world))


def bound_token(scene: Scene) -> Filed:
    machinery, provider_id = dev(155)
    seat = take_seat(scene.world, "d4-i-bound", machinery)
    return seat.asks("").first(token_client(scene.world, bound_group(f"{NAMESPACE}/{CLUSTER}", provider_id)))


def annotated(scene: Scene) -> Filed:
    machinery, provider_id = dev(156)
    seat = take_seat(scene.world, "d4-i-noted", machinery)
    metadata: JsonMap = {"annotations": {ANNOTATION_PROVIDER_ID: "dev://10.9.0.1:1156"}}
    return told(seat.asks("").first(seat.client, metadata), provider_id)


def copied(scene: Scene) -> Filed:
    machinery, provider_id = dev(157)
    victim, thief = (
        take_seat(scene.world, "d4-i-copied", dev(1157)[0]),
        take_seat(scene.world, "d4-i-copies", machinery),
    )
    return told(victim.asks("").first(thief.client), provider_id)


def approved_elsewhere(scene: Scene) -> Filed:
    world = scene.world
    token = world.token()
    seat = Seat(secret_holder(world, "d4-i-approved"), token)
    filed = seat.asks("").first(seat.client)
    eventually(lambda: filed.annotation(ANNOTATION_REASON), "the wait")
    body = filed.read()
    map_at(body, "status")["conditions"] = [condition("Approved", reason="Somebody")]
    world.workload_admin.replace(f"{CSRS}/{filed.name}/approval", body)
    machine = make_machine(world, "d4-i-approved", dev(158)[0])
    make_infra(world, machine, dev(158)[0])
    make_config(world, machine, token)
    return filed


def deleted(scene: Scene) -> Filed:
    seat = take_seat(scene.world, "d4-i-deleted", dev(159)[0])
    path = f"{MACHINES}/d4-i-deleted"
    scene.world.admin.patch(path, {"metadata": {"finalizers": ["example.com/hold"]}})
    scene.world.admin.delete(path)

    def refused() -> Filed | None:
        filed = seat.asks("").first(seat.client)
        settled(filed)
        return filed if not filed.annotation(ANNOTATION_PROVIDER_ID) else None

    return eventually(refused, "the watch's event")


def referenced_twice(scene: Scene) -> Filed:
    machinery, provider_id = dev(160)
    seat = take_seat(scene.world, "d4-i-first", machinery)
    make_machine(scene.world, "d4-i-second", config="d4-i-first")
    return seat.asks(provider_id).carry_out(seat.client)


def named_twice(scene: Scene) -> Filed:
    machinery, provider_id = dev(161)
    seat = take_seat(scene.world, "d4-i-named", machinery)
    take_seat(scene.world, "d4-i-names", dev(1161)[0], token=seat.token)
    return ends_denied(lambda: seat.asks(provider_id).carry_out(seat.client))


def ends_denied(attempt: Callable[[], Filed]) -> Filed:
    """File until the controller's watch has shown it what makes the difference."""

    def denied() -> Filed | None:
        filed = attempt()
        return filed if eventually(filed.state, "an end").startswith("Denied") else None

    return eventually(denied, "a denial")


def named_without_machine(scene: Scene) -> Filed:
    machinery, provider_id = dev(162)
    seat = take_seat(scene.world, "d4-i-sole", machinery)
    stray: JsonMap = {"metadata": {"name": "d4-i-stray", "uid": "0"}, "apiVersion": "v1", "kind": "ConfigMap"}
    make_config(scene.world, stray, seat.token)
    return seat.asks(provider_id).carry_out(seat.client)


def named_in_another_cluster(scene: Scene) -> Filed:
    machinery, provider_id = dev(163)
    seat = take_seat(scene.world, "d4-i-here", machinery)
    machine = make_machine(scene.world, "d4-i-there", cluster="c9")
    make_config(scene.world, machine, seat.token)
    return seat.asks(provider_id).carry_out(seat.client)


# Provider ID


def not_the_infrastructures(scene: Scene) -> Filed:
    seat = take_seat(scene.world, "d4-i-stated", Machinery(spec={"providerID": "dev://stated"}))
    return seat.asks("dev://other").first(seat.client)


def stated_twice(scene: Scene) -> Filed:
    machinery = Machinery(spec={"providerID": "dev://twice"})
    take_seat(scene.world, "d4-i-once", machinery)
    seat = take_seat(scene.world, "d4-i-twice", machinery)
    return ends_denied(lambda: seat.asks("dev://twice").carry_out(seat.client))


def derived_twice(scene: Scene) -> Filed:
    machinery, provider_id = dev(172)
    take_seat(scene.world, "d4-i-derived", machinery)
    seat = take_seat(scene.world, "d4-i-derives", machinery)
    return seat.asks(provider_id).carry_out(seat.client)


def stated_and_derived(scene: Scene) -> Filed:
    machinery, provider_id = dev(181)
    take_seat(scene.world, "d4-i-gives", machinery)
    seat = take_seat(scene.world, "d4-i-states", Machinery(spec={"providerID": provider_id}))
    return seat.asks(provider_id).carry_out(seat.client)


def recorded_before(scene: Scene) -> Filed:
    machinery, provider_id = dev(173)
    first = take_seat(scene.world, "d4-i-joined", machinery)
    certificate_of(first.asks(provider_id).carry_out(first.client))
    seat = take_seat(scene.world, "d4-i-late", Machinery(spec={"providerID": provider_id}))
    return seat.asks(provider_id).first(seat.client)


def another_machines_infrastructure(scene: Scene) -> Filed:
    machinery, provider_id = dev(174)
    take_seat(scene.world, "d4-i-owner", machinery)
    token = scene.world.token()
    make_config(scene.world, make_machine(scene.world, "d4-i-borrows", infra="d4-i-owner"), token)
    seat = Seat(secret_holder(scene.world, "d4-i-borrows"), token)
    return seat.asks(provider_id).first(seat.client)


def upper_case_operand(scene: Scene) -> Filed:
    seat = take_seat(scene.world, "d4-i-upper", Machinery(spec={"address": "Host/x:1", "port": 175}))
    return seat.asks("dev://Host/x:1:175").first(seat.client)


def foreign_group(scene: Scene) -> Filed:
    seat = take_seat(scene.world, "d4-i-group", Machinery(kind="KubevirtMachine", group=FOREIGN_GROUP))
    return seat.asks("kubevirt://d4-i-group").first(seat.client)


def suffix_with_separator(scene: Scene) -> Filed:
    seat = byo(scene, "d4-i-slash")
    return seat.asks("byoh://d4-i-slash-host/a/b").first(seat.client)


def suffix_of_a_thief(scene: Scene) -> Filed:
    seat = byo(scene, "d4-i-suffix")
    thief = Seat(secret_holder(scene.world, "d4-i-thief"), seat.token)
    settled(thief.asks("byoh://d4-i-suffix-host/mine", node="d4-i-suffix").first(seat.client))
    return seat.asks("byoh://d4-i-suffix-host/abc123").carry_out(seat.client)


def another_suffix(scene: Scene) -> Filed:
    seat = byo(scene, "d4-i-suffixes")
    certificate_of(seat.asks("byoh://d4-i-suffixes-host/first").carry_out(seat.client))
    return seat.asks("byoh://d4-i-suffixes-host/second").first(seat.client)


def two_byo_hosts(scene: Scene) -> Filed:
    seat = byo(scene, "d4-i-hosts")
    infra = scene.world.admin.get(f"/apis/{INFRASTRUCTURE_GROUP}/v1beta1/namespaces/{NAMESPACE}/byomachines/d4-i-hosts")
    byo_host(scene.world, "d4-i-evil", infra)
    return seat.asks("byoh://d4-i-evil/abc123").first(seat.client)


# Until Cluster API sets it


def joined(scene: Scene, name: str, port: int) -> tuple[Seat, str]:
    machinery, provider_id = dev(port)
    seat = take_seat(scene.world, name, machinery)
    certificate_of(seat.asks(provider_id).carry_out(seat.client))
    return seat, provider_id


def for_a_year(scene: Scene) -> Filed:
    machinery, provider_id = dev(185)
    seat = take_seat(scene.world, "d4-i-year", machinery)
    filed = seat.asks(provider_id).carry_out(seat.client)
    certificate = certificate_of(filed)
    assert certificate.not_valid_after_utc - certificate.not_valid_before_utc <= DAY + timedelta(minutes=10)
    return filed


def contradicted(scene: Scene, name: str, port: int) -> tuple[Seat, str]:
    seat, provider_id = joined(scene, name, port)
    scene.world.admin.patch(f"{MACHINES}/{name}", {"spec": {"providerID": f"dev://other-{port}"}})
    return seat, provider_id


def renewed_after_contradiction(scene: Scene) -> Filed:
    seat, provider_id = contradicted(scene, "d4-i-renews", 186)
    return ends_denied(lambda: seat.asks(provider_id).carry_out(node_client(scene.world, "d4-i-renews")))


def joined_after_contradiction(scene: Scene) -> Filed:
    seat, _ = contradicted(scene, "d4-i-rejoins", 187)
    return ends_denied(lambda: seat.asks("dev://other-187").carry_out(seat.client))


# Node names


def reported_name(scene: Scene) -> Filed:
    machinery, provider_id = dev(190)
    take_seat(scene.world, "d4-i-robbed", dev(1190)[0])
    seat = take_seat(scene.world, "d4-i-robs", machinery, addresses=[("Hostname", "d4-i-robbed")])
    return seat.asks(provider_id, "d4-i-robbed").first(seat.client)


def keeps_name(scene: Scene) -> Filed:
    machinery, provider_id = dev(191)
    take_seat(scene.world, "d4-i-blocks", dev(1191)[0], addresses=[("Hostname", "D4-I-Blocked.")])
    seat = take_seat(scene.world, "d4-i-blocked", machinery)
    return seat.asks(provider_id).carry_out(seat.client)


def no_names(scene: Scene) -> Filed:
    machinery, provider_id = dev(192)
    addresses = [("Hostname", "localhost.localdomain"), ("InternalDNS", "10.9.0.1")]
    seat = take_seat(scene.world, "d4-i-local", machinery, addresses=addresses)
    by_address = seat.asks(provider_id, "10.9.0.1").first(seat.client)
    assert eventually(by_address.state, "an end") == "Denied:NodeNameMismatch"
    return seat.asks(provider_id, "localhost.localdomain").first(seat.client)


def hosts_name(scene: Scene) -> Filed:
    bare_metal_host(scene.world, "d4-i-iron", "d4-i-metal")
    metal(scene, "d4-i-metal", f"{NAMESPACE}/d4-i-iron")
    machinery, provider_id = dev(193)
    seat = take_seat(scene.world, "d4-i-claims", machinery, addresses=[("Hostname", "d4-i-iron")])
    return seat.asks(provider_id, "d4-i-iron").carry_out(seat.client)


def byo_hosts_name(scene: Scene) -> Filed:
    seat = byo(scene, "d4-i-byo")
    return seat.asks("byoh://d4-i-byo-host/abc123", "d4-i-byo-host").first(seat.client)


def short_name_of_two(scene: Scene) -> Filed:
    machinery, provider_id = dev(195)
    take_seat(scene.world, "d4-i-east", dev(1195)[0], addresses=[("Hostname", "d4-i-web.east.example")])
    seat = take_seat(scene.world, "d4-i-west", machinery, addresses=[("Hostname", "d4-i-web.west.example")])
    return seat.asks(provider_id, "d4-i-web").first(seat.client)


def short_name_of_a_registered_one(scene: Scene) -> Filed:
    machinery, provider_id = dev(197)
    seat = take_seat(scene.world, "d4-i-guest", machinery, addresses=[("Hostname", "d4-i-db.b.example")])
    return seat.asks(provider_id, "d4-i-db").first(seat.client)


def longer_name(scene: Scene) -> Filed:
    machinery, provider_id = dev(196)
    seat = take_seat(scene.world, "d4-i-short", machinery)
    return seat.asks(provider_id, "d4-i-short.example").first(seat.client)


# Endorsement keys


def key_of_its_host(scene: Scene) -> Filed:
    node, key = scene.tpm("d4-i-ek")
    bare_metal_host(scene.world, "d4-i-ek-host", "d4-i-ek", key=key)
    seat, provider_id = metal(scene, "d4-i-ek", f"{NAMESPACE}/d4-i-ek-host", node=node)
    return seat.asks(provider_id).carry_out(seat.client)


def key_elsewhere(scene: Scene) -> Filed:
    node, key = scene.tpm("d4-i-ek-away")
    bare_metal_host(scene.world, "d4-i-away", "d4-i-ek-away", namespace=ELSEWHERE, key=key)
    seat, provider_id = metal(scene, "d4-i-ek-away", f"{ELSEWHERE}/d4-i-away", node=node)
    return seat.asks(provider_id).first(seat.client)


def key_of_anothers_host(scene: Scene) -> Filed:
    node, key = scene.tpm("d4-i-ek-taken")
    bare_metal_host(scene.world, "d4-i-taken", "d4-i-somebody", key=key)
    seat, provider_id = metal(scene, "d4-i-ek-taken", f"{NAMESPACE}/d4-i-taken", node=node)
    return seat.asks(provider_id).first(seat.client)


def key_of_two_hosts(scene: Scene) -> Filed:
    node, key = scene.tpm("d4-i-ek-two")
    bare_metal_host(scene.world, "d4-i-copy", "", key=key)
    bare_metal_host(scene.world, "d4-i-original", "d4-i-ek-two", key=key)
    seat, provider_id = metal(scene, "d4-i-ek-two", f"{NAMESPACE}/d4-i-original", node=node)
    return ends_denied(lambda: seat.asks(provider_id).carry_out(seat.client))


def key_contradicted(scene: Scene) -> Filed:
    node, key = scene.tpm("d4-i-ek-both")
    bare_metal_host(scene.world, "d4-i-both", "d4-i-ek-both", key=key)
    other = {ANNOTATION_TPM_ENDORSEMENT_KEY: "sha256:" + 64 * "0"}
    seat, provider_id = metal(scene, "d4-i-ek-both", f"{NAMESPACE}/d4-i-both", node=node, **other)
    return seat.asks(provider_id).carry_out(seat.client)


def key_of_a_byo_host(scene: Scene) -> Filed:
    node, key = scene.tpm("d4-i-ek-byo")
    seat = byo(scene, "d4-i-ek-byo", node, key)
    return seat.asks("byoh://d4-i-ek-byo-host/abc123").carry_out(seat.client)


CASES: Final[Mapping[str, Attempt]] = {
    "D4-250": will_be_anothers,
    "D4-251": is_anothers,
    "D4-252": is_nobodys,
    "D4-253": asked_without,
    "D4-254": nobodys_token,
    "D4-255": bound_token,
    "D4-256": annotated,
    "D4-257": copied,
    "D4-258": approved_elsewhere,
    "D4-259": deleted,
    "D4-264": referenced_twice,
    "D4-265": named_twice,
    "D4-266": named_without_machine,
    "D4-267": named_in_another_cluster,
    "D4-270": not_the_infrastructures,
    "D4-271": stated_twice,
    "D4-272": derived_twice,
    "D4-273": recorded_before,
    "D4-274": another_machines_infrastructure,
    "D4-275": upper_case_operand,
    "D4-276": foreign_group,
    "D4-277": suffix_with_separator,
    "D4-278": suffix_of_a_thief,
    "D4-279": another_suffix,
    "D4-280": two_byo_hosts,
    "D4-281": stated_and_derived,
    "D4-285": for_a_year,
    "D4-286": renewed_after_contradiction,
    "D4-287": joined_after_contradiction,
    "D4-290": reported_name,
    "D4-291": keeps_name,
    "D4-292": no_names,
    "D4-293": hosts_name,
    "D4-294": byo_hosts_name,
    "D4-295": short_name_of_two,
    "D4-296": longer_name,
    "D4-297": short_name_of_a_registered_one,
    "D4-300": key_of_its_host,
    "D4-301": key_elsewhere,
    "D4-302": key_of_anothers_host,
    "D4-303": key_of_two_hosts,
    "D4-304": key_contradicted,
    "D4-305": key_of_a_byo_host,
}


@pytest.fixture(scope="module")
def filed(scene: Scene) -> Mapping[str, Future[Filed]]:
    return attempted(CASES, scene)


@pytest.mark.parametrize(("row", "attempt"), attacks(CASES))
def test_what_infrastructure_objects_say_gives_a_machine_no_more_than_its_own(
    filed: Mapping[str, Future[Filed]], row: Row, attempt: Attempt
) -> None:
    assert attempt
    becomes(filed[row.id].result(), row)
