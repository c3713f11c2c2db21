"""The controller's settings: one frozen value that is in range and consistent.

Anything else is a ``SettingsError`` that names the field, what was expected and what was found.
Out of scope: reading files and flags (``configfile``); nothing is read from the environment.
Source: names and defaults follow kube-controller-manager where it has the same setting.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from nodeattest_kube.addresses import POD_IPS, AddressRules, parse_network, parse_pod_ips
from nodeattest_parsing.times import format_seconds
from nodeattest_providers.identifiers import PROVIDER_ID_OID
from nodeattest_providers.node_interface import JsonValue
from nodeattest_serving.bounded_server import BindAddress, SettingsError, parse_bind_address

COMPONENT: Final = "node-attestation-controller"
CONTROLLERS: Final = (
    "attestation",
    "serving",
    "standing",
    "hardening",
    "bootstrap-config",
    "bootstrap-token",
    "bootstrap-signer",
    "token-cleaner",
    "issuer",
)
OFF_BY_DEFAULT: Final = ("bootstrap-signer", "token-cleaner", "issuer")
"""Controllers that ``*`` does not mean: kube-controller-manager may run the first two, the last needs a place."""
INVENTORIES: Final = ("ClusterAPI", "MachineRecords")
LOG_LEVELS: Final = ("debug", "info", "warning", "error")
LOG_FORMATS: Final = ("json", "text")

_MINUTE: Final = 60.0
_HOUR: Final = 3600.0
_DAY: Final = 24 * _HOUR

_RANGES: Final[dict[str, tuple[float, float]]] = {
    "lease_duration": (1.0, _HOUR),
    "renew_deadline": (0.5, _HOUR),
    "retry_period": (0.1, _HOUR),
    "certificate_lifetime": (10 * _MINUTE, 365 * _DAY),
    "wait_limit": (10.0, 23 * _HOUR),
    "challenge_key_rotation": (10 * _MINUTE, 30 * _DAY),
    "request_timeout": (1.0, 5 * _MINUTE),
    "verification_timeout": (1.0, 5 * _MINUTE),
    "issuer_max_age": (0.0, 7 * _DAY),
}
"""Seconds. A certificate shorter than 10 minutes is refused by the signer API (expirationSeconds >= 600); the in-tree
cleaner removes a request that is pending for 24 hours, so a wait must end before."""
_COUNTS: Final = {"workers": 256, "clusters_per_namespace": 10_000}
"""The most of each; at least one."""

_DNS_LABEL: Final = re.compile(r"[a-z0-9](?:[-a-z0-9]{0,61}[a-z0-9])?", re.ASCII)
_DNS_SUBDOMAIN: Final = re.compile(rf"(?=.{{1,253}}\Z){_DNS_LABEL.pattern}(?:\.{_DNS_LABEL.pattern})*", re.ASCII)
_OID: Final = re.compile(r"(?=.{3,128}\Z)[0-2]\.(?:0|[1-9][0-9]*)(?:\.(?:0|[1-9][0-9]*))*", re.ASCII)
_ACRONYMS: Final = {"ca": "CA", "cidrs": "CIDRs", "id": "ID", "oid": "OID"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The controller's settings; times are seconds."""

    identity: str
    """This replica's identity in Leases, unique among replicas."""
    kubeconfig: Path | None = None
    """The management cluster's; None means the pod's own service account."""
    namespace: str = "nodeattest-system"
    """Where the controller keeps its own objects: the Lease and the challenge key."""
    watch_namespace: str | None = None
    """The only namespace whose Clusters are served; None means all."""
    watch_filter: str | None = None
    """Serve only Clusters whose label ``cluster.x-k8s.io/watch-filter`` has this value; None: only those without it."""
    controllers: tuple[str, ...] = ("*",)
    """As in kube-controller-manager: ``*``, ``name``, ``-name``.

    A name wins over ``*``; of several entries for one name, the first decides.
    ``*`` stands for all but those of ``OFF_BY_DEFAULT``.
    """
    inventory: tuple[str, ...] = ("ClusterAPI",)
    """Where clusters and machines come from: Cluster API's objects, MachineRecords and ClusterRecords, or both."""
    leader_elect: bool = True
    """Whether replicas elect one that works, while the others stand by."""
    lease_name: str = "node-attestation-controller"
    """The Lease of leader election; ``watchFilter`` is appended to its name."""
    lease_duration: float = 15.0
    """How long other replicas wait for a leader that no longer renews its Lease, in whole seconds."""
    renew_deadline: float = 10.0
    """How long a leader tries to renew its Lease before it stops; less than ``leaseDuration``."""
    retry_period: float = 2.0
    """Between two attempts to take or renew a Lease."""
    health_bind_address: str = "127.0.0.1:9440"
    """Serves /healthz, /livez and /readyz; port 0 takes a free one."""
    metrics_bind_address: str = "127.0.0.1:8080"
    """Serves /metrics; ``0`` serves none, port 0 takes a free one."""
    metrics_secure: bool = False
    """Serve them over HTTPS, to clients that the API server authenticates and allows."""
    metrics_cert_dir: str | None = None
    """Folder of its ``tls.crt`` and ``tls.key``, read again when they change; None: a self-signed certificate."""
    metrics_audiences: tuple[str, ...] = ()
    """A token must be for one of them; empty: for the API server, as a pod's own token is."""
    webhook_bind_address: str = "0"
    """Serves the webhook of ``bootstrap-config`` over TLS; ``0`` serves none, port 0 takes a free one."""
    webhook_cert_dir: str | None = None
    """Folder of the webhook's ``tls.crt`` and ``tls.key``, read again when they change; required with an address."""
    webhook_client_ca_file: Path | None = None
    """CAs of the client certificates that API servers present to the webhook; None: anybody may call it."""
    webhook_client_names: tuple[str, ...] = ()
    """Common names of these certificates; empty: any that the CA signed."""
    webhook_allowed_cidrs: tuple[str, ...] = ()
    """Addresses and networks of API servers; the webhook closes other connections at once. Empty: any may connect."""
    webhook_configuration_name: str = "nodeattest-bootstrap-config"
    """Our MutatingWebhookConfiguration and ValidatingWebhookConfiguration; ``watchFilter`` is appended to the name."""
    issuer_base: str | None = None
    """The cluster ``C`` of the namespace ``N`` is the issuer ``<issuerBase>/N/C``."""
    issuer_place: str | None = None
    """Where ``issuer`` publishes, each cluster's documents below ``N/C`` in it.

    ``s3://BUCKET/PREFIX``, ``azblob://ACCOUNT/CONTAINER/PREFIX``, ``gs://BUCKET/PREFIX`` or ``dir:PATH``.
    """
    issuer_max_age: float = _HOUR
    """How long others may keep the documents: a new key must be published so long before it signs."""
    workers: int = 32
    """Requests that are worked on at the same time."""
    clusters_per_namespace: int = 200
    """Clusters of one namespace that are served; more wait."""
    certificate_lifetime: float = 14 * _DAY
    """Of a certificate, if the policy names none."""
    wait_limit: float = 15 * _MINUTE
    """How long after its creation a request may wait for its Machine."""
    challenge_key_rotation: float = _DAY
    """Between two rotations. The previous key is kept for one more, much longer than a challenge is valid (300 s)."""
    provider_id_oid: str = PROVIDER_ID_OID
    """Of the certificate request's extension that holds the provider ID; ours in the agent is the default."""
    request_timeout: float = 10.0
    """For one request to an API server, watches excepted."""
    allowed_addresses: tuple[str, ...] = ()
    """Networks that a workload cluster's kubeconfig may lead to although they are loopback, link-local, a cloud's, or
    of the controller's pod."""
    verification_timeout: float = 20.0
    """For one provider's verification of one request; a platform that it asks may hang."""
    log_level: str = "info"
    """The least that is logged: debug, info, warning or error."""
    log_format: str = "json"
    """json or text."""
    platforms: Mapping[str, Mapping[str, JsonValue]] = field(
        default_factory=dict[str, Mapping[str, JsonValue]], repr=False
    )
    """By provider: where its platform's API is, and whose certificates it trusts."""

    def __post_init__(self) -> None:
        """Raise ``SettingsError`` for a value out of range."""
        for name, (low, high) in _RANGES.items():
            value: float = getattr(self, name)
            if not low <= value <= high:
                _refuse(name, f"{format_seconds(low)} to {format_seconds(high)}", format_seconds(value))
        for name, highest in _COUNTS.items():
            count: int = getattr(self, name)
            if not 1 <= count <= highest:
                _refuse(name, f"1 to {highest}", str(count))
        _check_texts(self)
        _check_controllers(self)
        _check_lease(self)
        _check_servers(self)
        _check_issuer(self)

    def enabled(self, controller: str) -> bool:
        return controller in _enabled(self.controllers)

    @property
    def instance(self) -> str:
        """The name of this controller among those that serve other values of the watch filter, and of its Lease."""
        return self._of_instance(self.lease_name)

    @property
    def webhook_configuration(self) -> str:
        return self._of_instance(self.webhook_configuration_name)

    def _of_instance(self, name: str) -> str:
        return name if self.watch_filter is None else f"{name}-{self.watch_filter}"

    def workload_addresses(self, pod_ips: str) -> AddressRules:
        """Return which addresses kubeconfigs may name; ``pod_ips`` is the value of ``POD_IPS``."""
        allowed = tuple(parse_network(each) for each in self.allowed_addresses)
        try:
            return AddressRules(allowed, parse_pod_ips(pod_ips))
        except ValueError:
            raise SettingsError(f"{POD_IPS}: expected IP addresses separated by commas, got {pod_ips!r}") from None

    @property
    def health_address(self) -> BindAddress:
        return parse_bind_address(self.health_bind_address, "healthBindAddress")

    @property
    def webhook_address(self) -> BindAddress | None:
        return None if self.webhook_bind_address == "0" else parse_bind_address(self.webhook_bind_address, "")

    @property
    def has_webhook(self) -> bool:
        """Whether controller ``bootstrap-config`` runs."""
        return self.enabled("bootstrap-config") and self.webhook_address is not None

    @property
    def metrics_address(self) -> BindAddress | None:
        return None if self.metrics_bind_address == "0" else parse_bind_address(self.metrics_bind_address, "")


