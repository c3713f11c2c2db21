"""Attacks on the checks of the TPM protocol, by a TPM in software whose every byte can be chosen.

Verifier, evidence and signatures are real.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import timedelta
from functools import cache
from typing import Any, Final, cast

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.x509.oid import ExtendedKeyUsageOID
from ec2_world import FROM_EC2, INSTANCE, OTHERS, RUNNING, Amazon
from firmware import crypto_agile_log
from tpm_authority import Authority, key_usage, leaf_extensions
from tpm_boots import BOOT, DIFFERENT, OPEN, SELECTION, registers
from tpm_world import (
    CSR,
    MASTER,
    NOW,
    PCR_VALUES,
    UNMARKED_PREFIX,
    VERSION,
    SoftTpm,
    ak_prefix,
    digest_of,
    facts_of,
    ledger,
    machine,
    new_key,
    parsed,
    request_of,
    rsa_ak_prefix,
)

from nodeattest_providers.challenge_response import CHALLENGE_TTL, LABEL_SECRET, challenge_context, derive
from nodeattest_providers.errors import ChallengeRequired
from nodeattest_providers.identifiers import ANNOTATION_TPM_ENDORSEMENT_KEY, ProviderName, Purpose, signer_for
from nodeattest_providers.node_interface import Evidence, FirstRequestRef, JsonValue
from nodeattest_providers.platform import OFFLINE, Platform
from nodeattest_providers.tpm.endorsement_key import MACHINE_ANNOTATION
from nodeattest_providers.tpm.protocol import Challenge, SecondEvidence, proof, qualifying_data
from nodeattest_providers.tpm.structures import Alg, PcrSelection
from nodeattest_providers.tpm.verifier import TpmSigner
from nodeattest_providers.verifier_interface import AttestedNode, ClusterAPISigner

SERVING: Final = signer_for(ProviderName("tpm"), Purpose.SERVING)
AS_NODE: Final[dict[str, Any]] = {"username": "system:node:node-7", "groups": frozenset({"system:nodes"})}
JOINED: Final = b"".join(PCR_VALUES)


@dataclass(frozen=True, slots=True, kw_only=True)
class Soft:
    """A whole exchange of a TPM in software; what is given is spoilt, all else is right."""

    tpm: SoftTpm = field(default_factory=SoftTpm)
    settings: Mapping[str, JsonValue] | None = None
    amazon: Amazon | None = None
    """Where EC2 is to name the key: what it answers."""
    facts: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Of both rounds."""
    shown: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Of the first evidence."""
    first: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Of the first request, as it is filed."""
    reread: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Of the first request, as it is when the second one is evaluated."""
    later: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Of the facts of the second round."""
    answer: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Of the second evidence."""
    second: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Of the second request."""
    quote: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Of the quote, before it is signed."""
    values: tuple[bytes, ...] = PCR_VALUES

    async def verified(self) -> AttestedNode:
        """Go through both rounds; raises what the verifier raises."""
        platform = OFFLINE
        if self.amazon is not None:
            amazon = cast("ClusterAPISigner", self.amazon)
            platform = Platform(find_signer=lambda _: amazon)
        signer = TpmSigner(platform=platform)
        facts = facts_of(self.tpm.settings if self.settings is None else self.settings, **self.facts)
        first = replace(request_of(self.tpm.first(**self.shown)), **self.first)
        try:
            await signer.verify_client_attestation_data(first, facts)
        except ChallengeRequired as required:
            challenge = Challenge.parse(required.challenge)
        else:
            raise AssertionError("a first request never attests a node")
        ak, ek = parsed(self.tpm.ak_public), parsed(self.tpm.ek_public)
        secret = derive(LABEL_SECRET, MASTER, challenge_context(facts, first, ak.name, ek.spki_sha256))
        asked = replace(first, **{name: value for name, value in self.second.items() if name == "signer_name"})
        binding = digest_of(asked)
        extra = qualifying_data(challenge.nonce, first.uid, binding)
        parts = self.tpm.quote_parts(extra, challenge.pcrs, self.values)
        quote = replace(parts, **self.quote).marshal()
        evidence = SecondEvidence(
            first=FirstRequestRef(name=first.name, uid=first.uid),
            mac=proof(secret, first.uid, first.csr.sha256, binding),
            quote=quote,
            signature=self.tpm.sign(quote),
            pcrs=self.values,
        )
        second = request_of(replace(evidence, **self.answer), **self.second)
        later: dict[str, Any] = {"first_request": replace(first, **self.reread), **self.later}
        return await signer.verify_client_attestation_data(second, replace(facts, **later))


@cache
def authority() -> Authority:
    """The one maker that policies here know."""
    return Authority.root()


def first_use() -> dict[str, JsonValue]:
    return {"endorsementCAs": authority().pem, "trustOnFirstUse": True}


def certified(**changes: Any) -> Soft:
    """A key that its maker's certificate speaks for, where the first use is trusted; ``changes`` are extensions."""
    tpm = SoftTpm()
    extensions = {**leaf_extensions(tpm.ek.public_key()), **changes}
    return certified_of(tpm, authority().endorse(tpm.ek.public_key(), extensions=extensions))


