"""Azure's Resource Manager: virtual machines and addresses, read in lists that many requests share.

Only GET, only at the configured endpoint. A throttled subscription is not asked before the time that Azure names. A
missing or another machine is reported only from a list that was begun after the question.
Source: Azure REST API, "Virtual Machines - List", "Network Interfaces - List" and their kin for scale sets.
"""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final

from nodeattest_parsing import strict_json
from nodeattest_parsing.objects import items, mapping, text
from nodeattest_parsing.values import JsonObject, ParseError
from nodeattest_providers.azure.config import AzurePlatform, ManagedIdentity
from nodeattest_providers.azure.protocol import InstanceRef
from nodeattest_providers.cloud_http import (
    CloudHttp,
    CloudResponse,
    ExchangeError,
    Lookup,
    SingleFlight,
    retry_after_seconds,
)
from nodeattest_providers.errors import Unavailable, platform_unavailable
from nodeattest_providers.platform import CallOutcome, ObserveCall
from nodeattest_providers.verifier_interface import Addresses

if TYPE_CHECKING:
    from azure.core.credentials_async import AsyncTokenCredential


_Scope = tuple[str, str, str]
"""Subscription, resource group, scale set or nothing, in lower case."""

_SECONDS: Final = 15.0
"""For which a list is good: tags and state may change meanwhile, the machine's own proof is fresher."""
_ALL: Final = ""
"""The one key of a scope: its whole list."""
_CONFIGURATIONS: Final = ("properties", "ipConfigurations")
_COMPUTE: Final = "api-version=2024-07-01"
_NETWORK: Final = "api-version=2024-05-01"
_SCALE_SET_NETWORK: Final = "api-version=2018-10-01"
"""The only version in which Azure lists a scale set's network interfaces."""


