"""Targets of the controller: what API servers, operators and requesters hand to it as objects."""

from __future__ import annotations

from typing import Final

from fuzz.files import as_file
from fuzz.keys import AUTHORITY_KEY
from fuzz.mutators.der_tree import DerTree
from fuzz.mutators.json_tree import JsonTree
from fuzz.mutators.pem_blocks import PemBlocks
from fuzz.target import Target, require
from fuzz.wire import ENVELOPE
from nodeattest_controller import configfile
from nodeattest_controller.clusters.inventory import Inventory
from nodeattest_controller.core import authority, clusterapi, kubelet_request, ledger, policy, request, serving
from nodeattest_controller.durations import format_duration, parse_duration
from nodeattest_controller.settings import SettingsError
from nodeattest_kube.jsontypes import JsonObject, parse_json
from nodeattest_providers.errors import Denied, Unavailable

__all__ = ["TARGETS"]


def _object(data: bytes) -> JsonObject | None:
    try:
        return parse_json(data)
    except ValueError:
        return None


def _request(data: bytes) -> bool:
    csr = _object(data)
    if csr is None:
        return False
    stored = request.peek(csr)
    if stored is not None and stored.is_kubelets:
        return _kubelets_request(csr)
    try:
        parsed = request.parse(csr)
    except Denied as denied:
        require(len(denied.remedy) <= 512, "a remedy that fits a condition")  # noqa: PLR2004 - a few lines
        return False
    require(stored is not None and stored.provider == parsed.evidence.provider, "peek and parse agree on the provider")
    require(parsed.username.startswith(("system:bootstrap:", "system:node:")), "only tokens and nodes ask")
    return True


def _kubelets_request(csr: JsonObject) -> bool:
    try:
        parsed = kubelet_request.parse(csr)
    except Denied as denied:
        require(len(denied.remedy) <= 512, "a remedy that fits a condition")  # noqa: PLR2004 - a few lines
        return False
    require(parsed.node_name == kubelet_request.requesting_node(csr), "a node asks for itself")
    return True


def _policy(data: bytes) -> bool:
    found = _object(data)
    if found is None:
        return False
    cluster: JsonObject = {"metadata": {"labels": {"env": "prod"}}, "spec": found}
    try:
        for parsed in (policy.parse(found), policy.policy_for(cluster, [found])):
            require(parsed.lifetime is None or parsed.lifetime > 0, "a lifetime is positive")
            require(not (parsed.attestors & policy.INSECURE and parsed.attestors - policy.INSECURE), "never both")
    except (Denied, Unavailable):
        return False
    return True


def _ledger(data: bytes) -> bool:
    """Read a ledger, a Machine, a pool and a Cluster; none is ever refused: what has the wrong type is absent."""
    found = _object(data)
    if found is None:
        return False
    read = ledger.parse(found)
    require(bool(serving.network_of(found).service_domain), "services have a domain")
    members = [*clusterapi.machine_members(found), *clusterapi.pool_members(found)]
    inventory = Inventory()
    for put in (inventory.put_machine, inventory.put_pool, inventory.put_ledger):
        put("key", found)
        put("key", None)
    return bool(read.issued or members)


def _authority(data: bytes) -> bool:
    found = _object(data)
    if found is None:
        return False
    try:
        read = authority.load_authority(found, "cluster")
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
        seconds = parse_duration(data.decode(errors="replace"))
    except ValueError:
        return False
    require(0 <= seconds < float("inf"), "finite, never negative")
    milliseconds = round(seconds * 1000) / 1000
    require(parse_duration(format_duration(milliseconds)) == milliseconds, "to the millisecond and back")
    return True


TARGETS: Final = (
    Target("request", _request, JsonTree({"request": ENVELOPE}), 8192),
    Target("policy", _policy, JsonTree()),
    Target("ledger", _ledger, JsonTree()),
    Target("authority", _authority, JsonTree({"tls.crt": PemBlocks({"CERTIFICATE": DerTree(AUTHORITY_KEY)})}), 8192),
    Target("configuration", _configuration, JsonTree()),
    Target("duration", _duration, None, 64),
)
