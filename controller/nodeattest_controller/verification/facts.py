"""The facts that checks ask for, each gathered once for a request, when the first check needs it.

``FactSource`` is where facts come from: caches and live reads (``ControllerFacts``), or stored documents in
``nodeattest explain``. ``RequestFacts`` is what checks see: a fact, or the exception that came instead of it.
"""

from __future__ import annotations

import functools
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Mapping
from datetime import datetime
from typing import Concatenate, ParamSpec, TypeVar, cast

from nodeattest_controller.model.attestation import Attestation, new_attestation
from nodeattest_controller.model.certificate_authority import SubjectAltNames
from nodeattest_controller.model.csr_request import CSRSummary, RequestState, Round, parse_request, summarize
from nodeattest_controller.model.infrastructure_kinds import known_kind
from nodeattest_controller.model.kubeadm_config import KeptConfig
from nodeattest_controller.model.machine_view import MachineView
from nodeattest_controller.model.node_names import NameContext, NameSources, check_claim, node_names
from nodeattest_controller.model.policy import Policy
from nodeattest_controller.model.resolver import (
    ExpectedProviderID,
    Infrastructure,
    expected_provider_id,
    find_machine,
    host_names,
    identified,
)
from nodeattest_controller.runtime.indexes import ClusterKey, Inventory
from nodeattest_discovery.token import USER_PREFIX
from nodeattest_parsing.values import JsonObject
from nodeattest_providers.config_fields import COMPOSITE, split_pin
from nodeattest_providers.errors import Denied
from nodeattest_providers.identifiers import PROVIDER_ID_OID, NodeName, ProviderID, ProviderName, Purpose
from nodeattest_providers.node_interface import FirstRequestRef
from nodeattest_providers.verifier_interface import Addresses, AttestedNode, ClusterAPISigner, NodeRequest

S = TypeVar("S", bound="RequestFacts")
T = TypeVar("T")
P = ParamSpec("P")
_KEY_SOURCES = {
    "named by the platform",
    "on the allow-list",
    "named by EC2",
    "named by the Machine's annotation",
    "first use",
}
"""Checks of provider tpm, each of which binds an endorsement key to a machine."""


class FactSource(ABC):
    """Where the facts of one cluster come from; raises Unavailable, or its own exception for a document it lacks."""

    provider_id_oid = PROVIDER_ID_OID
    """The extension that carries a provider ID in a certificate request."""

    @property
    @abstractmethod
    def key(self) -> ClusterKey: ...

    @property
    @abstractmethod
    def inventory(self) -> Inventory:
        """Machines and attestations by what a request can claim."""

    @abstractmethod
    def now(self) -> datetime: ...

    @abstractmethod
    def cluster(self) -> JsonObject:
        """Return the cluster's object; raises Unavailable while the controller must not act for it."""

    @abstractmethod
    def policy(self) -> Policy: ...

    @abstractmethod
    def verifier(self, provider: ProviderName) -> ClusterAPISigner: ...

    def machines(self, provider_id: str) -> list[MachineView]:
        return self.inventory.members(self.key, provider_id)

    def machines_of_node(self, node_name: NodeName) -> list[MachineView]:
        """Return the machines of the cluster that claim a node's name or are bound to it."""
        return self.inventory.members_of_node(self.key, node_name)

    def attestation(self, machine: MachineView) -> Attestation:
        """Return a machine's attestation; an empty one where it never joined."""
        return self.inventory.attestation(self.key, machine.provider_id) or new_attestation(machine)

    def recorded_attestation(self, machine: MachineView) -> Attestation:
        """Return the same, for a rule that only a recorded one can fulfil."""
        return self.attestation(machine)

    def summary(self, first: JsonObject | None, request: NodeRequest, attestation: Attestation) -> CSRSummary | None:
        """Return where a first request stood when its answer came; None where there is none."""
        return summarize(first) if first is not None else None

    @abstractmethod
    async def machine_now(self, machine: MachineView) -> MachineView | None:
        """Read a machine live; None when it is gone or another by now."""

    @abstractmethod
    async def machines_of_token(self, token_id: str, *, is_needed: bool) -> list[MachineView]:
        """Return the machines whose own token this is; ``is_needed``: whether nothing else names the machine."""

    @abstractmethod
    async def infrastructure(self, machine: MachineView) -> Infrastructure | None:
        """Return a Machine's infrastructure machine and host object; None where it names none."""

    @abstractmethod
    async def hosts_with_name(self, machine: MachineView, node_name: NodeName) -> list[str]:
        """Name the host objects that give a node this name, where the policy takes names from them."""

    @abstractmethod
    async def others_with_provider_id(self, machine: MachineView) -> list[str]:
        """Name the infrastructure machines of the cluster that have a Machine's provider ID, but for its own."""

    @abstractmethod
    async def makes_machines(self, pool: MachineView) -> bool: ...

    @abstractmethod
    async def named_tokens(self, configured: MachineView, token_id: str) -> KeptConfig: ...

    @abstractmethod
    async def first_request(self, ref: FirstRequestRef) -> JsonObject | None:
        """Return the first request that a second one names, no older than the second one; None where there is none."""

    @abstractmethod
    async def node(self, name: NodeName, *, by_node: bool) -> JsonObject | None:
        """Read a Node live; ``by_node``: whether the node itself asks."""

    @abstractmethod
    async def verify(self, facts: CSRFacts) -> AttestedNode: ...

    @abstractmethod
    async def platform_addresses(self, facts: RequestFacts, provider: ProviderName) -> Addresses | None:
        """Ask a provider's platform for the machine's addresses; None where it cannot tell."""


