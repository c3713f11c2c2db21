"""An attack for each check of the TPM protocol that takes keys, certificates or logs that no TPM here makes.

The TPM is ``tpm_world``'s in software, whose every byte can be chosen; verifier, evidence and signatures are real.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any, Final, cast

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.x509.oid import ExtendedKeyUsageOID
from ec2_world import FROM_EC2, INSTANCE, OTHERS, RUNNING, Amazon
from mutants import CHALLENGED, CRASHED, GRANTED, ChecksWithout, Ended, TpmWithout, ended_by, of_part
from rows import Row
from tpm_authority import Authority, key_usage, leaf_extensions
from tpm_boots import BOOT, DIFFERENT, OPEN, SELECTION, registers
from tpm_world import (
    MASTER,
    PCR_VALUES,
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

from nodeattest_providers.challenge_response import challenge_context, derive, label_secret
from nodeattest_providers.errors import ChallengeRequired, Reason
from nodeattest_providers.names import ProviderName, Purpose, signer_for
from nodeattest_providers.node_interface import Evidence, FirstRequestRef, JsonValue
from nodeattest_providers.platform import OFFLINE, Platform
from nodeattest_providers.tpm.endorsement_key import MACHINE_ANNOTATION
from nodeattest_providers.tpm.key_templates import AK_POLICIES
from nodeattest_providers.tpm.protocol import VERSIONS, Challenge, SecondEvidence, proof, qualifying_data
from nodeattest_providers.tpm.structures import sized
from nodeattest_providers.verifier_interface import AttestedNode, ClusterAPISigner
from nodeattest_sandbox.firmware import crypto_agile_log

__all__ = ["PARSERS", "ROWS", "Asked", "Soft", "authority"]

Removed = frozenset[str]


@dataclass(frozen=True, slots=True)
class Asked:
    """Which checks are gone, and which version of the evidence is sent."""

    removed: Removed
    version: int


SERVING: Final = signer_for(ProviderName("tpm"), Purpose.SERVING)


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

    def of_version(self, version: int) -> Soft:
        """Make the same of another version of the evidence: its attestation key has the policy of that."""
        prefix = self.tpm.ak_prefix.replace(sized(AK_POLICIES[VERSION]), sized(AK_POLICIES[version]))
        return replace(self, tpm=replace(self.tpm, ak_prefix=prefix, version=version))

    def platform_without(self, removed: Removed) -> Platform:
        """Make the platform, where the provider that is asked lacks these checks, too."""
        if self.amazon is None:
            return OFFLINE
        without = frozenset(name.removeprefix("EC2: ") for name in of_part("tpm", removed))
        amazon = replace(self.amazon, make_checks=lambda: ChecksWithout(without=without))
        return Platform(find_signer=lambda _: cast("ClusterAPISigner", amazon))

    async def verified(self, removed: Removed) -> AttestedNode:
        """Go through both rounds; raises what the verifier raises."""
        signer, version = TpmWithout(of_part("tpm", removed), self.platform_without(removed)), self.tpm.version
        facts = facts_of(self.tpm.settings if self.settings is None else self.settings, **self.facts)
        first = request_of(self.tpm.first(**self.shown), version=version, **self.first)
        try:
            await signer.verify_client_attestation_data(first, facts)
        except ChallengeRequired as required:
            challenge = Challenge.parse(required.challenge)
        else:
            raise AssertionError("a first request never attests a node")
        ak, ek = parsed(self.tpm.ak_public), parsed(self.tpm.ek_public)
        secret = derive(
            label_secret(self.tpm.version), MASTER, challenge_context(facts, first, ak.name, ek.spki_sha256)
        )
        asked = replace(first, **{name: value for name, value in self.second.items() if name == "signer_name"})
        binding = digest_of(asked)
        extra = qualifying_data(challenge.nonce, first.uid, binding, version=version)
        parts = self.tpm.quote_parts(extra, challenge.pcrs, self.values)
        quote = replace(parts, **self.quote).marshal()
        evidence = SecondEvidence(
            first=FirstRequestRef(name=first.name, uid=first.uid),
            mac=proof(secret, first.uid, first.csr.sha256, binding, version=version),
            quote=quote,
            signature=self.tpm.sign(quote),
            pcrs=self.values,
        )
        second = request_of(replace(evidence, **self.answer), version=version, **self.second)
        later: dict[str, Any] = {"first_request": replace(first, **self.reread), **self.later}
        return await signer.verify_client_attestation_data(second, replace(facts, **later))

    async def ended(self, removed: Removed) -> Ended:
        """Tell which check refused."""
        ended = await ended_by(self.verified(removed))
        if ended in (GRANTED, CHALLENGED) or ended[0] == CRASHED:
            return ended
        return (f"tpm: {ended[0]}" if ended[0] else PARSER, ended[1])


PARSER: Final = "the parser itself"


@dataclass(frozen=True, slots=True)
class FirstOnly(Soft):
    """The first round alone, where nothing can come of a second."""

    async def verified(self, removed: Removed) -> AttestedNode:
        signer = TpmWithout(of_part("tpm", removed))
        facts = facts_of(self.tpm.settings if self.settings is None else self.settings, **self.facts)
        return await signer.verify_client_attestation_data(
            replace(request_of(self.tpm.first(**self.shown), version=self.tpm.version), **self.first), facts
        )


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
    return FirstOnly(tpm=tpm, first={"evidence": evidence})


class Older(Soft):
    """One whose version is part of the attack."""

    def of_version(self, version: int) -> Soft:
        del version
        return self


def of_a_forbidden_version() -> Soft:
    tpm = SoftTpm.of_version(1)
    return Older(tpm=tpm, settings={**tpm.settings, "minimumVersion": 2})


ASKED_FOR: Final = "its value is what is asked for next, or compared with"


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


def row(
    check: str,
    attack: str,
    reason: Reason,
    made: Callable[[], Soft],
    *then: tuple[str, str],
    gains: str = "",
    stays: str = "",
    mutants: tuple[str, ...] = (),
    ends: Ended = GRANTED,
    versions: tuple[int, ...] = VERSIONS,
) -> Row[Asked]:
    async def run(asked: Asked) -> Ended:
        return await made().of_version(asked.version).ended(asked.removed)

    return Row(
        check=f"tpm: {check}",
        attack=attack,
        reason=reason,
        run=run,
        then=then,
        gains=gains,
        stays=stays,
        mutants=mutants,
        ends=ends,
        versions=versions,
    )


ONE_SHAPE: Final = "one shape of key is accepted, so that none has to be thought about that no agent makes"
NO_TPM: Final = "a certificate for a key that no TPM holds"
UNTRUSTED: Final = Reason.ENDORSEMENT_KEY_UNTRUSTED
INVALID: Final = Reason.ENDORSEMENT_CERTIFICATE_INVALID
NOT_ALLOWED: Final = Reason.ATTESTATION_KEY_NOT_ALLOWED
MISMATCH: Final = Reason.FIRST_REQUEST_MISMATCH
LOG_CRASH: Final = (CRASHED, "KeyError")

ROWS: Final[tuple[Row[Asked], ...]] = (
    row(
        "evidence provider",
        "evidence that says to be another provider's, at the signer of this one",
        Reason.PROVIDER_MISMATCH,
        lambda: of_block("gcp", VERSION),
        versions=(VERSION,),
        ends=CHALLENGED,
        gains="a challenge of this provider, and nothing by it: its labels are this provider's",
        stays="the parser of requests compares signer and evidence, too; a composite's parts come without one",
    ),
    row(
        "evidence version",
        "evidence of version 1, which the policy forbids",
        Reason.EVIDENCE_VERSION_UNSUPPORTED,
        of_a_forbidden_version,
        versions=(VERSION,),
        gains="what version 1 lets pass: another agent's key before the first join",
        stays="the list of the controller refuses it, too; a verifier does not rely on it",
    ),
    row(
        "attestation key: nameAlg",
        "an attestation key whose Name is by SHA-384",
        NOT_ALLOWED,
        lambda: Soft(tpm=with_ak(name_alg="000c")),
        gains="the machine's own certificate, by a key of another shape",
        stays=ONE_SHAPE,
    ),
    row(
        "attestation key: symmetric algorithm",
        "an attestation key with a symmetric algorithm, as only storage keys have",
        NOT_ALLOWED,
        lambda: Soft(tpm=with_ak(symmetric="000600800043")),
        gains="the machine's own certificate; TPMs make no such key",
        stays=ONE_SHAPE,
    ),
    row(
        "attestation key: scheme",
        "an attestation key that signs with SHA-384",
        NOT_ALLOWED,
        lambda: Soft(tpm=with_ak(scheme="0018000c")),
        ("tpm: quote signature", Reason.QUOTE_SIGNATURE_INVALID),
        gains="the machine's own certificate; with *quote signature* gone there is no signature at all",
        stays="a key that can never sign right is refused before a challenge is made for it",
    ),
    row(
        "attestation key: key size",
        "an attestation key of RSA 3072; shorter ones than 2048 bits are refused by the parser",
        NOT_ALLOWED,
        lambda: Soft(tpm=rsa_3072()),
        gains="the machine's own certificate, by a key of another shape",
        stays=ONE_SHAPE,
    ),
    row(
        "attestation key: another key",
        "one key as endorsement key and attestation key",
        NOT_ALLOWED,
        lambda: Soft(tpm=one_for_both()),
        gains="the machine's own certificate, by a key that decrypts and signs; TPMs make no such key",
        stays="two uses of one key are two protocols under one key, of which nobody has proved anything",
    ),
    row(
        "endorsement key: named by the platform",
        "a registered TPM, where the platform says that this machine has another",
        UNTRUSTED,
        of_the_platform,
        gains="a certificate for a machine that the platform calls another",
    ),
    row(
        "endorsement key: named by EC2",
        "the NitroTPM of another instance",
        UNTRUSTED,
        lambda: of_ec2(key=SoftTpm().fingerprint),
        gains="a certificate for the thief's key under the instance's name",
    ),
    row(
        "EC2: type of the key",
        "a key on P-256, of which EC2 tells nothing",
        UNTRUSTED,
        lambda: of_ec2(SoftTpm()),
        (CRASHED, "AssertionError"),
        stays=ASKED_FOR,
    ),
    row(
        "EC2: instance exists",
        "an instance of an account that the policy does not list",
        Reason.PLATFORM_INSTANCE_NOT_FOUND,
        lambda: of_ec2(instance=replace(RUNNING, owner=OTHERS)),
        (CRASHED, "AssertionError"),
        stays=ASKED_FOR,
    ),
    row(
        "EC2: zone of the instance",
        "a provider ID with another zone than the instance's",
        Reason.PLATFORM_INSTANCE_MISMATCH,
        lambda: of_ec2(instance=replace(RUNNING, zone="us-east-1b")),
        gains="a certificate under a provider ID that no instance has",
    ),
    row(
        "EC2: state of the instance",
        "an instance that is said to be terminated",
        Reason.PLATFORM_INSTANCE_NOT_RUNNING,
        lambda: of_ec2(instance=replace(RUNNING, state="terminated")),
        gains="a certificate for a machine that does not run",
    ),
    row(
        "EC2: NitroTPM of the instance",
        "an instance without NitroTPM",
        Reason.PLATFORM_CONFIGURATION_NOT_ALLOWED,
        lambda: of_ec2(instance=replace(RUNNING, has_tpm=False), key=None),
        ("tpm: EC2: key of the instance", Reason.PLATFORM_CONFIGURATION_NOT_ALLOWED),
        (CRASHED, "AssertionError"),
        stays="it says which option is missing, without a call for each request",
    ),
    row(
        "EC2: key of the instance",
        "an instance for which EC2 tells no key",
        Reason.PLATFORM_CONFIGURATION_NOT_ALLOWED,
        lambda: of_ec2(key=None),
        (CRASHED, "AssertionError"),
        stays=ASKED_FOR,
    ),
    row(
        "endorsement key: authorities configured",
        "a key that the Machine's annotation names, where the policy knows no maker",
        UNTRUSTED,
        lambda: annotated({}),
        ("tpm: endorsement key: certificate sent", UNTRUSTED),
        gains=NO_TPM + ", if its fingerprint got into the annotation",
        stays="it tells the operator what the policy lacks, not the node what it should send",
    ),
    row(
        "endorsement key: certificate sent",
        "a key that the Machine's annotation names, made in software",
        UNTRUSTED,
        lambda: annotated(first_use()),
        gains=NO_TPM + ", if its fingerprint got into the annotation",
    ),
    row(
        "endorsement certificate: certified key",
        "the certificate of a genuine TPM, shown with a key made in software, where the first use is trusted",
        INVALID,
        lambda: certified_of(SoftTpm(), authority().endorse(new_key("ecc-p256").public_key())),
        gains=NO_TPM,
    ),
    row(
        "endorsement certificate: no CA",
        "a certificate of the maker's that says to be a CA",
        INVALID,
        lambda: certified(bc=(x509.BasicConstraints(ca=True, path_length=None), True)),
        gains="trust in the key of an authority, which is no TPM's",
    ),
    row(
        "endorsement certificate: extended key usage",
        "a certificate of the maker's for something else than a TPM, its TLS server's for instance",
        INVALID,
        lambda: certified(eku=(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), False)),
        gains=NO_TPM,
    ),
    row(
        "endorsement certificate: key usage",
        "a certificate of the maker's for a key that signs",
        INVALID,
        lambda: certified(ku=(key_usage("digital_signature"), True)),
        gains=NO_TPM,
    ),
    row(
        "endorsement certificate: critical extensions",
        "a certificate with a critical extension that restricts it in a way that is not understood here",
        INVALID,
        lambda: certified(odd=(x509.UnrecognizedExtension(x509.ObjectIdentifier("1.2.3.4"), b"\x05\x00"), True)),
        gains="trust in a certificate that its maker restricted",
    ),
    row(
        "endorsement certificate: certificate chain",
        "a certificate that the thief's own authority signed",
        INVALID,
        by_another_authority,
        gains=NO_TPM,
    ),
    row(
        "first request exists",
        "an answer to a first request that is not there",
        Reason.FIRST_REQUEST_MISSING,
        lambda: Soft(later={"first_request": None}),
        (CRASHED, "AssertionError"),
        stays="its value is what every later check compares with",
    ),
    row(
        "first request name",
        "an answer that names another first request than was read",
        MISMATCH,
        lambda: Soft(reread={"name": "another"}),
        gains="the machine's own certificate",
        stays="the controller reads by this name, so they differ only where it has a bug",
    ),
    row(
        "first request uid",
        "the first request was deleted, and made again under its name",
        MISMATCH,
        created_again,
        ("tpm: known challenge", Reason.CHALLENGE_UNKNOWN),
        ("tpm: activated secret", Reason.PROOF_INVALID),
        ("tpm: quote binding", Reason.QUOTE_NOT_BOUND),
        gains="a certificate without any proof, since nothing is left that demands one",
        stays="it tells a first request that was replaced from a forged answer",
    ),
    row(
        "two requests",
        "a request that answers itself",
        MISMATCH,
        lambda: Soft(second={"uid": "uid-1"}),
        gains="the machine's own certificate",
        stays="one object has one evidence, so it cannot be both; that is the API server's word",
    ),
    row(
        "same username",
        "a copy of a node's answer, filed with another token",
        MISMATCH,
        lambda: Soft(second={"username": "system:bootstrap:thief0"}),
        gains="the machine's own certificate, by a request of another requester; its key is the node's",
        stays="who asks is who was asked: budgets, bound tokens and renewals go by the requester",
    ),
    row(
        "same groups",
        "a copy of a node's answer, filed by a requester of other groups",
        MISMATCH,
        lambda: Soft(second={"groups": frozenset({"system:bootstrappers", "others"})}),
        gains="the machine's own certificate, by a request of another requester; its key is the node's",
        stays="who asks is who was asked: budgets, bound tokens and renewals go by the requester",
    ),
    row(
        "same signer",
        "a challenge for a client certificate, answered for a serving certificate",
        MISMATCH,
        lambda: Soft(second={"signer_name": SERVING}),
        gains="a certificate for another purpose than was asked for",
    ),
    row(
        "same provider",
        "a first request of another version of the evidence than its answer",
        MISMATCH,
        lambda: Soft(reread={"evidence": Evidence(ProviderName("gcp"), VERSION, {})}),
        ("tpm: evidence provider", Reason.PROVIDER_MISMATCH),
        stays="it says that the two requests do not belong together",
    ),
    row(
        "event log not asked for",
        "a log that the policy does not ask for",
        Reason.EVIDENCE_MALFORMED,
        lambda: logged(crypto_agile_log(BOOT), asked=False),
        gains="the machine's own certificate, and 64 KiB of anybody's bytes in a request",
        stays="nobody else's bytes are kept",
    ),
    row(
        "event log present",
        "no log, where the policy requires one",
        Reason.EVENT_LOG_MISSING,
        lambda: logged(None),
        ("tpm: event log structure", Reason.EVENT_LOG_MALFORMED),
        stays="it tells a log that is missing from one that is malformed",
    ),
    row(
        "event log bank",
        "a log of SHA-1 digests alone",
        Reason.EVENT_LOG_BANK_MISSING,
        lambda: logged(crypto_agile_log(BOOT, ("sha1",))),
        LOG_CRASH,
        stays="its value is what the replay needs; it says what to do",
    ),
    row(
        "event log replays PCR",
        "the log of a good boot beside the quote of another",
        Reason.EVENT_LOG_MISMATCH,
        lambda: logged(crypto_agile_log(BOOT), registers(DIFFERENT)),
        gains="a certificate for a machine that booted something which no log tells of",
    ),
    row(
        "event log closes PCR",
        "a boot whose firmware never closed a register, so that whatever runs later extends it, too",
        Reason.EVENT_LOG_MISMATCH,
        lambda: logged(crypto_agile_log(OPEN), registers(OPEN)),
        gains="a certificate for a machine whose registers software can extend to any later boot's",
    ),
    row(
        "TPM clock goes forward",
        "a copy of a virtual TPM's earlier state, run beside the machine that it was taken from",
        Reason.TPM_CLOCK_REVERSED,
        lambda: Soft(later={"ledger": ledger(clock=10_000, reset_count=3)}),
        gains="a certificate for a clone, as long as its quotes are older than the machine's",
    ),
)
PARSERS: Final[Mapping[str, tuple[Reason, Callable[[], Soft]]]] = {
    "evidence schema": (Reason.EVIDENCE_MALFORMED, lambda: of_block("tpm", VERSION, phase=3)),
    "endorsement key template": (
        Reason.ENDORSEMENT_KEY_MALFORMED,
        lambda: FirstOnly(shown={"ek_public": SoftTpm().ak_public}),
    ),
    "attestation key public area": (NOT_ALLOWED, lambda: FirstOnly(shown={"ak_public": b"\0"})),
    "quote structure": (Reason.QUOTE_MALFORMED, lambda: Soft(quote={"kind": 0x8017})),
    "signature structure": (Reason.QUOTE_MALFORMED, lambda: Soft(answer={"signature": b"\0"})),
    "event log structure": (Reason.EVENT_LOG_MALFORMED, lambda: logged(crypto_agile_log(BOOT)[:-1])),
    "endorsement certificate: structure": (INVALID, lambda: certified_of(SoftTpm(), b"\x30\x00")),
}
"""Checks whose success is a value that what follows needs: without it there is nothing to go on with."""
RECORDS: Final = frozenset({"endorsement key: pinned by the ledger"})
"""Recorded, so that an auditor reads why a key was trusted; it cannot fail."""
