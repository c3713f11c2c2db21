"""The table of the demo's attacks: what each tries, and the Reason for which it must be refused.

Leaves all other attacks to docs/threat-model.md.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import count
from types import MappingProxyType
from typing import Final, TypeVar

from cryptography.hazmat.primitives.asymmetric import ec, rsa

from nodeattest_demo.forged_tpm import ForgedTpm
from nodeattest_demo.lying_server import LyingServer
from nodeattest_demo.machines import AttestorSettings, ClaimedIdentity, DemoFailure, MachineSpec
from nodeattest_demo.platforms import (
    AWS_ROLE,
    AwsDemoPlatform,
    AzureDemoPlatform,
    DemoPlatform,
    GcpDemoPlatform,
    aws_attestor,
    azure_attestor,
)
from nodeattest_demo.scene import Attacker, CsrOutcome, Scene, new_name, new_request
from nodeattest_demo.world import join_info_with_pin, provision, run_join
from nodeattest_discovery import clusterinfo, token
from nodeattest_discovery import jwt as jws
from nodeattest_discovery.token import BootstrapToken
from nodeattest_parsing.objects import text
from nodeattest_providers import envelope, pem
from nodeattest_providers.aws import protocol as aws
from nodeattest_providers.aws.node.imds import (
    NAME,
    InstanceCredentials,
    Session,
    parse_imds_document,
    parse_imds_signature,
)
from nodeattest_providers.aws.node.sigv4 import sign
from nodeattest_providers.azure import attested_document as azure
from nodeattest_providers.binding import Binding
from nodeattest_providers.errors import Reason
from nodeattest_providers.identifiers import ProviderName, evidence_block
from nodeattest_providers.metadata_service import MetadataService, endpoint
from nodeattest_providers.node_interface import Evidence, FirstRequestRef, JsonObject, SecretBytes
from nodeattest_providers.tpm.protocol import VERSION, Challenge, SecondEvidence, qualifying_data
from nodeattest_sandbox.clouds.aws.cloud import Credentials
from nodeattest_sandbox.clouds.aws.documents import make_region_key, signature
from nodeattest_sandbox.clouds.azure.authority import Issuer, signer_of
from nodeattest_sandbox.clouds.azure.metadata import Signing, attested, content_of

P = TypeVar("P", bound=DemoPlatform)

_INSECURE: Final = AttestorSettings(provider=ProviderName("insecure"))
_TPM, _SECRET = "tpm.tcti", "challenge.secretFile"
_NUMBERS = count(900)
"""Of attack machines."""


@dataclass(frozen=True, slots=True)
class Attack:
    """One attack and the Reasons that may refuse it."""

    name: str
    expected: tuple[Reason, ...]
    run: Callable[[Scene], CsrOutcome]


def _attack(name: str, run: Callable[[Scene], CsrOutcome], *expected: Reason) -> Attack:
    return Attack(name, expected, run)


def attacks_for(provider: str, discovery: str = "none") -> Sequence[Attack]:
    """Return the attacks for a provider and a discovery method."""
    common = () if provider == "insecure" else _COMMON
    return (*common, *_ATTACKS[provider], *(_DISCOVERY if discovery == "token" else ()))


def _platform(scene: Scene, kind: type[P]) -> P:
    if not isinstance(scene.platform, kind):
        raise DemoFailure(f"expected {kind.__name__}, got {type(scene.platform).__name__}")
    return scene.platform


# Attackers against every provider


def _without_evidence(scene: Scene) -> CsrOutcome:
    """File a plain PKCS#10 request, as kubeadm's TLS bootstrap files it."""
    _, csr_der = new_request(scene.victim.identity.node, scene.victim.identity.provider_id)
    return scene.submit(pem.encode([(envelope.LABEL_CSR, csr_der)]), scene.victim.attestor.signer)


