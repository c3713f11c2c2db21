"""kubeadm's own configuration as a way to the cluster: what ``kubeadm join`` is about to use, the agent uses, too.

Cluster API's bootstrap provider writes server, token and CA pins into a JoinConfiguration on the machine; from here
they go nowhere else, not into arguments and not into messages. Promises: a file gives what a join needs, or None where
kubeadm is going to ``init``, or ``AgentError``; what has another type than kubeadm's API says is refused by its name.
Leaves to kubeadm: documents and fields that the agent has no use for.
Source: kubernetes cmd/kubeadm/app/apis/kubeadm/{v1beta3,v1beta4}/types.go; for the node's name
app/phases/kubelet/flags.go ``GetNodeNameAndHostname``, app/util/nodename.go ``GetHostname`` and component-helpers
node/util/hostname.go ``GetHostname``, which trim and lower it; for the documents, cluster-api
bootstrap/kubeadm/types/upstream.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from nodeattest_authenticator.cluster.discover import ByFile, ByToken, ClusterSource
from nodeattest_authenticator.commands.cluster_source import host_and_port, pins_of
from nodeattest_authenticator.config.settings import read_protected
from nodeattest_authenticator.enrollment import bootstrap_token
from nodeattest_authenticator.errors import AgentError, AgentReason, FailureKind, said
from nodeattest_discovery.token import BootstrapToken
from nodeattest_parsing import strict_yaml
from nodeattest_parsing.strict_yaml import Scalars
from nodeattest_parsing.values import ParseError
from nodeattest_providers import identifiers, provider_id_template
from nodeattest_providers.errors import Denied
from nodeattest_providers.identifiers import NodeName, ProviderID
from nodeattest_providers.node_interface import JsonObject, JsonValue

if TYPE_CHECKING:
    from nodeattest_discovery.pins import CaPin


_GROUP: Final = "kubeadm.k8s.io/"
_VERSIONS: Final = ("v1beta3", "v1beta4")
"""v1beta4 made a list of kubeletExtraArgs."""
_JOIN_KIND: Final = "JoinConfiguration"
_INIT_KINDS: Final = frozenset({"ClusterConfiguration", "InitConfiguration"})
_SEPARATOR: Final = re.compile(rb"^---[ \t\r]*(?:#.*)?$", re.MULTILINE)
"""Between documents, as kubeadm splits them (k8s.io/apimachinery util/yaml ``NewYAMLReader``)."""
_KIND: Final = re.compile(rb"""^["']?kind["']?[ \t]*:[ \t]+["']?([A-Za-z]+)["']?[ \t\r]*(?:#.*)?$""", re.MULTILINE)
"""At the left margin, where YAML has the fields of a document itself."""
_LIMIT: Final = 1 << 20
"""Bytes; user data of clouds has at most 64 KiB."""
_MAX_DEPTH: Final = 16
"""Levels."""
_MAX_VALUES: Final = 4096
"""Values and keys."""
_MAX_DOCUMENTS: Final = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Joining:
    """What a JoinConfiguration says."""

    way: ClusterSource = field(repr=False)
    token: BootstrapToken | None = field(default=None, repr=False)
    """By which the node asks for its first certificate; None: one that the discovery file holds."""
    node_name: NodeName | None = None
    provider_id: ProviderID | None = None
    """What kubelet will get."""


def load(path: str, *, limit: int) -> Joining | None:
    """Read the file; None: kubeadm makes the cluster's first node by it. Raises ``AgentError``."""
    data = read_protected(path, limit=_LIMIT)
    try:
        return parse(data, limit=limit)
    except AgentError as failure:
        raise _wrong(f"{path}: {failure.message}") from None


def parse(data: bytes, *, limit: int) -> Joining | None:
    """Read the bytes; raises ``AgentError``, with no secret in its message."""
    kinds, joins = _documents(data)
    if len(joins) > 1:
        raise _wrong("expected one JoinConfiguration, got several")
    if not joins:
        if kinds.isdisjoint(_INIT_KINDS):
            raise _wrong("expected a JoinConfiguration, or what kubeadm init takes, got neither")
        return None
    version = _text(joins[0], "apiVersion") or ""
    if not version.startswith(_GROUP) or version.removeprefix(_GROUP) not in _VERSIONS:
        raise _wrong(f"expected a JoinConfiguration of {_GROUP}{{{','.join(_VERSIONS)}}}, got {version[:40]!a}")
    return _joining(joins[0], limit)


def _documents(data: bytes) -> tuple[set[str], list[JsonObject]]:
    """Return the kinds of all documents, and each JoinConfiguration: what others hold is not for the agent to judge."""
    all_kinds: set[str] = set()
    unread = [text for text in _SEPARATOR.split(data) if text.strip()]
    if len(unread) > _MAX_DOCUMENTS:
        raise _wrong(f"expected at most {_MAX_DOCUMENTS} documents, got {len(unread)}")
    joins: list[JsonObject] = []
    for text in unread:
        kinds = {kind.decode() for kind in _KIND.findall(text)}
        all_kinds |= kinds
        if kinds and _JOIN_KIND not in kinds:
            continue
        try:
            documents = strict_yaml.parse_objects(
                text, scalars=Scalars.INTEGERS, max_depth=_MAX_DEPTH, max_values=_MAX_VALUES, max_documents=1
            )
        except ParseError as error:
            if _JOIN_KIND.encode() not in text:
                continue  # of another kind: JSON, indented, or behind a byte order mark
            raise _wrong(f"expected YAML without ambiguous values, got {error.found}") from None
        all_kinds |= {str(document.get("kind")) for document in documents}
        joins += [document for document in documents if document.get("kind") == _JOIN_KIND]
    return all_kinds, joins


