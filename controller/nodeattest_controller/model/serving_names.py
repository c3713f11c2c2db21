"""Which names a node's serving certificate may have. Pure.

A name or address passes if the Machine lists it, in its one canonical spelling, nobody else of the cluster lists or
claims it, and it is no name of a service, a platform or every machine. A guest's agent may write what a Machine lists.
Sources: RFC 6890 (special addresses), RFC 6761 §6.3 (localhost), k8s pkg/controlplane, the platforms' documentation.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import Final

from nodeattest_controller.model.certificate_authority import SubjectAltNames
from nodeattest_controller.model.machine_view import MachineView
from nodeattest_parsing.objects import mapping, strings, text
from nodeattest_parsing.values import JsonObject
from nodeattest_providers.errors import Denied, Reason, Unavailable
from nodeattest_providers.identifiers import NodeName, is_dns_name, printable
from nodeattest_providers.verifier_interface import Addresses

ConflictingMachines = Callable[[str], Sequence[MachineView]]
"""Other machines of the cluster that list or claim a name or address."""

YOUNG: Final = timedelta(hours=1)
"""A Machine's addresses are filled in while it starts; after this its list counts as complete."""
RECHECK: Final = 5.0
"""Seconds; a change of the Machine wakes the request earlier."""
_NAME_TYPES: Final = frozenset({"Hostname", "InternalDNS", "ExternalDNS"})
_IP_TYPES: Final = frozenset({"InternalIP", "ExternalIP"})

