"""What a cloud provider's verification costs: CPU without the network, calls for a scale-up, modules of an unused one.

In process, against the sandbox's clouds: each machine attests as on its node, and the controller evaluates fifty
first requests at once, then one request again and again, as one that the ledger holds already.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Generator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Protocol, runtime_checkable
from uuid import uuid4

from cryptography.hazmat.primitives.asymmetric import ec

from bench.figures import Figure
from nodeattest_cli.demo.machine_spec import MachineSpec
from nodeattest_cli.demo.platforms import PROVIDERS, DemoPlatform, platform_type
from nodeattest_controller.model.objects import mapping
from nodeattest_providers import envelope, registry
from nodeattest_providers.csr import build_csr
from nodeattest_providers.errors import ChallengeRequired
from nodeattest_providers.names import ClusterPin, ProviderID, ProviderName, Purpose, signer_for
from nodeattest_providers.node_interface import Attestor, Evidence, JsonValue, PublishedChallenge, SecretBytes
from nodeattest_providers.platform import CallOutcome, ClosingSigner, Platform, make_signer
from nodeattest_providers.verifier_interface import (
    ClusterAPISigner,
    ClusterFacts,
    Facts,
    LedgerFacts,
    MachineFacts,
    NodeRequest,
)

CLOUDS = ("aws", "azure", "gcp")
HEAVY = ("boto3", "botocore", "azure", "google", "aiohttp", "tpm2_pytss")
NO_LOOKUPS = {"sts", "oauth", "authority"}
"""Services that are asked once for a request, or for the controller's own login."""
AT_ONCE = 50
ROUNDS = 200
PIN = ClusterPin("sha256:" + "ab" * 32)


def measure() -> list[Figure]:
    figures: list[Figure] = []
    for provider in CLOUDS:
        if provider in PROVIDERS and not list(platform_type(provider).missing()):
            figures += _of(ProviderName(provider))
        figures.append(_unused(provider))
    return figures


@dataclass(frozen=True)
class Filed:
    """One machine's request of the first round, and what it is evaluated by."""

    attestor: Attestor
    request: NodeRequest
    facts: Facts


@runtime_checkable
class _Closable(Protocol):
    def close(self) -> None: ...


class Calls(Counter[str]):
    """Counts the calls to the platform, by service."""

    def __call__(self, service: str, outcome: CallOutcome, seconds: float) -> None:
        self[service] += 1


def _of(provider: ProviderName) -> list[Figure]:
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="nodeattest-bench-")))
        platform = platform_type(provider)(directory, stack)
        stack.enter_context(_environment(platform.environment))
        with ThreadPoolExecutor(8) as pool:
            machines = list(pool.map(platform.create_machine, range(1, AT_ONCE + 1)))
            filed = list(pool.map(partial(_file, provider, platform), machines))
        for one in filed:
            if isinstance(one.attestor, _Closable):
                stack.callback(one.attestor.close)
        return asyncio.run(_verify(provider, platform, filed))


async def _verify(provider: ProviderName, platform: DemoPlatform, filed: Sequence[Filed]) -> list[Figure]:
    calls = Calls()
    settings = _plain(mapping(platform.platforms, provider))
    signer = make_signer(provider, Platform(settings=settings, observe=calls))
    try:
        started = time.perf_counter()
        ends = await asyncio.gather(*(_round(signer, one) for one in filed))
        wall, first_round = time.perf_counter() - started, dict(calls)
        seconds, again = await _again(signer, ends[0] or filed[0], calls)
    finally:
        if isinstance(signer, ClosingSigner):
            await signer.aclose()
    said = ", ".join(f"{service} {count}" for service, count in sorted(first_round.items()))
    lookups = sum(count for service, count in first_round.items() if service not in NO_LOOKUPS)
    return [
        Figure(
            f"{provider}: CPU of a verification", 1000 * seconds, "ms", "<= 2", f"{again} calls in {ROUNDS} of them"
        ),
        Figure(f"{provider}: look-ups for {AT_ONCE} machines at once", lookups, "calls", "", f"{said}; {wall:.2f} s"),
    ]