def camel(name: str) -> str:
    """Write a field's name as the configuration file spells it: Kubernetes' camelCase, acronyms in capitals."""
    head, *rest = name.split("_")
    return head + "".join(_ACRONYMS.get(part, part.capitalize()) for part in rest)


def _check_texts(settings: Settings) -> None:
    for name, pattern, expected in (
        ("namespace", _DNS_LABEL, "a namespace's name (a DNS label)"),
        ("watch_namespace", _DNS_LABEL, "a namespace's name (a DNS label)"),
        (
            "watch_filter",
            _DNS_LABEL,
            "a label's value of lower-case letters, digits and '-', as the Lease is named by it",
        ),
        ("lease_name", _DNS_SUBDOMAIN, "an object's name (a DNS subdomain)"),
        ("webhook_configuration_name", _DNS_SUBDOMAIN, "an object's name (a DNS subdomain)"),
        ("provider_id_oid", _OID, "a dotted object identifier such as 1.3.6.1.4.1.11129.2.1.21"),
        ("log_level", re.compile("|".join(LOG_LEVELS)), "one of " + ", ".join(LOG_LEVELS)),
        ("log_format", re.compile("|".join(LOG_FORMATS)), "one of " + ", ".join(LOG_FORMATS)),
    ):
        value: str | None = getattr(settings, name)
        if value is not None and not pattern.fullmatch(value):
            _refuse(name, expected, repr(value))
    for name in ("health_bind_address", "metrics_bind_address", "webhook_bind_address"):
        address: str = getattr(settings, name)
        _ = address == "0" or parse_bind_address(address, camel(name))
    for name in ("allowed_addresses", "webhook_allowed_cidrs"):
        networks: tuple[str, ...] = getattr(settings, name)
        for each in networks:
            try:
                parse_network(each)
            except ValueError:
                _refuse(name, "IP addresses and networks such as 127.0.0.0/8", repr(each))