def _other_token(scene: Scene) -> CsrOutcome:
    """Show all that the victim has to show, and ask with the token of another machine."""
    return scene.join(scene.victim.attestor, by=scene.insider)


def _other_name(scene: Scene) -> CsrOutcome:
    """Be an enrolled machine, honest in everything but its name."""
    identity = ClaimedIdentity(node=scene.victim.identity.node, provider_id=scene.member.identity.provider_id)
    return scene.join(scene.member.attestor, identity=identity, by=scene.insider)


def _other_name_insecure(scene: Scene) -> CsrOutcome:
    identity = ClaimedIdentity(node=scene.member.identity.node, provider_id=scene.victim.identity.provider_id)
    return scene.join(scene.victim.attestor, identity=identity)


def _second_key(scene: Scene) -> CsrOutcome:
    """Be a machine that has joined, and bring another key."""
    return scene.join(scene.member.attestor, identity=scene.member.identity, by=scene.insider)


def _replay(scene: Scene) -> CsrOutcome:
    """Put another node's proof, read where everybody may read it, around a key of the attacker's own."""
    evidence = scene.observed_evidence()
    return scene.prove(lambda _: evidence, machine=scene.member, by=scene.insider)


def _unknown_machine(scene: Scene) -> CsrOutcome:
    """Claim a provider ID that no Machine has, with the token of a Machine that has another."""
    identity = ClaimedIdentity(node="worker-nobody", provider_id="demo://rack-9/9")
    return scene.prove(lambda _: Evidence(ProviderName("insecure"), 1, {}), identity=identity)


def _unregistered(scene: Scene) -> CsrOutcome:
    """Show a genuine device, instance or secret that is not this Machine's."""
    return scene.join(scene.unregistered)


def _members(scene: Scene) -> CsrOutcome:
    """Show a compromised node's device, instance or secret for another Machine's identity."""
    return scene.join(scene.member.attestor)


# Attackers against TPMs


def _forged_tpm(scene: Scene) -> CsrOutcome:
    """Show the public endorsement key of the victim's TPM, and make everything else in software."""
    provider, signer = scene.victim.attestor.provider, scene.victim.attestor.signer
    if scene.victim.tpm is None:
        raise DemoFailure("the victim has no TPM to forge")
    key = scene.victim.tpm.endorsement_certificate("rsa2048" if provider == "gcp" else "ecc-p384").public_key()
    if not isinstance(key, ec.EllipticCurvePublicKey | rsa.RSAPublicKey):
        raise DemoFailure("the victim's TPM has no endorsement key to forge for")
    forged = ForgedTpm(key)
    _, csr_der = new_request(scene.victim.identity.node, scene.victim.identity.provider_id)

    def envelope_of(data: JsonObject) -> bytes:
        return envelope.encode(csr_der, Evidence(provider, VERSION, data))

    first_name = new_name()
    first = scene.attacker.submit(first_name, envelope_of(forged.first().to_json()), signer)
    ref = FirstRequestRef(name=first_name, uid=text(first, "metadata", "uid"))
    challenge = Challenge.parse(scene.attacker.challenge(first_name))
    binding = scene.attacker.binding(evidence_block(provider, VERSION), signer, csr_der)
    quote, signed, pcrs = forged.quote(challenge, qualifying_data(challenge.nonce, ref.uid, binding.digest))
    guess = os.urandom(32)  # the proof needs the secret, which only the TPM can decrypt
    second = SecondEvidence(first=ref, mac=guess, quote=quote, signature=signed, pcrs=pcrs)
    return scene.submit(envelope_of(second.to_json()), signer)


def _mixed(scene: Scene, *, tpm: AttestorSettings, secret: AttestorSettings) -> CsrOutcome:
    """Join as the victim with the devices of two machines."""
    settings = {_TPM: tpm.settings[_TPM], _SECRET: secret.settings[_SECRET]}
    return scene.join(AttestorSettings(provider=ProviderName("composite"), settings=settings))


