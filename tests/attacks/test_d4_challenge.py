"""D4: secrets that the controller creates for machines, and what its right to create them is worth to a thief."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from importlib import import_module
from typing import Any, Final

import pytest
from catalogue import Expected, Row, Verdict, attacks, evaluated
from test_challenge_secret import OWNER, SECRET, machine_owner, own_config, owned
from test_d4_policy import answer, answered
from worlds import FACTS

from nodeattest_controller import manifests
from nodeattest_controller.model import kubeadm_config
from nodeattest_controller.model.machine_view import CONTROL_PLANE_LABEL, view_of_machine
from nodeattest_parsing.objects import items, mapping, text
from nodeattest_parsing.values import JsonObject
from nodeattest_providers.errors import Denied
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
