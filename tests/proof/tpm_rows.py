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
from removal import Row
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
from nodeattest_providers.errors import ChallengeRequired, Reason
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


def row(check: str, reason: Reason, attack: str, made: Callable[[], Soft], mutants: tuple[str, ...] = ()) -> Row[None]:
    return Row(f"tpm: {check}", attack, reason, lambda _: made().verified(), mutants)


UNTRUSTED: Final = Reason.ENDORSEMENT_KEY_UNTRUSTED
INVALID: Final = Reason.ENDORSEMENT_CERTIFICATE_INVALID
NOT_ALLOWED: Final = Reason.ATTESTATION_KEY_NOT_ALLOWED
MISMATCH: Final = Reason.FIRST_REQUEST_MISMATCH

ROWS: Final[tuple[Row[None], ...]] = (
    row(
        "attestation key: attributes",
        NOT_ALLOWED,
        "a key in the machine's TPM that signs anything, such as a quote that the TPM never made",
        lambda: Soft(tpm=with_ak(attributes=0x00040472)),
    ),
    row(
        "pinned ek",
        Reason.ENDORSEMENT_KEY_CHANGED,
        "another genuine TPM of the same maker, and a stolen token, after the first use",
        lambda: Soft(facts={"ledger": ledger(fingerprints={"ek": "sha256:another"})}),
    ),
    row(
        "pinned ak",
        Reason.ATTESTATION_KEY_CHANGED,
        "the machine's own TPM, after the first use, with another key",
        lambda: Soft(facts={"ledger": ledger(fingerprints={"ak": "another"})}),
    ),
    row(
        "attestation key: authPolicy",
        NOT_ALLOWED,
        "the key of another agent of the same host, which activates credentials and quotes for strangers",
        lambda: Soft(tpm=SoftTpm(ak_prefix=UNMARKED_PREFIX)),
    ),
    row(
        "endorsement key: on the allow-list",
        UNTRUSTED,
        "a genuine TPM of the thief's own, and a stolen token",
        lambda: Soft(settings=SoftTpm().settings),
    ),
    row(
        "endorsement key: on no other machine's entry",
        UNTRUSTED,
        "the registered TPM of another machine, where the first use is trusted besides",
        listed_for_another,
    ),
    row(
        "endorsement key: suffix on the allow-list",
        UNTRUSTED,
        "a genuine TPM of the thief's own and a registered machine's token, under another suffix of its provider ID",
        lambda: of_chosen_suffix("metal://rack-1/another"),
    ),
    row(
        "endorsement key: named by the Machine's annotation",
        UNTRUSTED,
        "a genuine TPM of the same maker, where the annotation names the machine's own",
        lambda: by_chain(annotations={MACHINE_ANNOTATION: SoftTpm().fingerprint}),
    ),
    row(
        "endorsement key: bound to the Machine",
        UNTRUSTED,
        "a genuine TPM that nothing but its maker's certificate speaks for",
        by_chain,
    ),
    row(
        "endorsement key: first use",
        UNTRUSTED,
        "a certificate of a node, signed in-tree and stolen, and a genuine TPM of the thief's own",
        lambda: replace(certified(), first=AS_NODE, second=AS_NODE),
    ),
    row(
        "same PKCS#10 bytes",
        MISMATCH,
        "one challenge, answered for another key than the first request's",
        lambda: Soft(second={"csr": replace(CSR, der=b"of another key")}),
    ),
    row(
        "challenge answered in time",
        Reason.CHALLENGE_EXPIRED,
        "an intruder prepares an answer, leaves the machine, and files it after the challenge's time",
        lambda: Soft(second={"created": NOW + CHALLENGE_TTL + timedelta(seconds=1)}),
    ),
    row(
        "known challenge",
        Reason.CHALLENGE_UNKNOWN,
        "an answer to no challenge at all",
        lambda: Soft(answer={"mac": bytes(32)}, quote={"extra": bytes(32)}),
    ),
    row(
        "activated secret",
        Reason.PROOF_INVALID,
        "a quote for the challenge, and no secret: an endorsement key of one TPM and an attestation key of another",
        lambda: Soft(answer={"mac": bytes(32)}),
    ),
    row(
        "quote binding",
        Reason.QUOTE_NOT_BOUND,
        "an opened challenge, and a quote that was kept from a good boot",
        lambda: Soft(quote={"extra": bytes(32)}),
    ),
    row(
        "qualified signer",
        NOT_ALLOWED,
        "a key of another hierarchy, of the same attributes",
        lambda: Soft(quote={"signer": bytes(34)}),
    ),
    row(
        "quote signature",
        Reason.QUOTE_SIGNATURE_INVALID,
        "an opened challenge, and a quote that the TPM did not sign",
        lambda: Soft(answer={"signature": SoftTpm().sign(b"a quote")}),
    ),
    row(
        "PCR selection",
        Reason.PCR_SELECTION_MISMATCH,
        "a quote of other registers than the challenge demands",
        lambda: Soft(quote={"selection": PcrSelection(Alg.SHA256, (0, 16)).marshal()}),
    ),
    row(
        "PCR values",
        Reason.PCR_SELECTION_MISMATCH,
        "the quoted values, cut so that another register's stands where the demanded one should",
        lambda: Soft(answer={"pcrs": (JOINED[:16], JOINED[16:])}),
    ),
    row(
        "PCR digest",
        Reason.PCR_DIGEST_MISMATCH,
        "the values of a good boot beside a genuine quote of another",
        lambda: Soft(answer={"pcrs": (bytes(32), PCR_VALUES[1])}),
    ),
    row(
        "PCR value", Reason.PCR_VALUE_NOT_ALLOWED, "a machine that booted something else, and says so", booted_otherwise
    ),
    row(
        "evidence provider",
        Reason.PROVIDER_MISMATCH,
        "evidence that says to be another provider's, at the signer of this one",
        lambda: of_block("gcp", VERSION),
    ),
    row(
        "evidence version",
        Reason.EVIDENCE_VERSION_UNSUPPORTED,
        "evidence of a version that nobody has defined",
        lambda: of_block("tpm", VERSION + 1),
    ),
    row(
        "attestation key: nameAlg",
        NOT_ALLOWED,
        "an attestation key whose Name is by SHA-384",
        lambda: Soft(tpm=with_ak(name_alg="000c")),
    ),
    row(
        "attestation key: symmetric algorithm",
        NOT_ALLOWED,
        "an attestation key with a symmetric algorithm, as only storage keys have",
        lambda: Soft(tpm=with_ak(symmetric="000600800043")),
    ),
    row(
        "attestation key: scheme",
        NOT_ALLOWED,
        "an attestation key that signs with SHA-384",
        lambda: Soft(tpm=with_ak(scheme="0018000c")),
    ),
    row(
        "attestation key: key size",
        NOT_ALLOWED,
        "an attestation key of RSA 3072; shorter ones than 2048 bits are refused by the parser",
        lambda: Soft(tpm=rsa_3072()),
    ),
    row(
        "attestation key: another key",
        NOT_ALLOWED,
        "one key as endorsement key and attestation key",
        lambda: Soft(tpm=one_for_both()),
    ),
    row(
        "endorsement key: named by the platform",
        UNTRUSTED,
        "a registered TPM, where the platform says that this machine has another",
        of_the_platform,
    ),
    row(
        "endorsement key: named by EC2",
        UNTRUSTED,
        "the NitroTPM of another instance",
        lambda: of_ec2(key=SoftTpm().fingerprint),
    ),
    row("EC2: type of the key", UNTRUSTED, "a key on P-256, of which EC2 tells nothing", lambda: of_ec2(SoftTpm())),
    row(
        "EC2: instance exists",
        Reason.PLATFORM_INSTANCE_NOT_FOUND,
        "an instance of an account that the policy does not list",
        lambda: of_ec2(instance=replace(RUNNING, owner=OTHERS)),
    ),
    row(
        "EC2: zone of the instance",
        Reason.PLATFORM_INSTANCE_MISMATCH,
        "a provider ID with another zone than the instance's",
        lambda: of_ec2(instance=replace(RUNNING, zone="us-east-1b")),
    ),
    row(
        "EC2: state of the instance",
        Reason.PLATFORM_INSTANCE_NOT_RUNNING,
        "an instance that is said to be terminated",
        lambda: of_ec2(instance=replace(RUNNING, state="terminated")),
    ),
    row(
        "EC2: NitroTPM of the instance",
        Reason.PLATFORM_CONFIGURATION_NOT_ALLOWED,
        "an instance without NitroTPM",
        lambda: of_ec2(instance=replace(RUNNING, has_tpm=False), key=None),
    ),
    row(
        "EC2: key of the instance",
        Reason.PLATFORM_CONFIGURATION_NOT_ALLOWED,
        "an instance for which EC2 tells no key",
        lambda: of_ec2(key=None),
    ),
    row(
        "endorsement key: authorities configured",
        UNTRUSTED,
        "a key that the Machine's annotation names, where the policy knows no maker",
        lambda: annotated({}),
    ),
    row(
        "endorsement key: certificate sent",
        UNTRUSTED,
        "a key that the Machine's annotation names, made in software",
        lambda: annotated(first_use()),
    ),
    row(
        "endorsement certificate: certified key",
        INVALID,
        "the certificate of a genuine TPM, shown with a key made in software, where the first use is trusted",
        lambda: certified_of(SoftTpm(), authority().endorse(new_key("ecc-p256").public_key())),
    ),
    row(
        "endorsement certificate: no CA",
        INVALID,
        "a certificate of the maker's that says to be a CA",
        lambda: certified(bc=(x509.BasicConstraints(ca=True, path_length=None), True)),
    ),
    row(
        "endorsement certificate: extended key usage",
        INVALID,
        "a certificate of the maker's for something else than a TPM, its TLS server's for instance",
        lambda: certified(eku=(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), False)),
    ),
    row(
        "endorsement certificate: key usage",
        INVALID,
        "a certificate of the maker's for a key that signs",
        lambda: certified(ku=(key_usage("digital_signature"), True)),
    ),
    row(
        "endorsement certificate: critical extensions",
        INVALID,
        "a certificate with a critical extension that restricts it in a way that is not understood here",
        lambda: certified(odd=(x509.UnrecognizedExtension(x509.ObjectIdentifier("1.2.3.4"), b"\x05\x00"), True)),
    ),
    row(
        "endorsement certificate: certificate chain",
        INVALID,
        "a certificate that the thief's own authority signed",
        by_another_authority,
    ),
    row(
        "first request exists",
        Reason.FIRST_REQUEST_MISSING,
        "an answer to a first request that is not there",
        lambda: Soft(later={"first_request": None}),
    ),
    row(
        "first request name",
        MISMATCH,
        "an answer that names another first request than was read",
        lambda: Soft(reread={"name": "another"}),
    ),
    row("first request uid", MISMATCH, "the first request was deleted, and made again under its name", created_again),
    row("two requests", MISMATCH, "a request that answers itself", lambda: Soft(second={"uid": "uid-1"})),
    row(
        "same username",
        MISMATCH,
        "a copy of a node's answer, filed with another token",
        lambda: Soft(second={"username": "system:bootstrap:thief0"}),
    ),
    row(
        "same groups",
        MISMATCH,
        "a copy of a node's answer, filed by a requester of other groups",
        lambda: Soft(second={"groups": frozenset({"system:bootstrappers", "others"})}),
    ),
    row(
        "same signer",
        MISMATCH,
        "a challenge for a client certificate, answered for a serving certificate",
        lambda: Soft(second={"signer_name": SERVING}),
    ),
    row(
        "same provider",
        MISMATCH,
        "a first request of another version of the evidence than its answer",
        lambda: Soft(reread={"evidence": Evidence(ProviderName("gcp"), VERSION, {})}),
    ),
    row(
        "event log not asked for",
        Reason.EVIDENCE_MALFORMED,
        "a log that the policy does not ask for",
        lambda: logged(crypto_agile_log(BOOT), asked=False),
    ),
    row("event log present", Reason.EVENT_LOG_MISSING, "no log, where the policy requires one", lambda: logged(None)),
    row(
        "event log bank",
        Reason.EVENT_LOG_BANK_MISSING,
        "a log of SHA-1 digests alone",
        lambda: logged(crypto_agile_log(BOOT, ("sha1",))),
    ),
    row(
        "event log replays PCR",
        Reason.EVENT_LOG_MISMATCH,
        "the log of a good boot beside the quote of another",
        lambda: logged(crypto_agile_log(BOOT), registers(DIFFERENT)),
    ),
    row(
        "event log closes PCR",
        Reason.EVENT_LOG_MISMATCH,
        "a boot whose firmware never closed a register, so that whatever runs later extends it, too",
        lambda: logged(crypto_agile_log(OPEN), registers(OPEN)),
    ),
    row(
        "TPM clock goes forward",
        Reason.TPM_CLOCK_REVERSED,
        "a copy of a virtual TPM's earlier state, run beside the machine that it was taken from",
        lambda: Soft(later={"ledger": ledger(clock=10_000, reset_count=3)}),
    ),
)
PARSERS: Final[Mapping[str, tuple[Reason, Callable[[], Soft]]]] = {
    "evidence schema": (Reason.EVIDENCE_MALFORMED, lambda: of_block("tpm", VERSION, phase=3)),
    "endorsement key template": (
        Reason.ENDORSEMENT_KEY_MALFORMED,
        lambda: Soft(shown={"ek_public": SoftTpm().ak_public}),
    ),
    "attestation key public area": (NOT_ALLOWED, lambda: Soft(shown={"ak_public": b"\0"})),
    "quote structure": (Reason.QUOTE_MALFORMED, lambda: Soft(quote={"kind": 0x8017})),
    "signature structure": (Reason.QUOTE_MALFORMED, lambda: Soft(answer={"signature": b"\0"})),
    "event log structure": (Reason.EVENT_LOG_MALFORMED, lambda: logged(crypto_agile_log(BOOT)[:-1])),
    "endorsement certificate: structure": (INVALID, lambda: certified_of(SoftTpm(), b"\x30\x00")),
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