_SCALE_SET_PARTS: Final = 10
"""Parts of the ID of a machine by itself; an instance of a scale set has two more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """One virtual machine, as Azure knows it."""

    resource_id: str
    vm_id: str
    """Lower case."""
    provisioning_state: str
    computer_name: str
    """Lower case; empty where Azure knows none."""
    scale_set: str
    tags: Mapping[str, str] = field(default_factory=dict[str, str])
    """By name in lower case."""


class Machines:
    """Looks up machines."""

    def __init__(self, manager: ResourceManager, *, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._manager = manager
        self._machines = Lookup(self._read_machines, seconds=_SECONDS, monotonic=monotonic)
        self._interfaces = Lookup(self._read_interfaces, seconds=_SECONDS, monotonic=monotonic)

    async def find(self, name: InstanceRef, *, vm_id: str | None = None) -> Machine | None:
        """Find a machine, if given with this vmId; None when Azure has none of that name. Raises Unavailable."""
        for fresh in (False, True):
            found = await self._machines.get(name.key[:3], _ALL, fresh=fresh) or {}
            machine = found.get(name.key[3])
            if machine is not None and vm_id in (None, machine.vm_id):
                break
        return machine

    async def addresses(self, name: InstanceRef) -> Addresses:
        for fresh in (False, True):
            found = await self._interfaces.get(name.key[:3], _ALL, fresh=fresh) or {}
            if name.key[3] in found:
                return found[name.key[3]]
        return ()

    async def aclose(self) -> None:
        await self._machines.cancel()
        await self._interfaces.cancel()
        await self._manager.aclose()

    async def _read_machines(self, scope: _Scope, _: Sequence[str]) -> Mapping[str, Mapping[str, Machine]]:
        service = "scaleSetMachines" if scope[2] else "machines"
        values = await self._manager.list(service, f"{_path(scope)}virtualMachines", _COMPUTE)
        return {_ALL: {_last(value): parse_machine(value) for value in values}}

    async def _read_interfaces(self, scope: _Scope, _: Sequence[str]) -> Mapping[str, Mapping[str, Addresses]]:
        machines = f"{_path(scope)}virtualMachines/".lower()
        found: dict[str, Addresses] = {}
        if scope[2]:
            values = await self._manager.list(
                "scaleSetInterfaces", f"{_path(scope)}networkInterfaces", _SCALE_SET_NETWORK
            )
        else:
            path = f"{_path(scope)}networkInterfaces".replace("Microsoft.Compute", "Microsoft.Network")
            values = await self._manager.list("interfaces", path, _NETWORK)
        for value in values:
            key = text(value, "properties", "virtualMachine", "id").lower().removeprefix(machines)
            private = (text(each, "properties", "privateIPAddress") for each in items(value, *_CONFIGURATIONS))
            if key and "/" not in key:  # not of a machine elsewhere, or of none
                addresses = (("InternalIP", address) for address in private if address)
                found[key] = (*found.get(key, ()), *addresses)
        return {_ALL: found}


def _path(scope: _Scope) -> str:
    owner = f"virtualMachineScaleSets/{scope[2]}/" if scope[2] else ""
    return f"/subscriptions/{scope[0]}/resourceGroups/{scope[1]}/providers/Microsoft.Compute/{owner}"


def parse_machine(value: JsonObject) -> Machine:
    """Read a machine; a value that is not of its documented type counts as missing."""
    flexible = text(value, "properties", "virtualMachineScaleSet", "id").rpartition("/")[2].lower()
    parts = text(value, "id").lower().split("/")
    uniform = parts[-3] if len(parts) > _SCALE_SET_PARTS else ""
    return Machine(
        resource_id=text(value, "id"),
        vm_id=text(value, "properties", "vmId").lower(),
        provisioning_state=text(value, "properties", "provisioningState"),
        computer_name=text(value, "properties", "osProfile", "computerName").lower(),
        scale_set=uniform or flexible,
        tags={str(name).lower(): str(tag) for name, tag in mapping(value, "tags").items()},
    )


def _last(value: JsonObject) -> str:
    return text(value, "id").rpartition("/")[2].lower()


_TIMEOUT: Final = 10.0
"""Seconds for one page; Azure answers within one or two."""
_LIMIT: Final = 8 * 1024 * 1024
"""Bytes of a page; a machine has about 4 KiB, a page some hundred machines."""
_MAX_VALUES: Final = 200_000
"""Of a page; a thousand machines have some 100,000."""
_MAX_PAGES: Final = 100
_MAX_WAIT: Final = 120.0
_WAIT: Final = 10.0
_CONNECTIONS: Final = 8
_REMEDY: Final = "see to the Resource Manager and to platforms.azure in the controller's configuration"


class ResourceManager:
    """Asks for lists."""

    def __init__(
        self,
        configuration: AzurePlatform,
        tokens: Tokens,
        *,
        observe: ObserveCall,
        monotonic: Callable[[], float] = time.monotonic,
        time_limit: float = _TIMEOUT,
    ) -> None:
        self._endpoint = configuration.cloud.resource_manager
        self._tokens = tokens
        self._observe = observe
        self._monotonic = monotonic
        bundle = configuration.ca_bundle
        self._http = CloudHttp(
            trust=lambda: ssl.create_default_context(cafile=None if bundle is None else str(bundle)),
            proxy=configuration.proxy,
            seconds=time_limit,
            answer_bytes=_LIMIT,
            connections=_CONNECTIONS,
        )
        self._blocked: dict[str, float] = {}

    async def list(self, service: str, path: str, query: str) -> list[JsonObject]:
        """Return the objects of all pages; ``service`` names the call to whom counts calls. Raises Unavailable."""
        found: list[JsonObject] = []
        url: str | None = f"{self._endpoint}{path}?{query}"
        subscription = "/".join(path.split("/", 3)[:3])
        for _ in range(_MAX_PAGES):
            page = await self._page(service, url, subscription)
            found += items(page, "value")
            following = page.get("nextLink")
            if not following:
                return found
            if not isinstance(following, str) or not following.startswith(f"{self._endpoint}/"):
                raise _unavailable(service, "named a next page elsewhere")
            url = following
        raise _unavailable(service, f"has more than {_MAX_PAGES} pages")

    async def aclose(self) -> None:
        await self._http.aclose()
        await self._tokens.aclose()

    async def _page(self, service: str, url: str, subscription: str) -> JsonObject:
        wait = self._blocked.get(subscription, 0.0) - self._monotonic()
        if wait > 0:
            raise _unavailable(service, "is throttled", retry_after=wait)
        self._blocked.pop(subscription, None)
        token = await self._tokens.get()
        began, outcome = self._monotonic(), CallOutcome.FAILED
        try:
            answer = await self._http.exchange("GET", url, headers={"Authorization": f"Bearer {token}"})
            page = _object(answer)
            outcome = _OUTCOMES.get(answer.status, CallOutcome.OK if page is not None else CallOutcome.FAILED)
        except ExchangeError as error:
            outcome = error.outcome
            raise _unavailable(service, f"gave no usable answer ({outcome})") from None
        finally:
            self._observe(service, outcome, self._monotonic() - began)
        if page is not None:
            return page
        if outcome is CallOutcome.THROTTLED:
            pause = retry_after_seconds(answer.retry_after, default=_WAIT, longest=_MAX_WAIT)
            self._blocked[subscription] = self._monotonic() + pause
            raise _unavailable(service, "is throttled", retry_after=pause)
        if outcome is CallOutcome.REFUSED:
            self._tokens.forget()
            remedy = "give the controller's identity the role of docs/providers/azure.md"
            detail = f"refused the controller (status {answer.status})"
            raise _unavailable(service, detail, remedy=remedy, retry_after=30.0)
        raise _unavailable(service, f"gave no usable answer ({outcome}, status {answer.status})")


_OUTCOMES: Final[dict[int, CallOutcome]] = {
    HTTPStatus.UNAUTHORIZED: CallOutcome.REFUSED,
    HTTPStatus.FORBIDDEN: CallOutcome.REFUSED,
    HTTPStatus.TOO_MANY_REQUESTS: CallOutcome.THROTTLED,
}


def _object(answer: CloudResponse) -> JsonObject | None:
    """Read a page; empty where the subscription, the group or the scale set is not there."""
    if answer.status == HTTPStatus.NOT_FOUND:
        return {}
    if answer.status != HTTPStatus.OK:
        return None
    try:
        return strict_json.parse_object(answer.body, max_size=None, max_values=_MAX_VALUES, floats=True)
    except ParseError:
        return None


def _unavailable(service: str, what: str, *, remedy: str = _REMEDY, retry_after: float = _WAIT) -> Unavailable:
    detail = f"Azure's Resource Manager ({service}) {what}"
    return platform_unavailable(detail, remedy=remedy, retry_after=retry_after)


_TOKEN_SECONDS: Final = 8.0
_MARGIN: Final = 300.0
"""Seconds before its end from which on a token is not used any more."""
_SERVICE: Final = "authority"


class Tokens:
    """Gives tokens for one audience."""

    def __init__(
        self, configuration: AzurePlatform, *, observe: ObserveCall, wall: Callable[[], float] = time.time
    ) -> None:
        self._configuration = configuration
        self._observe = observe
        self._wall = wall
        self._credential: AsyncTokenCredential | None = None
        self._token: tuple[str, float] | None = None
        self._flights: SingleFlight[str, tuple[str, float]] = SingleFlight()

    async def get(self) -> str:
        if self._token is None or self._wall() >= self._token[1] - _MARGIN:
            self._token = await self._flights.share("token", self._fetch)
        return self._token[0]

    def forget(self) -> None:
        """Take another token next time: this one was refused."""
        self._token = None

    async def aclose(self) -> None:
        await self._flights.cancel()
        if self._credential is not None:
            await self._credential.close()
            self._credential = None

    async def _fetch(self) -> tuple[str, float]:
        from azure.core.exceptions import AzureError, ClientAuthenticationError

        if self._credential is None:
            self._credential = _make(self._configuration)
        began = time.monotonic()
        outcome = CallOutcome.FAILED
        try:
            async with asyncio.timeout(_TOKEN_SECONDS):
                token = await self._credential.get_token(f"{self._configuration.audience}/.default")
            outcome = CallOutcome.OK
        except TimeoutError:
            outcome = CallOutcome.TIMED_OUT
            raise _no_token(f"gave no token within {_TOKEN_SECONDS:g} s") from None
        except ClientAuthenticationError:  # CredentialUnavailableError is one, too
            outcome = CallOutcome.REFUSED
            raise _no_token("refused the controller's identity") from None
        except (AzureError, OSError, ValueError) as error:
            raise _no_token(f"gave no token ({type(error).__name__})") from None
        finally:
            self._observe(_SERVICE, outcome, time.monotonic() - began)
        return token.token, float(token.expires_on)


def _make(configuration: AzurePlatform) -> AsyncTokenCredential:
    from azure.core.pipeline.transport import AioHttpTransport
    from azure.identity.aio import ManagedIdentityCredential, WorkloadIdentityCredential

    identity, bundle = configuration.credential, configuration.ca_bundle
    options: dict[str, Any] = {"permit_redirects": False, "retry_total": 0}
    limits = {"connection_timeout": _TOKEN_SECONDS, "read_timeout": _TOKEN_SECONDS}
    if isinstance(identity, ManagedIdentity):  # by the metadata service of the controller's own machine
        transport = AioHttpTransport(use_env_settings=False, **limits)
        return ManagedIdentityCredential(client_id=identity.client, transport=transport, **options)
    verify = True if bundle is None else str(bundle)
    if configuration.proxy is not None:
        options["proxies"] = {"https": configuration.proxy}
    return WorkloadIdentityCredential(
        tenant_id=identity.tenant,
        client_id=identity.client,
        token_file_path=str(identity.token_file),
        authority=configuration.cloud.authority,
        disable_instance_discovery=True,
        transport=AioHttpTransport(use_env_settings=False, connection_verify=verify, **limits),
        **options,
    )


def _no_token(what: str) -> Unavailable:
    return platform_unavailable(
        f"Azure's authority {what}",
        remedy="see to platforms.azure.credential in the controller's configuration and to the identity's federation",
        retry_after=15.0,
    )
