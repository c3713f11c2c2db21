"""Costs of what the controller reads: objects of API servers, requests with their evidence, admission reviews."""

from __future__ import annotations

import base64
from functools import partial
from typing import Final

from cryptography.hazmat.primitives.serialization import Encoding

from fuzz import admission, aws, azure, controller, kube, tpm, wire
from fuzz.costs import worst
from fuzz.costs.handler import KIB, MIB, Handler, runner
from fuzz.keys import NOW, authority
from fuzz.target import Target
from nodeattest_controller.controllers.auto_approval import permissions
from nodeattest_controller.controllers.bootstrap_config import (
    admission_review,
    json_patch,
    policy_decide,
    policy_reviewer,
)
from nodeattest_controller.controllers.bootstrap_config.subject import subject_of
from nodeattest_controller.model import certificate_authority, csr_request, machine_view, policy
from nodeattest_controller.runtime.indexes import Inventory, cluster_key
from nodeattest_kube import paging
from nodeattest_kube.errors import ApiError, KubeconfigError
from nodeattest_kube.jsontypes import JsonObject, JsonValue, parse_json
from nodeattest_kube.kubeconfig import MAX_SELF_CONTAINED, MAX_SELF_CONTAINED_VALUES, parse_kubeconfig
from nodeattest_kube.watch_events import parse_event
from nodeattest_providers import canonical_json, cms, envelope, pkcs10
from nodeattest_providers.aws.protocol import parse_evidence as parse_aws_evidence
from nodeattest_providers.azure.attested_document import parse_attested_document
from nodeattest_providers.azure.protocol import parse_evidence as parse_azure_evidence
from nodeattest_providers.checks import Checks
from nodeattest_providers.composite.protocol import parse_evidence as parse_composite_evidence
from nodeattest_providers.csr import parse_csr
from nodeattest_providers.errors import Denied, Unavailable
from nodeattest_providers.names import ProviderName
from nodeattest_providers.tpm.config import parse_policy
from nodeattest_providers.tpm.endorsement_certificate import check_certificate
from nodeattest_providers.tpm.event_log import MAX_EVENTS, parse_event_log, replay
from nodeattest_providers.tpm.protocol import MAX_EVENT_LOG, parse_evidence
from nodeattest_providers.tpm.structures import BANK_ALGORITHMS

__all__ = ["HANDLERS"]

_OBJECT: Final = 3 * MIB // 2
"""Bytes of an object: etcd's --max-request-bytes."""
_TARGETS: Final[dict[str, Target]] = {
    target.name: target for module in (admission, aws, azure, controller, kube, tpm, wire) for target in module.TARGETS
}


_EVENT: Final = paging.TENANT.object
"""What one event of a workload cluster may hold."""


def _watch(line: bytes) -> object:
    return parse_event(line, "", _EVENT.values, None)


def _role(data: bytes) -> object:
    """Read a ClusterRole or a ClusterRoleBinding, as the watch and the audit of automatic approval do."""
    found = parse_json(data, _EVENT.values, duplicates=True)
    granted = permissions.nominal_permissions(found)
    permissions.binds_joiners_or_nodes(found)
    permissions.bootstrap_groups_of(found)
    return permissions.grant_of(found, {"r": granted | frozenset(permissions.Permission)})


def _request(data: bytes) -> object:
    csr = parse_json(data, _EVENT.values, duplicates=True)
    csr_request.summarize(csr)
    return csr_request.parse_request(csr)


def _evidence(data: bytes) -> object:
    value = canonical_json.loads(data)
    composite = partial(parse_composite_evidence, version=2)
    for parse in (parse_evidence, composite, parse_aws_evidence, parse_azure_evidence):
        runner(lambda _, parse=parse: parse(value), Denied)(b"")
    return value


def _chain(data: bytes) -> object:
    """Check a leaf and its chain, each in hexadecimal on a line of its own: mutations then stay in one of them."""
    leaf, *chain = (bytes.fromhex(line.decode()) for line in data.split(b"\n"))
    key = tpm.endorsement_key()
    return check_certificate(Checks(), key, leaf, tuple(chain[:4]), anchors=[authority()], now=NOW)