def _check_controllers(settings: Settings) -> None:
    for word in settings.controllers:
        if word.removeprefix("-") not in CONTROLLERS and word != "*":
            _refuse("controllers", '"*", a name or "-name" of ' + ", ".join(CONTROLLERS), repr(word))
    if not any(_enabled(settings.controllers)):
        _refuse("controllers", "at least one enabled controller", repr(",".join(settings.controllers)))
    unknown = [word for word in settings.inventory if word not in INVENTORIES]
    if unknown or not settings.inventory:
        _refuse("inventory", "one or more of " + ", ".join(INVENTORIES), repr(unknown[0]) if unknown else "none")


def _check_lease(settings: Settings) -> None:
    """Check the Lease as client-go: a leader stops before another may begin."""
    lease, renew, retry = settings.lease_duration, settings.renew_deadline, settings.retry_period * 1.2  # JitterFactor
    if not settings.identity.strip():
        _refuse("identity", "a name unique among replicas", "nothing")
    if lease != int(lease):
        _refuse("lease_duration", "whole seconds, as a Lease holds them", format_seconds(lease))
    if renew >= lease:
        _refuse("renew_deadline", f"less than leaseDuration ({format_seconds(lease)})", format_seconds(renew))
    if renew <= retry:
        _refuse("renew_deadline", f"more than 1.2 times retryPeriod ({format_seconds(retry)})", format_seconds(renew))


