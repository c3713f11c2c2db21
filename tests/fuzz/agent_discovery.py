"""Targets of a node that discovered its cluster: kubelet's configuration, and the agent's own notes."""

from __future__ import annotations

import json
from typing import Final

import yaml

from fuzz.agent import cache_directory
from fuzz.target import Target, require
from nodeattest_authenticator.cluster import kubelet_config, refresh
from nodeattest_authenticator.cluster.discover import ByToken
from nodeattest_authenticator.commands import kubeadm_config
from nodeattest_authenticator.config.discovery import parse_discovery
from nodeattest_authenticator.errors import AgentError, AgentReason, FailureKind
from nodeattest_authenticator.formats.strict_json import ConfigFields, FieldsError, parse_config_object

_LONGEST_MESSAGE: Final = 1024


def _kubelet_configuration(data: bytes) -> bool:
    """Read a configuration as it is in a ConfigMap, and write what kubelet gets."""
    text = data.decode("utf-8", "surrogateescape")
    try:
        read = kubelet_config.parse({"data": {"kubelet": text}})
        made = kubelet_config.adjust(read, ca_file="/ca.crt")
    except AgentError as failure:
        require(failure.reason == AgentReason.KUBELET_CONFIGURATION_REFUSED, "a refusal for its own reason")
        require(len(str(failure)) <= _LONGEST_MESSAGE, "a refusal of a few words")
        return False
    require(read == yaml.safe_load(text), "PyYAML reads the same")
    written = kubelet_config.render(made)
    require(json.loads(written) == made, "JSON is written")
    require(yaml.safe_load(written) == made, "YAML readers read what JSON readers read")
    require(made["rotateCertificates"] is False and made["serverTLSBootstrap"] is True, "the agent renews")
    untouched = {"authentication", "rotateCertificates", "serverTLSBootstrap"}
    require(all(made[key] == value for key, value in read.items() if key not in untouched), "the rest is as it was")
    return True


def _section(data: bytes) -> bool:
    try:
        read = parse_discovery(ConfigFields(parse_config_object(data), "discovery."))
    except FieldsError as error:
        require(len(str(error)) <= _LONGEST_MESSAGE, "a refusal of a few words")
        return False
    again = parse_discovery(ConfigFields(read.to_json(), "discovery."))
    require(again == read, "what is written is read again")
    require(
        read.with_servers(*reversed(read.servers)).servers == tuple(reversed(read.servers)),
        "servers change their order",
    )
    for old, new in zip(read.previous_clusters, read.previous_clusters[1:], strict=False):
        after = read.after(old, new)
        require(new not in after.previous_clusters, "what is so now is not former")
        require(parse_discovery(ConfigFields(after.to_json(), "discovery.")) == after, "a step leaves a sound section")
    return True


def _record(data: bytes) -> bool:
    storage = cache_directory()
    storage.write(refresh.FILE, data, durable=False)
    found = refresh.load(storage)
    return found is not None and found.at >= 0


def _kubeadm_configuration(data: bytes) -> bool:
    """Read what Cluster API writes for kubeadm; an untrusted source may have templated it."""
    try:
        read = kubeadm_config.parse(data, limit=300)
    except AgentError as failure:
        require(failure.kind is FailureKind.USAGE, "a refusal before anything is sent")
        require(len(str(failure)) <= _LONGEST_MESSAGE, "a refusal of a few words")
        return False
    if read is None:
        return True
    if read.token is not None:
        require(read.token.secret not in repr(read), "no secret is shown")
    if isinstance(read.way, ByToken):
        require(read.token is not None and len(read.way.servers) == 1, "one server, and a token to ask with")
        require(read.way.pins is None or bool(read.way.pins), "pins, or the wish to do without")
    return True


TARGETS: Final = (
    Target("agent-kubeadm-configuration", _kubeadm_configuration, 4096),
    Target("agent-kubelet-configuration", _kubelet_configuration, 2048),
    Target("agent-discovery", _section, 8192),
    Target("agent-refresh", _record, 512),
)
