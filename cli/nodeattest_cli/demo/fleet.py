"""The demo's machines: a Machine with its infrastructure object, a device or a secret, a bootstrap token, files.

Promises: each machine runs the real ``kubelet-authenticator`` on files of its own, as cloud-init would leave them.
What an infrastructure provider knows of a machine (its TPM's endorsement key) is on its infrastructure object.
"""

from __future__ import annotations

import base64
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from nodeattest_cli.demo.children import Children, Finished
from nodeattest_cli.demo.join_info import JoinInfo
from nodeattest_cli.demo.machine_spec import AttestorSettings, ClaimedIdentity, MachineSpec
from nodeattest_cli.demo.node_client import DemoFailure, call_plugin, node_client, prove, register
from nodeattest_cli.demo.platforms.bare import write_private_file
from nodeattest_cli.demo.results import JoinResult
from nodeattest_cli.demo.world import CLUSTER, NAMESPACE, World
from nodeattest_discovery.token import generate
from nodeattest_kube.jsontypes import JsonObject
from nodeattest_sandbox.client import Client
from nodeattest_sandbox.fleet import create_bootstrap_token, create_machine
from nodeattest_sandbox.swtpm import SoftwareTpm

__all__ = ["DemoMachine", "join", "new_token", "node_kubeconfig", "provision", "run_join"]

_JOIN_LIMIT: Final = 90.0
"""Seconds; the agent itself gives up after 60."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoMachine:
    """One machine of the fleet."""

    identity: ClaimedIdentity
    machine: str
    """Name of the Machine object."""
    attestor: AttestorSettings
    token: str = field(repr=False)
    tpm: SoftwareTpm | None = None


def new_token() -> str:
    """Draw a bootstrap token."""
    return generate().reveal()


def provision(world: World, number: int, spec: MachineSpec) -> DemoMachine:
    """Do what Cluster API and an infrastructure provider do for a new machine."""
    machine = DemoMachine(
        identity=spec.identity,
        machine=f"{CLUSTER}-md-{number}",
        attestor=spec.attestor,
        token=world.workload.await_token(create_bootstrap_token(world.workload.client(), new_token())),
        tpm=spec.tpm,
    )
    client = world.management.client()
    create_machine(
        client,
        machine.machine,
        cluster=world.cluster,
        provider_id=machine.identity.provider_id,
        addresses=spec.addresses,
        infrastructure_annotations=spec.annotations,
        bootstrap_token=machine.token,
    )
    if spec.secret is not None:
        _create_secret(client, machine.machine, spec.secret)
    return machine


def _create_secret(client: Client, machine: str, value: bytes) -> None:
    """Keep the challenge provider's secret where the controller looks for it."""
    body: JsonObject = {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": f"{machine}-attestation"},
        "type": "Opaque",
        "data": {"secret": base64.b64encode(value).decode()},
    }
    client.create(f"/api/v1/namespaces/{NAMESPACE}/secrets", body)


def join(world: World, children: Children, agent: Path, root: Path, machine: DemoMachine) -> JoinResult:
    """Join as a machine does at its first boot, then do what kubelet does; raises ``DemoFailure``."""
    identity = machine.identity
    typed = replace(identity, provider_id="") if machine.attestor.discovers_provider_id else identity
    ended = run_join(world, children, agent, root, identity=typed, attestor=machine.attestor, token=machine.token)
    if ended.code:
        raise DemoFailure(f"{identity.node} could not join: {ended.last_line}")
    credential = call_plugin(children, node_kubeconfig(root))
    client = node_client(world.workload.server, world.workload.ca_certificate, credential)
    register(client, identity.node, identity.provider_id)
    return JoinResult(
        node=identity.node,
        machine=machine.machine,
        provider=machine.attestor.provider,
        signer=machine.attestor.signer,
        not_after=credential.not_after,
        proof=prove(client, identity.node),
    )


def node_kubeconfig(root: Path) -> Path:
    """Where kubelet's kubeconfig stands below a machine's root."""
    return root / "etc/kubernetes/kubelet.conf"


def run_join(
    world: World,
    children: Children,
    agent: Path,
    root: Path,
    *,
    identity: ClaimedIdentity,
    attestor: AttestorSettings,
    token: str,
    join_info: JoinInfo | None = None,
    more: Sequence[str] = (),
) -> Finished:
    """Run ``kubelet-authenticator join`` in a root of its own; without a provider ID it has to find that itself.

    ``join_info``: other ones than the world's; ``more``: further words.
    """
    token_file = root / "etc/bootstrap-token"
    write_private_file(token_file, token + "\n")
    flags = {
        "token-file": token_file,
        "provider": attestor.provider,
        "node-name": identity.node,
        "provider-id": identity.provider_id,
        "config": root / "etc/kubernetes/kubelet-authenticator.json",
        "cache-dir": root / "var/lib/kubelet-authenticator",
        "kubeconfig": node_kubeconfig(root),
    }
    (root / "var/lib").mkdir(parents=True, exist_ok=True)
    arguments = [f"--{name}={value}" for name, value in flags.items() if value]
    arguments += [f"--set={name}={value}" for name, value in attestor.settings.items()]
    arguments += (join_info or world.join_info).arguments
    return children.run([agent, "join", *arguments, *more], limit=_JOIN_LIMIT)
