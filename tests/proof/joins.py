"""A machine and its TPM, or a thief and his own, in an exchange: each step apart, each field to be chosen.

What is said to the controller goes through the API server in memory; what the TPM does, swtpm does.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Generator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any, Final

from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding
from csr_world import CREATED, CSRS, NODE, PROVIDER_ID, SIGNERS, World
from tpm_tss import P384, activate, connected, extend_with, primary, quote, sign, tss
from tpm_world import QuoteParts, parsed

from nodeattest_controller.model.objects import rfc3339, text
from nodeattest_kube.jsontypes import JsonObject, JsonValue
from nodeattest_providers import envelope
from nodeattest_providers.binding import Binding
from nodeattest_providers.csr import build_csr
from nodeattest_providers.names import ANNOTATION_CHALLENGE, NodeName, ProviderID, ProviderName, Purpose, signer_for
from nodeattest_providers.node_interface import Evidence, FirstRequestRef
from nodeattest_providers.node_interface import JsonObject as EvidenceObject
from nodeattest_providers.tpm.attestation_key import qualified_name
from nodeattest_providers.tpm.key_templates import AK_TEMPLATES
from nodeattest_providers.tpm.protocol import Challenge, FirstEvidence, SecondEvidence, proof, qualifying_data
from nodeattest_providers.tpm.structures import PcrSelection
from nodeattest_sandbox.swtpm import SoftwareTpm

__all__ = [
    "GOOD",
    "TPM_OTHER_MACHINE",
    "VERSION",
    "Answer",
    "Join",
    "TpmKeys",
    "allow",
    "certificate_of",
    "extended",
    "first_use",
    "forged",
    "keys_of",
    "node_requester",
    "signed_by",
    "unextended",
    "values_of",
]

TPM: Final = ProviderName("tpm")
VERSION: Final = 2
"""Of the evidence, where a row says nothing else."""
GOOD: Final = hashlib.sha256(bytes(64)).digest()
"""What a PCR holds after one event of zeros: the only boot that a policy of these tests calls good."""
TPM_OTHER_MACHINE: Final = "metal://rack-1/2"
TOKEN: Final = "system:bootstrap:abcdef"
RESTRICTED_SIGNING: Final = 0x00050472


def node_requester(node: str = NODE) -> dict[str, JsonValue]:
    """Ask as a node, by its certificate."""
    return {"username": f"system:node:{node}", "groups": ["system:nodes"]}


def allow(tpm: SoftwareTpm, machine: str = PROVIDER_ID, **entry: JsonValue) -> list[JsonValue]:
    """Register a TPM for a machine."""
    listed: JsonObject = {"providerID": machine, "sha256": tpm.endorsement_fingerprint(), **entry}
    return [listed]


def certificate_of(tpm: SoftwareTpm) -> bytes:
    """Return what the maker says of a TPM's endorsement key."""
    return tpm.endorsement_certificate().public_bytes(Encoding.DER)


def first_use(tpm: SoftwareTpm) -> JsonObject:
    """Trust whichever genuine TPM comes first."""
    return {"endorsementCAs": tpm.authority_pem, "trustOnFirstUse": True}


@dataclass(frozen=True, slots=True)
class TpmKeys:
    """What root of a machine has loaded into its TPM."""

    esys: Any
    ek: Any
    ak: Any


@contextmanager
def keys_of(tpm: SoftwareTpm, template: bytes, *, owner: bool = False) -> Generator[TpmKeys]:
    """Load the endorsement key and an attestation key, in either hierarchy."""
    hierarchy = tss.ESYS_TR.OWNER if owner else None
    with (
        connected(tpm.tcti) as esys,
        primary(esys, P384.creation()) as ek,
        primary(esys, template, hierarchy) as ak,
    ):
        yield TpmKeys(esys, ek, ak)