def _one_proof_alone(scene: Scene) -> CsrOutcome:
    """Show the right secret at the signer that wants no other proof."""
    settings = {"secretFile": scene.victim.attestor.settings[_SECRET]}
    return scene.join(AttestorSettings(provider=ProviderName("challenge"), settings=settings))


def _without_the_tpm(scene: Scene) -> CsrOutcome:
    """Put something else in the place of one of the proofs."""
    parts: JsonObject = {name: {"v": 1, "data": {"phase": 1}} for name in ("challenge", "contoso")}
    return scene.prove(lambda _: Evidence(ProviderName("composite"), 1, {"phase": 1, "parts": parts}))


# Attackers against AWS


def _other_account(scene: Scene) -> CsrOutcome:
    """Run an instance in an account of the attacker's own, with a role of the right name."""
    cloud = _platform(scene, AwsDemoPlatform).cloud
    return scene.join(aws_attestor(cloud.launch(account="444455556666", role=AWS_ROLE)))


def _own_role(scene: Scene) -> CsrOutcome:
    """Take the victim's identity document, and sign as another role of the same account may."""
    keys = _platform(scene, AwsDemoPlatform).cloud.session("batch-jobs", _instance_id(scene))
    return _with_stolen_document(scene, _signing_with(keys))


def _person(scene: Scene) -> CsrOutcome:
    """Take the victim's identity document, and sign as a person who may assume the nodes' role."""
    keys = _platform(scene, AwsDemoPlatform).cloud.session(AWS_ROLE, "mallory@example.com")
    return _with_stolen_document(scene, _signing_with(keys))


def _other_nodes_role(scene: Scene) -> CsrOutcome:
    """Take the victim's identity document, and sign as the instance of a compromised node."""
    return _with_stolen_document(scene, _session(scene.member.attestor).credentials())


def _self_made_document(scene: Scene) -> CsrOutcome:
    """Write the victim's identity document, and sign it under a certificate of the attacker's own."""
    document = _session(scene.victim.attestor).document()
    pkcs7 = parse_imds_signature(signature(document, make_region_key(), now=datetime.now(UTC)))
    return _with_document(scene, document, pkcs7, _session(scene.unregistered).credentials())


def _altered_document(scene: Scene) -> CsrOutcome:
    """Take the document of an instance of the attacker's own, and put the victim's ID into its plain copy."""
    session = _session(scene.unregistered)
    document = json.dumps({**json.loads(session.document()), "instanceId": _instance_id(scene)}).encode()
    return _with_document(scene, document, parse_imds_signature(session.signature()), session.credentials())


def _with_stolen_document(scene: Scene, keys: InstanceCredentials) -> CsrOutcome:
    """Use what a forged request to the victim's metadata service brings; the role's credentials are not had so."""
    session = _session(scene.victim.attestor)
    return _with_document(scene, session.document(), parse_imds_signature(session.signature()), keys)


def _with_document(scene: Scene, document: bytes, pkcs7: bytes, keys: InstanceCredentials) -> CsrOutcome:
    """File evidence of these parts, bound to a fresh key as an honest node binds it."""

    def prove(binding: Binding) -> Evidence:
        region = parse_imds_document(document).region
        sts = sign(aws.sts_request(region, binding), keys, now=datetime.now(UTC))
        evidence = aws.AwsEvidence(document=document, pkcs7=pkcs7, region=region, sts=sts)
        return Evidence(aws.PROVIDER, aws.VERSION, evidence.to_json())

    return scene.prove(prove)


def _session(attestor: AttestorSettings) -> Session:
    host, port = endpoint(attestor.settings["metadataEndpoint"])
    return Session.begin(MetadataService(host, port, name=NAME))


def _instance_id(scene: Scene) -> str:
    return scene.victim.identity.provider_id.rpartition("/")[2]


