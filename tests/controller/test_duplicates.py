"""Older requests of the same requester for the same node end when a newer one was certified, and no others."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest
from builders import CREATED, make_request

from nodeattest_controller.controllers.csr.duplicates import Duplicates
from nodeattest_controller.runtime.indexes import ClusterKey
from nodeattest_providers.errors import Denied, Reason
from nodeattest_providers.verifier_interface import NodeRequest

CLUSTER, OTHER = ClusterKey("fleet/c"), ClusterKey("fleet/d")
LATER = CREATED + timedelta(seconds=5)
OLD = replace(make_request(uid="old"), name="old")
NEW = replace(make_request(uid="new"), name="new", created=LATER)


def is_closed(made: Duplicates, cluster: ClusterKey, request: NodeRequest) -> bool:
    try:
        made.check(cluster, request)
    except Denied as denied:
        return denied.reason is Reason.SUPERSEDED
    return False


def test_nothing_is_closed_before_a_newer_request_succeeded() -> None:
    made = Duplicates()
    assert not is_closed(made, CLUSTER, OLD)
    assert not is_closed(made, CLUSTER, NEW)
    assert not is_closed(made, CLUSTER, OLD)


def test_an_older_request_is_named_and_closed_once_a_newer_one_was_certified() -> None:
    made = Duplicates()
    made.check(CLUSTER, OLD)
    made.check(CLUSTER, NEW)
    assert made.certified(CLUSTER, NEW, LATER) == ("old",)
    assert is_closed(made, CLUSTER, OLD)
    made.forget("old")
    assert len(made) == 0


@pytest.mark.parametrize(
    ("cluster", "request_"),
    [
        pytest.param(OTHER, OLD, id="of another cluster"),
        pytest.param(CLUSTER, replace(OLD, username="system:bootstrap:zzzzzz"), id="of another token"),
        pytest.param(CLUSTER, make_request(uid="old", node="node-1"), id="for another node"),
        pytest.param(CLUSTER, make_request(uid="old", provider="challenge"), id="to another signer"),
        pytest.param(CLUSTER, replace(NEW, uid="copy", name="copy", created=CREATED), id="with the same key"),
        pytest.param(CLUSTER, replace(OLD, created=LATER + timedelta(seconds=1)), id="that is newer"),
    ],
)
def test_a_request_that_somebody_may_wait_for_is_left_alone(cluster: ClusterKey, request_: NodeRequest) -> None:
    made = Duplicates()
    made.check(cluster, request_)
    assert made.certified(CLUSTER, NEW, LATER) == ()
    assert not is_closed(made, cluster, request_)


def test_of_two_requests_of_one_second_the_one_seen_after_the_certificate_is_the_newer() -> None:
    made = Duplicates()
    beside, after = (replace(OLD, uid=uid, name=uid, created=LATER) for uid in ("beside", "after"))
    made.check(CLUSTER, beside)
    assert made.certified(CLUSTER, NEW, LATER) == ("beside",)
    assert is_closed(made, CLUSTER, beside)
    for _ in range(2):
        assert not is_closed(made, CLUSTER, after)


def test_what_is_remembered_is_bounded() -> None:
    made = Duplicates(remembered=10)
    for number in range(30):
        made.check(CLUSTER, replace(OLD, uid=f"u-{number}", name=f"n-{number}"))
    assert len(made) == 10
    assert len(made.certified(CLUSTER, NEW, LATER)) == 10
    made.forget("never seen")