def fact(gather: Callable[Concatenate[S, P], Awaitable[T]]) -> Callable[Concatenate[S, P], Awaitable[T]]:
    """Gather a fact once: every check gets the same value, or the same exception object."""

    @functools.wraps(gather)
    async def once(self: S, *args: P.args, **kwargs: P.kwargs) -> T:
        if gather.__name__ not in self.gathered:
            try:
                self.gathered[gather.__name__] = (await gather(self, *args, **kwargs), None)
            except Exception as error:  # kept for the checks that ask next, and raised
                self.gathered[gather.__name__] = (None, error)
                raise
        value, error = self.gathered[gather.__name__]
        if error is not None:
            raise error
        return cast("T", value)

    return once


class RequestFacts(ABC):
    """The facts about one request, of whichever kind."""

    def __init__(
        self, source: FactSource, *, purpose: Purpose, node_name: NodeName, names: SubjectAltNames, created: datetime
    ) -> None:
        """``names`` are those of a serving request; ``created`` is the API server's time."""
        self.source = source
        self.purpose = purpose
        self.node_name = node_name
        self.names = names
        self.created = created
        self.gathered: dict[str, tuple[object, Exception | None]] = {}

    @abstractmethod
    def round(self) -> Awaitable[Round]: ...

    @abstractmethod
    def cached_machine(self) -> Awaitable[MachineView]: ...

    @abstractmethod
    async def machine_for_memory_checks(self) -> MachineView:
        """Return the machine as it is known before the verification."""

    @abstractmethod
    def require_one(self, machines: list[MachineView]) -> MachineView:
        """Return the one machine that is ready, by the rule of this kind of request; raises Denied or Unavailable."""

    @abstractmethod
    async def address_provider(self) -> ProviderName | None:
        """Name the provider whose platform may tell the machine's addresses."""

    @abstractmethod
    def node(self) -> Awaitable[JsonObject | None]: ...

    @fact
    async def cluster(self) -> JsonObject:
        return self.source.cluster()

    @fact
    async def policy(self) -> Policy:
        return self.source.policy()

    @fact
    async def machine(self) -> MachineView:
        """Return the request's machine: read live for a request that could be granted."""
        cached = await self.cached_machine()
        if await self.round() is Round.FIRST:
            return cached
        live = await self.source.machine_now(cached)
        return live if live is not None else self.require_one([])

    @fact
    async def attestation(self) -> Attestation:
        return self.source.attestation(await self.machine())

    @fact
    async def name_context(self) -> NameContext:
        """Return what else has the node's name, or claims it."""
        inventory, key = self.source.inventory, self.source.key
        short = (await self.policy()).infrastructure.short_node_names
        claimants = inventory.members_by_node_name(key, self.node_name)
        return NameContext(
            claimants=claimants + (inventory.members_by_short_name(key, self.node_name) if short else []),
            holders=inventory.attestations_by_node_name(key, self.node_name),
            is_alive=lambda other: bool(inventory.members(key, other.provider_id)),
            short_names=short,
        )

    async def recorded_name(self) -> NodeName | None:
        attestation = await self.attestation()
        return attestation.node_name if attestation.has_joined and attestation.node_name else None

    async def platform_tells_addresses(self) -> bool:
        """Return whether a platform, not the Machine's status, says where the machine can be reached."""
        provider = await self.address_provider()
        return provider is not None and self.source.verifier(provider).tells_addresses

    @fact
    async def platform_addresses(self) -> Addresses | None:
        """Return what the platform says now; None where there is none, or where it cannot tell."""
        provider = await self.address_provider()
        if provider is None or not await self.platform_tells_addresses():
            return None
        return await self.source.platform_addresses(self, provider)