def with_ak(**prefix: Any) -> SoftTpm:
    """A TPM whose attestation key has another shape."""
    return SoftTpm(ak_prefix=ak_prefix(**prefix))


@cache
def rsa_3072() -> SoftTpm:
    return SoftTpm(ak=rsa.generate_private_key(65537, 3072), ak_prefix=rsa_ak_prefix(3072))


def one_for_both() -> SoftTpm:
    key = ec.generate_private_key(ec.SECP256R1())
    return SoftTpm(ek=key, ak=key)


def of_block(provider: str, version: int, **data: JsonValue) -> Soft:
    """A first request whose evidence says to be of another provider or version."""
    tpm = SoftTpm()
    evidence = Evidence(ProviderName(provider), version, {**tpm.first().to_json(), **data})
    return Soft(tpm=tpm, first={"evidence": evidence})


def listed_for_another() -> Soft:
    """The policy's entry of the key names another machine, and the first use is trusted besides."""
    made = certified()
    entry: dict[str, JsonValue] = {"providerID": "metal://rack-1/8", "sha256": made.tpm.fingerprint}
    return replace(made, settings={**first_use(), "endorsementKeys": [entry]})


def of_chosen_suffix(*listed: str) -> Soft:
    """A genuine TPM whose request chose the end of its provider ID, where the first use is trusted."""
    made, facts = certified(), {"machine": replace(machine(), provider_id_prefix="metal://rack-1/")}
    entries: list[JsonValue] = [{"providerID": one, "sha256": SoftTpm().fingerprint} for one in listed]
    return replace(made, settings={**first_use(), "endorsementKeys": entries}, facts=facts)


def by_chain(**changes: Any) -> Soft:
    """A genuine TPM that nothing but its maker's certificate speaks for."""
    facts = {"machine": machine(**changes)} if changes else {}
    return replace(certified(), settings={"endorsementCAs": authority().pem}, facts=facts)


def booted_otherwise() -> Soft:
    tpm = SoftTpm()
    pcrs: dict[str, JsonValue] = {"selection": [0, 7], "values": {"7": ["00" * 32]}}
    return Soft(tpm=tpm, settings={**tpm.settings, "pcrs": pcrs})


@cache
def nitro_tpm() -> SoftTpm:
    return SoftTpm("ecc-p384", new_key("ecc-p384"))


def of_ec2(tpm: SoftTpm | None = None, **answers: Any) -> Soft:
    """An instance whose key EC2 is to name, where it answers so."""
    asking = tpm or nitro_tpm()
    amazon = replace(Amazon(key=asking.fingerprint), **answers)
    facts = {"machine": replace(machine(), provider_id=INSTANCE)}
    return Soft(tpm=asking, settings=FROM_EC2, amazon=amazon, facts=facts)


def by_another_authority() -> Soft:
    tpm = SoftTpm()
    return certified_of(tpm, Authority.root().endorse(tpm.ek.public_key()))


def certified_of(tpm: SoftTpm, certificate: bytes) -> Soft:
    return Soft(tpm=tpm, settings=first_use(), shown={"ek_certificate": certificate})


def of_the_platform() -> Soft:
    named = machine(endorsement_keys={"infrastructure machine": "sha256:" + "0f" * 32})
    return Soft(facts={"machine": named})