def _signing_with(keys: Credentials) -> InstanceCredentials:
    return InstanceCredentials(
        access_key_id=keys.access_key_id,
        secret=SecretBytes(keys.secret.encode()),
        token=keys.token,
        expiration=datetime.now(UTC) + timedelta(hours=1),
    )


# Attackers against Azure


def _foreign_machine(scene: Scene) -> CsrOutcome:
    """Ask from a machine of another subscription, with the victim's names."""
    return scene.join(azure_attestor(_platform(scene, AzureDemoPlatform).foreign()))


def _old_document(scene: Scene) -> CsrOutcome:
    """Show a document that Azure really signed for this very request, ten minutes ago."""
    signing = _platform(scene, AzureDemoPlatform).cloud.signing
    return _signed_by(scene, signing, datetime.now(UTC) - timedelta(minutes=10))


def _self_made_chain(scene: Scene) -> CsrOutcome:
    """Sign the right document with a chain of one's own, whose names are Azure's."""
    issuing = Issuer.root("DigiCert Global Root G2").issuing("Microsoft Azure RSA TLS Issuing CA 03")
    return _signed_by(scene, Signing(*signer_of(issuing)), datetime.now(UTC))


def _signed_by(scene: Scene, signing: Signing, created: datetime) -> CsrOutcome:
    wanted = scene.victim.identity.provider_id
    machines = _platform(scene, AzureDemoPlatform).cloud.state.machines
    machine = next(one for one in machines if one.provider_id == wanted)

    def prove(binding: Binding) -> Evidence:
        document = attested(signing, content_of(machine, azure.nonce_for(binding.digest), created))
        return Evidence(azure.PROVIDER, azure.VERSION, azure.AzureEvidence(document).to_json())

    return scene.prove(prove)


# Attackers against Google Cloud


def _other_project(scene: Scene) -> CsrOutcome:
    """Be a Machine's true instance, in a project that the policy does not list."""
    platform = _platform(scene, GcpDemoPlatform)
    return _as_a_machine(scene, platform.create_machine(next(_NUMBERS), project="somebodys-project"))


def _stopped(scene: Scene) -> CsrOutcome:
    """Have the vTPM of a Machine's instance that does not run, as a thief of its state would."""
    platform = _platform(scene, GcpDemoPlatform)
    return _as_a_machine(scene, platform.create_machine(next(_NUMBERS), status="TERMINATED"))


def _as_a_machine(scene: Scene, spec: MachineSpec) -> CsrOutcome:
    machine = provision(scene.world, next(_NUMBERS), spec)
    return scene.join(spec.attestor, identity=spec.identity, by=Attacker.with_token_of(scene.world, machine))


def _tpm_signer(scene: Scene) -> CsrOutcome:
    """Ask the signer of the tpm provider with the very vTPM of the victim."""
    settings = {"tcti": scene.victim.attestor.settings["tcti"]}
    return scene.join(AttestorSettings(provider=ProviderName("tpm"), settings=settings))


def _identity_token(scene: Scene) -> CsrOutcome:
    """Show an instance identity token, such as any process on an instance gets."""
    evidence = Evidence(ProviderName("gcp"), 1, {"identityToken": "eyJhbGciOiJub25lIn0.eyJhdWQiOiJub2RlYXR0ZXN0In0."})
    return scene.prove(lambda _: evidence)


# Attackers between a node and its cluster, with a stolen token: each answers in the cluster's place.
# What they lack is the key of the cluster's CA.


