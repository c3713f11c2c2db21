"""The demo's machines: a Machine with its infrastructure object, a device or a secret, a bootstrap token, files.

Promises: each machine runs the real ``kubelet-authenticator`` on files of its own, as cloud-init would leave them.
What an infrastructure provider knows of a machine (its TPM's endorsement key) stands on its infrastructure object.
"""

from __future__ import annotations

import base64
import secrets
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from nodeattest_cli.demo.children import Children, Finished
from nodeattest_cli.demo.node_client import DemoFailure, call_plugin, node_client, prove, register
from nodeattest_cli.demo.results import Joined
from nodeattest_cli.demo.world import CLUSTER, NAMESPACE, World
from nodeattest_kube.jsontypes import JsonObject
from nodeattest_providers.names import ANNOTATION_TPM_ENDORSEMENT_KEY, ProviderName, Purpose, SignerName, signer_for
from nodeattest_sandbox.client import Client
from nodeattest_sandbox.fleet import create_bootstrap_token, create_machine
from nodeattest_sandbox.swtpm import SoftwareTpm

__all__ = ["DemoMachine", "Identity", "Seat", "join", "new_token", "plug_in", "provision", "run_join"]

_JOIN_LIMIT: Final = 90.0
"""Seconds; the agent itself gives up after 60."""
_SECRET_BYTES: Final = 32
_TOKEN_CHARACTERS: Final = "abcdefghijklmnopqrstuvwxyz0123456789"  # noqa: S105 - an alphabet, not a secret
"""kubernetes cluster-bootstrap/token/api: ``[a-z0-9]{6}.[a-z0-9]{16}``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """What a machine says that it is."""

    node: str
    provider_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Seat:
    """What a machine proves it with: the agent's provider and its settings."""

    provider: ProviderName
    settings: Mapping[str, str] = field(default_factory=dict[str, str], repr=False)

    @property
    def signer(self) -> SignerName:
        """The signer of its client certificate."""
        return signer_for(self.provider, Purpose.CLIENT)


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoMachine:
    """One machine of the fleet."""

    identity: Identity
    machine: str
    """Name of the Machine object."""
    seat: Seat
    token: str = field(repr=False)
    tpm: SoftwareTpm | None = None


def new_token() -> str:
    """Draw a bootstrap token."""
    return ".".join("".join(secrets.choice(_TOKEN_CHARACTERS) for _ in range(count)) for count in (6, 16))


def plug_in(directory: Path, name: str, provider: ProviderName, stack: ExitStack) -> tuple[Seat, SoftwareTpm | None]:
    """Give a machine what its provider needs: a running software TPM, or a secret in a file; register nothing."""
    match provider:
        case "tpm":
            tpm = SoftwareTpm.create(directory / "tpms", name=name)
            stack.callback(tpm.stop)
            tpm.start()
            return Seat(provider=provider, settings={"tcti": tpm.tcti}), tpm
        case "challenge":
            path = directory / "secrets" / name
            _write_private(path, secrets.token_hex(_SECRET_BYTES))
            return Seat(provider=provider, settings={"secretFile": str(path)}), None
        case _:
            return Seat(provider=provider), None


def provision(world: World, number: int, seat: Seat, tpm: SoftwareTpm | None) -> DemoMachine:
    """Do what Cluster API and an infrastructure provider do for a new machine."""
    machine = DemoMachine(
        identity=Identity(node=f"worker-{number}", provider_id=f"demo://rack-1/{number}"),
        machine=f"{CLUSTER}-md-{number}",
        seat=seat,
        token=world.workload.await_token(create_bootstrap_token(world.workload.client(), new_token())),
        tpm=tpm,
    )
    client = world.management.client()
    platform = {ANNOTATION_TPM_ENDORSEMENT_KEY: tpm.endorsement_fingerprint()} if tpm else None
    create_machine(
        client,
        machine.machine,
        cluster=world.cluster,
        provider_id=machine.identity.provider_id,
        addresses=[("Hostname", machine.identity.node)],
        infrastructure_annotations=platform,
        bootstrap_token=machine.token,
    )
    if "secretFile" in seat.settings:
        _create_secret(client, machine.machine, Path(seat.settings["secretFile"]).read_bytes())
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


def join(world: World, children: Children, agent: Path, root: Path, machine: DemoMachine) -> Joined:
    """Join as a machine does at its first boot, then do what kubelet does; raises ``DemoFailure``."""
    identity = machine.identity
    ended = run_join(world, children, agent, root, identity=identity, seat=machine.seat, token=machine.token)
    if ended.code:
        raise DemoFailure(f"{identity.node} could not join: {ended.last_line}")
    credential = call_plugin(children, kubeconfig_of(root))
    client = node_client(world.workload.server, world.workload.ca_certificate, credential)
    register(client, identity.node, identity.provider_id)
    return Joined(
        node=identity.node,
        machine=machine.machine,
        provider=machine.seat.provider,
        signer=machine.seat.signer,
        not_after=credential.not_after,
        proof=prove(client, identity.node),
    )


def kubeconfig_of(root: Path) -> Path:
    """Where kubelet's kubeconfig stands below a machine's root."""
    return root / "etc/kubernetes/kubelet.conf"


def run_join(
    world: World, children: Children, agent: Path, root: Path, *, identity: Identity, seat: Seat, token: str
) -> Finished:
    """Run ``kubelet-authenticator join`` in a root of its own."""
    token_file = root / "etc/bootstrap-token"
    _write_private(token_file, token + "\n")
    flags = {
        "server": world.workload.server,
        "ca-file": world.workload.ca_certificate,
        "token-file": token_file,
        "provider": seat.provider,
        "node-name": identity.node,
        "provider-id": identity.provider_id,
        "config": root / "etc/kubernetes/kubelet-authenticator.json",
        "cache-dir": root / "var/lib/kubelet-authenticator",
        "kubeconfig": kubeconfig_of(root),
        "exec-api-version": world.exec_api_version,
    }
    (root / "var/lib").mkdir(parents=True)
    words = [f"--{name}={value}" for name, value in flags.items()]
    words += [f"--set={name}={value}" for name, value in seat.settings.items()]
    return children.run([agent, "join", *words], limit=_JOIN_LIMIT)


def _write_private(path: Path, content: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch(mode=0o600)
    path.write_text(content, encoding="ascii")