def annotated(settings: Mapping[str, JsonValue]) -> Soft:
    """The Machine's annotation names the key, and no maker's certificate does."""
    tpm = SoftTpm()
    return Soft(
        tpm=tpm, settings=settings, facts={"machine": machine(annotations={MACHINE_ANNOTATION: tpm.fingerprint})}
    )


def created_again() -> Soft:
    """Another request of the same name stands where the first one was."""
    return Soft(reread={"uid": "uid-of-another"})


def logged(log: bytes | None, held: Mapping[int, bytes] | None = None, *, asked: bool = True) -> Soft:
    """A measured boot, and the log that the node sends."""
    tpm = SoftTpm()
    settings: dict[str, JsonValue] = {**tpm.settings, "pcrs": {"selection": [*SELECTION]}}
    if asked:
        settings["eventLog"] = "Require"
    found = held or registers(BOOT)
    return Soft(tpm=tpm, settings=settings, values=tuple(found[pcr] for pcr in SELECTION), answer={"event_log": log})


ATTACKS: Final[Mapping[str, Callable[[], Soft]]] = {
    "attestation key: attributes": lambda: Soft(tpm=with_ak(attributes=0x00040472)),
    "pinned ek": lambda: Soft(facts={"ledger": ledger(fingerprints={"ek": "sha256:another"})}),
    "pinned ak": lambda: Soft(facts={"ledger": ledger(fingerprints={"ak": "another"})}),
    "attestation key: authPolicy": lambda: Soft(tpm=SoftTpm(ak_prefix=UNMARKED_PREFIX)),
    "endorsement key: on the allow-list": lambda: Soft(settings=SoftTpm().settings),
    "endorsement key: on no other machine's entry": listed_for_another,
    "endorsement key: suffix on the allow-list": lambda: of_chosen_suffix("metal://rack-1/another"),
    "endorsement key: named by the Machine's annotation": lambda: by_chain(
        annotations={MACHINE_ANNOTATION: SoftTpm().fingerprint}
    ),
    "endorsement key: bound to the Machine": by_chain,
    "endorsement key: first use": lambda: replace(certified(), first=AS_NODE, second=AS_NODE),
    "same PKCS#10 bytes": lambda: Soft(second={"csr": replace(CSR, der=b"of another key")}),
    "challenge answered in time": lambda: Soft(second={"created": NOW + CHALLENGE_TTL + timedelta(seconds=1)}),
    "known challenge": lambda: Soft(answer={"mac": bytes(32)}, quote={"extra": bytes(32)}),
    "activated secret": lambda: Soft(answer={"mac": bytes(32)}),
    "quote binding": lambda: Soft(quote={"extra": bytes(32)}),
    "qualified signer": lambda: Soft(quote={"signer": bytes(34)}),
    "quote signature": lambda: Soft(answer={"signature": SoftTpm().sign(b"a quote")}),
    "PCR selection": lambda: Soft(quote={"selection": PcrSelection(Alg.SHA256, (0, 16)).marshal()}),
    "PCR values": lambda: Soft(answer={"pcrs": (JOINED[:16], JOINED[16:])}),
    "PCR digest": lambda: Soft(answer={"pcrs": (bytes(32), PCR_VALUES[1])}),
    "PCR value": booted_otherwise,
    "evidence provider": lambda: of_block("gcp", VERSION),
    "evidence version": lambda: of_block("tpm", VERSION + 1),
    "attestation key: nameAlg": lambda: Soft(tpm=with_ak(name_alg="000c")),
    "attestation key: symmetric algorithm": lambda: Soft(tpm=with_ak(symmetric="000600800043")),
    "attestation key: scheme": lambda: Soft(tpm=with_ak(scheme="0018000c")),
    "attestation key: key size": lambda: Soft(tpm=rsa_3072()),
    "attestation key: another key": lambda: Soft(tpm=one_for_both()),
    "endorsement key: named by the platform": of_the_platform,
    "endorsement key: named by EC2": lambda: of_ec2(key=SoftTpm().fingerprint),
    "EC2: type of the key": lambda: of_ec2(SoftTpm()),
    "EC2: instance exists": lambda: of_ec2(instance=replace(RUNNING, owner=OTHERS)),
    "EC2: zone of the instance": lambda: of_ec2(instance=replace(RUNNING, zone="us-east-1b")),
    "EC2: state of the instance": lambda: of_ec2(instance=replace(RUNNING, state="terminated")),
    "EC2: NitroTPM of the instance": lambda: of_ec2(instance=replace(RUNNING, has_tpm=False), key=None),
    "EC2: key of the instance": lambda: of_ec2(key=None),
    "endorsement key: authorities configured": lambda: annotated({}),
    "endorsement key: certificate sent": lambda: annotated(first_use()),
    "endorsement certificate: certified key": lambda: certified_of(
        SoftTpm(), authority().endorse(new_key("ecc-p256").public_key())
    ),
    "endorsement certificate: no CA": lambda: certified(bc=(x509.BasicConstraints(ca=True, path_length=None), True)),
    "endorsement certificate: extended key usage": lambda: certified(
        eku=(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), False)
    ),
    "endorsement certificate: key usage": lambda: certified(ku=(key_usage("digital_signature"), True)),
    "endorsement certificate: critical extensions": lambda: certified(
        odd=(x509.UnrecognizedExtension(x509.ObjectIdentifier("1.2.3.4"), b"\x05\x00"), True)
    ),
    "endorsement certificate: certificate chain": by_another_authority,
    "first request exists": lambda: Soft(later={"first_request": None}),
    "first request name": lambda: Soft(reread={"name": "another"}),
    "first request uid": created_again,
    "two requests": lambda: Soft(second={"uid": "uid-1"}),
    "same username": lambda: Soft(second={"username": "system:bootstrap:thief0"}),
    "same groups": lambda: Soft(second={"groups": frozenset({"system:bootstrappers", "others"})}),
    "same signer": lambda: Soft(second={"signer_name": SERVING}),
    "same provider": lambda: Soft(reread={"evidence": Evidence(ProviderName("gcp"), VERSION, {})}),
    "event log not asked for": lambda: logged(crypto_agile_log(BOOT), asked=False),
    "event log present": lambda: logged(None),
    "event log bank": lambda: logged(crypto_agile_log(BOOT, ("sha1",))),
    "event log replays PCR": lambda: logged(crypto_agile_log(BOOT), registers(DIFFERENT)),
    "event log closes PCR": lambda: logged(crypto_agile_log(OPEN), registers(OPEN)),
    "TPM clock goes forward": lambda: Soft(later={"ledger": ledger(clock=10_000, reset_count=3)}),
}
PARSERS: Final[Mapping[str, Callable[[], Soft]]] = {
    "evidence schema": lambda: of_block("tpm", VERSION, phase=3),
    "endorsement key template": lambda: Soft(shown={"ek_public": SoftTpm().ak_public}),
    "attestation key public area": lambda: Soft(shown={"ak_public": b"\0"}),
    "quote structure": lambda: Soft(quote={"kind": 0x8017}),
    "signature structure": lambda: Soft(answer={"signature": b"\0"}),
    "event log structure": lambda: logged(crypto_agile_log(BOOT)[:-1]),
    "endorsement certificate: structure": lambda: certified_of(SoftTpm(), b"\x30\x00"),
}
"""Checks whose success is a value that what follows needs: without it there is nothing to go on with."""
RECORDS: Final = frozenset({"endorsement key: pinned by the ledger"})
"""Recorded, so that an auditor reads why a key was trusted; it cannot fail."""


def sound() -> tuple[Soft, ...]:
    """Return sound exchanges, by each way to trust an endorsement key: together they record every check."""
    good = certified()
    tpm = good.tpm
    named = {ANNOTATION_TPM_ENDORSEMENT_KEY: tpm.fingerprint}
    values: JsonValue = {"selection": [0, 7], "values": {"7": [PCR_VALUES[1].hex()]}}
    return (
        Soft(),
        Soft(tpm=tpm, settings={**tpm.settings, "pcrs": values}),
        good,
        of_chosen_suffix(),
        replace(good, facts={"machine": machine(annotations={MACHINE_ANNOTATION: tpm.fingerprint})}),
        replace(good, facts={"machine": machine(endorsement_keys=named)}),
        replace(good, facts={"ledger": ledger(fingerprints={"ek": tpm.fingerprint}, clock=1, reset_count=1)}),
        logged(crypto_agile_log(BOOT)),
        of_ec2(),
    )
