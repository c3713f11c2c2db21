"""D4: whose machine, whose name, whose token: the controller's pure rules, each attack with everything else right."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import timedelta
from typing import Final

import pytest
from builders import ATTESTED, CREATED, ENTRY, decide, make_member, make_request, recorded
from builders import bound as joined
from catalogue import Row, attacks, evaluated

from nodeattest_controller.controllers.csr.checks import new_key, own_hardware, proven_machine
from nodeattest_controller.controllers.csr.machine_checks import bound_token, not_bound_otherwise
from nodeattest_controller.model.attestation import (
    Attestation,
    RetiredKey,
    new_attestation,
)
from nodeattest_controller.model.attestation_object import parse_attestation, render_attestation, reset
from nodeattest_controller.model.certificate_authority import SignedCertificate
from nodeattest_controller.model.kubeadm_config import BOUND_GROUP_PREFIX, bound_group
from nodeattest_controller.model.machine_view import MachineView
from nodeattest_controller.model.node_names import NameContext, NameSources, check_node_name
from nodeattest_controller.model.resolver import find_machine
from nodeattest_controller.verification.checks import no_other_node
from nodeattest_parsing.values import JsonObject
from nodeattest_providers.identifiers import MachineName, NodeName, ProviderID, Purpose
from nodeattest_providers.insecure.verifier import InsecureSigner
from nodeattest_providers.node_interface import FirstRequestRef, JsonValue
from nodeattest_providers.tpm.config import parse_policy
from nodeattest_providers.tpm.protocol import PROVIDER
from nodeattest_providers.tpm.verifier import TpmSigner

NOBODY: Final = NameContext(claimants=(), holders=())
NODE: Final = NodeName("node-0")
OTHER: Final = ProviderID("sandbox://other")
ISSUED: Final = SignedCertificate(pem="pem", serial="ab", not_before=CREATED, not_after=CREATED + timedelta(days=14))
CLUSTER: Final = "fleet/c"
KEY: Final = "sha256:" + "0a" * 32
REGISTERED: Final[list[dict[str, JsonValue]]] = [
    {"providerID": "sandbox://node-0", "sha256": KEY, "nodeName": "node-0"},
    {"providerID": "sandbox://node-1", "sha256": "sha256:" + "0b" * 32, "nodeName": "node-1"},
]
Case = Callable[[], object]


def found(*candidates: MachineView) -> Case:
    return lambda: find_machine(make_request(), candidates)


def named(asked: str, **member: object) -> Case:
    """Ask for a name that is not this Machine's."""
    return lambda: check_node_name(NodeName(asked), make_member(**member), NOBODY, NameSources())


def pooled(asked: str, **settings: JsonValue) -> Case:
    """Ask, with the token of a pool, for a name that no registration gives the instance."""

    def case() -> object:
        proven = TpmSigner().provable_names({PROVIDER: settings}).get(ProviderID("sandbox://node-0"))
        return check_node_name(NodeName(asked), make_member(kind="MachinePool"), NOBODY, NameSources(registered=proven))

    return case


def claimed_by_another() -> object:
    around = NameContext(claimants=[make_member(uid="m-1", provider_id=OTHER)], holders=())
    return check_node_name(NODE, make_member(), around, NameSources())


def reported_by_a_guest() -> object:
    proven = TpmSigner().provable_names({PROVIDER: {"endorsementKeys": [*REGISTERED]}})
    around = replace(NOBODY, registered=frozenset(machine for machine, name in proven.items() if name == "node-1"))
    guest = make_member(addresses=(("Hostname", "node-1"),))
    return check_node_name(NodeName("node-1"), guest, around, NameSources())


def with_node(node: JsonObject, **member: object) -> Case:
    """Ask for the name of this Node."""
    return lambda: decide(no_other_node, machine=make_member(**member), name_context=NOBODY, node=node)


def bound(member: MachineView) -> Attestation:
    """The ledger of a machine that joined by a TPM, in two steps."""
    entry = replace(ENTRY, first_request_uid="f-1")
    return replace(joined(member), fingerprints={"tpm.ek": "sha256:e"}, issued=(entry,))


def held(*, alive: bool) -> tuple[Attestation, NameContext]:
    other = bound(make_member(provider_id=OTHER))
    return other, NameContext(claimants=(), holders=[other], is_alive=lambda _: alive)


def bound_name(*, alive: bool) -> Case:
    return lambda: decide(no_other_node, machine=make_member(), name_context=held(alive=alive)[1], node=None)


def cloned(*, alive: bool) -> Case:
    other, around = held(alive=alive)
    return lambda: decide(own_hardware, machine=make_member(), name_context=around, holders_of_fingerprints=[other])


def joining(ledger: Callable[[MachineView], Attestation], *, secure: bool = True, **member: object) -> Case:
    machine = make_member(**member)
    verifier = TpmSigner() if secure else InsecureSigner()
    return lambda: decide(not_bound_otherwise, machine=machine, attestation=ledger(machine), verifier=verifier)


def certified(ledger: Attestation, *, first: str, after: timedelta, **fingerprints: str) -> object:
    first_request = FirstRequestRef(name="first", uid=first)
    attested = replace(ATTESTED, fingerprints=fingerprints or ATTESTED.fingerprints, first_request=first_request)
    return recorded(ledger, make_request(), attested, ISSUED, CREATED + after)


