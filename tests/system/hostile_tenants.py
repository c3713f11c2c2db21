"""What hostile tenants and strangers do beside honest joins, in threads of the test's process."""

from __future__ import annotations

import base64
import socket
import ssl
import threading
from collections.abc import Callable, Generator
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime, timedelta
from http import HTTPStatus
from pathlib import Path
from typing import Final, Self

import worst_inputs
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import NameOID
from polling import eventually
from world import CSRS, World

from fuzz.keys import TPM_KEY
from fuzz.tpm import AK_PREFIX, public_area
from nodeattest_controller.controllers.bootstrap_config import admission_review
from nodeattest_providers import envelope
from nodeattest_providers import pkcs10 as csr
from nodeattest_providers.errors import Reason
from nodeattest_providers.identifiers import CLIENT_SIGNER_PREFIX, ProviderName
from nodeattest_providers.node_interface import Evidence
from nodeattest_providers.tpm.key_templates import EK_TEMPLATES
from nodeattest_providers.tpm.protocol import VERSION, FirstEvidence
from nodeattest_sandbox import fleet
from nodeattest_sandbox.apiserver.jsonvalue import JsonMap, maps_at, text_at
from nodeattest_sandbox.client import ApiRefusal, Client
from nodeattest_sandbox.control_plane import ControlPlane, start_sandbox

PAUSE: Final = 0.2
"""Seconds between two changes of a hostile object."""
SHORT_PAUSE: Final = 0.05
NAMESPACE: Final = "chains"
MACHINES: Final = 10
SENDERS: Final = 4
DAY: Final = timedelta(days=1)


class Repeated:
    """Does something again and again in a thread, and counts how often it was done."""

    def __init__(self, action: Callable[[int], None], pause: float = PAUSE) -> None:
        self._action = action
        self._pause = pause
        self._end = threading.Event()
        self.done = 0
        self._thread = threading.Thread(target=self._run, daemon=True)

    def _run(self) -> None:
        while not self._end.wait(self._pause):
            try:
                self._action(self.done)
            except (ApiRefusal, OSError):  # a server that takes no more of it
                continue
            self.done += 1

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self._end.set()
        self._thread.join(30)


@contextmanager
def looping_chains(world: World, directory: Path) -> Generator[Callable[[], int]]:
    """First requests of one token whose ``ekChain`` is a loop of P-521 certificates (HOSTILE 4)."""
    fleet.create_namespace(world.admin, NAMESPACE)
    with start_sandbox(directory / "chains", name="chains") as plane:
        cluster = _chains_cluster(world, plane)
        for number in range(MACHINES):
            fleet.create_machine(world.admin, f"l{number}", cluster=cluster, provider_id=f"sandbox://l{number}")
        token = plane.await_token(fleet.create_bootstrap_token(plane.client(), "chains.0123456789abcdef"))
        sender, evidence = plane.client(plane.token_kubeconfig(token)), _looping_evidence()

        def send(turn: int) -> None:
            node = f"l{turn % MACHINES}"
            der = csr.build_csr(ec.generate_private_key(ec.SECP256R1()), node, f"sandbox://{node}")
            spec: JsonMap = {
                "signerName": CLIENT_SIGNER_PREFIX + "tpm",
                "usages": ["digital signature", "client auth"],
                "request": base64.b64encode(envelope.encode(der, evidence)).decode(),
            }
            sender.create(CSRS, {"metadata": {"name": f"loop-{turn}"}, "spec": spec})

        def refused() -> int:
            """Tell how many were sent, once the first was refused for its chain: it got past every check before."""
            if not repeated.done:
                return 0
            first = plane.client().get(f"{CSRS}/loop-0")
            reasons = {text_at(one, "reason") for one in maps_at(first, "status", "conditions")}
            return repeated.done if Reason.ENDORSEMENT_CERTIFICATE_INVALID in reasons else 0

        eventually(lambda: _may_ask(sender), seconds=60, what="the binding for bootstrap tokens")
        try:
            with Repeated(send) as repeated:
                yield refused
        finally:
            world.admin.delete(f"/apis/cluster.x-k8s.io/v1beta1/namespaces/{NAMESPACE}/clusters/chains")


