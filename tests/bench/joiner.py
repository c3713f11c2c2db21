"""Nodes that join at once: the agent's own flow in threads of a process; TPMs are software."""

from __future__ import annotations

import hashlib
import threading
import time
from collections import Counter
from collections.abc import Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import StrEnum

from cryptography import x509
from cryptography.hazmat.decrepit.ciphers.modes import CFB
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import AES
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import NameOID

from nodeattest_authenticator import certificate
from nodeattest_authenticator.api_client import ApiServerClient, Credentials, manifest
from nodeattest_authenticator.enrollment.enroll import CertificateSpec, enroll
from nodeattest_authenticator.errors import AgentError
from nodeattest_authenticator.formats.client_go import Cluster
from nodeattest_authenticator.state.records import PendingRequest, PendingRequestFile
from nodeattest_demo.forged_tpm import ForgedTpm
from nodeattest_discovery.node.clock import Clock, Deadline, random_unit
from nodeattest_providers import registry
from nodeattest_providers.errors import Reason
from nodeattest_providers.identifiers import NodeName, ProviderID, ProviderName, Purpose, SignerName, signer_for
from nodeattest_providers.node_interface import Attestor, Binding, Evidence, FirstRequestRef, PublishedChallenge
from nodeattest_providers.tpm.protocol import (
    PROVIDER,
    VERSION,
    Challenge,
    SecondEvidence,
    kdfa,
    kdfe,
    proof,
    qualifying_data,
)
from nodeattest_providers.tpm.structures import Alg, parse_public

BITS = 128
"""Of the template's AES."""


class SoftwareAttestor(Attestor):
    """A node whose TPM is software of this process."""

    provider = PROVIDER
    versions: tuple[int, ...] = (VERSION,)
    two_step = True

    def __init__(self, number: int | None = None) -> None:
        """``number``: its keys are the same in every process; None: new ones."""
        self.endorsement_key = fixed_key("endorsement", number)
        self.attestation_key = fixed_key("attestation", number)

    @property
    def tpm(self) -> ForgedTpm:
        return ForgedTpm(self.endorsement_key.public_key(), self.attestation_key)

    @property
    def fingerprint(self) -> str:
        public = parse_public(self.tpm.first().ek_public, what="key", reason=Reason.ENDORSEMENT_KEY_MALFORMED)
        return public.fingerprint

    def attest(self, binding: Binding, challenge: PublishedChallenge | None = None) -> Evidence:
        if challenge is None:
            return Evidence(self.provider, VERSION, self.tpm.first().to_json())
        published = Challenge.parse(challenge.text)
        extra = qualifying_data(published.nonce, challenge.uid, binding.digest)
        quote, signature, pcrs = self.tpm.quote(published, extra)
        answer = SecondEvidence(
            first=FirstRequestRef(name=challenge.name, uid=challenge.uid),
            mac=proof(self._activate(published), challenge.uid, challenge.csr_sha256, binding.digest),
            quote=quote,
            signature=signature,
            pcrs=pcrs,
        )
        return Evidence(self.provider, VERSION, answer.to_json())

    def _activate(self, challenge: Challenge) -> bytes:
        """TPM2_ActivateCredential (Part 1 §24), without the integrity check that a real one makes."""
        x, y = (int.from_bytes(part, "big") for part in _sized_parts(challenge.secret))
        ephemeral = ec.EllipticCurvePublicNumbers(x, y, ec.SECP256R1()).public_key()
        own = self.endorsement_key.public_key().public_numbers().x.to_bytes(32, "big")
        z = self.endorsement_key.exchange(ec.ECDH(), ephemeral)
        seed = kdfe(Alg.SHA256, z, b"IDENTITY\x00" + x.to_bytes(32, "big") + own, 256)
        name = b"\x00\x0b" + hashlib.sha256(self.tpm.ak_public).digest()
        _, encrypted = challenge.blob[:34], challenge.blob[34:]
        decryptor = Cipher(AES(kdfa(Alg.SHA256, seed, b"STORAGE", name, BITS)), CFB(bytes(16))).decryptor()
        return (decryptor.update(encrypted) + decryptor.finalize())[2:]


def _sized_parts(data: bytes) -> list[bytes]:
    parts: list[bytes] = []
    while data:
        size = int.from_bytes(data[:2], "big")
        parts.append(data[2 : 2 + size])
        data = data[2 + size :]
    return parts


def fixed_key(what: str, number: int | None) -> ec.EllipticCurvePrivateKey:
    """Make the key of a number; None: a new one."""
    if number is None:
        return ec.generate_private_key(ec.SECP256R1())
    drawn = hashlib.sha256(f"{what} {number}".encode()).digest()[:31]  # 31 bytes: below the order of the curve
    return ec.derive_private_key(int.from_bytes(drawn, "big") + 1, ec.SECP256R1())


