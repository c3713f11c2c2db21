"""The agent's configuration file: ``KubeletAuthenticatorConfiguration`` of ``config.nodeattest.x-k8s.io/v1alpha1``.

The file holds no secrets: the bootstrap token has its own file. ``join`` writes it, and ``refresh`` updates its section
``discovery``.
"""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from nodeattest_authenticator.errors import AgentError, AgentReason, FailureKind, said
from nodeattest_authenticator.formats.client_go import Cluster, parse_cluster, parse_url
from nodeattest_authenticator.formats.strict_json import ConfigFields, FieldsError, parse_config_object
from nodeattest_parsing.endpoint import Endpoint
from nodeattest_providers.errors import Denied
from nodeattest_providers.identifiers import NodeName, ProviderName, Purpose, SignerName, is_dns_name, signer_for
from nodeattest_providers.identifiers import node_name as checked_node_name
from nodeattest_providers.node_interface import JsonObject, JsonValue
from nodeattest_providers.provider_id_template import check_template

API_VERSION: Final = "config.nodeattest.x-k8s.io/v1alpha1"
KIND: Final = "KubeletAuthenticatorConfiguration"
TOKEN_FILE: Final = "bootstrap-token"
DEFAULT_TIMEOUT: Final = 60
"""Seconds for one call: longer than a busy controller takes, short enough for a person who waits."""
_MAX_SIZE: Final = 1 << 22
"""Bytes of the file."""
_MAX_TIMEOUT: Final = 3600
_MIN_EXPIRATION: Final = 600
"""Seconds (kubernetes pkg/apis/certificates/validation)."""
_MAX_EXPIRATION: Final = 2**31 - 1
_PROVIDER_NAME_CHARACTERS: Final = frozenset("abcdefghijklmnopqrstuvwxyz0123456789-")


@dataclass(frozen=True, slots=True, kw_only=True)
class ProviderIdSource:
    """The source of the provider ID. All None: the attestation provider, else the controller."""

    value: str | None = None
    """The provider ID, as in ``Machine.spec.providerID``, or a template such as ``{dmi:product_uuid}``."""
    file: str | None = None
    """A file that holds the provider ID."""
    command: tuple[str, ...] | None = None
    """A program and its arguments that print the provider ID. Run without a shell."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The parsed configuration."""

    cluster: Cluster
    """The workload cluster."""
    node_name: NodeName
    """The node's name. Default: the host name in lower case."""
    provider: ProviderName
    """The attestation provider, such as ``tpm``."""
    provider_settings: Mapping[str, JsonValue] = field(default_factory=dict[str, JsonValue])
    """The provider's settings; the provider's page lists them."""
    provider_id: ProviderIdSource = field(default_factory=ProviderIdSource)
    token_file: str | None = None
    """The file that holds the bootstrap token. Default: ``bootstrap-token`` in the cache directory."""
    timeout_seconds: int = DEFAULT_TIMEOUT
    """The time limit of one call of kubelet, 1 to 3600."""
    expiration_seconds: int | None = None
    """The requested lifetime, at least 600. The policy's ``certificateLifetime`` is the maximum."""
    serving: ServingSettings | None = None
    """The names of the serving certificate. None: the defaults of the command ``serving``."""
    discovery: Discovery | None = None
    """How the node follows a discovered cluster. None if server and CA were given."""

    @property
    def endpoint(self) -> Endpoint:
        """The workload cluster's API server."""
        return self.cluster.endpoint

    @property
    def ca_pem(self) -> bytes:
        """The cluster's CA bundle."""
        return self.cluster.ca_pem

    @property
    def previous_clusters(self) -> tuple[Cluster, ...]:
        """Earlier servers and CAs of the cluster."""
        return self.discovery.previous_clusters if self.discovery else ()

    @property
    def all_ca_pem(self) -> bytes:
        """The CAs that may have issued this node's certificates: current and previous ones.

        Cached certificates stay valid during a CA rotation. Servers are verified against current CAs only.
        """
        return b"".join((self.ca_pem, *(cluster.ca_pem for cluster in self.previous_clusters)))

    @property
    def signer(self) -> SignerName:
        """The signer of this node's client certificate."""
        return signer_for(self.provider, Purpose.CLIENT)

    @property
    def renewable(self) -> bool:
        """Whether this provider renews certificates: the insecure provider refuses rotation (proposal)."""
        return self.provider != "insecure"


def load(path: str, *, hostname: str) -> Settings:
    """Parse the configuration file. ``hostname`` is the default of the node's name.

    A file that other users can write is refused, because it names a command and a server. Raises ``AgentError``.
    """
    try:
        return parse(read_protected(path, limit=_MAX_SIZE), hostname=hostname)
    except FieldsError as error:
        raise invalid(f"{path}: {error}") from None


