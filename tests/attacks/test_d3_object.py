"""D3: request objects that say too much, come from the wrong one, or are for nobody here."""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping
from typing import Final

import pytest
from catalogue import ROWS, Row, attacks, evaluated
from cryptography.hazmat.primitives.asymmetric import ec
from handmade import DNS, SAN, extended, extension, seq

from nodeattest_controller.model.csr_request import parse_request, summarize
from nodeattest_parsing.objects import mapping
from nodeattest_parsing.values import JsonObject, JsonValue
from nodeattest_providers import envelope, identifiers
from nodeattest_providers.node_interface import Evidence
from nodeattest_providers.pkcs10 import build_csr
from nodeattest_sandbox.apiserver.jsonvalue import JsonMap

_KEY: Final = ec.generate_private_key(ec.SECP256R1())
_CLIENT: Final = build_csr(_KEY, "node-0", "metal://node-0")
_SERVING: Final = build_csr(_KEY, "node-0", "metal://node-0", dns_names=("node-0",))
_WITHOUT_ID: Final = build_csr(_KEY, "node-0", "")
_SERVING_WITHOUT_ID: Final = extended(extension(SAN, seq(DNS))).der()
_SIGNER: Final = identifiers.CLIENT_SIGNER_PREFIX + "insecure"
_SERVING_SIGNER: Final = identifiers.SERVING_SIGNER_PREFIX + "tpm"
_NODES: Final[JsonValue] = ["system:nodes", "system:authenticated"]
_BOTH: Final[JsonValue] = ["system:bootstrappers", "system:nodes", "system:authenticated"]
_SERVER_USAGES: Final[JsonValue] = ["digital signature", "server auth"]
_CLIENT_USAGES: Final[JsonValue] = ["digital signature", "client auth"]


def _sent(der: bytes, provider: str) -> str:
    return base64.b64encode(envelope.encode(der, Evidence(identifiers.ProviderName(provider), 1, {}))).decode()


REQUEST: Final = _sent(_CLIENT, "insecure")
_LINES: Final = base64.encodebytes(base64.b64decode(REQUEST)).decode()
_OTHER_ALPHABET: Final = base64.urlsafe_b64encode(base64.b64decode(REQUEST) + b"\xfb\xff\xbf").decode()


def stored(**spec: JsonValue) -> JsonObject:
    """A good object, but for these fields of its spec."""
    return {
        "metadata": {
            "name": "request",
            "uid": "0d4a1e0e-0000-4000-8000-000000000000",
            "resourceVersion": "5",
            "creationTimestamp": "2026-01-02T03:04:05Z",
        },
        "spec": {
            "signerName": _SIGNER,
            "username": "system:bootstrap:abcdef",
            "groups": ["system:bootstrappers", "system:authenticated"],
            "usages": _CLIENT_USAGES,
            "request": REQUEST,
            **spec,
        },
    }


def named(**metadata: JsonValue) -> JsonObject:
    """A good object, but for these fields of its metadata."""
    good = stored()
    before = good["metadata"]
    assert isinstance(before, dict)
    return {**good, "metadata": {**before, **metadata}}


def asked_by(username: str, groups: JsonValue) -> JsonObject:
    return stored(username=username, groups=groups)


def for_usages(*usages: JsonValue) -> JsonObject:
    return stored(usages=list(usages))


