"""Many TPM joins through one controller, as fast as they go: the agent's own code in threads, TPMs in software."""

from __future__ import annotations

import os
import time
from concurrent.futures import ThreadPoolExecutor

from bench.environment import BenchEnvironment, cpu_seconds
from bench.figures import Figure
from bench.software_tpm import SoftwareAttestor
from nodeattest_authenticator import certificate
from nodeattest_authenticator.enrollment.enroll import CertificateSpec, enroll
from nodeattest_authenticator.state.pending_request import PendingRequest
from nodeattest_authenticator.transport.api_client import ApiServerClient, Credentials
from nodeattest_cli.demo.fleet import new_token
from nodeattest_discovery.node.clock import Clock, Deadline, random_unit
from nodeattest_parsing.endpoint import Endpoint
from nodeattest_providers.names import (
    ANNOTATION_TPM_ENDORSEMENT_KEY,
    NodeName,
    ProviderID,
    ProviderName,
    Purpose,
    signer_for,
)
from nodeattest_sandbox.fleet import create_bootstrap_token, create_machine

NODES = 120
AT_ONCE = 20
PATIENCE = 120.0


class NoDrafts:
    """Keeps nothing: the measurement is not interrupted."""

    def load(self) -> PendingRequest | None:
        return None

    def save(self, pending: PendingRequest) -> None:
        pass

    def discard(self) -> None:
        pass


def measure(env: BenchEnvironment) -> list[Figure]:
    workload = env.world.workload
    token = workload.await_token(create_bootstrap_token(workload.client(), new_token()))
    first, *fleet = [_machine(env, number, token) for number in range(1000, 1001 + NODES)]
    servers = [pid for plane in (env.world.management, env.world.workload) for pid in plane.pids.values()]
    _join(env, token, *first)  # loads the provider, and the kinds of the infrastructure
    time.sleep(1)
    before = env.controller_cpu(), sum(map(cpu_seconds, servers)), _own_cpu()
    start = time.perf_counter()
    with ThreadPoolExecutor(AT_ONCE) as pool:
        for done in [pool.submit(_join, env, token, order, attestor) for order, attestor in fleet]:
            done.result()
    seconds = time.perf_counter() - start
    after = env.controller_cpu(), sum(map(cpu_seconds, servers)), _own_cpu()
    controller, server, nodes = (1000 * (now - then) / NODES for now, then in zip(after, before, strict=True))
    spread = f"{NODES} nodes, {AT_ONCE} at once, {os.cpu_count()} cores"
    return [
        Figure("TPM joins a second, one controller", NODES / seconds, "/s", ">= 50", spread),
        Figure("controller CPU a TPM join", controller, "ms", "", f"alone on one core {1000 / controller:.0f} joins/s"),
        Figure("API servers' CPU a TPM join", server, "ms", "", "management and workload together"),
        Figure("nodes' CPU a TPM join", nodes, "ms", "", "the agent's flow in threads, TPMs in software"),
    ]


def _own_cpu() -> float:
    times = os.times()
    return times.user + times.system


def _machine(env: BenchEnvironment, number: int, token: str) -> tuple[CertificateSpec, SoftwareAttestor]:
    attestor = SoftwareAttestor()
    node, provider_id = f"worker-{number}", f"demo://rack-2/{number}"
    create_machine(
        env.world.management.client(),
        f"demo-md-{number}",
        cluster=env.world.cluster,
        provider_id=provider_id,
        addresses=[("Hostname", node)],
        infrastructure_annotations={ANNOTATION_TPM_ENDORSEMENT_KEY: attestor.fingerprint},
        bootstrap_token=token,
    )
    ca_pem = env.world.workload.ca_certificate.read_bytes()
    order = CertificateSpec(
        node_name=NodeName(node),
        provider_id=ProviderID(provider_id),
        signer=signer_for(ProviderName("tpm"), Purpose.CLIENT),
        ca_pem=ca_pem,
        pin=certificate.select_ca_pin(ca_pem),
    )
    return order, attestor


def _join(env: BenchEnvironment, token: str, order: CertificateSpec, attestor: SoftwareAttestor) -> None:
    deadline = Deadline.after(Clock(), PATIENCE)
    login = Credentials(username=f"system:bootstrap:{token[:6]}", token=token)
    client = ApiServerClient(Endpoint.parse(env.world.workload.server), login, ca_pem=order.ca_pem, deadline=deadline)
    try:
        enroll(order, attestor=attestor, client=client, store=NoDrafts(), deadline=deadline, random=random_unit)
    finally:
        client.close()
