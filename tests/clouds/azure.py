"""Azure on loopback: machines, their metadata services, the authority that gives tokens, and the Resource Manager.

A token is given for the federated one of the sandbox's own cluster only; each list needs one in force. Lists come in
pages. As the real one, a metadata service demands the header ``Metadata: true`` and a nonce of at most 32 characters.
Source: Azure, "Instance Metadata Service"; Microsoft identity platform, "OAuth 2.0 client credentials flow"; Azure REST
API.
"""

from __future__ import annotations

import base64
import json
import re
import secrets
import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import partial
from http import HTTPStatus
from pathlib import Path
from typing import Final
from urllib.parse import parse_qs, urlsplit

from cryptography import x509
from cryptography.x509.oid import ExtendedKeyUsageOID

from clouds import cms
from clouds.authority import Authority, constraint, purposes, rsa_key
from clouds.serving import Cloud, Reply, Request, as_json
from nodeattest_sandbox.pki import server_tls


@dataclass(kw_only=True)
class SandboxMachine:
    """One virtual machine; what is changed here is what Azure says from then on."""

    subscription: str
    group: str
    name: str
    """The number, for an instance of a uniform scale set."""
    scale_set: str | None = None
    computer_name: str
    address: str
    tags: dict[str, str] = field(default_factory=dict[str, str])
    vm_id: str = field(default_factory=lambda: str(uuid.uuid4()))
    provisioning_state: str = "Succeeded"
    metadata: str = ""
    exists: bool = True

    @property
    def resource_id(self) -> str:
        owner = f"virtualMachineScaleSets/{self.scale_set}/" if self.scale_set else ""
        group = f"/subscriptions/{self.subscription}/resourceGroups/{self.group}"
        return f"{group}/providers/Microsoft.Compute/{owner}virtualMachines/{self.name}"

    @property
    def provider_id(self) -> str:
        """As Cluster API's Azure provider writes it: the group in lower case."""
        return "azure://" + self.resource_id.replace(f"/{self.group}/", f"/{self.group.lower()}/", 1)

    def in_list(self) -> Mapping[str, object]:
        return {
            "id": self.resource_id,
            "name": self.name,
            "location": "westeurope",
            "tags": self.tags,
            "properties": {
                "vmId": self.vm_id,
                "provisioningState": self.provisioning_state,
                "osProfile": {"computerName": self.computer_name},
            },
        }

    def interface(self) -> Mapping[str, object]:
        return {
            "id": f"{self.resource_id}-nic",
            "properties": {
                "primary": True,
                "virtualMachine": {"id": self.resource_id},
                "ipConfigurations": [{"properties": {"privateIPAddress": self.address, "primary": True}}],
            },
        }


@dataclass
class Switches:
    """Faults of the Resource Manager."""

    down: bool = False
    throttled: int = 0
    """Retry-After in seconds; 0: not throttled."""
    forbidden: bool = False
    redirect: str = ""
    page: int = 50
    elsewhere: str = ""
    """What next pages' addresses begin with in place of our own."""
    huge: bool = False


@dataclass
class State:
    machines: list[SandboxMachine] = field(default_factory=list[SandboxMachine])
    switches: Switches = field(default_factory=Switches)
    calls: list[str] = field(default_factory=list[str])


DOMAIN: Final = "metadata.azure.com"
SERVER: Final = purposes(ExtendedKeyUsageOID.SERVER_AUTH)
_NONCE: Final = re.compile(r"[0-9A-Za-z]{1,32}")
_LIFE: Final = timedelta(hours=6)


def signer_of(issuer: Authority, *names: str, common_name: str = DOMAIN) -> Authority:
    """Make who signs attested documents: a TLS server with these names, without any those of a region."""
    dns = [x509.DNSName(name) for name in names or (DOMAIN, f"westeurope.{DOMAIN}")]
    return issuer.below(common_name, constraint(ca=False), SERVER, (x509.SubjectAlternativeName(dns), False))


def content_of(machine: SandboxMachine, nonce: str, created: datetime, life: timedelta = _LIFE) -> dict[str, object]:
    return {
        "licenseType": "",
        "nonce": nonce,
        "plan": {"name": "", "product": "", "publisher": ""},
        "sku": "12-gen2",
        "subscriptionId": machine.subscription,
        "timeStamp": {"createdOn": _time(created), "expiresOn": _time(created + life)},
        "vmId": machine.vm_id,
    }


def attested(signing: Authority, content: dict[str, object]) -> bytes:
    data = json.dumps(content, separators=(",", ":")).encode()
    return cms.azure_form(data, signing).der()


