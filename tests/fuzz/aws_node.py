"""Targets of the ``aws`` provider's node part: what an instance's metadata service says."""

from __future__ import annotations

from typing import Final

from fuzz.keys import NOW
from fuzz.target import Target, refused, require
from nodeattest_providers import canonical_json
from nodeattest_providers.aws.node import definite_length
from nodeattest_providers.aws.node.imds import (
    parse_credentials,
    parse_imds_document,
    parse_imds_signature,
    parse_imds_token,
    parse_role,
)
from nodeattest_providers.aws.node.sigv4 import sign
from nodeattest_providers.aws.protocol import (
    AwsEvidence,
    parse_authorization,
    parse_evidence,
    parse_provider_id,
    sts_request,
)
from nodeattest_providers.binding import Binding
from nodeattest_providers.errors import Denied, Reason
from nodeattest_providers.identifiers import ClusterPin, EvidenceBlock, SignerName

_BINDING: Final = Binding(
    EvidenceBlock("aws/v1"), ClusterPin("sha256:" + "a1" * 32), SignerName("cluster.x-k8s.io/x"), bytes(32)
)
_REGION: Final = "us-east-1"


def _credentials(data: bytes) -> bool:
    """Sign with whatever is taken for credentials: the controller must be able to read what comes out."""
    try:
        keys = parse_credentials(data)
    except Denied as denied:
        return refused(denied, Reason.PLATFORM_DOCUMENT_MALFORMED, Reason.PLATFORM_PROOF_REFUSED)
    secret = keys.secret.reveal().decode()
    require(secret not in repr(keys).replace(keys.access_key_id, ""), "no secret in a repr")
    sts = sign(sts_request(_REGION, _BINDING), keys, now=NOW)
    require(parse_authorization(sts).region == _REGION, "a header set that the controller reads")
    evidence = AwsEvidence(document=b"{}", pkcs7=b"\x30\x00", region=_REGION, sts=sts)
    require(parse_evidence(canonical_json.loads(canonical_json.dumps(evidence.to_json()))) == evidence, "one spelling")
    return True


def _document(data: bytes) -> bool:
    try:
        name = parse_imds_document(data)
    except Denied as denied:
        return refused(denied, Reason.PLATFORM_DOCUMENT_MALFORMED, Reason.PROVIDER_ID_INVALID)
    require(parse_provider_id(str(name)) == name, "a provider ID that the controller reads")
    sts_request(name.region, _BINDING)
    return True


def _signature(data: bytes) -> bool:
    try:
        der = parse_imds_signature(data)
    except Denied as denied:
        return refused(denied, Reason.PLATFORM_DOCUMENT_MALFORMED)
    require(definite_length.to_definite_length(der) == der, "definite lengths")
    return True


def _words(data: bytes) -> bool:
    """Read a token, which becomes a header, and a role's name, which becomes a path."""
    read = 0
    for parse in (parse_imds_token, parse_role):
        try:
            word = parse(data)
        except Denied as denied:
            refused(denied, Reason.PLATFORM_DOCUMENT_MALFORMED)
            continue
        require(word.isascii() and word.isprintable() and " " not in word, "one word")
        require(parse is parse_imds_token or not set("/?#%\\") & set(word), "no other path")
        read += 1
    return read > 0


TARGETS: Final = (
    Target("aws-node-credentials", _credentials, 4096),
    Target("aws-node-document", _document, 2048),
    Target("aws-node-signature", _signature, 2048),
    Target("aws-node-words", _words, 128),
)