def _lie(say: Callable[[Scene, LyingServer, BootstrapToken], dict[str, str]]) -> Callable[[Scene], CsrOutcome]:
    """Let the victim ask a server that lies; tell what the node said, and whether a credential reached the server."""

    def run(scene: Scene) -> CsrOutcome:
        root = scene.directory / new_name()
        with LyingServer(root / "server") as server:
            server.say(say(scene, server, token.parse(scene.victim.token)))
            ended = run_join(
                scene.world,
                scene.children,
                scene.agent,
                root,
                identity=scene.victim.identity,
                attestor=scene.victim.attestor,
                token=scene.victim.token,
                join_info=join_info_with_pin(server.url, scene.world.join_info.pin),
                more=("--discovery-timeout=3",),  # seconds; by default five minutes
            )
            if server.credentials:
                return CsrOutcome("Fooled", "the node sent its token to the attacker")
        if not ended.code:
            return CsrOutcome("Fooled", "the node joined the attacker's cluster")
        reason, _, message = ended.last_line.removeprefix("kubelet-authenticator: ").partition(": ")
        return CsrOutcome(reason, message)

    return run


def _own_ca(_scene: Scene, server: LyingServer, stolen: BootstrapToken) -> dict[str, str]:
    return _cluster_info(clusterinfo.build(server.url, server.ca_pem), stolen)


def _both_cas(scene: Scene, server: LyingServer, stolen: BootstrapToken) -> dict[str, str]:
    """Mix the genuine CA into the bundle: one certificate matches the pin, another one signed this server."""
    return _cluster_info(clusterinfo.build(server.url, scene.attacker.ca_pem + server.ca_pem), stolen)


def _token_id_only(scene: Scene, server: LyingServer, stolen: BootstrapToken) -> dict[str, str]:
    guess = BootstrapToken(stolen.id, token.generate().secret)
    return _cluster_info(clusterinfo.build(server.url, scene.attacker.ca_pem), guess)


def _cluster_info(kubeconfig: str, by: BootstrapToken) -> dict[str, str]:
    signed = jws.sign(kubeconfig.encode(), by)
    return {clusterinfo.KUBECONFIG_KEY: kubeconfig, clusterinfo.SIGNATURE_PREFIX + by.id: signed}