def answer_metadata(
    machine: SandboxMachine, signing: Authority, identity: Callable[[str], dict[str, object] | None], request: Request
) -> Reply:
    query = request.parameters
    if request.headers.get("metadata") != "true" or "api-version" not in query:
        return as_json({"error": "Bad request"}, HTTPStatus.BAD_REQUEST)
    match request.path:
        case "/metadata/instance/compute":
            return as_json({"name": machine.computer_name, "resourceId": machine.resource_id, "vmId": machine.vm_id})
        case "/metadata/identity/oauth2/token" if token := identity(query.get("resource", "")):
            return as_json(token)
        case "/metadata/attested/document" if _NONCE.fullmatch(query.get("nonce", "")):
            signature = attested(signing, content_of(machine, query["nonce"], datetime.now(UTC)))
            return as_json({"encoding": "pkcs7", "signature": base64.b64encode(signature).decode()})
        case _:
            return as_json({"error": "Bad request"}, HTTPStatus.BAD_REQUEST)


def _time(moment: datetime) -> str:
    return moment.strftime("%m/%d/%y %H:%M:%S -0000")


AUDIENCE: Final = "https://management.azure.com"
_TOKEN_SECONDS: Final = 3600
_HUGE: Final = 9 * 1024 * 1024
_UNITS: Final = {
    "virtualMachines": (re.compile(r"Microsoft\.Compute/(?:virtualMachineScaleSets/(?P<set>[^/]+)/)?virtualMachines")),
    "networkInterfaces": (
        re.compile(
            r"(?:Microsoft\.Network/|Microsoft\.Compute/virtualMachineScaleSets/(?P<set>[^/]+)/)networkInterfaces"
        )
    ),
}
_LIST: Final = re.compile(
    r"/subscriptions/(?P<subscription>[^/]+)/resourceGroups/(?P<group>[^/]+)/providers/(?P<unit>.+)"
)


@dataclass
class Directory:
    """A tenant: its one client, and the tokens that it gave."""

    tenant: str
    client: str
    federated: str
    """What a cluster projects into the client's pod."""
    tokens: set[str] = field(default_factory=set[str])

    def token_for(self, form: dict[str, str]) -> dict[str, object] | None:
        right = {"grant_type": "client_credentials", "client_id": self.client, "client_assertion": self.federated}
        if any(form.get(name) != value for name, value in right.items()) or form.get("scope") != f"{AUDIENCE}/.default":
            return None
        return {"token_type": "Bearer", "expires_in": _TOKEN_SECONDS, "access_token": self._token()}

    def managed_token(self, resource: str) -> dict[str, object] | None:
        if resource != AUDIENCE:
            return None
        times = {"expires_in": str(_TOKEN_SECONDS), "expires_on": str(int(time.time()) + _TOKEN_SECONDS)}
        return {"token_type": "Bearer", "resource": resource, "access_token": self._token(), **times}

    def _token(self) -> str:
        self.tokens.add(secrets.token_urlsafe())
        return max(self.tokens)

    def admits(self, authorization: str) -> bool:
        return authorization.removeprefix("Bearer ") in self.tokens


def answer_manager(state: State, directory: Directory, request: Request) -> Reply:
    state.calls.append(request.target)
    if request.method == "POST":
        form = {name: values[-1] for name, values in parse_qs(request.body.decode()).items()}
        token = directory.token_for(form) if request.target == f"/{directory.tenant}/oauth2/v2.0/token" else None
        refused: dict[str, object] = {"error": "invalid_client", "error_description": "AADSTS70021"}
        status, answer, headers = HTTPStatus.OK if token else HTTPStatus.UNAUTHORIZED, token or refused, {}
    else:
        own = f"https://{request.headers['host']}"
        status, answer, headers = _answer(
            state, directory, request.target, request.headers.get("authorization", ""), own
        )
    body = json.dumps(answer).encode() + (b" " * _HUGE if state.switches.huge else b"")
    headers = {"Content-Type": "application/json", **headers}
    return Reply(status, body, headers)