async def _round(signer: ClusterAPISigner, filed: Filed) -> Filed | None:
    """Evaluate a first request; where it gets a challenge, return the second one that answers it."""
    try:
        await signer.verify_client_attestation_data(filed.request, filed.facts)
    except ChallengeRequired as required:
        return await asyncio.to_thread(_answer, filed, required.challenge)
    return None


async def _again(signer: ClusterAPISigner, filed: Filed, calls: Calls) -> tuple[float, int]:
    """Evaluate one request that the ledger holds already; the loop's own thread is measured, hence no server's."""
    facts = replace(filed.facts, ledger=LedgerFacts(answered=True))
    await signer.verify_client_attestation_data(filed.request, facts)
    before, used = calls.total(), time.thread_time()
    for _ in range(ROUNDS):
        await signer.verify_client_attestation_data(filed.request, facts)
    return (time.thread_time() - used) / ROUNDS, calls.total() - before


def _file(provider: ProviderName, platform: DemoPlatform, machine: MachineSpec) -> Filed:
    attestor = registry.make_attestor(provider, dict[str, JsonValue](machine.attestor.settings))
    der = build_csr(ec.generate_private_key(ec.SECP256R1()), machine.identity.node, machine.identity.provider_id)
    unsigned = _request(provider, der, Evidence(provider, 1, {}))
    facts = Facts(
        cluster=ClusterFacts(name="c", namespace="ns", uid="cluster-uid", pins=frozenset({PIN})),
        machine=MachineFacts(
            name=machine.identity.node,
            namespace="ns",
            uid=f"uid-{machine.identity.node}",
            provider_id=ProviderID(machine.identity.provider_id),
            bootstrap_ready=True,
        ),
        settings=_plain(mapping(platform.policy, provider)),
        challenge_keys=(SecretBytes(b"k" * 32),),
        verified_at=unsigned.created,
    )
    return Filed(attestor, _request(provider, der, attestor.attest(unsigned.binding(PIN))), facts)


def _answer(filed: Filed, text: str) -> Filed:
    first = filed.request
    published = PublishedChallenge(
        name=first.name, uid=first.uid, csr_sha256=first.csr.sha256, text=text, spki_sha256=first.csr.spki_sha256
    )
    evidence = filed.attestor.attest(first.binding(PIN), published)
    second = _request(evidence.provider, first.csr.der, evidence)
    return Filed(filed.attestor, second, replace(filed.facts, first_request=first))


def _request(provider: ProviderName, der: bytes, evidence: Evidence) -> NodeRequest:
    raw = envelope.encode(der, evidence)
    csr, decoded = envelope.decode(raw)
    uid = str(uuid4())
    return NodeRequest(
        name=f"csr-{uid}",
        uid=uid,
        resource_version="1",
        created=datetime.now(UTC).replace(microsecond=0),
        signer_name=signer_for(provider, Purpose.CLIENT),
        purpose=Purpose.CLIENT,
        username="system:bootstrap:abcdef",
        groups=frozenset({"system:bootstrappers"}),
        usages=frozenset({"digital signature", "client auth"}),
        expiration_seconds=None,
        request=raw,
        csr=csr,
        evidence=decoded,
    )


def _plain(section: Mapping[str, object]) -> Mapping[str, JsonValue]:
    return dict(section)  # pyright: ignore[reportReturnType] - the platform writes no fractions


@contextmanager
def _environment(variables: Mapping[str, str]) -> Generator[None]:
    """Give the cloud's own library what the controller's process would find."""
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def _unused(provider: str) -> Figure:
    """Count what the registry imports of a provider that nobody names, and of its libraries."""
    code = (
        "import sys; from nodeattest_providers import registry; from nodeattest_providers.platform import make_signer; "
        "registry.make_attestor('insecure', {}); make_signer('insecure'); "
        f"print(sum(name.startswith('nodeattest_providers.{provider}') or name.split('.')[0] in {HEAVY!r} "
        "for name in sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return Figure(f"{provider}: modules while unused", int(done.stdout), "", "0", "its own, and cloud libraries")
