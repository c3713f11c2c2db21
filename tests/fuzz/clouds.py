"""Targets of the clouds' providers: what a node sends, what the platform answers, what operators write."""

from __future__ import annotations

import ipaddress
from typing import Final

from cryptography.hazmat.primitives.serialization import Encoding

from fuzz.target import NOW, attempt, by_file, evidence_target, require, settings_target, target, text_of, text_target
from nodeattest_providers import canonical_json
from nodeattest_providers.aws import config as aws_config
from nodeattest_providers.aws import node as imds
from nodeattest_providers.aws import protocol as aws
from nodeattest_providers.aws.api.sts import parse_error_code, parse_identity, parse_role_session
from nodeattest_providers.aws.attestor import sign
from nodeattest_providers.aws.config import parse_bundle_text, parse_identity_document
from nodeattest_providers.aws.node import to_definite_length
from nodeattest_providers.aws.protocol import SIGNED_HEADERS, SignedHeaders, parse_authorization, sts_request
from nodeattest_providers.azure import config as azure_config
from nodeattest_providers.azure.protocol import PREFIX as AZURE_PREFIX
from nodeattest_providers.azure.protocol import parse_attested_document, provider_id_of
from nodeattest_providers.azure.protocol import parse_evidence as parse_azure_evidence
from nodeattest_providers.azure.protocol import parse_provider_id as parse_azure_id
from nodeattest_providers.errors import Reason
from nodeattest_providers.gcp import config as gcp_config
from nodeattest_providers.gcp.api.compute import ComputeInstance, parse_instance, parse_instance_identity, parse_page
from nodeattest_providers.gcp.provider_id import parse_provider_id as parse_gcp_id
from nodeattest_providers.identifiers import ClusterPin, EvidenceBlock, SignerName
from nodeattest_providers.node_interface import Binding, JsonObject
from nodeattest_providers.oci import protocol as oci
from nodeattest_providers.oci import verifier as oci_verifier
from nodeattest_providers.platform import read_authorities
from nodeattest_providers.tpm.protocol import FirstEvidence
from nodeattest_providers.tpm.protocol import parse_evidence as parse_tpm_evidence

_DOCUMENT: Final = Reason.PLATFORM_DOCUMENT_MALFORMED
_BINDING: Final = Binding(
    EvidenceBlock("aws/v1"), ClusterPin("sha256:" + "a1" * 32), SignerName("cluster.x-k8s.io/x"), bytes(32)
)
_REGION: Final = "us-east-1"
_authorities: Final = by_file(lambda path: read_authorities(path, "platforms"))


# aws

evidence_target("aws-evidence", aws.parse_evidence)
settings_target("aws-policy", aws_config.parse_policy)
settings_target("aws-configuration", aws_config.parse_platform)
text_target("aws-provider-id", aws.parse_provider_id, str, Reason.PROVIDER_ID_INVALID, max_len=256)
target("aws-ber", to_definite_length, _DOCUMENT, max_len=1024)(
    lambda made, _: require(to_definite_length(made) == made, "definite once and for all")
)
target("aws-trust-bundle", lambda data: parse_bundle_text(text_of(data)), Reason.POLICY_INVALID, max_len=8192)(
    lambda bundle, _: require(
        all(aws.partition_of(region) and found for region, found in bundle.items()), "certificates a region"
    )
)
target("aws-identity-document", parse_identity_document, _DOCUMENT, max_len=2048)(
    lambda read, _: require(
        read.account.isdecimal() and read.instance_id.startswith("i-") and read.pending.tzinfo is not None,
        "an account of digits, an instance and a time",
    )
)


