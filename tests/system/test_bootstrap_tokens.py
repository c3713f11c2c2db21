"""The controller bootstrap-token as a process, on the sandbox and on a real kube-apiserver."""

from __future__ import annotations

import base64
from datetime import UTC, datetime, timedelta

from polling import eventually
from world import NAMESPACE, World

from nodeattest_controller.controllers.bootstrap_token.decide import DESCRIPTION, GRACE, LIFETIME
from nodeattest_parsing.times import parse_rfc3339
from nodeattest_sandbox import fleet
from nodeattest_sandbox.apiserver.jsonvalue import JsonMap, map_at, text_at

SECRETS = "/api/v1/namespaces/kube-system/secrets"
MACHINES = f"/apis/cluster.x-k8s.io/v1beta1/namespaces/{NAMESPACE}/machines"
FLAGS = ("--leader-elect", "false", "--controllers", "attestation,bootstrap-token,token-cleaner")


def provided(world: World, token: str, left: timedelta) -> str:
    """Make a token as Cluster API's kubeadm provider does."""
    fleet.create_bootstrap_token(world.workload_admin, token, expiration=datetime.now(UTC) + left)
    described = base64.b64encode(DESCRIPTION.encode()).decode()
    world.workload_admin.patch(f"{SECRETS}/bootstrap-token-{token[:6]}", {"data": {"description": described}})
    return token


def left(world: World, token: str) -> timedelta | None:
    """Say how long a token is good; None where it is gone."""
    name = f"bootstrap-token-{token[:6]}"
    found = next((one for one in world.workload_admin.list(SECRETS) if text_at(one, "metadata", "name") == name), None)
    if found is None:
        return None
    moment = parse_rfc3339(base64.b64decode(text_at(map_at(found, "data"), "expiration")).decode())
    assert moment is not None
    return moment - datetime.now(UTC)


def lasts(world: World, token: str, least: timedelta, most: timedelta) -> bool:
    found = left(world, token)
    return found is not None and least < found < most


def test_a_token_outlives_its_first_minutes_joins_its_machine_and_ends_with_it(world: World) -> None:
    world.set_policy(authorizedAttestors=["insecure"], tokenBinding="Required")
    token = provided(world, "life00.0123456789abcdef", timedelta(seconds=20))
    brief = provided(world, "life01.0123456789abcdef", timedelta(seconds=2))  # nobody's: it runs out, and is cleaned
    world.machine("long-lived", bootstrap_token=token)
    minute = timedelta(minutes=1)
    with world.controller(*FLAGS, log="tokens.log") as controller:
        world.await_service(controller)
        eventually(lambda: lasts(world, token, LIFETIME - minute, LIFETIME), what="the renewal")
        controller.kill()
    with world.controller(*FLAGS, log="tokens-again.log") as controller:
        world.await_service(controller)
        eventually(lambda: left(world, brief) is None, seconds=60, what="the end of nobody's token")
        done = world.agent("long-lived", "insecure").join(token)
        assert done.returncode == 0, done.stderr
        node: JsonMap = {"name": "long-lived", "uid": "u"}
        world.admin.patch(f"{MACHINES}/long-lived/status", {"status": {"nodeRef": node}})
        eventually(lambda: lasts(world, token, timedelta(0), GRACE), seconds=40, what="the shorter life")
        controller.kill()
        world.admin.delete(f"{MACHINES}/long-lived")
    with world.controller(*FLAGS, log="tokens-last.log") as controller:
        eventually(lambda: left(world, token) is None, seconds=60, what="the end of the token")
        said = eventually(lambda: controller.said("bootstrap token"), what="the log of the deletion")
        assert said["what"] == "deleted"
        assert "0123456789abcdef" not in controller.log()