def _event_log(data: bytes) -> object:
    log = parse_event_log(data)
    return [replay(log, bank) for bank in BANK_ALGORITHMS.values() if bank in log.sizes]


def _signed_document(data: bytes) -> object:
    document = cms.parse(data)
    for certificate in document.certificates:
        document.signer.is_named_by(certificate)
        document.signed_by(certificate)
    return parse_attested_document(document.content)


def _machines(data: bytes) -> object:
    """Read what a watch says of a Machine or a pool, and index it, over one that was there in a cluster in use."""
    found = parse_json(data, paging.OBJECT.values, duplicates=True)
    inventory = Inventory()
    for put in (inventory.put_machine, inventory.put_pool, inventory.put_attestation):
        put("key", found)
        inventory.members(cluster_key("", machine_view.cluster_of(found)), "a://0")
        put("key", found)
    return inventory


def _policy(data: bytes) -> object:
    found = parse_json(data, paging.OBJECT.values, duplicates=True)
    read = policy.parse_attestation_policy(found)
    runner(lambda _: parse_policy(read.settings(ProviderName("tpm"))), Denied)(b"")
    return read


def _review(data: bytes) -> object:
    """Read, compare and answer a review, as far as that needs no facts."""
    admission_review.cost(data)
    asked = admission_review.parse(data)
    new, old = (
        subject_of(each, group=asked.group, kind=asked.kind, namespace="", name="")
        for each in (asked.target, asked.before)
    )
    if new is None or old is None:
        return admission_review.allowed(asked.uid)
    _ = new.cluster, new.settled, new.made_by_control_plane, new.paused, new.changes(old)
    rendered = new.with_spec({**new.spec, "files": []})
    return admission_review.allowed(asked.uid, json_patch.patch(new.whole, rendered, ()))


def _policy_review(data: bytes) -> object:
    """Read a policy's review, and decide as far as that needs no facts."""
    admission_review.cost(data)
    sections = len(data) <= policy_reviewer.MAX_SECTIONS
    change = policy_decide.policy_change(admission_review.parse(data), sections=sections)
    return change and policy_decide.decide_alone(change)


def _authority(data: bytes) -> object:
    secret: JsonObject = {
        "metadata": {"name": "c-ca"},
        "data": {"tls.crt": worst.text_of(data), "tls.key": worst.text_of(data)},
    }
    return certificate_authority.load_authority(secret, "c")


def _machine(name: str, wrapped: JsonObject) -> JsonObject:
    metadata: JsonObject = {"name": "m", "uid": "u"}
    return {"apiVersion": "cluster.x-k8s.io/v1beta1", "kind": name, "metadata": metadata, **wrapped}


_POOL: Final = _machine("MachinePool", {"spec": {"clusterName": "c", "providerIDList": ["@@"]}})
_MACHINE: Final = _machine(
    "Machine", {"spec": {"clusterName": "c", "providerID": "a://b"}, "status": {"addresses": ["@@"]}}
)
_LEDGER: Final = _machine("MachineAttestation", {"spec": {"clusterName": "c", "providerID": "a://b", "issued": ["@@"]}})
_REVIEW: Final[JsonObject] = {
    "apiVersion": "admission.k8s.io/v1",
    "kind": "AdmissionReview",
    "request": {
        "uid": "u",
        "operation": "UPDATE",
        "kind": {"group": "bootstrap.cluster.x-k8s.io", "kind": "KubeadmConfig", "version": "v1beta1"},
        "oldObject": {"apiVersion": "bootstrap.cluster.x-k8s.io/v1beta1", "spec": {"a": {}}},
        "object": {"apiVersion": "bootstrap.cluster.x-k8s.io/v1beta1", "spec": {"a": ["@@"]}},
    },
}
_POLICY_REVIEW: Final[JsonObject] = {
    **_REVIEW,
    "request": {
        "uid": "u",
        "operation": "CREATE",
        "kind": {"group": "attestation.cluster.x-k8s.io", "kind": "NodeAttestationPolicy", "version": "v1alpha1"},
        "object": {"metadata": {"name": "p"}, "spec": "@@"},
    },
}