@target("aws-header-set", text_of, max_len=1024)
def _header_set(text: str, _data: bytes) -> bool:
    """Read three lines: a header set that passes is three lines again, whatever is made of it."""
    authorization, _, rest = text.partition("\n")
    date, _, token = rest.partition("\n")

    def read(headers: SignedHeaders) -> None:
        region = parse_authorization(headers).region
        require(all(one.isprintable() and one.isascii() for one in (authorization, date, token)), "no line in a header")
        require(f"/{region}/sts/aws4_request" in authorization, "a scope of STS and that region")
        require(f"SignedHeaders={';'.join(SIGNED_HEADERS)}," in authorization, "exactly the signed headers")

    headers = SignedHeaders(authorization=authorization, date=date, security_token=token)
    return attempt(read, headers, Reason.PLATFORM_PROOF_MALFORMED)


@target("aws-sts-answer", lambda data: data, max_len=2048)
def _answer(data: bytes, _data: bytes) -> bool:
    parse_error_code(data)
    identity = parse_identity(data)
    session = parse_role_session(identity.arn) if identity is not None else None
    if identity is not None and session is not None:
        spelt = f"arn:{session.partition}:sts::{session.account}:assumed-role/{session.role}/{session.session}"
        require(spelt == identity.arn, "one way to take an ARN apart")
    return identity is not None


@target("aws-node-credentials", imds.parse_credentials, _DOCUMENT, Reason.PLATFORM_PROOF_REFUSED)
def _credentials(keys: imds.InstanceCredentials, _data: bytes) -> None:
    """Sign with whatever is taken for credentials: the controller must be able to read what comes out."""
    secret = keys.secret.reveal().decode()
    require(secret not in repr(keys).replace(keys.access_key_id, ""), "no secret in a repr")
    sts = sign(sts_request(_REGION, _BINDING), keys, now=NOW)
    require(parse_authorization(sts).region == _REGION, "a header set that the controller reads")
    evidence = aws.AwsEvidence(document=b"{}", pkcs7=b"\x30\x00", region=_REGION, sts=sts)
    again = aws.parse_evidence(canonical_json.loads(canonical_json.dumps(evidence.to_json())))
    require(again == evidence, "one spelling")


@target("aws-node-document", imds.parse_imds_document, _DOCUMENT, Reason.PROVIDER_ID_INVALID, max_len=2048)
def _imds_document(name: aws.InstanceRef, _data: bytes) -> None:
    require(aws.parse_provider_id(str(name)) == name, "a provider ID that the controller reads")
    sts_request(name.region, _BINDING)


target("aws-node-signature", imds.parse_imds_signature, _DOCUMENT, max_len=2048)(
    lambda der, _: require(to_definite_length(der) == der, "definite lengths")
)


@target("aws-node-words", lambda data: data, max_len=128)
def _words(data: bytes, _data: bytes) -> bool:
    """Read a token, which becomes a header, and a role's name, which becomes a path."""
    words: list[str] = []
    is_token = attempt(lambda word: words.append(imds.parse_imds_token(word)), data, _DOCUMENT)
    is_role = attempt(lambda word: words.append(imds.parse_role(word)), data, _DOCUMENT)
    require(all(word.isascii() and word.isprintable() and " " not in word for word in words), "one word")
    require(not is_role or not set("/?#%\\") & set(words[-1]), "no other path")
    return is_token or is_role


# azure

evidence_target("azure-evidence", parse_azure_evidence)
settings_target("azure-policy", azure_config.parse_policy, max_len=1024)
settings_target("azure-configuration", azure_config.parse_platform, max_len=1024)
target("azure-document", parse_attested_document, _DOCUMENT, max_len=2048)(
    lambda read, _: require(
        read.vm_id == read.vm_id.lower() and read.created.tzinfo is not None, "a machine and a time"
    )
)
target("azure-trust-bundle", _authorities, Reason.POLICY_INVALID, max_len=8192)(
    lambda bundle, _: require(bool(bundle), "an authority at least")
)


