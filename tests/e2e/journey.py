"""Day one, second part: two clusters on real API servers, the released image and agent, and machines that join.

Cluster API's part (its objects and what it writes into them), kubelet's first call and the Service network are played
here; the sandbox of the release starts API servers and TPMs. Everything else is what an operator installed.
"""

from __future__ import annotations

import json
from contextlib import ExitStack
from pathlib import Path
from typing import Final

from installation import ADDRESS, Installation
from members import Member, Refused
from steps import DIST, NODEATTEST, expect, run, step

from nodeattest_sandbox.control_plane import start_real
from nodeattest_sandbox.definitions import install_cluster_api

_ASSETS: Final = Path("/srv/assets")
_WORK: Final = Path("/srv/work")
_REFUSED: Final = "node-4"
_AGGREGATOR: Final = ("--enable-aggregator-routing=true",)
"""kube-apiserver then calls a webhook's Service by its endpoints, which nobody but kube-proxy routes otherwise."""


def main() -> None:
    """Run the steps."""
    with ExitStack() as stack:
        with step("two clusters run, each on a real kube-apiserver"):
            run("ip", "link", "set", "lo", "up")
            run("ip", "address", "add", f"{ADDRESS}/32", "dev", "lo")
            management = stack.enter_context(start_real(_WORK / "m", _ASSETS, name="management", flags=_AGGREGATOR))
            workload = stack.enter_context(start_real(_WORK / "w", _ASSETS, name="workload"))
        install_cluster_api(management.client())
        there = Installation(management, workload, _WORK)
        stack.callback(there.stop)
        members = [Member(there, f"node-{number}", stack) for number in range(1, 5)]
        first, *others, refused = members
        _install(there, members[:-1])
        with step(f"{first.name} joins, and its certificate is kubelet's"):
            first.join()
        with step(f"{first.name} renews by its own certificate"):
            first.renew()
        for member in others:
            with step(f"{member.name} joins"):
                member.join()
        with step("nodeattest machines list has all three, nodeattest doctor is green"):
            _all_well(there, [first, *others])
        with step(f"{refused.name} is refused, and nodeattest explain machine/{refused.name} says why"):
            _refuse(there, refused)
        with step("without it nodeattest doctor is green again"):
            refused.delete()
            there.doctor()


def _install(there: Installation, members: list[Member]) -> None:
    """Install as docs/install.md and docs/install.md#with-cluster-api say."""
    with step("the manifests are applied, and the image runs as the Deployment says"):
        there.apply_manifests(DIST)
        there.run_controller(DIST)
    with step("the policy names the keys of three machines, and is checked and applied"):
        there.label_namespace()
        there.apply_policy({member.provider_id: member.endorsement_key() for member in members})
    with step("the Cluster is protected"):
        there.create_cluster()


def _all_well(there: Installation, members: list[Member]) -> None:
    listed = run(NODEATTEST, "machines", "list", *there.access, "-o", "json")
    states = {row["machine"]: row["state"] for row in json.loads(listed)["machines"]}
    expect(states == {member.name: "Attested" for member in members}, f"expected three that are attested, got {states}")
    there.doctor()


def _refuse(there: Installation, member: Member) -> None:
    try:
        member.join()
    except Refused as refusal:
        told = str(refusal)
    else:
        told = "it joined"
    expect("EndorsementKeyUntrusted" in told, f"expected a refusal for the endorsement key, got {told}")
    explained = run(NODEATTEST, "explain", f"machine/{member.name}", *there.access, code=1)
    expect("EndorsementKeyUntrusted" in explained, f"expected the reason, got {explained}")


if __name__ == "__main__":
    main()