def _check_servers(settings: Settings) -> None:
    if settings.health_bind_address == "0":
        _refuse("health_bind_address", "an address: probes need it", "'0'")
    if "bootstrap-config" in settings.controllers and settings.webhook_bind_address == "0":
        _refuse("webhook_bind_address", "an address, since bootstrap-config is asked for by name", "'0'")
    if settings.has_webhook and settings.webhook_cert_dir is None:
        _refuse("webhook_cert_dir", "the folder of tls.crt and tls.key, as manifests/default mounts it", "none")
    if settings.webhook_client_names and settings.webhook_client_ca_file is None:
        _refuse("webhook_client_names", "webhookClientCAFile, too: by it the names are verified", "names only")
    if settings.metrics_secure and settings.metrics_bind_address == "0":
        _refuse("metrics_bind_address", "an address, since metricsSecure is asked for", "'0'")
    for name in ("metrics_cert_dir", "metrics_audiences"):
        if getattr(settings, name) and not settings.metrics_secure:
            _refuse("metrics_secure", f"true, since {camel(name)} is given", "false")


def _check_issuer(settings: Settings) -> None:
    base, place = settings.issuer_base, settings.issuer_place
    for name, value in (("issuer_base", base), ("issuer_place", place)):
        if value is None and (settings.enabled("issuer") or base or place):
            _refuse(name, "a value, since issuers are to be published", "nothing")
    if base is None or place is None:
        return
    from nodeattest_identity.issuer.documents import UrlError, issuer_url
    from nodeattest_identity.publish.store import StoreRefusedError, parse_location

    try:
        issuer_url(base)
    except UrlError as error:
        _refuse("issuer_base", "the https URL that all issuers begin with", str(error))
    try:
        parse_location(place.removesuffix("/"))
    except StoreRefusedError as error:
        _refuse("issuer_place", "a place", str(error))


def _enabled(wanted: tuple[str, ...]) -> tuple[str, ...]:
    """List the controllers that run; the rule is kube-controller-manager's ``IsControllerEnabled``."""
    default = tuple(name for name in CONTROLLERS if "*" in wanted and name not in OFF_BY_DEFAULT)
    decisions = {name: [word == name for word in wanted if word in {name, f"-{name}"}] for name in CONTROLLERS}
    return tuple(name for name, decided in decisions.items() if (decided or [name in default])[0])


def _refuse(field: str, expected: str, got: str) -> None:
    raise SettingsError(f"{camel(field)}: expected {expected}, got {got}")