class CSRFacts(RequestFacts):
    """The facts about one attested request."""

    def __init__(self, source: FactSource, request: NodeRequest, state: RequestState = RequestState.PENDING) -> None:
        super().__init__(
            source,
            purpose=request.purpose,
            node_name=request.csr.node_name,
            names=SubjectAltNames(request.csr.dns_names, request.csr.ip_addresses),
            created=request.created,
        )
        self.request = request
        self.state = state

    @fact
    async def verifier(self) -> ClusterAPISigner:
        """Return the verifier that the request names; asked for only after the policy named it."""
        return self.source.verifier(self.request.evidence.provider)

    @fact
    async def ref(self) -> FirstRequestRef | None:
        """Return which first request this one answers; raises Denied on malformed evidence."""
        return (await self.verifier()).first_request(self.request)

    @fact
    async def round(self) -> Round:
        two_step = (await self.verifier()).two_step
        return Round.FIRST if two_step and await self.ref() is None else Round.FINAL

    def require_one(self, machines: list[MachineView]) -> MachineView:
        return find_machine(self.request, machines)

    @fact
    async def by_provider_id(self) -> list[MachineView]:
        provider_id = self.request.csr.provider_id
        return self.source.machines(provider_id) if provider_id else []

    @fact
    async def by_token(self) -> list[MachineView]:
        """Return the machines whose own bootstrap token the requester has; none for a node."""
        username = self.request.username
        token_id = username.removeprefix(USER_PREFIX)
        if self.request.is_renewal or token_id == username:
            return []
        return await self.source.machines_of_token(token_id, is_needed=not await self.by_provider_id())

    @fact
    async def infrastructure(self) -> Infrastructure | None:
        return await self.source.infrastructure(await self.machine())

    @fact
    async def selected_machine(self) -> MachineView:
        found = [*await self.by_provider_id(), *await self.by_token()]
        return found[0] if found else self.require_one([])

    @fact
    async def expected_provider_id(self) -> ExpectedProviderID | None:
        machine = await self.selected_machine()
        is_final = machine.is_confirmed and machine.provider_id
        return expected_provider_id(machine, None if is_final else await self.source.infrastructure(machine))

    @fact
    async def cached_machine(self) -> MachineView:
        return identified(
            await self.selected_machine(), self.request.csr.provider_id, await self.expected_provider_id()
        )

    async def machine_for_memory_checks(self) -> MachineView:
        return await self.machine()

    async def address_provider(self) -> ProviderName | None:
        return self.request.evidence.provider

    @fact
    async def first_object(self) -> JsonObject | None:
        """Return the object of the first request, as it was when its answer came or later."""
        ref = await self.ref()
        return await self.source.first_request(ref) if ref is not None else None

    @fact
    async def first(self) -> NodeRequest | None:
        first = await self.first_object()
        stored = summarize(first) if first is not None else None
        if first is None or stored is None or stored.is_kubelets:
            return None
        return parse_request(first, provider_id_oid=self.source.provider_id_oid)

    @fact
    async def attested(self) -> AttestedNode:
        """Return what the provider's verification proved; raises Denied, Unavailable or ChallengeRequired."""
        return await self.source.verify(self)

    @fact
    async def registered_names(self) -> Mapping[ProviderID, NodeName]:
        """Return the names that sections of the policy give to machines, whichever provider attests."""
        sections = (await self.policy()).sections
        names: dict[ProviderID, NodeName] = {}
        for provider in sections.keys() - {COMPOSITE}:  # the names of its parts are in their own sections
            try:
                verifier = self.source.verifier(provider)
            except Denied:  # not installed here
                continue
            names |= verifier.provable_names(sections) or {}
        return names

    async def name_sources(self, proven: NodeName | None) -> NameSources:
        return NameSources(
            recorded=await self.recorded_name(),
            registered=(await self.registered_names()).get((await self.machine()).provider_id),
            proven=proven,
            host=host_names(await self.infrastructure()) if await self._reads_host() else None,
        )

    async def sources(self) -> dict[str, str]:
        """Say what gives the machine its node name and its endorsement key, except where its record does."""
        attested, found = await self.attested(), dict[str, str]()
        if await self.recorded_name() is None:
            claims = node_names(await self.machine(), await self.name_sources(attested.proven_node_name))
            short_names = (await self.policy()).infrastructure.short_node_names
            found["nodeName"] = check_claim(self.node_name, claims, short_names=short_names).source
        for check in attested.checks:
            name = check.name.rpartition(": ")[2]
            if name in _KEY_SOURCES:  # what is expected of a platform names its object
                found["endorsementKey"] = f"{name}: {check.expected}" if "platform" in name else name
        return found

    async def _reads_host(self) -> bool:
        host = known_kind((await self.machine()).infra).host
        if host is None or await self.recorded_name() is not None:
            return False
        return host.kind in (await self.policy()).infrastructure.host_objects

    @fact
    async def node(self) -> JsonObject | None:
        return await self.source.node(self.node_name, by_node=self.request.is_renewal)

    @fact
    async def owns_record(self) -> bool:
        """Return whether the record's owner lists the machine: a pool's instance may join before it has a Machine."""
        provider_id, owner = (await self.machine()).provider_id, (await self.attestation()).owner_uid
        return self.source.inventory.is_owner(self.source.key, provider_id, owner)

    @fact
    async def holders_of_fingerprints(self) -> list[Attestation]:
        """Return the attestations of the cluster that pin what this machine proved itself by."""
        inventory, key = self.source.inventory, self.source.key
        pins = (await self.attested()).pins.items()
        return [
            holder for pin, value in pins for holder in inventory.fingerprint_holders(key, split_pin(pin)[1], value)
        ]