def _chains_cluster(world: World, plane: ControlPlane) -> JsonMap:
    """Create the tenant's Cluster, and a policy whose authorities' name is in no certificate."""
    policy: JsonMap = {
        "apiVersion": "attestation.cluster.x-k8s.io/v1alpha1",
        "kind": "NodeAttestationPolicy",
        "metadata": {"name": "policy", "namespace": NAMESPACE},
        "spec": {
            "authorizedAttestors": ["tpm"],
            "tokenBinding": "Off",
            "tpm": {"trustOnFirstUse": True, "endorsementCAs": plane.pki.ca_certificate.read_text()},
        },
    }
    path = f"/apis/attestation.cluster.x-k8s.io/v1alpha1/namespaces/{NAMESPACE}/nodeattestationpolicies"
    world.admin.create(path, policy)
    return fleet.create_cluster(
        world.admin,
        "chains",
        namespace=NAMESPACE,
        kubeconfig=plane.admin_kubeconfig.read_bytes(),
        ca_certificate=plane.pki.ca_certificate.read_bytes(),
        ca_key=plane.pki.ca_key.read_bytes(),
    )


def _looping_evidence() -> Evidence:
    """Make an endorsement certificate and four self-issued P-521 certificates of the one name that issued it."""
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "loop")])
    keys = [ec.generate_private_key(ec.SECP521R1()) for _ in range(4)]
    now, made = datetime.now(UTC), list[bytes]()
    usages = {each: each == "key_cert_sign" for each in _USAGES}
    for public, signer in ((TPM_KEY.public_key(), keys[0]), *((key.public_key(), key) for key in keys)):
        builder = x509.CertificateBuilder(name, name, public, x509.random_serial_number(), now - DAY, now + DAY)
        builder = builder.add_extension(x509.BasicConstraints(ca=bool(made), path_length=None), critical=True)
        if made:
            builder = builder.add_extension(x509.KeyUsage(**usages), critical=True)
        made.append(builder.sign(signer, hashes.SHA512()).public_bytes(Encoding.DER))
    leaf, *chain = made
    first = FirstEvidence(
        ek_public=public_area(EK_TEMPLATES[0].prefix),
        ak_public=_another_public_area(),
        ek_certificate=leaf,
        ek_chain=tuple(chain),
    )
    return Evidence(ProviderName("tpm"), VERSION, first.to_json())


def _another_public_area() -> bytes:
    """Write an attestation key, of another point than the endorsement key."""
    point = ec.generate_private_key(ec.SECP256R1()).public_key().public_numbers()
    return AK_PREFIX + b"".join(b"\0\x20" + each.to_bytes(32, "big") for each in (point.x, point.y))


_USAGES: Final = (
    *("digital_signature", "content_commitment", "key_encipherment", "data_encipherment", "key_agreement"),
    *("key_cert_sign", "crl_sign", "encipher_only", "decipher_only"),
)


def _may_ask(sender: Client) -> bool:
    try:
        sender.create(CSRS, {"metadata": {"name": "x"}, "spec": {}})
    except ApiRefusal as refusal:
        return refusal.code != HTTPStatus.FORBIDDEN
    return True


@contextmanager
def large_reviews(port: int) -> Generator[Callable[[], int]]:
    """Strangers at the webhook's port, with the reviews that cost the most (HOSTILE 5)."""
    body = worst_inputs.review_of_different_objects(admission_review.MAX_BODY)
    head = b"POST /mutate-bootstrap-config HTTP/1.1\r\nHost: w\r\nContent-Type: application/json\r\n"
    request = head + b"Content-Length: %d\r\n\r\n" % len(body) + body
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE  # a stranger asks anybody

    def send(_turn: int) -> None:
        plain = socket.create_connection(("127.0.0.1", port), 30)
        with plain, context.wrap_socket(plain) as secured:
            secured.sendall(request)
            if not secured.recv(12).startswith(b"HTTP/1.1"):
                raise OSError("no answer")

    with ExitStack() as stack:
        floods = [stack.enter_context(Repeated(send, SHORT_PAUSE)) for _ in range(SENDERS)]
        yield lambda: sum(flood.done for flood in floods)
