"""A third party's provider whose platform hangs for one machine or requester: that one waits, and no other."""

from __future__ import annotations

from pathlib import Path

import pytest
from filing_requests import Wanted, file_request
from polling import eventually
from third_party import install_provider
from world import World

from nodeattest_providers.names import ANNOTATION_REASON
from nodeattest_sandbox.apiserver.jsonvalue import JsonValue

PROVIDER = """
import asyncio

from nodeattest_providers.checks import Checks
from nodeattest_providers.errors import Reason
from nodeattest_providers.verifier_interface import AttestedNode, ClusterAPISigner


class Signer(ClusterAPISigner):
    provider, versions, secure = "hanging", (1,), True

    def provable_names(self, section, sections):
        return {}  # it proves no names, so a name that is not the machine's is refused before it is asked

    async def verify_client_attestation_data(self, request, facts):
        if facts.machine.name.startswith("hung") or "key encipherment" in request.usages:
            await asyncio.sleep(3600)
        checks = Checks()
        checks.require(True, "asked", section="", reason=Reason.PROOF_INVALID, expected="", got="", remedy="")
        return AttestedNode(provider=self.provider, provider_id=facts.machine.provider_id, checks=checks.record())

    verify_serving_attestation_data = verify_client_attestation_data
"""

HEAD = "apiVersion: config.nodeattest.x-k8s.io/v1alpha1\nkind: NodeAttestationControllerConfiguration\n"
THIEFS: list[JsonValue] = ["digital signature", "key encipherment", "client auth"]
"""Usages by which this platform knows whom to keep waiting; every API server keeps them."""


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install_provider(tmp_path, monkeypatch, "hanging", PROVIDER)


@pytest.mark.usefixtures("installed")
def test_a_machine_whose_platform_hangs_waits_and_no_other_is_delayed(world: World) -> None:
    world.set_policy(authorizedAttestors=["hanging"])
    config = world.directory / "hanging.yaml"
    config.write_text(HEAD + "verificationTimeout: 3s\n")
    with world.controller("--config", str(config), "--leader-elect", "false", log="hanging.log") as controller:
        world.await_service(controller)
        for name in ("hung-1", "well-1"):
            world.machine(name)
        hung = [file_request(world, Wanted(node="hung-1", provider="hanging"), token=world.token()) for _ in range(6)]
        well = file_request(world, Wanted(node="well-1", provider="hanging"))
        eventually(lambda: well.state() == "issued", what="the certificate beside the hanging ones")
        assert [one.state() for one in hung] == [""] * 6
        for one in hung:
            eventually(
                lambda one=one: one.annotation(ANNOTATION_REASON).startswith("PlatformUnavailable"),
                what="the reason of the wait",
            )
            world.workload_admin.delete(f"/apis/certificates.k8s.io/v1/certificatesigningrequests/{one.name}")


@pytest.mark.usefixtures("installed")
def test_whoever_keeps_the_platform_busy_with_anothers_machine_does_not_delay_it(world: World) -> None:
    world.set_policy(authorizedAttestors=["hanging"])
    config = world.directory / "busy.yaml"
    config.write_text(HEAD + "verificationTimeout: 5m\n")  # longer than the test: it would end only by it
    with world.controller("--config", str(config), "--leader-elect", "false", log="busy.log") as controller:
        world.await_service(controller)
        world.machine("wanted-1")
        wanted, thief = Wanted(node="wanted-1", provider="hanging"), world.token()
        busy = [file_request(world, wanted, token=thief, usages=THIEFS) for _ in range(4)]
        eventually(lambda: len([one for one in busy if one.annotation(ANNOTATION_REASON)]) == 3, what="a busy platform")
        honest = file_request(world, Wanted(node="wanted-1", provider="hanging"))
        eventually(lambda: honest.state() == "issued", what="the certificate beside the thief's requests")
        for one in busy:
            world.workload_admin.delete(f"/apis/certificates.k8s.io/v1/certificatesigningrequests/{one.name}")


@pytest.mark.usefixtures("installed")
def test_a_name_that_is_not_the_machines_is_refused_before_a_platform_is_asked(world: World) -> None:
    world.set_policy(authorizedAttestors=["hanging"])
    with world.controller("--leader-elect", "false", log="named.log") as controller:
        world.await_service(controller)
        world.machine("named-1", addresses=[("Hostname", "named-1")])
        other = Wanted(node="other-1", provider="hanging", provider_id="sandbox://named-1")
        filed = file_request(world, other, usages=THIEFS)
        eventually(lambda: filed.state() == "Denied:NodeNameMismatch", what="the refusal of the name")