def _answer(
    state: State, directory: Directory, target: str, authorization: str, own: str
) -> tuple[HTTPStatus, dict[str, object], dict[str, str]]:
    switches = state.switches
    if switches.redirect:
        return HTTPStatus.FOUND, {}, {"Location": switches.redirect}
    if switches.down:
        return HTTPStatus.SERVICE_UNAVAILABLE, {"error": {"code": "ServerTimeout"}}, {}
    if switches.throttled:
        headers = {"Retry-After": str(switches.throttled)}
        return HTTPStatus.TOO_MANY_REQUESTS, {"error": {"code": "TooManyRequests"}}, headers
    if not directory.admits(authorization):
        return HTTPStatus.UNAUTHORIZED, {"error": {"code": "AuthenticationFailed"}}, {}
    if switches.forbidden:
        return HTTPStatus.FORBIDDEN, {"error": {"code": "AuthorizationFailed"}}, {}
    status, answer = _list(state, target, own)
    return status, answer, {}


def _list(state: State, target: str, own: str) -> tuple[HTTPStatus, dict[str, object]]:
    parts = urlsplit(target)
    query = {name: values[-1] for name, values in parse_qs(parts.query).items()}
    match = _LIST.fullmatch(parts.path)
    if match is None or "api-version" not in query:
        return HTTPStatus.BAD_REQUEST, {"error": {"code": "InvalidRequest"}}
    in_group = [one for one in state.machines if _is_in(one, match["subscription"], match["group"])]
    if not in_group:
        return HTTPStatus.NOT_FOUND, {"error": {"code": "ResourceGroupNotFound"}}
    unit = next(((name, found) for name, form in _UNITS.items() if (found := form.fullmatch(match["unit"]))), None)
    if unit is None:
        return HTTPStatus.NOT_FOUND, {"error": {"code": "InvalidResourceType"}}
    scale_set = (unit[1]["set"] or "").lower()
    machines = [one for one in in_group if one.exists and (one.scale_set or "").lower() == scale_set]
    values = [one.in_list() if unit[0] == "virtualMachines" else one.interface() for one in machines]
    start, size = int(query.get("$skiptoken", "0")), state.switches.page
    answer: dict[str, object] = {"value": values[start : start + size]}
    if start + size < len(values):
        more = f"{parts.path}?api-version={query['api-version']}&$skiptoken={start + size}"
        answer["nextLink"] = (state.switches.elsewhere or own) + more
    return HTTPStatus.OK, answer


def _is_in(machine: SandboxMachine, subscription: str, group: str) -> bool:
    return machine.subscription == subscription.lower() and machine.group.lower() == group.lower()


_GROUP: Final = "Fleet-RG"


class SandboxAzure(Cloud):
    def __init__(self, directory: Path) -> None:
        super().__init__()
        directory.mkdir(parents=True, exist_ok=True)
        self.directory = directory
        self.state = State()
        self.subscription = str(uuid.uuid4())
        self.root = Authority.root("Sandbox Global Root", key=rsa_key())
        self.issuing = self.root.below("Sandbox Azure TLS Issuing CA 01")
        self.signing = signer_of(self.issuing)
        self.tenant = Directory(str(uuid.uuid4()), str(uuid.uuid4()), str(uuid.uuid4()))
        self.ca_bundle, context = server_tls(directory / "tls", "azure")
        self.trust_bundle = self._write("trust.pem", (self.root.pem + self.issuing.pem).encode())
        self.token_file = self._write("token", self.tenant.federated.encode())
        self.url = self.serve(partial(answer_manager, self.state, self.tenant), context)

    @property
    def configuration(self) -> dict[str, object]:
        return {
            "trustBundle": str(self.trust_bundle),
            "caBundle": str(self.ca_bundle),
            "endpoints": {"resourceManager": self.url, "authority": self.url},
            "credential": {
                "workloadIdentity": {
                    "tenantID": self.tenant.tenant,
                    "clientID": self.tenant.client,
                    "tokenFile": str(self.token_file),
                }
            },
        }

    def launch(
        self,
        name: str,
        *,
        group: str = _GROUP,
        subscription: str = "",
        scale_set: str | None = None,
        computer_name: str = "",
        tags: Mapping[str, str] | None = None,
    ) -> SandboxMachine:
        number = len(self.state.machines) + 4  # Azure keeps the first four addresses of a subnet
        machine = SandboxMachine(
            subscription=subscription or self.subscription,
            group=group,
            name=name,
            scale_set=scale_set,
            computer_name=computer_name or name,
            address=f"10.240.0.{number}",
            tags=dict(tags or {}),
        )
        self.state.machines.append(machine)
        answer = partial(answer_metadata, machine, self.signing, self.tenant.managed_token)
        machine.metadata = self.serve(answer)
        return machine

    def _write(self, name: str, content: bytes) -> Path:
        path = self.directory / name
        path.touch(mode=0o600)
        path.write_bytes(content)
        return path
