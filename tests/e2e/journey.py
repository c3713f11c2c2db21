"""Day one, second part: two clusters on real API servers, the released image and agent, and machines that join.

Cluster API's part (its objects and what it writes into them), kubelet's first call and the Service network are played
here; the sandbox of the release starts API servers and TPMs. Everything else is what an operator installed.
"""

from __future__ import annotations

import json
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Final

from installation import ADDRESS, Installation
from members import Member, Refused
from steps import AGENT, DIST, NODEATTEST, PREVIOUS, agent_package, expect, run, step

from nodeattest_sandbox.control_plane import start_real
from nodeattest_sandbox.definitions import install_cluster_api, keeps_custom_resources

_ASSETS: Final = Path("/srv/assets")
_NOT_POSSIBLE: Final = 3
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
        if not keeps_custom_resources(management):
            sys.stderr.write("this kube-apiserver dies of custom resources: Kubernetes before 1.23, Go 1.18 or later\n")
            sys.exit(_NOT_POSSIBLE)
        install_cluster_api(management.client())
        there = Installation(management, workload, _WORK)
        stack.callback(there.stop)
        members = [Member(there, f"node-{number}", stack) for number in range(1, 5)]
        first, *others, refused = members
        _install(there, PREVIOUS if PREVIOUS.is_dir() else DIST, members[:-1])
        with step(f"{first.name} joins, and its certificate is kubelet's"):
            first.join()
        if PREVIOUS.is_dir():
            _upgrade(there, first)
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


def _install(there: Installation, release: Path, members: list[Member]) -> None:
    """Install as docs/install.md and docs/cluster-api.md say."""
    with step(f"the manifests of {release.name} are applied, its image runs as the Deployment says"):
        there.apply_manifests(release)
        there.run_controller(release)
    with step("the policy names the keys of three machines, and is checked and applied"):
        there.label_namespace()
        there.apply_policy({member.provider_id: member.endorsement_key() for member in members})
    with step("the Cluster is protected"):
        there.create_cluster()


def _upgrade(there: Installation, member: Member) -> None:
    """Upgrade as docs/operate.md says: check, manifests, image, agent; then the machine renews."""
    with step("upgrade: the new policy check passes, the new manifests are applied, the new image takes over"):
        there.check_policy()
        there.apply_manifests(DIST)
        there.run_controller(DIST)
    with step(f"upgrade: {member.name} renews with the agent of before"):
        member.renew()
    with step("upgrade: the agent's new package is installed, and renews again"):
        before = run(AGENT, "--version")
        run("dpkg", "--install", agent_package(DIST))
        expect(run(AGENT, "--version") != before, "expected another commit of the agent")
        member.renew()
    with step("upgrade: nodeattest doctor is green"):
        there.doctor()


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
