"""Reads the cluster, the token and the node's name from the configuration that ``kubeadm join`` is about to use.

Cluster API's bootstrap provider writes server, token and CA pins into a JoinConfiguration on the machine. Tokens never
reach arguments or messages. Out of scope: documents and fields that only kubeadm needs.
Source: kubernetes cmd/kubeadm/app/apis/kubeadm/{v1beta3,v1beta4}/types.go; app/phases/kubelet/flags.go
``GetNodeNameAndHostname``; component-helpers node/util/hostname.go ``GetHostname``; cluster-api
bootstrap/kubeadm/types/upstream.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from nodeattest_authenticator.commands.flags import ByFile, ByToken, ClusterSource, host_and_port, pins_of
from nodeattest_authenticator.errors import AgentError, AgentReason, FailureKind, said
from nodeattest_authenticator.settings import read_protected
from nodeattest_authenticator.state.records import parse_token
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
"""In v1beta4 kubeletExtraArgs is a list."""
_JOIN_KIND: Final = "JoinConfiguration"
_INIT_KINDS: Final = frozenset({"ClusterConfiguration", "InitConfiguration"})
_SEPARATOR: Final = re.compile(rb"^---[ \t\r]*(?:#.*)?$", re.MULTILINE)
"""Between documents, as kubeadm splits them (k8s.io/apimachinery util/yaml ``NewYAMLReader``)."""
_KIND: Final = re.compile(rb"""^["']?kind["']?[ \t]*:[ \t]+["']?([A-Za-z]+)["']?[ \t\r]*(?:#.*)?$""", re.MULTILINE)
"""A top-level field of a document, at the left margin."""
_LIMIT: Final = 1 << 20
"""Bytes; clouds allow at most 64 KiB of user data."""
_MAX_DEPTH: Final = 16
"""Levels."""
_MAX_VALUES: Final = 4096
"""Values and keys."""
_MAX_DOCUMENTS: Final = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Joining:
    """The parsed JoinConfiguration."""

    way: ClusterSource = field(repr=False)
    token: BootstrapToken | None = field(default=None, repr=False)
    """For the first certificate. None if the discovery file holds it."""
    node_name: NodeName | None = None
    provider_id: ProviderID | None = None
    """kubelet's ``--provider-id``."""


def load(path: str, *, limit: int) -> Joining | None:
    """Parse a file. Return None if it is for ``kubeadm init``. Raises ``AgentError``."""
    data = read_protected(path, limit=_LIMIT)
    try:
        return parse(data, limit=limit)
    except AgentError as failure:
        raise _wrong(f"{path}: {failure.message}") from None


def parse(data: bytes, *, limit: int) -> Joining | None:
    """Parse the bytes of a file. Raises ``AgentError`` without secrets in its message."""
    kinds, joins = _documents(data)
    if len(joins) > 1:
        raise _wrong(f"expected one JoinConfiguration, got {len(joins)}")
    if not joins:
        if kinds.isdisjoint(_INIT_KINDS):
            raise _wrong("expected a JoinConfiguration, InitConfiguration or ClusterConfiguration, got none")
        return None
    version = _text(joins[0], "apiVersion") or ""
    if not version.startswith(_GROUP) or version.removeprefix(_GROUP) not in _VERSIONS:
        raise _wrong(f"expected a JoinConfiguration of {_GROUP}{{{','.join(_VERSIONS)}}}, got {version[:40]!a}")
    return _joining(joins[0], limit)


def _documents(data: bytes) -> tuple[set[str], list[JsonObject]]:
    """Return the kinds of all documents, and the JoinConfigurations. Other documents are not validated."""
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
                continue  # another kind: JSON, indented, or after a byte order mark
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
        # As kubeadm does, use a credential in the file.
        way = ByFile(source=path, allow_credentials=True, limit=limit)
        return Joining(way=way, token=apart, node_name=node_name, provider_id=provider_id)
    token = _token(by_token, "token")
    if token is None:
        raise _wrong("discovery.bootstrapToken: expected a token, got none; the bootstrap provider sets it")
    server = host_and_port(_needed(by_token, "apiServerEndpoint", "discovery.bootstrapToken"), "apiServerEndpoint")
    way = ByToken(servers=(server,), token=token, pins=_pins(by_token), limit=limit)
    return Joining(way=way, token=apart or token, node_name=node_name, provider_id=provider_id)


def _node_name(registration: JsonObject, arguments: dict[str, str]) -> NodeName | None:
    """Return the name that kubelet registers. kubeadm and kubelet trim it and convert it to lower case."""
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
    """Return kubelet's ``--provider-id``."""
    given = arguments.get("provider-id")
    if not given:
        return None
    try:
        value = provider_id_template.unquote(given)
        provider_id_template.check_rendered(value)
        if provider_id_template.has_sources(value):
            raise _wrong(
                "nodeRegistration.kubeletExtraArgs provider-id: kubelet does not expand templates; pass the template "
                "to the agent only, with --provider-id"
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
        raise _wrong("caCertHashes: expected a list of strings")
    if not hashes and unsafe is not True:
        raise _wrong("expected caCertHashes, or unsafeSkipCAVerification: true, got neither")
    # If both are set, the pins count, as in kubeadm (app/discovery/token).
    return pins_of([str(item) for item in hashes], "caCertHashes") if hashes else None


def _arguments(registration: JsonObject) -> dict[str, str]:
    """Parse kubeletExtraArgs: a map, or since v1beta4 a list in which the last entry of a name counts."""
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
        raise _wrong("nodeRegistration.kubeletExtraArgs: expected names and values that are strings")
    return found


def _token(section: JsonObject, name: str) -> BootstrapToken | None:
    text = _text(section, name)
    return parse_token(text.encode("utf-8", "replace"), source=f"{name}: ") if text else None


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
        raise _wrong(f"{name}: expected a string")
    return found


def _wrong(message: str) -> AgentError:
    remedy = "see what the bootstrap provider wrote into the machine's user data"
    return AgentError(AgentReason.CONFIGURATION_INVALID, message, remedy=remedy, kind=FailureKind.USAGE)