def was_reset(ledger: Attestation) -> Attestation:
    """Return the ledger of a machine that an operator reset."""
    body = render_attestation(ledger, make_member(), "signer")
    return parse_attestation(reset(body, by="alice", reason="new mainboard", now=CREATED))


def proving(name: str) -> Case:
    """Ask with evidence that names this Machine."""
    proven = replace(ATTESTED, proven_machine_name=MachineName(name))
    return lambda: decide(proven_machine, machine=make_member(), verifier=TpmSigner(), attested=proven)


def many_live() -> object:
    old = tuple(
        RetiredKey(spki=f"sha256:{number}", serial=str(number), not_after=ISSUED.not_after, purpose=Purpose.CLIENT)
        for number in range(512)
    )
    return certified(replace(bound(make_member()), retired=old), first="f-2", after=timedelta(minutes=11))


def the_old_key() -> object:
    """Ask, after a reset, with the key that the machine had before."""
    request, ledger = make_request(), bound(make_member())
    entry = replace(ledger.issued[0], spki=request.csr.spki_sha256)
    attestation = was_reset(replace(ledger, issued=(entry,)))
    return decide(new_key, request, machine=make_member(), attestation=attestation)


def by_token(*groups: str) -> Case:
    request = make_request()
    return lambda: decide(bound_token, replace(request, groups=request.groups | set(groups)))


MINE: Final = bound_group(CLUSTER, "sandbox://node-0")
ANOTHERS: Final = bound_group(CLUSTER, "sandbox://node-1")
ELSEWHERE: Final = bound_group("fleet/other", "sandbox://node-0")
HOURS: Final = timedelta(hours=1)

CASES: Final[Mapping[str, Case]] = {
    "D4-01": found(),
    "D4-02": found(make_member(), make_member(name="node-1", uid="m-1")),
    "D4-03": found(make_member(deleting=True)),
    "D4-04": found(make_member(paused=True)),
    "D4-05": found(make_member(bootstrap_ready=False)),
    "D4-06": named("node-1"),
    "D4-07": named("node-00"),
    "D4-08": named("node-0.example.com"),
    "D4-09": named("node-0", node_ref_name=NodeName("host-0")),
    "D4-10": named("10.0.0.1", addresses=(("InternalIP", "10.0.0.1"),)),
    "D4-11": named("www", addresses=(("ExternalDNS", "www"),)),
    "D4-12": named("node-0", node_ref_name="node-ref"),
    "D4-13": named("node-0", kind="MachinePool"),
    "D4-14": claimed_by_another,
    "D4-15": with_node({"spec": {"providerID": "sandbox://victim"}}),
    "D4-16": with_node({"spec": {}, "metadata": {"uid": "n"}}),
    "D4-17": with_node({"spec": {}, "metadata": {"uid": "n"}}, node_ref_uid="another"),
    "D4-18": bound_name(alive=True),
    "D4-19": bound_name(alive=False),
    "D4-20": joining(new_attestation, node_ref_name="node-0"),
    "D4-21": joining(bound, secure=False),
    "D4-22": joining(lambda member: replace(bound(member), owner_uid="gone")),
    "D4-23": cloned(alive=True),
    "D4-24": cloned(alive=False),
    "D4-25": lambda: certified(bound(make_member()), first="f-1", after=HOURS),
    "D4-26": lambda: certified(bound(make_member()), first="f-2", after=timedelta(minutes=9)),
    "D4-27": lambda: certified(bound(make_member()), first="f-2", after=HOURS, ek="sha256:other"),
    "D4-28": many_live,
    "D4-98": the_old_key,
    "D4-29": by_token(ANOTHERS),
    "D4-30": by_token(ELSEWHERE),
    "D4-31": by_token(MINE, ANOTHERS),
    "D4-32": by_token(BOUND_GROUP_PREFIX),
    "D4-115": pooled("node-0", trustOnFirstUse=True),
    "D4-116": pooled("node-0", endorsementKeys=[{"providerID": "sandbox://node-0", "sha256": KEY}]),
    "D4-117": pooled("node-1", endorsementKeys=[*REGISTERED]),
    "D4-118": lambda: parse_policy({"endorsementKeys": [*REGISTERED, {**REGISTERED[0], "providerID": OTHER}]}),
    "D4-119": reported_by_a_guest,
    "D4-139": lambda: certified(was_reset(bound(make_member())), first="f-1", after=HOURS),
    "D4-160": proving("node-1"),
}


def test_the_machine_that_the_attacks_pretend_to_be_passes_every_rule() -> None:
    member, request = make_member(), make_request()
    assert find_machine(request, [member]) is member
    check_node_name(NODE, member, NOBODY, NameSources())
    assert pooled("node-0", endorsementKeys=[*REGISTERED])() is None
    decide(no_other_node, machine=member, name_context=NOBODY, node=None)
    proving(member.name)()
    joining(new_attestation)()
    by_token(MINE)()
    assert certified(new_attestation(member), first="f-1", after=HOURS)


@pytest.mark.parametrize(("row", "case"), attacks(CASES))
def test_who_is_not_this_machine_gets_nothing(row: Row, case: Case) -> None:
    assert evaluated(case) == row.expected