OBJECTS: Final[Mapping[str, JsonObject]] = {
    "D3-01": stored(groups=["system:authenticated"]),
    "D3-02": stored(groups=["system:bootstrappers:kubeadm:default-node-token", "system:authenticated"]),
    "D3-03": stored(username="system:bootstrap:ABCDEF"),
    "D3-04": stored(username="system:bootstrap:abcdef\n"),
    "D3-05": asked_by("system:node:node-0", ["system:authenticated"]),
    "D3-06": asked_by("system:node:node-1", _NODES),
    "D3-07": asked_by("jane", _BOTH),
    "D3-08": asked_by("system:serviceaccount:kube-system:node", _BOTH),
    "D3-09": asked_by("system:anonymous", ["system:unauthenticated"]),
    "D3-10": asked_by("", _BOTH),
    "D3-11": asked_by("system:bootstrap:abcdef", "system:bootstrappers"),
    "D3-12": for_usages("digital signature", "client auth", "server auth"),
    "D3-13": for_usages("any"),
    "D3-14": for_usages("digital signature", "client auth", "cert sign"),
    "D3-15": for_usages("client auth"),
    "D3-16": for_usages("digital signature", "client auth", "client auth"),
    "D3-17": for_usages(),
    "D3-18": stored(signerName=_SERVING_SIGNER, request=_sent(_SERVING, "tpm")),
    "D3-19": stored(signerName=identifiers.CLIENT_SIGNER_PREFIX + "tpm"),
    "D3-20": stored(signerName=_SERVING_SIGNER, request=_sent(_CLIENT, "tpm"), usages=_SERVER_USAGES),
    "D3-21": stored(request=_sent(_SERVING, "insecure")),
    "D3-22": stored(signerName="cluster-x-k8s-io/kube-apiserver-client-kubelet-tpm"),
    "D3-23": stored(signerName=identifiers.CLIENT_SIGNER_PREFIX),
    "D3-24": stored(signerName=identifiers.SERVING_SIGNER_PREFIX + "insecure", usages=_SERVER_USAGES),
    "D3-25": stored(request="not base64!"),
    "D3-26": stored(request=_LINES),
    "D3-27": stored(request=_OTHER_ALPHABET),
    "D3-28": stored(request=None),
    "D3-29": stored(request="A" * (1 << 20)),
    "D3-30": stored(request=7),
    "D3-31": named(name="a" * 254),
    "D3-32": named(name="a\nrefused"),
    "D3-33": named(uid=""),
    "D3-34": named(creationTimestamp=None),
    "D3-35": named(creationTimestamp="9999-12-31T23:59:59-23:59"),
    "D3-36": named(
        annotations={
            identifiers.ANNOTATION_CHALLENGE: "{}",
            identifiers.ANNOTATION_TPM_ENDORSEMENT_KEY: "mine",
            "verified": "true",
        }
    ),
    "D3-37": for_usages("client auth", "key encipherment", "digital signature"),
    "D3-38": named(finalizers=["example.com/hold"], labels={"x": "y"}, ownerReferences=[{"uid": "somebody"}]),
    "D3-39": stored(expirationSeconds=2147483647),
    "D3-82": stored(username="system:node:node-0", groups=_NODES, request=_sent(_WITHOUT_ID, "insecure")),
    "D3-83": stored(signerName=_SERVING_SIGNER, usages=_SERVER_USAGES, request=_sent(_SERVING_WITHOUT_ID, "tpm")),
}


def test_the_object_that_the_attacks_spoil_is_a_good_one() -> None:
    assert parse_request(stored()).csr.node_name == "node-0"


@pytest.mark.parametrize(("row", "stored_object"), attacks(OBJECTS))
def test_a_spoilt_object_is_denied(row: Row, stored_object: JsonObject) -> None:
    assert evaluated(lambda: parse_request(stored_object)) == row.expected


def test_what_a_requester_wrote_into_metadata_is_not_even_read() -> None:
    plain = parse_request(stored())
    for row in ("D3-36", "D3-38"):
        assert parse_request(OBJECTS[row]) == plain


@pytest.mark.parametrize("row", ["D3-22", "D3-23", "D3-24"])
def test_a_signer_that_is_not_ours_is_not_even_looked_at(row: str) -> None:
    assert summarize(OBJECTS[row]) is None


ASKED = {row: value for row, value in OBJECTS.items() if ROWS[row].api}


@pytest.mark.conformance
@pytest.mark.parametrize(("row", "stored_object"), attacks(ASKED))
def test_the_api_server_does_with_the_object_what_is_known(
    answer_to: Callable[[JsonMap], str], row: Row, stored_object: JsonMap
) -> None:
    assert answer_to(dict(mapping(stored_object, "spec"))) == row.api
