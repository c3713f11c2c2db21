"""Targets of the management cluster: objects of API servers, operators and requesters, reviews, and the CLI's files."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Final

from fuzz.target import NOW, by_file, require, target, text_of
from nodeattest_cli.cluster_info import view
from nodeattest_cli.documents import read_objects
from nodeattest_cli.output import UserError
from nodeattest_controller import configfile
from nodeattest_controller.controllers import bootstrap_token
from nodeattest_controller.controllers.bootstrap_config import admission_review
from nodeattest_controller.controllers.bootstrap_config.admission_review import UNCHANGED, UNCONCERNED, Verdict
from nodeattest_controller.controllers.bootstrap_config.decide import review_policy, subject_of
from nodeattest_controller.controllers.bootstrap_config.kubeadmconfig import (
    DROP_IN,
    MARK,
    RenderingRefused,
    RenderOptions,
)
from nodeattest_controller.controllers.bootstrap_config.render import render
from nodeattest_controller.model import csr_request, kubeadm_config, machine_view, policy, serving_names
from nodeattest_controller.model.attestation_object import parse_attestation
from nodeattest_controller.model.certificate_authority import CertificateAuthority, load_authority
from nodeattest_controller.runtime.indexes import Inventory
from nodeattest_controller.settings import Settings
from nodeattest_discovery.token import BootstrapToken
from nodeattest_kube.answers import parse_json, version_of
from nodeattest_kube.errors import KubeconfigError, error_from_status
from nodeattest_kube.kubeconfig import MAX_SELF_CONTAINED, ApiEndpoint, parse_kubeconfig
from nodeattest_parsing.objects import key_of
from nodeattest_parsing.times import format_seconds, parse_duration, parse_seconds
from nodeattest_parsing.values import JsonObject
from nodeattest_providers.errors import Denied, Reason, Unavailable
from nodeattest_providers.identifiers import ProviderName
from nodeattest_providers.registry import INSECURE
from nodeattest_serving.bounded_server import SettingsError

_JSON: Final = (ValueError,)
_SIGNER: Final = BootstrapToken("abcdef", "0123456789abcdef")


@target("request", parse_json, refusals=_JSON, max_len=8192)
def _request(csr: JsonObject, _data: bytes) -> bool:
    stored = csr_request.summarize(csr)
    try:
        if stored is not None and stored.is_kubelets:
            asked = csr_request.parse_kubelet_request(csr)
            require(asked.node_name == csr_request.requesting_node(csr), "a node asks for itself")
            return True
        parsed = csr_request.parse_request(csr)
    except Denied as denied:
        require(len(denied.remedy) <= 512, "a remedy that fits a condition")
        return False
    require(stored is not None and stored.provider == parsed.evidence.provider, "peek and parse agree on the provider")
    require(parsed.username.startswith(("system:bootstrap:", "system:node:")), "only tokens and nodes ask")
    return True


@target("policy", parse_json, refusals=_JSON)
def _policy(found: JsonObject, _data: bytes) -> bool:
    cluster: JsonObject = {"metadata": {"labels": {"env": "prod"}}, "spec": found}
    try:
        read = policy.parse_attestation_policy(found), policy.policy_for(cluster, [found])
    except (Denied, Unavailable):
        return False
    for parsed in read:
        require(parsed.lifetime is None or parsed.lifetime > 0, "a lifetime is positive")
        require(not (parsed.attestors & INSECURE and parsed.attestors - INSECURE), "never both")
    return True


@target("ledger", parse_json, refusals=_JSON)
def _ledger(found: JsonObject, _data: bytes) -> bool:
    """Read a ledger, a Machine, a pool and a Cluster; none is ever refused: what has the wrong type is absent."""
    read = parse_attestation(found)
    require(bool(serving_names.network_of(found).service_domain), "services have a domain")
    views = [machine_view.view_of_machine(found), *machine_view.views_of_pool(found)]
    inventory = Inventory()
    for put in (inventory.put_machine, inventory.put_pool, inventory.put_attestation):
        put("key", found)
        put("key", None)
    return bool(read.issued or [view for view in views if view.provider_id])


def _authority(data: bytes) -> CertificateAuthority:
    return load_authority(parse_json(data), "cluster")


target("authority", _authority, refusals=(ValueError, Unavailable), max_len=8192)(
    lambda read, _: require(bool(read.pins), "a CA has a pin")
)


@target("machine-token", parse_json, refusals=_JSON)
def _machine_token(found: JsonObject, _data: bytes) -> bool:
    """Read a Secret of a workload cluster as the token of a machine."""
    now = datetime(2026, 5, 4, 12, tzinfo=UTC)
    token = bootstrap_token.token_of(found, now)
    if token is None:
        return False
    record = bootstrap_token.Record("fleet/blue", "Machine/m", "uid")
    until = bootstrap_token.renewal(token, record, now)
    require(until is None or until >= token.expires, "a renewal never shortens")
    require(token.value not in str(bootstrap_token.patch_of(token, record, until or now)), "no token in a write")
    config = kubeadm_config.read_config(found)
    require(not config.provides(token.value), "a Secret is no configuration")
    return True


@target("kubeadm-config", parse_json, refusals=_JSON)
def _kubeadm_config(found: JsonObject, _data: bytes) -> bool:
    """Read which tokens a configuration names."""
    bootstrap_token.token_owner(found, "Machine")
    kept = kubeadm_config.read_config(found)
    require(not (kept.is_malformed and kept.ids), "a malformed token makes no other one count")
    require(all(len(token_id) == 6 for token_id in kept.ids), "ids of tokens")
    return bool(kept.ids)


_load = by_file(lambda path: configfile.load(path, identity="fuzz"))


@target("configuration", _load, refusals=(SettingsError,))
def _configuration(settings: Settings, _data: bytes) -> None:
    require(_load(configfile.dump(settings).encode()) == settings, "what is written is read again")


@target("duration", lambda data: parse_seconds(text_of(data)), refusals=_JSON, max_len=64)
def _seconds(seconds: float, _data: bytes) -> None:
    require(0 <= seconds < float("inf"), "finite, never negative")
    milliseconds = round(seconds * 1000) / 1000
    require(parse_seconds(format_seconds(milliseconds)) == milliseconds, "to the millisecond and back")


target("cli-duration", lambda data: parse_duration(text_of(data)), refusals=_JSON, max_len=64)(
    lambda nanoseconds, _: require(parse_duration(f"{nanoseconds}ns") == nanoseconds, "what is written is read")
)

# The webhook


@target("admission-review", admission_review.parse, Reason.ADMISSION_REVIEW_MALFORMED)
def _review(asked: admission_review.AdmissionReview, _data: bytes) -> None:
    require(asked.operation is not admission_review.Operation.UPDATE or bool(asked.kind), "an update has a kind")
    answer = json.loads(admission_review.answer(asked.uid, UNCHANGED, is_verified=False))
    require(answer["response"]["uid"] == asked.uid, "an answer bears the question's UID")
    whole = subject_of(asked.target, group=asked.group, kind=asked.kind, namespace=asked.namespace, name=asked.name)
    if whole is not None and asked.before is not None:
        before = subject_of(asked.before, group=asked.group, kind=asked.kind, namespace="", name="")
        require(before is not None, "both are of one kind")
        _ = whole.cluster, whole.settled, whole.made_by_control_plane, whole.paused, whole.deleting
        differs = bool(admission_review.paths(asked.before, asked.target))
        require(bool(admission_review.patch(asked.before, asked.target)) == differs, "a patch where there is one")


@target(
    "policy-review",
    lambda data: review_policy(admission_review.parse(data)),
    Reason.ADMISSION_REVIEW_MALFORMED,
)
def _policy_review(verdict: Verdict, _data: bytes) -> bool:
    if verdict.denied is not None:
        require(verdict.denied.reason is Reason.POLICY_INVALID and bool(verdict.public), "a refusal says why")
    return verdict != UNCONCERNED


_PLAN: Final = RenderOptions(provider=ProviderName("tpm"), provider_id="metal://7")


@target("bootstrap-configuration", parse_json, refusals=_JSON, max_len=8192)
def _render(document: JsonObject, _data: bytes) -> bool:
    """Render what is JSON; what was rendered is rendered for good, and the input is as it was."""
    before = json.dumps(document)
    try:
        made = render(document, _PLAN)
    except RenderingRefused as refusal:
        require(bool(refusal.refusals), "a refusal says something")
        require({each.reason for each in refusal.refusals} == {Reason.BOOTSTRAP_CONFIG_REFUSED}, "its own reason")
        return False
    finally:
        require(json.dumps(document) == before, "the input is left alone")
    require(render(made, _PLAN) == made, "rendering twice is rendering once")
    written = json.dumps(made)
    require(json.dumps(DROP_IN) in written and MARK in written, "what attests is there")
    return True


# API servers


@target("kubeconfig", parse_kubeconfig, refusals=(KubeconfigError,))
def _kubeconfig(endpoint: ApiEndpoint, data: bytes) -> None:
    require(len(data) <= MAX_SELF_CONTAINED, "small documents only")
    require(endpoint.server.startswith("https://"), "HTTPS only")
    require(endpoint.token_file is None, "no file of ours is read for a document of others")


@target("json", lambda data: parse_json(data, max_values=1000), refusals=_JSON)
def _json(value: JsonObject, _data: bytes) -> None:
    again = parse_json(json.dumps(value, ensure_ascii=False).encode())
    require(again == value, "what was read can be written and read again")
    key_of(value)
    version_of(value)
    error = error_from_status(500, value, fallback="an error", retry_after="1")
    require(len(str(error)) <= 2048 and str(error).isprintable(), "a server's words stay on a line")


# The operator's tool


target("documents", by_file(lambda path: read_objects(str(path))), refusals=(UserError,))(
    lambda found, _: require(bool(found), "at least one object")
)


@target("cli-cluster-info", parse_json, refusals=_JSON)
def _cluster_info(found: JsonObject, _data: bytes) -> bool:
    """Show a ConfigMap, as ``cluster-info show`` does."""
    is_sound, lines = view(found, [_SIGNER], NOW)
    require(all(map(str.isprintable, lines)), "printable lines")
    return is_sound