def values_of(tpm: SoftwareTpm, selection: PcrSelection) -> tuple[bytes, ...]:
    """Read PCRs, at most eight."""
    selected, _ = tss.TPML_PCR_SELECTION.unmarshal(selection.marshal())
    with connected(tpm.tcti) as esys:
        return tuple(bytes(value) for value in esys.pcr_read(selected)[2])


def extended(tpm: SoftwareTpm, pcr: int) -> None:
    """Give a PCR that software may reset the value of a good boot."""
    with connected(tpm.tcti) as esys:
        esys.pcr_reset(tss.ESYS_TR(pcr))
        extend_with(esys, pcr)


def unextended(tpm: SoftwareTpm, pcr: int) -> None:
    """Give it the value that it has after a reset of the TPM."""
    with connected(tpm.tcti) as esys:
        esys.pcr_reset(tss.ESYS_TR(pcr))


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """The parts of an answer, before they are put together."""

    secret: bytes
    quote: bytes
    signature: bytes
    pcrs: tuple[bytes, ...]
    event_log: bytes | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Join:
    """Who asks, for what, and with which key; all may be another's."""

    world: World
    key: ec.EllipticCurvePrivateKey = field(default_factory=lambda: ec.generate_private_key(ec.SECP256R1()))
    node: str = NODE
    machine: str = PROVIDER_ID
    purpose: Purpose = Purpose.CLIENT
    addresses: Sequence[str] = ()
    requester: Mapping[str, JsonValue] = field(default_factory=dict[str, JsonValue])
    version: int = VERSION

    @property
    def der(self) -> bytes:
        """The PKCS#10 request: deterministic but for its signature, so made once for each exchange."""
        serving = self.purpose is Purpose.SERVING
        return build_csr(
            self.key,
            NodeName(self.node),
            ProviderID(self.machine),
            dns_names=(self.node,) if serving else (),
            ip_addresses=tuple(self.addresses),
        )

    def binding(self, der: bytes) -> bytes:
        """What evidence for this request is bound to."""
        cluster = self.world.management.cluster(self.world.workload.key)
        assert cluster is not None
        (pin,) = self.world.management.facts_of(cluster).pins
        return Binding(pin, signer_for(TPM, self.purpose), hashlib.sha256(der).digest()).digest_for(TPM, self.version)

    def file(
        self, name: str, der: bytes, data: EvidenceObject, *, after: timedelta = timedelta(0), **spec: JsonValue
    ) -> str:
        """File a request ``after`` the first; returns its name."""
        raw = envelope.encode(der, Evidence(TPM, self.version, data))
        usage = "server auth" if self.purpose is Purpose.SERVING else "client auth"
        body: JsonObject = {
            "kind": "CertificateSigningRequest",
            "metadata": {"name": name, "creationTimestamp": rfc3339(CREATED + after)},
            "spec": {
                "request": base64.b64encode(raw).decode(),
                "signerName": SIGNERS[self.purpose],
                "usages": ["digital signature", usage],
                "username": TOKEN,
                "groups": ["system:bootstrappers"],
                **self.requester,
                **spec,
            },
            "status": {},
        }
        self.world.workload_api.put(f"{CSRS}/{name}", body)
        return name

    def first(self, name: str, der: bytes, keys: TpmKeys, **changes: object) -> str:
        """File a first request that shows these keys."""
        shown = replace(FirstEvidence(ek_public=keys.ek.public, ak_public=keys.ak.public), **changes)  # pyright: ignore[reportArgumentType] - the tests name real fields
        return self.file(name, der, shown.to_json())

    async def challenge(self, first: str) -> Challenge:
        """Have the controller handle the first request, and read its challenge."""
        await self.world.reconcile(first)
        published = self.world.annotation(ANNOTATION_CHALLENGE, first)
        assert published, (self.world.condition("Denied", first), self.world.csr(first))
        return Challenge.parse(published)

    def uid(self, name: str) -> str:
        """Return the UID of a request."""
        return text(self.world.csr(name), "metadata", "uid")

    def qualifying(self, challenge: Challenge, first: str, der: bytes) -> bytes:
        """Return the right qualifying data."""
        return qualifying_data(challenge.nonce, self.uid(first), self.binding(der), version=self.version)

    def answered(
        self, keys: TpmKeys, challenge: Challenge, first: str, der: bytes, selection: PcrSelection | None = None
    ) -> Answer:
        """Have the TPM open the challenge and quote."""
        chosen = selection or challenge.pcrs
        secret = activate(keys.esys, keys.ek, keys.ak, challenge.blob, challenge.secret)
        attest, signature = quote(keys.esys, keys.ak, chosen.marshal(), self.qualifying(challenge, first, der))
        selected, _ = tss.TPML_PCR_SELECTION.unmarshal(chosen.marshal())
        values = tuple(bytes(value) for value in keys.esys.pcr_read(selected)[2])
        return Answer(secret=secret, quote=attest, signature=signature, pcrs=values)

    def second(
        self,
        name: str,
        der: bytes,
        first: str,
        answer: Answer,
        *,
        proven: bytes | None = None,
        after: timedelta = timedelta(seconds=2),
        **changes: object,
    ) -> str:
        """File the second request; ``proven``: the PKCS#10 request that the first one had, where it had another."""
        uid, csr_sha256 = self.uid(first), hashlib.sha256(proven or der).digest()
        evidence = SecondEvidence(
            first=FirstRequestRef(name=first, uid=uid),
            mac=proof(answer.secret, uid, csr_sha256, self.binding(der), version=self.version),
            quote=answer.quote,
            signature=answer.signature,
            pcrs=answer.pcrs,
            event_log=answer.event_log,
        )
        spec: dict[str, Any] = {name: value for name, value in changes.items() if name in {"username", "groups"}}
        fields = {name: value for name, value in changes.items() if name not in spec}
        changed = replace(evidence, **fields)  # pyright: ignore[reportArgumentType] - the tests name real fields
        return self.file(name, der, changed.to_json(), after=after, **spec)

    def keys(
        self, tpm: SoftwareTpm, template: bytes | None = None, *, owner: bool = False
    ) -> AbstractContextManager[TpmKeys]:
        """Load the keys that this version of the evidence has, unless another attestation key is given."""
        return keys_of(tpm, template or AK_TEMPLATES.get(self.version, AK_TEMPLATES[VERSION]), owner=owner)

    async def through(self, tpm: SoftwareTpm, name: str = "r", template: bytes | None = None) -> str:
        """Go through both rounds, without a lie; returns the second request, or the first where that got nothing."""
        der = self.der
        with self.keys(tpm, template) as keys:
            first = self.first(f"{name}-1", der, keys, ek_certificate=certificate_of(tpm))
            await self.world.reconcile(first)
            if not self.world.annotation(ANNOTATION_CHALLENGE, first):
                return first
            challenge = Challenge.parse(self.world.annotation(ANNOTATION_CHALLENGE, first))
            answer = self.answered(keys, challenge, first, der)
        return self.second(f"{name}-2", der, first, answer)

    async def joins(self, tpm: SoftwareTpm, name: str = "honest") -> None:
        """Join as an honest machine does; its Node is not registered by this."""
        second = await self.through(tpm, name)
        await self.world.reconcile(second)
        assert text(self.world.csr(second), "status", "certificate"), self.world.csr(second)
        await self.world.settle()


def forged(keys: TpmKeys, challenge: Challenge, extra: bytes, values: Sequence[bytes]) -> bytes:
    """Write a quote of PCRs that the TPM does not have."""
    return QuoteParts(
        signer=qualified_name(parsed(keys.ak.public)),
        extra=extra,
        selection=challenge.pcrs.marshal(),
        pcr_digest=hashlib.sha256(b"".join(values)).digest(),
        clock=2**40,
    ).marshal()


def signed_by(keys: TpmKeys, message: bytes) -> bytes:
    """Have the TPM sign any bytes, where its key is not restricted."""
    return sign(keys.esys, keys.ak, message)
