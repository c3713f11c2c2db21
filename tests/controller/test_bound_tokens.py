"""A token that is bound to a machine is worth this machine and no other."""

from __future__ import annotations

import hashlib
import re
from dataclasses import replace
from pathlib import Path

import pytest
from builders import make_request

from nodeattest_controller.model.bound_tokens import BOUND_GROUP_PREFIX, bound_group, check_bound_token
from nodeattest_providers.errors import Denied, Reason
from nodeattest_providers.verifier_interface import NodeRequest

CLUSTER, PROVIDER_ID = "fleet/blue", "sandbox://node-0"
MINE = bound_group(CLUSTER, PROVIDER_ID)
EXTRA_GROUP = re.compile(r"\Asystem:bootstrappers:[a-z0-9:-]{0,255}[a-z0-9]\Z")
"""k8s.io/cluster-bootstrap/token/api: BootstrapGroupPattern."""


def asked_by(*groups: str, username: str = "system:bootstrap:abcdef") -> NodeRequest:
    request = make_request(provider_id=PROVIDER_ID, username=username)
    return replace(request, groups=request.groups | set(groups))


def test_the_group_is_the_published_hash() -> None:
    fields = (b"nodeattest/v1/token-machine", b"fleet/blue", b"sandbox://node-0")
    joined = b"".join(len(field).to_bytes(4, "big") + field for field in fields)
    assert f"{BOUND_GROUP_PREFIX}{hashlib.sha256(joined).hexdigest()[:32]}" == MINE
    assert EXTRA_GROUP.match(MINE)


def test_the_vector_of_the_wire_format_page_is_the_codes() -> None:
    page = (Path(__file__).parents[2] / "docs" / "wire-format.md").read_text()
    assert f"`{bound_group('fleet/blue', 'metal://rack-1/7')}`" in page


def test_each_machine_and_cluster_has_its_own_group() -> None:
    pairs = [
        (CLUSTER, "a"),
        ("fleet/blu", "ea"),
        ("fleet/green", "a"),
        ("other/blue", "a"),
        (CLUSTER, "A"),
        (CLUSTER, ""),
    ]
    assert len({bound_group(*pair) for pair in pairs}) == len(pairs)


@pytest.mark.parametrize(
    "groups", [(), (MINE,), ("system:bootstrappers:kubeadm:default-node-token",), (MINE, "system:bootstrappers:x")]
)
def test_a_token_of_this_machine_or_of_none_passes(groups: tuple[str, ...]) -> None:
    check_bound_token(asked_by(*groups), CLUSTER)


@pytest.mark.parametrize(
    "groups",
    [
        (bound_group(CLUSTER, "sandbox://node-1"),),
        (bound_group("fleet/green", PROVIDER_ID),),
        (MINE, bound_group(CLUSTER, "sandbox://node-1")),
        (BOUND_GROUP_PREFIX,),
        (MINE[:-1],),
        (MINE + "0",),
        (MINE.upper().replace("SYSTEM:BOOTSTRAPPERS:NODEATTEST:", BOUND_GROUP_PREFIX),),
    ],
)
@pytest.mark.parametrize("username", ["system:bootstrap:abcdef", "system:node:node-0"])
def test_any_other_binding_is_denied_whoever_asks(groups: tuple[str, ...], username: str) -> None:
    with pytest.raises(Denied) as refused:
        check_bound_token(asked_by(*groups, username=username), CLUSTER)
    assert refused.value.reason is Reason.TOKEN_NOT_THIS_MACHINES