IN_TREE_SIGNER = SignerName("kubernetes.io/kube-apiserver-client-kubelet")
IN_TREE_USAGES = ("key encipherment", "digital signature", "client auth")
STACK = 512 << 10
"""Bytes of a thread: thousands of nodes wait at the same time."""


class Kind(StrEnum):
    """How a node asks for its certificate."""

    TPM = "tpm"
    ONE_STEP = "insecure"
    IN_TREE = "in-tree"
    """As kubelet itself does: one request to the signer of kube-controller-manager."""


@dataclass(frozen=True)
class Node:
    number: int
    """Its software TPM's keys follow from this."""
    name: str
    provider_id: str
    token: str


@dataclass(frozen=True)
class Orders:
    kind: Kind
    cluster: Cluster
    nodes: list[Node]
    at_once: int = 20
    seconds: float = 120.0
    """The longest that a node tries."""


@dataclass
class Outcome:
    joins: list[tuple[float, float]] = field(default_factory=list[tuple[float, float]])
    """Beginning and end of each, in monotonic seconds."""
    cpu: float = 0.0
    failures: Counter[str] = field(default_factory=Counter[str])


class Pending(PendingRequestFile):
    """Keeps a request between tries, as the agent does in a file: a new key for each try would wait ten minutes."""

    def __init__(self, on_key: Callable[[PendingRequest], None] = lambda _pending: None) -> None:
        self._request: PendingRequest | None = None
        self._on_key = on_key

    def load(self) -> PendingRequest | None:
        return self._request

    def save(self, pending: PendingRequest) -> None:
        self._request = pending
        self._on_key(pending)

    def discard(self) -> None:
        self._request = None


@contextmanager
def connected(cluster: Cluster, token: str, seconds: float) -> Generator[ApiServerClient]:
    """Make a node's client with a bootstrap token."""
    login = Credentials(username=f"system:bootstrap:{token[:6]}", token=token)
    deadline = Deadline.after(Clock(), seconds)
    client = ApiServerClient(cluster, login, deadline)
    try:
        yield client
    finally:
        client.close()


def attest(cluster: Cluster, node: Node, attestor: Attestor, store: PendingRequestFile, seconds: float) -> None:
    """Get one certificate by an attestor."""
    spec = CertificateSpec(
        node_name=NodeName(node.name),
        provider_id=ProviderID(node.provider_id),
        signer=signer_for(ProviderName(attestor.provider), Purpose.CLIENT),
        ca_pem=cluster.ca_pem,
        pin=certificate.select_ca_pin(cluster.ca_pem),
    )
    with connected(cluster, node.token, seconds) as client:
        deadline = Deadline.after(Clock(), seconds)
        enroll(spec, attestor=attestor, client=client, store=store, deadline=deadline, random=random_unit)


def join(orders: Orders, node: Node, attestor: Attestor | None) -> None:
    """Get one certificate, by the in-tree signer if there is no attestor."""
    if attestor is not None:
        attest(orders.cluster, node, attestor, Pending(), orders.seconds)
        return
    subject = [(NameOID.ORGANIZATION_NAME, "system:nodes"), (NameOID.COMMON_NAME, f"system:node:{node.name}")]
    name = x509.Name([x509.NameAttribute(*one) for one in subject])
    builder = x509.CertificateSigningRequestBuilder().subject_name(name)
    request = builder.sign(ec.generate_private_key(ec.SECP256R1()), hashes.SHA256()).public_bytes(Encoding.PEM)
    body = manifest(node.name, request, signer_name=IN_TREE_SIGNER, usages=IN_TREE_USAGES, expiration_seconds=None)
    with connected(orders.cluster, node.token, orders.seconds) as client:
        created = client.create(body)
        assert created is not None, "a request of this name is there already"
        assert any(seen is not None and seen.certificate for seen in client.watch(created)), "no certificate came"


def make_attestor(kind: Kind, node: Node) -> Attestor | None:
    match kind:
        case Kind.TPM:
            return SoftwareAttestor(node.number)
        case Kind.ONE_STEP:
            return registry.make_attestor(ProviderName("insecure"), {})
        case Kind.IN_TREE:
            return None


def join_all(orders: Orders) -> Outcome:
    """Let every node of one process join."""
    threading.stack_size(STACK)
    attestors = [make_attestor(orders.kind, node) for node in orders.nodes]
    outcome, before = Outcome(), time.process_time()

    def one(node: Node, attestor: Attestor | None) -> tuple[float, float] | str:
        begun = time.monotonic()
        try:
            join(orders, node, attestor)
        except (AgentError, AssertionError, OSError) as error:
            return f"{type(error).__name__}: {error}"[:200]
        return begun, time.monotonic()

    with ThreadPoolExecutor(min(orders.at_once, len(orders.nodes))) as pool:
        ends = list(pool.map(one, orders.nodes, attestors))
    outcome.cpu = time.process_time() - before
    outcome.joins = [end for end in ends if not isinstance(end, str)]
    outcome.failures = Counter(end for end in ends if isinstance(end, str))
    return outcome