def _joining(document: JsonObject, limit: int) -> Joining:
    discovery, registration = _section(document, "discovery"), _section(document, "nodeRegistration")
    by_token, by_file = _section(discovery, "bootstrapToken"), _section(discovery, "file")
    if bool(by_token) == bool(by_file):
        raise _wrong("expected either discovery.bootstrapToken or discovery.file")
    apart = _token(discovery, "tlsBootstrapToken")
    arguments = _arguments(registration)
    node_name, provider_id = _node_name(registration, arguments), _provider_id(arguments)
    if by_file:
        path = _needed(by_file, "kubeConfigPath", "discovery.file")
        # kubeadm uses a credential in the file; so do we in its place.
        way = ByFile(source=path, allow_credentials=True, limit=limit)
        return Joining(way=way, token=apart, node_name=node_name, provider_id=provider_id)
    token = _token(by_token, "token")
    if token is None:
        raise _wrong("discovery.bootstrapToken: expected a token, got none; the bootstrap provider fills it in")
    server = host_and_port(_needed(by_token, "apiServerEndpoint", "discovery.bootstrapToken"), "apiServerEndpoint")
    way = ByToken(servers=(server,), token=token, pins=_pins(by_token), limit=limit)
    return Joining(way=way, token=apart or token, node_name=node_name, provider_id=provider_id)


def _node_name(registration: JsonObject, arguments: dict[str, str]) -> NodeName | None:
    """Return the name that kubelet registers: both kubeadm and kubelet trim and lower it."""
    fields = {
        "nodeRegistration.kubeletExtraArgs hostname-override": arguments.get("hostname-override"),
        "nodeRegistration.name": _text(registration, "name"),
    }
    for field_name, given in fields.items():
        if given:
            try:
                return identifiers.node_name(given.strip().lower())
            except Denied as denied:
                raise _wrong(f"{field_name}: {said(denied)}") from None
    return None


def _provider_id(arguments: dict[str, str]) -> ProviderID | None:
    """Return the provider ID that kubelet gets from systemd."""
    given = arguments.get("provider-id")
    if not given:
        return None
    try:
        value = provider_id_template.unquote(given)
        provider_id_template.check_rendered(value)
        if provider_id_template.has_sources(value):
            raise _wrong(
                "nodeRegistration.kubeletExtraArgs provider-id: kubelet gets the braces as they are; give this text to "
                "the agent alone, by --provider-id"
            )
        return identifiers.provider_id(value)
    except Denied as denied:
        raise _wrong(f"nodeRegistration.kubeletExtraArgs provider-id: {said(denied)}") from None


def _pins(by_token: JsonObject) -> frozenset[CaPin] | None:
    unsafe, hashes = by_token.get("unsafeSkipCAVerification"), by_token.get("caCertHashes")
    if unsafe is not None and not isinstance(unsafe, bool):
        raise _wrong("unsafeSkipCAVerification: expected true or false")
    if hashes is None:
        hashes = []
    if not isinstance(hashes, list) or not all(isinstance(item, str) for item in hashes):
        raise _wrong("caCertHashes: expected a list of texts")
    if not hashes and unsafe is not True:
        raise _wrong("expected caCertHashes, or unsafeSkipCAVerification: true, got neither")
    # kubeadm lets the pins count where both are given (app/discovery/token), and so do we: never the weaker one.
    return pins_of([str(item) for item in hashes], "caCertHashes") if hashes else None


def _arguments(registration: JsonObject) -> dict[str, str]:
    """Read kubeletExtraArgs: a map, or from v1beta4 on a list in which the last of a name counts."""
    given = registration.get("kubeletExtraArgs")
    pairs: list[tuple[JsonValue, JsonValue]] = []
    if isinstance(given, dict):
        pairs = list(given.items())
    elif isinstance(given, list):
        pairs = [(one.get("name"), one.get("value", "")) if isinstance(one, dict) else (None, None) for one in given]
    elif given is not None:
        pairs = [(None, None)]
    found = {name: value for name, value in pairs if isinstance(name, str) and isinstance(value, str)}
    if any(not isinstance(part, str) for pair in pairs for part in pair):
        raise _wrong("nodeRegistration.kubeletExtraArgs: expected names and values that are texts")
    return found


def _token(section: JsonObject, name: str) -> BootstrapToken | None:
    text = _text(section, name)
    return bootstrap_token.parse(text.encode("utf-8", "replace"), source=f"{name}: ") if text else None


def _needed(section: JsonObject, name: str, where: str) -> str:
    text = _text(section, name)
    if not text:
        raise _wrong(f"{where}: expected {name}, got none")
    return text


def _section(parent: JsonObject, name: str) -> JsonObject:
    found = parent.get(name)
    if found is None:
        return {}
    if not isinstance(found, dict):
        raise _wrong(f"{name}: expected a mapping")
    return found


def _text(parent: JsonObject, name: str) -> str | None:
    found = parent.get(name)
    if found is not None and not isinstance(found, str):
        raise _wrong(f"{name}: expected a text")
    return found


def _wrong(message: str) -> AgentError:
    remedy = "see what the bootstrap provider wrote into the machine's user data"
    return AgentError(AgentReason.CONFIGURATION_INVALID, message, remedy=remedy, kind=FailureKind.USAGE)