def _policy_reviewed(**spec: JsonValue) -> bytes:
    """Put a spec into a review."""
    whole: JsonObject = {"authorizedAttestors": ["tpm"], **spec}
    return worst.to_json(_POLICY_REVIEW).replace(b'"@@"', worst.to_json(whole))


def _bundle(size: int) -> bytes:
    block = worst.pem_of(authority().public_bytes(Encoding.DER)).decode()
    return _policy_reviewed(tpm={"endorsementCAs": block * (size // (len(block) + block.count("\n")))})


def _pools(size: int, most: int) -> bytes:
    before, _, after = worst.to_json(_POOL).partition(b'"@@"')
    ids = b",".join(b'"a://%x"' % number for number in range(most))
    return before + ids[: ids.rfind(b",", 0, size - len(before) - len(after))] + after


def _addresses(size: int) -> bytes:
    before, _, after = worst.to_json(_MACHINE).partition(b'"@@"')
    return worst.filled(before, b'{"type":"InternalIP","address":"1"},', b'{"type":"","address":""}' + after, size)


def _different_objects(size: int) -> bytes:
    """Two objects of as many keys as may be, all different."""
    keys: dict[str, JsonObject] = {f"{number:x}": {} for number in range(15_000)}
    review = worst.to_json(_REVIEW).replace(b'{"a":["@@"]}', worst.to_json(keys))
    other = worst.to_json(dict.fromkeys(keys, 1))
    return review.replace(b'{"a":{}}', other)[: size + 1]


def _a_long_key(size: int) -> bytes:
    """Add one key of characters that a JSON pointer escapes."""
    before, spec, after = _different_objects(size).rpartition(b'"spec":{')
    return before + spec + b'"' + b"/" * (size - len(before + spec + after) - 5) + b'":1,' + after


def _in_object(text: bytes) -> bytes:
    request = {"metadata": {"name": "r", "uid": "u"}, "spec": {"request": base64.b64encode(text).decode()}}
    spec = request["spec"] | {
        "signerName": "cluster.x-k8s.io/kube-apiserver-client-kubelet-tpm",
        "usages": ["digital signature", "client auth"],
        "username": "system:bootstrap:abcdef",
        "groups": ["system:bootstrappers"],
    }
    return worst.to_json({**request, "spec": spec})


def _blocks(size: int) -> bytes:
    first = wire.pem.encode([(envelope.LABEL_CSR, b"0")])
    head = b"-----BEGIN ATTESTATION DATA-----\n"
    return worst.filled(first + head, b"A" * 64 + b"\n", b"", size)


def _rbac(whole: JsonObject, item: JsonObject) -> bytes:
    """Fill a list of a role or a binding with as many items as a workload cluster's API server may send."""
    before, _, after = worst.to_json(whole).partition(b'"@@"')
    one = worst.to_json(item)
    values = 2 + one.count(b",") + one.count(b":") + one.count(b"[")
    return worst.filled(before, one + b",", one + after, _EVENT.bytes, _EVENT.values // values - 20)


_RULES: Final[JsonObject] = {"metadata": {"name": "r"}, "rules": ["@@"]}
_SUBJECTS: Final[JsonObject] = {
    "metadata": {"name": "b"},
    "roleRef": {"kind": "ClusterRole", "name": "r"},
    "subjects": ["@@"],
}


def _lines(certificates: tuple[bytes, ...]) -> bytes:
    return b"\n".join(each.hex().encode() for each in certificates)


def _filled(head: bytes, unit: bytes) -> bytes:
    return head + unit * ((_READ - len(head)) // len(unit))


_READ: Final = 256 * KIB
"""What asyncio reads at once of a connection."""
_CHUNKED: Final = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
_OBJECTS: Final = (
    Handler(
        name="watch-event",
        reads="one line of a watch, from any API server of a workload cluster",
        runs="loop",
        run=runner(_watch, ApiError),
        largest=_EVENT.bytes,
        milliseconds=60.0,
        mebibytes=16.0,
        worst={
            "lists": lambda: worst.json_lists(_EVENT.bytes, most=_EVENT.values // 2 - 20),
            "keys": lambda: worst.json_keys(
                _EVENT.bytes, {"type": "ADDED", "object": {"x": ["@@"]}}, most=_EVENT.values // 3 - 20
            ),
            "numbers": lambda: worst.json_numbers(
                _EVENT.bytes, {"type": "ADDED", "object": {"x": ["@@"]}}, most=_EVENT.values - 20
            ),
            "escapes": lambda: worst.json_escapes(_EVENT.bytes, {"type": "ADDED", "object": {"x": "@@"}}),
            "refused texts": lambda: worst.filled(b'{"x":[', b'{"":{}},', b"]}", _EVENT.bytes),
            "text": lambda: worst.json_text(_EVENT.bytes),
            "levels": lambda: worst.json_nested(_EVENT.bytes),
        },
        target=_TARGETS["json"],
    ),
    Handler(
        name="api-answer",
        reads="what is read at once of an answer, from any API server of a workload cluster",
        runs="loop",
        run=lambda data: kube.read_answer([data]),
        largest=_READ,
        milliseconds=12.0,
        mebibytes=5.0,
        worst={
            "chunks": lambda: _filled(_CHUNKED, b"1\r\nx\r\n"),
            "larger chunks": lambda: _filled(_CHUNKED, b"2\r\nxy\r\n"),
            "extensions": lambda: _filled(_CHUNKED, b"1;x\r\nx\r\n"),
            "fields": lambda: _filled(b"HTTP/1.1 200 OK\r\n", b"a:\r\n"),
            "trailers": lambda: _filled(_CHUNKED + b"0\r\n", b"a:\r\n"),
        },
        target=_TARGETS["api-answer"],
    ),
    Handler(
        name="kubeconfig",
        reads="the Secret <cluster>-kubeconfig, of who may write Secrets in a namespace",
        runs="thread",
        run=runner(parse_kubeconfig, KubeconfigError),
        largest=MAX_SELF_CONTAINED,
        milliseconds=400.0,
        mebibytes=8.0,
        worst={
            "flow": lambda: worst.yaml_flow(MAX_SELF_CONTAINED, MAX_SELF_CONTAINED_VALUES - 4),
            "keys": lambda: worst.yaml_keys(MAX_SELF_CONTAINED, MAX_SELF_CONTAINED_VALUES),
            "levels": lambda: worst.yaml_levels(MAX_SELF_CONTAINED, 30),
            "lines": lambda: worst.yaml_lines(MAX_SELF_CONTAINED),
            "sexagesimal": lambda: worst.yaml_numbers(MAX_SELF_CONTAINED),
            "escapes": lambda: worst.yaml_escapes(MAX_SELF_CONTAINED),
            "json": lambda: worst.json_text(MAX_SELF_CONTAINED),
        },
        target=_TARGETS["kubeconfig"],
    ),
    Handler(
        name="machine",
        reads="a Machine, MachinePool or MachineAttestation, of who may write them in a namespace",
        runs="loop",
        run=runner(_machines, ValueError),
        largest=_OBJECT,
        milliseconds=120.0,
        mebibytes=32.0,
        worst={
            "most provider IDs": lambda: _pools(_OBJECT, machine_view.MAX_INSTANCES),
            "provider IDs": lambda: _pools(_OBJECT, _OBJECT // 14),
            "addresses": lambda: _addresses(_OBJECT),
            "ledger": lambda: worst.json_keys(_OBJECT, _LEDGER, most=paging.OBJECT.values // 3 - 20),
        },
        target=_TARGETS["ledger"],
    ),
    Handler(
        name="policy",
        reads="a NodeAttestationPolicy, of who may write them in a namespace",
        runs="loop",
        run=runner(_policy, Denied, Unavailable, ValueError),
        largest=_OBJECT,
        milliseconds=150.0,
        mebibytes=32.0,
        worst={
            "sections": lambda: worst.json_keys(
                _OBJECT, {"metadata": {"name": "p"}, "spec": {"providers": {"a": {"x": ["@@"]}}}}, most=29_000
            ),
            "more sections": lambda: worst.json_keys(
                _OBJECT, {"metadata": {"name": "p"}, "spec": {"providers": {"a": {"x": ["@@"]}}}}, most=80_000
            ),
            "a long name": lambda: worst.filled(b'{"spec":{"', b"=", b'":0}}', _OBJECT),
            "registers": lambda: worst.json_lists(
                _OBJECT,
                {"metadata": {"name": "p"}, "spec": {"tpm": {"pcrs": {"selection": ["@@"]}}}},
                most=paging.OBJECT.values // 2 - 20,
            ),
        },
        target=_TARGETS["policy"],
    ),
    Handler(
        name="authority",
        reads="the Secret <cluster>-ca, of who may write Secrets in a namespace",
        runs="loop",
        run=runner(_authority, Unavailable),
        largest=certificate_authority.MAX_PEM,
        milliseconds=60.0,
        mebibytes=8.0,
        worst={
            "blocks": lambda: worst.pem_without_end(certificate_authority.MAX_PEM),
            "certificates": lambda: worst.filled(
                b"", worst.pem_of(worst.looping_chain()[1]), b"", certificate_authority.MAX_PEM
            ),
        },
    ),
    Handler(
        name="admission-review",
        reads="a review of the webhook's port, of whoever reaches it",
        runs="thread",
        run=runner(_review, Denied),
        largest=admission_review.MAX_BODY,
        milliseconds=400.0,
        mebibytes=48.0,
        worst={
            "lists": lambda: worst.json_lists(admission_review.MAX_BODY, _REVIEW, most=24_000),
            "keys": lambda: worst.json_keys(admission_review.MAX_BODY, _REVIEW, most=16_000),
            "numbers": lambda: worst.json_numbers(admission_review.MAX_BODY, _REVIEW, most=49_000),
            "too many": lambda: worst.json_keys(admission_review.MAX_BODY, _REVIEW),
            "differences": lambda: _different_objects(admission_review.MAX_BODY),
            "a long key": lambda: _a_long_key(admission_review.MAX_BODY),
            "text": lambda: worst.json_text(admission_review.MAX_BODY),
            "escapes": lambda: worst.json_escapes(admission_review.MAX_BODY, {"x": "@@"}),
        },
        target=_TARGETS["admission-review"],
        strangers=True,
    ),
    Handler(
        name="policy-review",
        reads="a review of a policy at the same port",
        runs="thread",
        run=runner(_policy_review, Denied),
        largest=admission_review.MAX_BODY,
        milliseconds=200.0,
        mebibytes=24.0,
        worst={
            "attestors": lambda: _policy_reviewed(authorizedAttestors=[f"x{number}" for number in range(45_000)]),
            "sections": lambda: _policy_reviewed(providers={f"{number:x}": {} for number in range(23_000)}),
            "labels": lambda: _policy_reviewed(
                clusterSelector={"matchLabels": {f"{number:x}": "" for number in range(45_000)}}
            ),
            "few attestors": lambda: _policy_reviewed(authorizedAttestors=[f"x{number}" for number in range(3_400)]),
            "certificates": lambda: _bundle(policy_reviewer.MAX_SECTIONS - 1024),
            "more certificates": lambda: _bundle(admission_review.MAX_BODY - 1024),
        },
        target=_TARGETS["policy-review"],
        strangers=True,
    ),
)

_REQUESTS: Final = (
    Handler(
        name="request",
        reads="a CertificateSigningRequest, of a node or the holder of a bootstrap token",
        runs="loop",
        run=runner(_request, Denied, ValueError),
        largest=_OBJECT,
        milliseconds=300.0,
        mebibytes=48.0,
        worst={
            "envelope": lambda: _in_object(_blocks(envelope.MAX_SIZE)),
            "certificate request": lambda: _in_object(
                wire.pem.encode([(envelope.LABEL_CSR, b"\x30\x00" * (pkcs10.MAX_SIZE // 2))])
            ),
            "groups": lambda: worst.json_lists(_OBJECT, {"spec": {"groups": ["@@"]}}, most=_EVENT.values // 2 - 20),
        },
        target=_TARGETS["request"],
        strangers=True,
    ),
    Handler(
        name="role",
        reads="a ClusterRole or ClusterRoleBinding, from any API server of a workload cluster",
        runs="loop",
        run=runner(_role, ValueError),
        largest=_EVENT.bytes,
        milliseconds=100.0,
        mebibytes=12.0,
        worst={
            "rules": lambda: _rbac(_RULES, {}),
            "rules that nearly grant": lambda: _rbac(_RULES, {"verbs": ["*"], "apiGroups": ["*"]}),
            "users": lambda: _rbac(_SUBJECTS, {"kind": "User", "name": "x"}),
            "groups": lambda: _rbac(_SUBJECTS, {"kind": "Group", "name": "system:bootstrappers:x"}),
        },
    ),
    Handler(
        name="certificate-request",
        reads="the PKCS#10 in a request",
        runs="loop",
        run=runner(parse_csr, Denied),
        largest=pkcs10.MAX_SIZE,
        milliseconds=5.0,
        mebibytes=1.0,
        worst={
            "elements": lambda: worst.filled(b"\x30\x82\x3f\xf0", b"\x30\x00", b"", pkcs10.MAX_SIZE),
            "levels": lambda: b"\x30\x80" * (pkcs10.MAX_SIZE // 2),
        },
        target=_TARGETS["csr"],
        strangers=True,
    ),
    Handler(
        name="evidence",
        reads="the evidence in a request: canonical JSON, in the schema of each provider",
        runs="loop",
        run=runner(_evidence, Denied),
        largest=canonical_json.MAX_SIZE,
        milliseconds=20.0,
        mebibytes=4.0,
        worst={
            "lists": lambda: worst.json_lists(canonical_json.MAX_SIZE, most=canonical_json.MAX_VALUES - 4),
            "numbers": lambda: worst.json_numbers(
                canonical_json.MAX_SIZE, {"x": ["@@"]}, most=canonical_json.MAX_VALUES - 4
            ),
            "escapes": lambda: worst.json_escapes(canonical_json.MAX_SIZE, {"x": "@@"}),
            "text": lambda: worst.json_text(canonical_json.MAX_SIZE),
            "levels": lambda: worst.json_nested(canonical_json.MAX_SIZE),
        },
        target=_TARGETS["tpm-evidence"],
        strangers=True,
    ),
    Handler(
        name="endorsement-chain",
        reads="endorsement certificate and ekChain in a request",
        runs="thread",
        run=runner(_chain, Denied, ValueError),
        largest=2 * 5 * 4 * KIB,
        milliseconds=20.0,
        mebibytes=1.0,
        worst={
            "loop of P-521": lambda: _lines(worst.looping_chain()),
            "loop of long exponents": lambda: _lines(worst.slow_exponents()),
        },
        target=None,
        strangers=True,
    ),
    Handler(
        name="event-log",
        reads="the event log in a request",
        runs="thread",
        run=runner(_event_log, Denied),
        largest=MAX_EVENT_LOG,
        milliseconds=40.0,
        mebibytes=4.0,
        worst={"events": lambda: worst.event_log(MAX_EVENT_LOG, MAX_EVENTS)},
        target=_TARGETS["tpm-event-log"],
        strangers=True,
    ),
    Handler(
        name="platform-document",
        reads="the PKCS#7 of AWS or Azure in a request",
        runs="loop",
        run=runner(_signed_document, Denied),
        largest=cms.MAX_SIZE,
        milliseconds=20.0,
        mebibytes=2.0,
        worst={
            "certificates": lambda: worst.signed_document(worst.looping_chain(7), cms.MAX_SIZE),
            "elements": lambda: worst.filled(b"\x30\x82\x7f\xf0", b"\x30\x00", b"", cms.MAX_SIZE),
        },
        target=_TARGETS["cms"],
        strangers=True,
    ),
)

HANDLERS: Final = (*_OBJECTS, *_REQUESTS)