_NO_EVIDENCE: Final = _attack("stolen token, no evidence", _without_evidence, Reason.ENVELOPE_MALFORMED)
_OTHER_TOKEN: Final = _attack("another machine's token", _other_token, Reason.TOKEN_NOT_THIS_MACHINES)
_COMMON: Final = (
    _NO_EVIDENCE,
    _attack("stolen token, the insecure signer", lambda scene: scene.join(_INSECURE), Reason.ATTESTOR_NOT_AUTHORIZED),
    _OTHER_TOKEN,
    _attack("enrolled machine, another node's name", _other_name, Reason.NODE_NAME_MISMATCH),
    # The first request has another key; a secret that served a first join serves no second key; and what a cloud
    # confirms was made for another request.
    _attack(
        "replay of another node's proof with a new key",
        _replay,
        *(Reason.FIRST_REQUEST_MISMATCH, Reason.SECRET_USED, Reason.PLATFORM_PROOF_NOT_BOUND),
    ),
)
_ATTACKS: Final[Mapping[str, Sequence[Attack]]] = MappingProxyType(
    {
        "tpm": (
            _attack("genuine TPM that nobody registered", _unregistered, Reason.ENDORSEMENT_KEY_UNTRUSTED),
            _attack("another machine's TPM", _members, Reason.ENDORSEMENT_KEY_UNTRUSTED),
            _attack("forged TPM: software key and quote", _forged_tpm, Reason.PROOF_INVALID),
        ),
        "challenge": (
            _attack("a secret of the attacker's own", _unregistered, Reason.PROOF_INVALID),
            _attack("another machine's secret", _members, Reason.PROOF_INVALID),
            _attack("a joined machine's secret, a second key", _second_key, Reason.SECRET_USED),
        ),
        "insecure": (
            _NO_EVIDENCE,
            _OTHER_TOKEN,
            _attack("another node's name", _other_name_insecure, Reason.NODE_NAME_MISMATCH),
            _attack("a joined machine, a second key", _second_key, Reason.MACHINE_ALREADY_BOUND),
            _attack("a machine that nobody made", _unknown_machine, Reason.PROVIDER_ID_MISMATCH),
        ),
        "composite": (
            _attack("one of two proofs, alone", _one_proof_alone, Reason.ATTESTOR_NOT_AUTHORIZED),
            _attack("one of two proofs, and something else", _without_the_tpm, Reason.PROOF_MISSING),
            _attack(
                "the right TPM, another machine's secret",
                lambda scene: _mixed(scene, tpm=scene.victim.attestor, secret=scene.member.attestor),
                Reason.PROOF_INVALID,
            ),
            _attack(
                "the right secret, another machine's TPM",
                lambda scene: _mixed(scene, tpm=scene.member.attestor, secret=scene.victim.attestor),
                Reason.ENDORSEMENT_KEY_UNTRUSTED,
            ),
        ),
        "aws": (
            _attack("an instance of another account", _other_account, Reason.PLATFORM_ACCOUNT_NOT_ALLOWED),
            _attack("another instance of the same account", _unregistered, Reason.PLATFORM_INSTANCE_MISMATCH),
            _attack("a joined machine's instance", _members, Reason.PLATFORM_INSTANCE_MISMATCH),
            _attack("stolen identity document, a role not listed", _own_role, Reason.PLATFORM_ROLE_NOT_ALLOWED),
            _attack("stolen identity document, a person in the role", _person, Reason.PLATFORM_INSTANCE_MISMATCH),
            _attack(
                "stolen identity document, another node's role", _other_nodes_role, Reason.PLATFORM_INSTANCE_MISMATCH
            ),
            _attack("self-made identity document", _self_made_document, Reason.PLATFORM_DOCUMENT_SIGNATURE_INVALID),
            _attack("altered identity document", _altered_document, Reason.PLATFORM_DOCUMENT_MISMATCH),
        ),
        "azure": (
            _attack("genuine machine of another subscription", _foreign_machine, Reason.PLATFORM_INSTANCE_MISMATCH),
            _attack(
                "genuine machine of the group that nobody registered", _unregistered, Reason.PLATFORM_INSTANCE_MISMATCH
            ),
            _attack("another node's metadata service", _members, Reason.PLATFORM_INSTANCE_MISMATCH),
            _attack("document of ten minutes ago", _old_document, Reason.PLATFORM_PROOF_EXPIRED),
            _attack(
                "document signed by a chain of one's own", _self_made_chain, Reason.PLATFORM_DOCUMENT_SIGNATURE_INVALID
            ),
        ),
        "gcp": (
            _attack("vTPM of an instance that is no Machine's", _unregistered, Reason.ENDORSEMENT_KEY_UNTRUSTED),
            _attack("a joined machine's vTPM", _members, Reason.ENDORSEMENT_KEY_UNTRUSTED),
            _attack("an instance of another project", _other_project, Reason.PLATFORM_ACCOUNT_NOT_ALLOWED),
            _attack("a stopped instance", _stopped, Reason.PLATFORM_INSTANCE_NOT_RUNNING),
            _attack("the victim's own vTPM, the tpm signer", _tpm_signer, Reason.ATTESTOR_NOT_AUTHORIZED),
            _attack("an instance identity token", _identity_token, Reason.EVIDENCE_MALFORMED),
            _attack("forged vTPM: software key and quote", _forged_tpm, Reason.PROOF_INVALID),
        ),
    }
)
"""By provider, besides those of ``_COMMON``."""
_DISCOVERY: Final = (
    _attack("a server that stole the token, its own CA", _lie(_own_ca), Reason.CA_NOT_PINNED),
    _attack("a server that stole the token, both CAs in one bundle", _lie(_both_cas), Reason.SERVER_NOT_TRUSTED),
    _attack("a server that knows the token's id only", _lie(_token_id_only), Reason.CLUSTER_INFO_SIGNATURE_INVALID),
)