_LOCAL_NAMES: Final = frozenset(
    {"localhost", "localhost.localdomain", "localhost4", "localhost6", "ip6-localhost", "ip6-loopback"}
)
_PLATFORM_NAMES: Final = frozenset({"metadata.google.internal", "instance-data", "instance-data.ec2.internal"})
_PLATFORM_ADDRESSES: Final = frozenset(
    map(ip_address, ("fd00:ec2::254", "fd20:ce::254", "168.63.129.16", "100.100.100.200", "192.0.0.192"))
)
"""Metadata services that are not link-local: EC2 and Google on IPv6, Azure, Alibaba, Oracle."""
_THIS_NETWORK: Final = ip_network("0.0.0.0/8")
_API_SERVER: Final = "kubernetes"
"""The first label of the API server's own service names: kubernetes, kubernetes.default, kubernetes.default.svc, …"""
_SERVICE_DOMAIN: Final = "cluster.local"
_USUAL_SERVICES: Final = (ip_network("10.96.0.1/32"),)
"""The API server's own where the Cluster names none; not all of kubeadm's 10.96.0.0/12: others' nodes may be in it."""
_REMEDY: Final = "ask for names and addresses of this machine only; they are compared with those of its Machine"
_POOL_REMEDY: Final = (
    "attest by aws, azure or gcp, whose platforms list addresses; else ask for the node's name only, or set "
    "serving.kubelet: Ignore and let another approver decide (docs/operate.md#serving-certificates)"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterNetwork:
    """What of a cluster no single node may answer for."""

    endpoint: str = ""
    """The control plane's host as ``normalize_host`` writes it; empty while unknown, and for those who answer there."""
    services: tuple[IPv4Network | IPv6Network, ...] = ()
    service_domain: str = _SERVICE_DOMAIN


def network_of(cluster: JsonObject) -> ClusterNetwork:
    """Read a Cluster object; malformed fields are ignored."""
    network = mapping(cluster, "spec", "clusterNetwork")
    written = strings(network, "services", "cidrBlocks")
    blocks = tuple(block for each in written if (block := _block(each)) is not None)
    return ClusterNetwork(
        endpoint=normalize_host(text(cluster, "spec", "controlPlaneEndpoint", "host")),
        services=blocks or _USUAL_SERVICES,
        service_domain=text(network, "serviceDomain").lower().strip(".") or _SERVICE_DOMAIN,
    )


def check_sans_unclaimed(
    wanted: SubjectAltNames, *, machine: MachineView, network: ClusterNetwork, rivals: ConflictingMachines
) -> None:
    """Apply the rules that hold whatever this machine's own list contains; raises Denied or Unavailable.

    A machine of the control plane that lists the endpoint may have it, whoever else lists it: it holds the API server's
    own serving key, which has that name anyway. A worker never gets it, so must not keep it from them.
    """
    shared = network.endpoint if machine.is_control_plane else ""
    network = replace(network, endpoint="") if machine.is_control_plane else network
    addresses = [_checked_address(address, network) for address in wanted.ip_addresses]
    for name in wanted.dns_names:
        _check_name(name, network)
    for place in (*wanted.dns_names, *map(str, addresses)):
        host = normalize_host(place)
        if host != shared or not shared:
            _check_rivals(place, rivals(host))


def check_sans_listed(
    wanted: SubjectAltNames, *, node_name: NodeName, listed: Addresses, settled: bool, of_pool: bool = False
) -> None:
    """Allow names that passed ``check_sans_unclaimed`` and are listed; raises Denied, or Unavailable unless settled.

    ``of_pool``: an instance without a Machine. Providers list capitals, final dots, and prefix lengths of addresses.
    """
    names = [name.lower().removesuffix(".") for kind, name in listed if kind in _NAME_TYPES and name.isascii()]
    own_names = {node_name, *names}
    addresses = [address.partition("/")[0] for kind, address in listed if kind in _IP_TYPES]
    own_addresses = set(map(_strict_address, addresses)) - {None}
    missing = [name for name in wanted.dns_names if name not in own_names]
    missing += [address for address in wanted.ip_addresses if _strict_address(address) not in own_addresses]
    shown = ", ".join(map(printable, missing))
    if missing and of_pool:
        raise Denied(
            Reason.ADDRESS_NOT_ALLOWED,
            expected="the node's name only: an instance of a MachinePool without a Machine lists no addresses",
            got=shown,
            remedy=_POOL_REMEDY,
        )
    if missing and settled:
        raise _refused("names and addresses that the Machine lists", shown)
    if missing:
        raise Unavailable(
            Reason.ADDRESS_NOT_ALLOWED,
            f"the Machine does not list {shown} yet",
            remedy="wait until the infrastructure provider has filled in the Machine's addresses",
            retry_after=RECHECK,
        )


def addresses_final(member: MachineView, at: datetime) -> bool:
    """Return whether a Machine's list of addresses is complete: it has a node, some address, and an hour of life."""
    if member.kind != "Machine":
        return True
    old = member.created is None or at - member.created >= YOUNG
    return old and bool(member.addresses) and member.node_ref_name is not None


def parse_address(written: str) -> IPv4Address | IPv6Address | None:
    try:
        return ip_address(written)
    except ValueError:
        return None


def normalize_host(written: str) -> str:
    """Spell a name or address so that two spellings of one place are equal; for refusals only."""
    bare = written.partition("/")[0].strip().strip("[]").partition("%")[0]
    address = parse_address(bare)
    if address is None:
        return bare.lower().rstrip(".")
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return str(mapped or address)


def san_candidates(member: MachineView) -> Iterable[str]:
    return {place for _, address in member.addresses if (place := normalize_host(address))}


def _strict_address(written: str) -> IPv4Address | IPv6Address | None:
    """Read an address in an unambiguous spelling: no zone, no leading zeros, no IPv4 inside IPv6."""
    address = parse_address(written)
    if isinstance(address, IPv6Address) and (address.ipv4_mapped is not None or address.scope_id is not None):
        return None
    return address


def _checked_address(written: str, network: ClusterNetwork) -> IPv4Address | IPv6Address:
    address = _strict_address(written)
    if address is None:
        raise _refused("an address in its ordinary spelling", printable(written))
    ranges = ("is_loopback", "is_unspecified", "is_multicast", "is_link_local", "is_reserved")
    if any(getattr(address, each) for each in ranges) or address in _THIS_NETWORK or address in _PLATFORM_ADDRESSES:
        raise _refused("an address of one machine", f"{address}, which is special")
    if str(address) == network.endpoint:
        raise _refused("an address of one machine", f"{address}, the control plane's")
    if any(address in block for block in network.services):
        raise _refused("an address of one machine", f"{address}, a service's")
    return address


def _check_name(name: str, network: ClusterNetwork) -> None:
    if not is_dns_name(name) or _strict_address(name) is not None:
        raise _refused("a DNS name in lower case, without wildcard and final dot", printable(name))
    if name in _LOCAL_NAMES or name.endswith(".localhost") or name in _PLATFORM_NAMES:
        raise _refused("a name of one machine", f"{printable(name)}, which means another on each machine")
    services = (".svc", f".svc.{_SERVICE_DOMAIN}", f".svc.{network.service_domain}")
    if name.split(".", maxsplit=1)[0] == _API_SERVER or name.endswith(services):
        raise _refused("a name of one machine", f"{printable(name)}, a service's")
    if name == network.endpoint:
        raise _refused("a name of one machine", f"{printable(name)}, the control plane's")


def _check_rivals(place: str, rivals: Sequence[MachineView]) -> None:
    staying = sorted({rival.name for rival in rivals if not rival.deleting})
    if staying:
        raise _refused("a name or address of this machine alone", f"{place}, also that of {', '.join(staying)}")
    if rivals:
        raise Unavailable(
            Reason.ADDRESS_NOT_ALLOWED,
            f"{place} is also that of a machine on its way out",
            remedy="wait until the machine that had this name or address before is gone",
            retry_after=RECHECK,
        )


def _block(written: str) -> IPv4Network | IPv6Network | None:
    try:
        return ip_network(written, strict=False)
    except ValueError:
        return None


def _refused(expected: str, got: str) -> Denied:
    return Denied(Reason.ADDRESS_NOT_ALLOWED, expected=expected, got=got, remedy=_REMEDY)
