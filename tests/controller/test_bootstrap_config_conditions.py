"""When API servers call the webhook for bootstrap configuration: ``matchConditions`` leave out what it would allow."""

from __future__ import annotations

from copy import deepcopy
from functools import cache
from typing import Final

from bootstrap_config_kit import CLUSTER, config, enforce, subject
from cel_rules import admits
from hypothesis import example, given
from hypothesis import strategies as st

from nodeattest_controller.controllers.bootstrap_config.decide import decide, needs_no_facts
from nodeattest_controller.controllers.bootstrap_config.kubeadmconfig import DROP_IN, MARK
from nodeattest_controller.controllers.bootstrap_config.render import render_for_policy
from nodeattest_controller.model.machine_view import CONTROL_PLANE_LABEL
from nodeattest_controller.model.webhook_configuration import shipped_configuration
from nodeattest_parsing.objects import items, mapping, text
from nodeattest_parsing.values import JsonObject, JsonValue

TOKEN: Final = "abcdef.0123456789abcdef"
DISCOVERY: Final[JsonObject] = {"bootstrapToken": {"token": TOKEN, "apiServerEndpoint": "10.0.0.1:6443"}}
RENDERED: Final[list[JsonValue]] = ["echo mine", f"kubelet-authenticator join || exit 1 {MARK}"]
POOL: Final[JsonObject] = {"apiVersion": "cluster.x-k8s.io/v1beta2", "kind": "MachinePool", "name": "pool"}
OF_CLUSTER: Final[JsonObject] = {"cluster.x-k8s.io/cluster-name": "prod"}
ABSENT: Final = object()


@cache
def conditions() -> tuple[str, ...]:
    [webhook] = items(shipped_configuration(), "webhooks")
    return tuple(text(one, "expression") for one in items(webhook, "matchConditions"))


def is_called(after: JsonObject, before: JsonObject | None) -> bool:
    request: JsonObject = {
        "kind": {"kind": text(after, "kind")},
        "operation": "CREATE" if before is None else "UPDATE",
    }
    answers = [admits(one, after, request, before) for one in conditions()]  # all, so that an error in any is seen
    return all(answers)


def changed(whole: JsonObject, *path: str, to: JsonValue | object) -> JsonObject:
    """Return a copy with one field set, or removed."""
    made = deepcopy(whole)
    *parents, last = path
    place = made
    for step in parents:
        inner = place.setdefault(step, {})
        assert isinstance(inner, dict)
        place = inner
    if to is ABSENT:
        place.pop(last, None)
    else:
        place[last] = to  # type: ignore[assignment]
    return made


STATUS: Final[JsonObject] = {"dataSecretName": "prod-md-0", "initialization": {"dataSecretCreated": True}}


Json = st.SearchStrategy[JsonValue]


def any_of(*values: JsonValue) -> Json:
    return st.sampled_from(values)


def objects(needed: dict[str, Json] | None = None, **optional: Json) -> st.SearchStrategy[JsonObject]:
    return st.fixed_dictionaries(needed or {}, optional=optional)


DISCOVERIES: Final = any_of({}, DISCOVERY, {"bootstrapToken": {}}, {"bootstrapToken": {"token": ""}})
SPECS: Final = objects(
    preKubeadmCommands=any_of([], ["echo mine"], RENDERED),
    files=any_of([], [{"path": DROP_IN}]),
    joinConfiguration=objects(
        discovery=DISCOVERIES, nodeRegistration=any_of({}, {"name": "a"}), controlPlane=any_of({})
    ),
    clusterConfiguration=any_of({}),
)
PLANES: Final = objects({"kubeadmConfigSpec": SPECS, "replicas": any_of(1, 3), "version": any_of("v1.36.0", "v1.37.0")})
METADATA: Final = objects(
    labels=any_of({}, OF_CLUSTER, {CONTROL_PLANE_LABEL: ""}, {**OF_CLUSTER, CONTROL_PLANE_LABEL: ""}),
    annotations=any_of({"a": "b"}),
    ownerReferences=any_of([], [POOL], [{**POOL, "kind": "Machine"}]),
    deletionTimestamp=any_of("2026-01-01T00:00:00Z"),
)
STATUSES: Final[st.SearchStrategy[JsonObject]] = st.sampled_from([{}, STATUS])


@st.composite
def updates(draw: st.DrawFn) -> tuple[JsonObject, JsonObject]:
    """Draw an object before and after an update, of which parts often stay the same."""
    kind, specs = draw(st.sampled_from([("KubeadmConfig", SPECS), ("KubeadmControlPlane", PLANES)]))

    def whole(metadata: JsonObject, spec: JsonObject, status: JsonObject) -> JsonObject:
        return {"kind": kind, "metadata": {"name": "a", **metadata}, "spec": spec, "status": status}

    metadata, spec = draw(METADATA), draw(specs)
    before = whole(metadata, spec, draw(STATUSES))
    discovered = changed({"spec": spec}, "spec", "joinConfiguration", "discovery", to=draw(DISCOVERIES))
    new_spec = draw(st.one_of(st.just(spec), st.just(mapping(discovered, "spec")), specs))
    after = whole(draw(st.one_of(st.just(metadata), METADATA)), new_spec, draw(STATUSES))
    return before, after


@example(
    (changed(config(), "spec", to={}), changed(config(), "spec", to={"joinConfiguration": {"discovery": DISCOVERY}}))
)
@given(updates())
def test_an_update_without_a_call_is_one_that_the_webhook_allows_unchanged(
    update: tuple[JsonObject, JsonObject],
) -> None:
    before, after = subject(update[0]), subject(update[1])
    if is_called(after.whole, before.whole):
        return
    if before.made_by_control_plane and after.made_by_control_plane:
        policy = enforce()
        verdict = decide(after, before, policy=policy, cluster=CLUSTER, has_machines=False, render=render_for_policy)
    else:
        verdict = needs_no_facts(after, before)
    assert verdict is not None
    assert verdict.passes
    assert not verdict.patch