@target("azure-provider-id", text_of, max_len=512)
def _azure_id(text: str, _data: bytes) -> bool:
    def read(text: str) -> None:
        resource_id = parse_azure_id(text).resource_id
        require(AZURE_PREFIX + resource_id == text, "one spelling of a provider ID")
        require(provider_id_of(resource_id) == text, "the metadata service's name gives the same")

    provider_id_of(text)
    return attempt(read, text, Reason.PROVIDER_ID_INVALID)


# gcp

_PLACE: Final = parse_gcp_id("gce://fleet-project/europe-west4-a/node-7")
"""Of the instance that the answers are about."""
_FILES: Final = frozenset({"caBundle", "credentialsFile"})
"""Settings that name files: no fuzzer opens what it invents."""
settings_target("gcp-policy", gcp_config.parse_policy, skipped=_FILES)
settings_target("gcp-configuration", gcp_config.parse_platform, skipped=_FILES)


@target("gcp-evidence", canonical_json.loads, Reason.EVIDENCE_MALFORMED)
def _gcp_evidence(value: JsonObject, data: bytes) -> bool:
    def read(value: JsonObject) -> None:
        evidence = parse_tpm_evidence(value, form="gcp/v1", certificates=False)
        require(canonical_json.dumps(evidence.to_json()) == data, "one spelling of evidence")
        is_bare = not isinstance(evidence, FirstEvidence) or not (evidence.ek_certificate or evidence.ek_chain)
        require(is_bare, "no certificate in a first request")

    return attempt(read, value, Reason.EVIDENCE_MALFORMED)


@target("gcp-provider-id", text_of, max_len=256)
def _gcp_id(text: str, _data: bytes) -> bool:
    def read(text: str) -> None:
        place = parse_gcp_id(text)
        require(
            place.provider_id == text and place.zone.startswith(f"{place.region}-"), "one spelling, a region's zone"
        )
        require(text.isascii() and not set(text) & set("?#%\\\"' ()"), "nothing that a URL or a filter understands")

    return attempt(read, text, Reason.PROVIDER_ID_INVALID)


@target("gcp-instances", lambda data: [parse_instance(item, _PLACE) for item in parse_page(data).items], _DOCUMENT)
def _instances(instances: list[ComputeInstance], _data: bytes) -> bool:
    for instance in instances:
        require(instance.number.isdecimal() and instance.place == _PLACE, "a numeric ID, and the place asked for")
        addresses = [address for kind, address in instance.addresses if kind.endswith("IP")]
        require(all(str(ipaddress.ip_address(each)) == each for each in addresses), "addresses in one spelling")
    return bool(instances)


@target("gcp-identity", parse_instance_identity, _DOCUMENT, max_len=2048)
def _identity(keys: frozenset[str], _data: bytes) -> bool:
    require(all(key.startswith("sha256:") for key in keys) and len(keys) <= 2, "a fingerprint a key")
    return bool(keys)


target("gcp-credentials", gcp_config.read_credentials, Reason.POLICY_INVALID, max_len=2048)(
    lambda found, _: require("executable" not in str(found.get("credential_source")), "nothing that runs a program")
)

# oci

evidence_target("oci-evidence", oci.OciEvidence.parse)
settings_target("oci-policy", oci_verifier.parse_policy, max_len=1024)
settings_target("oci-configuration", oci_verifier.parse_platform, max_len=1024)
text_target("oci-provider-id", oci.parse_provider_id, oci.PREFIX.__add__, Reason.PROVIDER_ID_INVALID, max_len=512)
target("oci-trust-bundle", _authorities, Reason.POLICY_INVALID, max_len=8192)(
    lambda roots, _: require(bool(roots), "a certificate at least")
)


@target("oci-certificate", oci.parse_identity_certificate, _DOCUMENT)
def _certificate(read: oci.IdentityCertificate, data: bytes) -> None:
    require(oci.is_instance(read.instance), "an instance")
    require(read.certificate.public_bytes(Encoding.DER) == data, "the certificate itself")