def read_protected(path: str, *, limit: int) -> bytes:
    """Read a file that no other user can write. Raises ``AgentError``."""
    try:
        with open(path, "rb") as file:
            found = os.fstat(file.fileno())
            data = file.read(limit + 1)
    except OSError as error:
        raise invalid(f"{path}: {error.strerror}") from None
    if found.st_uid not in {0, os.geteuid()} or found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise AgentError(
            AgentReason.CONFIGURATION_INVALID,
            f"other users can write {path}: owner {found.st_uid}, mode {stat.S_IMODE(found.st_mode):04o}",
            remedy=f"check its content, then run chown root {path} and chmod 0600 {path}",
            kind=FailureKind.USAGE,
        )
    if len(data) > limit:
        raise invalid(f"{path}: more than {limit} bytes")
    return data


def invalid(message: str) -> AgentError:
    """Return the error for an invalid configuration."""
    remedy = "correct it, or write it again with kubelet-authenticator join (--set NAME=VALUE for provider settings)"
    return AgentError(AgentReason.CONFIGURATION_INVALID, message, remedy=remedy, kind=FailureKind.USAGE)


def parse(data: bytes, *, hostname: str) -> Settings:
    """Parse the configuration. Raises ``FieldsError``, which names the field."""
    fields = ConfigFields(parse_config_object(data))
    if fields.text("apiVersion") != API_VERSION or fields.text("kind") != KIND:
        raise FieldsError(f"expected apiVersion {API_VERSION} and kind {KIND}")
    provider, provider_settings = _provider(fields)
    serving, discovery = fields.object("serving"), fields.object("discovery")
    if serving and provider == "insecure":
        raise FieldsError("serving needs a provider that proves something; insecure has no serving certificates")
    settings = Settings(
        cluster=parse_cluster(fields),
        # kubelet's rule: pkg/util/node GetHostname trims and lower-cases.
        node_name=_node_name(fields.text("nodeName") or hostname.strip().lower()),
        provider=provider,
        provider_settings=provider_settings,
        provider_id=_provider_id(fields.object("providerID")),
        token_file=fields.text("bootstrapTokenFile"),
        timeout_seconds=fields.number("timeoutSeconds", low=1, high=_MAX_TIMEOUT) or DEFAULT_TIMEOUT,
        expiration_seconds=fields.number("expirationSeconds", low=_MIN_EXPIRATION, high=_MAX_EXPIRATION),
        serving=parse_serving(serving) if serving else None,
        discovery=parse_discovery(discovery) if discovery else None,
    )
    fields.end()
    return settings


def settings_to_json(settings: Settings) -> bytes:
    """Serialize a configuration, so that ``parse`` returns an equal value."""
    source = settings.provider_id
    command: JsonValue = None if source.command is None else [*source.command]
    provider_id = _present({"value": source.value, "file": source.file, "command": command})
    document: JsonObject = {
        "apiVersion": API_VERSION,
        "kind": KIND,
        **settings.cluster.to_json(),
        "nodeName": settings.node_name,
        "provider": {"name": settings.provider, "settings": dict(settings.provider_settings)},
        "timeoutSeconds": settings.timeout_seconds,
    }
    optional: JsonObject = {
        "providerID": provider_id or None,
        "bootstrapTokenFile": settings.token_file,
        "expirationSeconds": settings.expiration_seconds,
        "serving": settings.serving.to_json() if settings.serving else None,
        "discovery": settings.discovery.to_json() if settings.discovery else None,
    }
    return json.dumps(document | _present(optional), indent=2).encode() + b"\n"


def _present(fields: JsonObject) -> JsonObject:
    return {name: value for name, value in fields.items() if value is not None}


def _node_name(text: str) -> NodeName:
    try:
        return checked_node_name(text)
    except Denied as denied:
        raise FieldsError(f"nodeName must be {denied.expected}, got {denied.got}") from None


def _provider(fields: ConfigFields) -> tuple[ProviderName, JsonObject]:
    provider = fields.object("provider")
    if provider is None:
        raise FieldsError("provider is missing")
    name = provider.required("name")
    if not set(name) <= _PROVIDER_NAME_CHARACTERS:
        raise FieldsError("provider.name must be lower-case letters, digits and dashes")
    settings = provider.raw_object("settings")
    provider.end()
    return ProviderName(name), settings


def _provider_id(fields: ConfigFields | None) -> ProviderIdSource:
    if fields is None:
        return ProviderIdSource()
    source = ProviderIdSource(
        value=fields.text("value"), file=fields.text("file"), command=fields.texts("command", at_least=1)
    )
    fields.end()
    if sum(part is not None for part in (source.value, source.file, source.command)) != 1:
        raise FieldsError("providerID needs exactly one of value, file and command")
    if source.value is not None:
        try:
            check_template(source.value)
        except Denied as denied:
            raise FieldsError(f"providerID.value: {said(denied)}") from None
    return source


