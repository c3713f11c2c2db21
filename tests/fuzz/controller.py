"""Targets of the controller: what API servers, operators and requesters hand to it as objects."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Final

from fuzz.target import Target, as_file, require
from nodeattest_controller import configfile
from nodeattest_controller.controllers.bootstrap_token import decide
from nodeattest_controller.model import (
    attestation,
    certificate_authority,
    csr_request,
    machine_view,
    policy,
    serving_names,
    token_binding,
)
from nodeattest_controller.runtime.indexes import Inventory
from nodeattest_kube.jsontypes import parse_json
from nodeattest_parsing.times import format_seconds, parse_seconds
from nodeattest_parsing.values import JsonObject
from nodeattest_providers.errors import Denied, Unavailable
from nodeattest_providers.registry import INSECURE
from nodeattest_serving.bounded_server import SettingsError


def _object(data: bytes) -> JsonObject | None:
    try:
        return parse_json(data)
    except ValueError:
        return None


def _request(data: bytes) -> bool:
    csr = _object(data)
    if csr is None:
        return False
    stored = csr_request.summarize(csr)
    if stored is not None and stored.is_kubelets:
        return _kubelets_request(csr)
    try:
        parsed = csr_request.parse_request(csr)
    except Denied as denied:
        require(len(denied.remedy) <= 512, "a remedy that fits a condition")
        return False
    require(stored is not None and stored.provider == parsed.evidence.provider, "peek and parse agree on the provider")
    require(parsed.username.startswith(("system:bootstrap:", "system:node:")), "only tokens and nodes ask")
    return True


def _kubelets_request(csr: JsonObject) -> bool:
    try:
        parsed = csr_request.parse_kubelet_request(csr)
    except Denied as denied:
        require(len(denied.remedy) <= 512, "a remedy that fits a condition")
        return False
    require(parsed.node_name == csr_request.requesting_node(csr), "a node asks for itself")
    return True


def _policy(data: bytes) -> bool:
    found = _object(data)
    if found is None:
        return False
    cluster: JsonObject = {"metadata": {"labels": {"env": "prod"}}, "spec": found}
    try:
        for parsed in (policy.parse_attestation_policy(found), policy.policy_for(cluster, [found])):
            require(parsed.lifetime is None or parsed.lifetime > 0, "a lifetime is positive")
            require(not (parsed.attestors & INSECURE and parsed.attestors - INSECURE), "never both")
    except (Denied, Unavailable):
        return False
    return True


def _ledger(data: bytes) -> bool:
    """Read a ledger, a Machine, a pool and a Cluster; none is ever refused: what has the wrong type is absent."""
    found = _object(data)
    if found is None:
        return False
    read = attestation.parse_attestation(found)
    require(bool(serving_names.network_of(found).service_domain), "services have a domain")
    views = [machine_view.view_of_machine(found), *machine_view.views_of_pool(found)]
    members = [view for view in views if view.provider_id]
    inventory = Inventory()
    for put in (inventory.put_machine, inventory.put_pool, inventory.put_attestation):
        put("key", found)
        put("key", None)
    return bool(read.issued or members)


def _authority(data: bytes) -> bool:
    found = _object(data)
    if found is None:
        return False
    try:
        read = certificate_authority.load_authority(found, "cluster")
    except Unavailable:
        return False
    require(bool(read.pins), "a CA has a pin")
    return True


def _configuration(data: bytes) -> bool:
    with as_file(data) as path:
        try:
            settings = configfile.load(path, identity="fuzz")
        except SettingsError:
            return False
    with as_file(configfile.dump(settings).encode()) as path:
        require(configfile.load(path, identity="fuzz") == settings, "what is written is read again")
    return True


def _duration(data: bytes) -> bool:
    try:
        seconds = parse_seconds(data.decode(errors="replace"))
    except ValueError:
        return False
    require(0 <= seconds < float("inf"), "finite, never negative")
    milliseconds = round(seconds * 1000) / 1000
    require(parse_seconds(format_seconds(milliseconds)) == milliseconds, "to the millisecond and back")
    return True


def _machine_token(data: bytes) -> bool:
    """Read a Secret of a workload cluster as the token of a machine."""
    found, now = _object(data), datetime(2026, 5, 4, 12, tzinfo=UTC)
    token = decide.token_of(found, now) if found is not None else None
    if token is None:
        return False
    record = decide.Record("fleet/blue", "Machine/m", "uid")
    until = decide.renewal(token, record, now)
    require(until is None or until >= token.expires, "a renewal never shortens")
    require(token.value not in str(decide.patch_of(token, record, until or now)), "no token in a write")
    config = token_binding.kept_config(token_binding.slim_config(found or {}))
    require(not config.provides(token.value), "a Secret is no configuration")
    return True


def _kubeadm_config(data: bytes) -> bool:
    """Read which tokens a configuration names."""
    found = _object(data)
    if found is None:
        return False
    decide.token_owner(found, "Machine")
    kept = token_binding.kept_config(token_binding.slim_config(found))
    try:
        named = token_binding.named_tokens(found)
    except Unavailable:
        require(kept.ids is None, "what names no token is kept so")
        return False
    require(kept.tokens() == named, "what is kept names the same tokens")
    require(all(len(token_id) == 6 for token_id in named.ids), "ids of tokens")
    return bool(named.ids)


TARGETS: Final = (
    Target("request", _request, 8192),
    Target("policy", _policy),
    Target("ledger", _ledger),
    Target("authority", _authority, 8192),
    Target("machine-token", _machine_token),
    Target("kubeadm-config", _kubeadm_config),
    Target("configuration", _configuration),
    Target("duration", _duration, 64),
)
