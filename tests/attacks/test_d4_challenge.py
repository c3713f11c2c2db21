"""D4: secrets that the controller creates for machines and what its right is worth; whom health checks believe."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import timedelta
from importlib import import_module
from typing import Any, Final

import pytest
from catalogue import Expected, Row, Verdict, attacks, evaluated
from node_attested_world import NOW, NodeAttestedWorld, claim, machine
from test_challenge_secret import OWNER, SECRET, machine_owner, own_config, owned
from test_d4_policy import answer, answered
from worlds import FACTS

from nodeattest_controller import manifests
from nodeattest_controller.model import kubeadm_config
from nodeattest_controller.model.machine_view import CONTROL_PLANE_LABEL, view_of_machine
from nodeattest_controller.runtime.cluster_controller import CSRDenied
from nodeattest_parsing.objects import items, mapping, text
from nodeattest_parsing.values import JsonObject
from nodeattest_providers.errors import Denied, Reason
from nodeattest_providers.identifiers import Purpose
from nodeattest_providers.node_interface import SecretBytes
from nodeattest_providers.verifier_interface import LedgerFacts

Case = Callable[[], Expected]
VALUE: Final = b"5e" * 32
CONTROLLER: Final = "system:serviceaccount:nodeattest-system:node-attestation-controller"


# What the controller finds


def proved(found: SecretBytes | Denied | None, known: bytes = VALUE, **facts: Any) -> Case:
    """Answer the challenge by a known value, where the controller finds this for the machine."""
    machine = replace(FACTS.machine, attestation_secret=found)

    def run() -> Expected:
        return evaluated(answered(lambda: answer(secret=known), machine=machine, **facts))

    return run


def stored(secret: JsonObject | None, config: JsonObject | None = None) -> SecretBytes | Denied:
    return kubeadm_config.read_secret(secret, kubeadm_config.read_config(config or own_config()), "uid-w")


def of_control_plane() -> SecretBytes | Denied:
    reference: JsonObject = {"apiGroup": "bootstrap.cluster.x-k8s.io", "kind": "KubeadmConfig", "name": "w"}
    labels: JsonObject = {CONTROL_PLANE_LABEL: ""}
    spec: JsonObject = {"providerID": "x://w", "clusterName": "c", "bootstrap": {"configRef": reference}}
    view = view_of_machine({"metadata": {"name": "w", "uid": "uid-w", "labels": labels}, "spec": spec})
    assert not kubeadm_config.has_own_config(view)
    return kubeadm_config.no_own_config(view)


# What the API server admits: the shipped ValidatingAdmissionPolicy, by the CEL team's library


def admitted(user: str, secret: JsonObject, namespace: str = "fleet") -> Case:
    def run() -> Expected:
        reasons = list(refusals(user, secret, namespace))
        return Expected(Verdict.DENY, reasons[0]) if reasons else Expected(Verdict.ACCEPT, "")

    return run


def refusals(user: str, secret: JsonObject, namespace: str) -> Iterator[str]:
    """Yield the reasons of the validations that fail, for a user without further rights."""
    [policy] = [one for one in manifests.objects("challenge-secrets") if one["kind"] == "ValidatingAdmissionPolicy"]
    spec = mapping(policy, "spec")
    cel: Any = import_module("cel_expr_python.cel")
    names = ("object", "oldObject", "request")
    env = cel.NewEnv(variables=dict.fromkeys(names, cel.Type.DYN))
    variables = {text(one, "name"): f"({text(one, 'expression')})" for one in items(spec, "variables")}
    request: JsonObject = {"userInfo": {"username": user}, "namespace": namespace, "operation": "CREATE"}
    data = {"object": secret, "oldObject": None, "request": request}

    def holds(expression: str) -> bool:
        written = re.sub(r"authorizer\..*?\.allowed\(\)", "false", expression, flags=re.DOTALL)
        written = re.sub(r"variables\.(\w+)", lambda found: variables[found[1]], written)
        return env.compile(written).eval(data=data).plain_value() is True

    if all(holds(text(one, "expression")) for one in items(spec, "matchConditions")):
        for one in items(spec, "validations"):
            if not holds(text(one, "expression")):
                yield text(one, "reason")


def typed(kind: str, name: str = "x") -> JsonObject:
    return {"metadata": {"name": name}, "type": kind}


CASES: Final[Mapping[str, Case]] = {
    "D4-170": proved(stored({**SECRET, "type": "Opaque"})),
    "D4-171": proved(stored(owned(SECRET, {**OWNER, "uid": "of an earlier one"}))),
    "D4-172": proved(stored(SECRET, own_config(owners=(machine_owner("of another Machine"),)))),
    "D4-173": proved(stored({**SECRET, "immutable": False})),
    "D4-174": proved(stored(None)),
    "D4-175": proved(of_control_plane()),
    "D4-176": proved(stored(SECRET), ledger=LedgerFacts(bound_spkis=frozenset({"sha256:another key"}))),
    "D4-177": proved(stored(SECRET), known=b"a5" * 32),
    "D4-178": proved(stored(SECRET)),
    "D4-179": admitted(CONTROLLER, typed("kubernetes.io/service-account-token")),
    "D4-180": admitted(CONTROLLER, typed(kubeadm_config.SECRET_TYPE, "blue-kubeconfig")),
    "D4-181": admitted("a tenant", SECRET),
}


@pytest.mark.parametrize(("row", "case"), attacks(CASES))
def test_a_machines_secret_is_the_controllers_own_and_its_right_is_good_for_nothing_else(row: Row, case: Case) -> None:
    assert case() == row.expected


def test_what_the_attacks_spoil_is_good() -> None:
    value = kubeadm_config.secret_value(SECRET)
    assert value is not None
    assert value.reveal() == VALUE
    assert list(refusals(CONTROLLER, SECRET, "fleet")) == []
    own: list[JsonObject] = [typed("Opaque"), typed("kubernetes.io/tls")]
    assert [list(refusals(CONTROLLER, one, "nodeattest-system")) for one in own] == [[], []]
    assert list(refusals("a tenant", typed("Opaque"), "fleet")) == []


# Who holds a bootstrap token, or another node, cannot make NodeAttested False


JOINED, NEW = machine(0), machine(1, node=False)
INSTANCE = replace(machine(2), kind="MachinePool", name="pool", uid="p-0")


@dataclass(frozen=True)
class Attack:
    """Whom it is about, and the refused requests."""

    prepare: Callable[[NodeAttestedWorld], str]
    requests: Callable[[Reason], list[CSRDenied]]
    pause: float = 0.0
    """Seconds between two reasons."""


def other_node(reason: Reason, **changes: object) -> CSRDenied:
    return claim(JOINED, reason, by_node=True, node_name="node-9", username="system:node:node-9", **changes)


HEALTH_CASES: Final[Mapping[str, Attack]] = {
    "D4-120": Attack(lambda world: world.machine(NEW), lambda reason: [claim(NEW, reason)]),
    "D4-121": Attack(
        lambda world: world.joined(JOINED, ends=NOW - timedelta(seconds=1)), lambda reason: [claim(JOINED, reason)]
    ),
    "D4-122": Attack(
        lambda world: world.joined(JOINED),
        lambda reason: [claim(JOINED, reason, purpose=purpose) for purpose in Purpose],
    ),
    "D4-123": Attack(lambda world: world.joined(JOINED), lambda reason: [other_node(reason)]),
    "D4-124": Attack(
        lambda world: world.machine(NEW), lambda reason: [other_node(reason, provider_id=NEW.provider_id)]
    ),
    "D4-125": Attack(lambda world: world.pool(INSTANCE), lambda reason: [claim(INSTANCE, reason)]),
    "D4-126": Attack(lambda world: world.machine(NEW), lambda reason: [claim(NEW, reason)] * 9, pause=60),
}


def read_by_health_checks(world: NodeAttestedWorld, path: str) -> tuple[str, ...]:
    return tuple(text(world.shown(path), name) for name in ("status", "reason", "lastTransitionTime"))


@pytest.mark.parametrize("version", ["v1beta1", "v1beta2"])
@pytest.mark.parametrize(("row", "attack"), attacks(HEALTH_CASES))
async def test_no_token_and_no_other_node_changes_what_a_machine_health_check_reads(
    row: Row, attack: Attack, version: str
) -> None:
    world = NodeAttestedWorld(version)
    world.policy(onFailure="DeleteNode")
    path = attack.prepare(world)
    async with world.running():
        before = read_by_health_checks(world, path)
        for reason in Reason:
            for verdict in attack.requests(reason):
                world.controller.refused(verdict)
            await world.resync(attack.pause)
        unchanged = read_by_health_checks(world, path) == before
        assert world.workload_api.count("PATCH") == world.workload_api.count("DELETE") == 0
    assert Expected(Verdict.IGNORE if unchanged else Verdict.DENY, "") == row.expected