MAX_SERVERS: Final = 16
"""Servers to ask in turn; the oldest are dropped first."""
MAX_PREVIOUS_CLUSTERS: Final = 4
"""Earlier states of the cluster; a CA rotation has three (old, both, new)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Discovery:
    """The section ``discovery``, for ``refresh``."""

    servers: tuple[Endpoint, ...]
    """API servers of the cluster, asked in this order."""
    kubeconfig: str
    """kubelet's kubeconfig."""
    ca_file: str | None = None
    """kubelet's client CA file, if join wrote it."""
    pin_server: bool = False
    """Keep the server of the discovery file, and refresh its CAs only."""
    previous_clusters: tuple[Cluster, ...] = ()
    """Earlier servers and CAs: a running kubelet may still name them."""

    def with_servers(self, *endpoints: Endpoint) -> Discovery:
        """Return the section with these servers first."""
        return replace(self, servers=tuple(dict.fromkeys((*endpoints, *self.servers)))[:MAX_SERVERS])

    def after(self, old: Cluster, new: Cluster) -> Discovery:
        """Return the section with ``old`` among the previous clusters."""
        others = tuple(cluster for cluster in self.previous_clusters if cluster not in (old, new))
        return replace(self, previous_clusters=others if old == new else (*others, old)[-MAX_PREVIOUS_CLUSTERS:])

    def to_json(self) -> JsonObject:
        """Serialize the section."""
        optional: JsonObject = {
            "caFile": self.ca_file,
            "keepsServer": self.pin_server or None,
            "former": list[JsonValue](cluster.to_json() for cluster in self.previous_clusters) or None,
        }
        section: JsonObject = {
            "servers": list[JsonValue](endpoint.url for endpoint in self.servers),
            "kubeconfig": self.kubeconfig,
        }
        return section | {name: value for name, value in optional.items() if value is not None}


def parse_discovery(fields: ConfigFields) -> Discovery:
    """Parse the section. Raises ``FieldsError``."""
    servers = tuple(parse_url(fields, "servers", url) for url in fields.texts("servers", at_least=1) or ())
    if not 1 <= len(servers) <= MAX_SERVERS or len(set(servers)) != len(servers):
        raise fields.wrong("servers", f"must be 1 to {MAX_SERVERS} different URLs")
    kubeconfig, ca_file = fields.required("kubeconfig"), fields.text("caFile")
    for name, path in (("kubeconfig", kubeconfig), ("caFile", ca_file)):
        if path is not None and (not path.startswith("/") or "\0" in path):
            raise fields.wrong(name, "must be an absolute path")
    former = fields.objects("former")
    if len(former) > MAX_PREVIOUS_CLUSTERS:
        raise fields.wrong("former", f"must be at most {MAX_PREVIOUS_CLUSTERS} clusters")
    previous_clusters = tuple(parse_cluster(one) for one in former)
    for one in former:
        one.end()
    found = Discovery(
        servers=servers,
        kubeconfig=kubeconfig,
        ca_file=ca_file,
        pin_server=fields.flag("keepsServer"),
        previous_clusters=previous_clusters,
    )
    fields.end()
    return found


_MOST_NAMES: Final = 32
"""docs/wire-format.md, "names in a serving request"."""


@dataclass(frozen=True, slots=True)
class SubjectNames:
    """Subject alternative names, each type sorted and without duplicates."""

    dns_names: tuple[str, ...]
    ip_addresses: tuple[str, ...]

    def __str__(self) -> str:
        return ", ".join((*self.dns_names, *self.ip_addresses))


@dataclass(frozen=True, slots=True, kw_only=True)
class ServingSettings:
    """The section ``serving``; None means the default."""

    dns_names: tuple[str, ...] | None = None
    """The DNS names of the certificate. Default: the node's name."""
    ip_addresses: tuple[str, ...] | None = None
    """The IP addresses of the certificate. Default: those by which this machine reaches the API server."""

    def to_json(self) -> JsonObject:
        """Serialize the section."""
        lists = {"dnsNames": self.dns_names, "ipAddresses": self.ip_addresses}
        return {name: list[JsonValue](values) for name, values in lists.items() if values is not None}


def parse_serving(fields: ConfigFields) -> ServingSettings:
    """Parse the section. Raises ``FieldsError``."""
    dns_names, addresses = fields.texts("dnsNames"), fields.texts("ipAddresses")
    fields.end()
    for name in dns_names or ():
        if not is_dns_name(name):
            raise FieldsError("serving.dnsNames must be DNS names in lower case, without wildcard or final dot")
    canonical = None if addresses is None else tuple(_address(text) for text in addresses)
    for names in (dns_names or (), canonical or ()):
        if len(set(names)) != len(names):
            raise FieldsError("serving must not repeat a name")
    if _count(dns_names) + _count(canonical) > _MOST_NAMES:
        raise FieldsError(f"serving must have at most {_MOST_NAMES} names")
    if dns_names == () and canonical == ():
        raise FieldsError("serving.dnsNames and serving.ipAddresses must not both be empty")
    return ServingSettings(dns_names=dns_names, ip_addresses=canonical)


def _address(text: str) -> str:
    from ipaddress import IPv6Address, ip_address  # few nodes configure addresses

    try:
        address = ip_address(text)
    except ValueError:
        raise FieldsError("serving.ipAddresses must be IP addresses") from None
    if isinstance(address, IPv6Address) and (address.ipv4_mapped is not None or address.scope_id is not None):
        raise FieldsError("serving.ipAddresses must be IPv4 addresses in their own form, and IPv6 ones without zone")
    return str(address)


def _count(names: Sequence[str] | None) -> int:
    return 1 if names is None else len(names)
