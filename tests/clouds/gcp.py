"""Google Cloud on loopback: the Compute API and its token endpoint over TLS, and each instance's metadata server.

The Compute API answers only to tokens that the token endpoint or a metadata server issued, of accounts that may read
the project; every call is written down. An assertion is verified: RS256 by a key of that account, audience and issuer.
Source: Compute Engine API v1; Google AIP-160 (filter), "Improve performance" (``fields``), "View and query VM
metadata", "Using OAuth 2.0 for Server to Server Applications"; RFC 7523 §2.1.
"""

from __future__ import annotations

import json
import re
import secrets
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Final, cast
from urllib.parse import parse_qs

from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from joserfc import jwt
from joserfc.errors import JoseError
from joserfc.jwk import RSAKey

from clouds.serving import Cloud, Reply, Request, as_json
from nodeattest_sandbox.pki import server_tls

_TERM: Final = re.compile(r'\(name = "([a-z0-9-]+)"\)')
_NETWORK: Final = "nic0"


@dataclass(slots=True, kw_only=True)
class CloudInstance:
    """One VM; its fields may be changed while the cloud runs."""

    project: str
    zone: str
    name: str
    number: str
    status: str = "RUNNING"
    labels: dict[str, str] = field(default_factory=dict[str, str])
    service_account: str | None = None
    vtpm: bool = True
    secure_boot: bool = True
    integrity_monitoring: bool = True
    internal_ip: str = "10.128.0.2"
    external_ip: str | None = None
    keys: Mapping[str, str] = field(default_factory=dict[str, str])
    """Public keys in PEM by the name in ``ShieldedInstanceIdentity``, such as ``encryptionKey``."""
    user_data: str = "#cloud-config with the bootstrap token"

    @property
    def provider_id(self) -> str:
        return f"gce://{self.project}/{self.zone}/{self.name}"

    def resource(self) -> dict[str, object]:
        base = f"https://www.googleapis.com/compute/v1/projects/{self.project}/zones/{self.zone}"
        interface: dict[str, object] = {"name": _NETWORK, "networkIP": self.internal_ip, "stackType": "IPV4_ONLY"}
        if self.external_ip is not None:
            interface["accessConfigs"] = [{"name": "External NAT", "natIP": self.external_ip, "type": "ONE_TO_ONE_NAT"}]
        found: dict[str, object] = {
            "kind": "compute#instance",
            "id": self.number,
            "name": self.name,
            "zone": base,
            "selfLink": f"{base}/instances/{self.name}",
            "status": self.status,
            "metadata": {"items": [{"key": "user-data", "value": self.user_data}]},
            "networkInterfaces": [interface],
            "shieldedInstanceConfig": {
                "enableSecureBoot": self.secure_boot,
                "enableVtpm": self.vtpm,
                "enableIntegrityMonitoring": self.integrity_monitoring,
            },
        }
        if self.labels:
            found["labels"] = dict(self.labels)
        if self.service_account is not None:
            scopes = ["https://www.googleapis.com/auth/cloud-platform"]
            found["serviceAccounts"] = [{"email": self.service_account, "scopes": scopes}]
        return found

    def identity(self) -> dict[str, object]:
        entries = {name: {"ekPub": pem} for name, pem in self.keys.items()}
        return {"kind": "compute#shieldedInstanceIdentity", **entries}


def filtered(expression: str) -> frozenset[str] | None:
    if not expression:
        return None
    terms = expression.split(" OR ")
    found = [_TERM.fullmatch(term) for term in terms]
    if not all(found):
        raise ValueError("the sandbox knows filters by name only")
    return frozenset(match[1] for match in found if match is not None)


def masked(value: object, mask: str) -> object:
    return _masked(value, _tree(mask)) if mask else value


def _tree(mask: str) -> dict[str, str]:
    """Cut a mask at its outermost commas: name to the mask of what is inside, empty for everything."""
    found: dict[str, str] = {}
    depth, word = 0, ""
    for character in mask + ",":
        depth += {"(": 1, ")": -1}.get(character, 0)
        if character == "," and not depth:
            name, slash, inside = word.partition("/")
            if "(" in name or not slash:
                name, _, inside = word.partition("(")
                inside = inside.removesuffix(")")
            found[name] = inside
            word = ""
        else:
            word += character
    return found


def _masked(value: object, tree: Mapping[str, str]) -> object:
    if isinstance(value, list):
        return [_masked(item, tree) for item in cast("list[object]", value)]
    if not isinstance(value, dict):
        return value
    fields = cast("dict[str, object]", value)
    return {
        name: _masked(fields[name], _tree(inside)) if inside else fields[name]
        for name, inside in tree.items()
        if name in fields
    }


_GRANT: Final = "urn:ietf:params:oauth:grant-type:jwt-bearer"
_AUDIENCE: Final = "https://oauth2.googleapis.com/token"
"""What Google has assertions name, wherever its token endpoint is."""
_LIFE: Final = 3600


@dataclass(slots=True)
class TokenServer:
    url: str = ""
    _keys: dict[str, rsa.RSAPrivateKey] = field(default_factory=dict[str, rsa.RSAPrivateKey], repr=False)
    _tokens: dict[str, str] = field(default_factory=dict[str, str], repr=False)

    def account_key(self, email: str, project: str) -> str:
        key = self._keys[email] = rsa.generate_private_key(65537, 2048)
        pem = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode()
        return json.dumps(
            {
                "type": "service_account",
                "project_id": project,
                "private_key_id": "sandbox",
                "private_key": pem,
                "client_email": email,
                "client_id": "100",
                "token_uri": self.url,
            }
        )

    def issue(self, email: str) -> str:
        token = f"ya29.{secrets.token_urlsafe(32)}"
        self._tokens[token] = email
        return token

    def revoke_all(self) -> None:
        self._tokens.clear()

    def holder(self, authorization: str) -> str | None:
        scheme, _, token = authorization.partition(" ")
        return self._tokens.get(token) if scheme == "Bearer" else None

    def answer(self, request: Request) -> Reply:
        form = {name: values[0] for name, values in parse_qs(request.body.decode("ascii", "replace")).items()}
        if request.method != "POST" or form.get("grant_type") != _GRANT:
            return as_json({"error": "unsupported_grant_type"}, 400)
        for email, key in self._keys.items():
            with suppress(JoseError, ValueError):
                claims = jwt.decode(form.get("assertion", ""), RSAKey.import_key(key), algorithms=["RS256"]).claims
                if claims.get("iss") == email and claims.get("aud") == _AUDIENCE:
                    return as_json({"access_token": self.issue(email), "expires_in": _LIFE, "token_type": "Bearer"})
        return as_json({"error": "invalid_grant", "error_description": "Invalid JWT Signature."}, 400)


_FLAVOR: Final = {"Metadata-Flavor": "Google", "Server": "Metadata Server for VM"}
_ROOT: Final = "/computeMetadata/v1/"
_SCOPES: Final = "https://www.googleapis.com/auth/cloud-platform"


def answer_metadata(instance: CloudInstance, tokens: TokenServer, request: Request) -> Reply:
    if request.headers.get("metadata-flavor") != "Google" or "x-forwarded-for" in request.headers:
        return Reply(403, b"Missing Metadata-Flavor:Google header.", _FLAVOR)
    found = {
        "project/project-id": instance.project,
        "instance/name": instance.name,
        "instance/zone": f"projects/123456789012/zones/{instance.zone}",
    }
    account = instance.service_account
    if account is not None:
        answer = {"access_token": tokens.issue(account), "expires_in": 3599, "token_type": "Bearer"}
        described = {"aliases": ["default"], "email": account, "scopes": [_SCOPES]}
        found["instance/service-accounts/default/token"] = json.dumps(answer)
        found["instance/service-accounts/default/"] = json.dumps(described)
    text = "computeMetadata/" if request.path == "/" else found.get(request.path.removeprefix(_ROOT))
    if text is None:
        return Reply(404, b"not found", _FLAVOR)
    kind = "application/json" if text.startswith("{") else "application/text"
    return Reply(200, text.encode(), {**_FLAVOR, "Content-Type": kind})


_INSTANCES: Final = re.compile(
    r"/compute/v1/projects/(?P<project>[^/]+)/zones/(?P<zone>[^/]+)/instances"
    r"(?:/(?P<name>[^/]+)(?P<identity>/getShieldedInstanceIdentity)?)?"
)
_TOKEN: Final = "/token"
_MOST: Final = 500


@dataclass(slots=True)
class CloudSwitches:
    down: set[str] = field(default_factory=set[str])
    failing: set[str] = field(default_factory=set[str])
    throttled: set[str] = field(default_factory=set[str])
    garbled: set[str] = field(default_factory=set[str])
    redirecting: dict[str, str] = field(default_factory=dict[str, str])
    """Project to another place where the answer is said to be."""
    swapping: dict[str, CloudInstance] = field(default_factory=dict[str, CloudInstance])
    """Project to the instance that is answered whichever is asked for."""


class GoogleCloud(Cloud):
    def __init__(self, directory: Path) -> None:
        super().__init__()
        self.switches = CloudSwitches()
        self.instances: list[CloudInstance] = []
        self.readers: dict[str, set[str]] = {}
        self.calls: list[str] = []
        """Every request to the Compute API that had a token: its path, and how many names its filter has."""
        self.tokens = TokenServer()
        self._directory = directory
        self._lock = threading.Lock()
        self.ca_file, context = server_tls(directory, "google-cloud")
        self.endpoint: Final = self.serve(self._answer, context)
        self._metadata: dict[str, str] = {}
        self.tokens.url = f"{self.endpoint}{_TOKEN}"

    def account(self, email: str, *, project: str, reads: tuple[str, ...]) -> Path:
        for one in reads:
            self.readers.setdefault(one, set()).add(email)
        path = self._directory / f"{email.partition('@')[0]}.json"
        path.touch(mode=0o600)
        path.write_text(self.tokens.account_key(email, project), encoding="ascii")
        return path

    def add(self, instance: CloudInstance) -> CloudInstance:
        with self._lock:
            self.instances = [one for one in self.instances if one.provider_id != instance.provider_id]
            self.instances.append(instance)
        return instance

    def metadata_endpoint(self, instance: CloudInstance) -> str:
        with self._lock:
            if instance.number not in self._metadata:
                self._metadata[instance.number] = self.serve(partial(answer_metadata, instance, self.tokens))
        return self._metadata[instance.number]

    def _answer(self, request: Request) -> Reply:
        if request.path == _TOKEN:
            return self.tokens.answer(request)
        holder = self.tokens.holder(request.headers.get("authorization", ""))
        match = _INSTANCES.fullmatch(request.path)
        if holder is None:
            return _error(401, "Request had invalid authentication credentials.", "authError")
        if match is None or request.method != "GET":
            return _error(404, "Not found", "notFound")
        return self._permitted(request, match, holder)

    def _permitted(self, request: Request, match: re.Match[str], holder: str) -> Reply:
        expression = request.parameters.get("filter", "")
        self.calls.append(f"{request.path} {expression.count('name =')}".removesuffix(" 0"))
        project = match["project"]
        if (trouble := self._trouble(project)) is not None:
            return trouble
        if holder not in self.readers.get(project, set()):
            return _error(403, "Required 'compute.instances.list' permission", "forbidden")
        if match["name"] is None:
            return self._list(project, match["zone"], request)
        return self._get(project, match["zone"], match["name"], identity=bool(match["identity"]))

    def _trouble(self, project: str) -> Reply | None:
        switches = self.switches
        replies: tuple[tuple[bool, Callable[[], Reply]], ...] = (
            (project in switches.down, lambda: Reply(0)),
            (project in switches.failing, lambda: _error(503, "Backend error", "backendError")),
            (project in switches.throttled, _throttled),
            (project in switches.garbled, lambda: Reply(200, b"<html>")),
            (project in switches.redirecting, lambda: Reply(302, b"", {"Location": switches.redirecting[project]})),
        )
        return next((make() for applies, make in replies if applies), None)

    def _list(self, project: str, zone: str, request: Request) -> Reply:
        try:
            names = filtered(request.parameters.get("filter", ""))
            start = int(request.parameters.get("pageToken", "0"))
            size = min(int(request.parameters.get("maxResults", _MOST)), _MOST)
        except ValueError:
            return _error(400, "Invalid value for field", "invalid")
        with self._lock:
            here = [one for one in self.instances if (one.project, one.zone) == (project, zone)]
        found = [one.resource() for one in here if names is None or one.name in names]
        if project in self.switches.swapping:
            found = [self.switches.swapping[project].resource()]
        answer: dict[str, object] = {"kind": "compute#instanceList", "items": found[start : start + size]}
        if start + size < len(found):
            answer["nextPageToken"] = str(start + size)
        return as_json(masked(answer, request.parameters.get("fields", "")))

    def _get(self, project: str, zone: str, name: str, *, identity: bool) -> Reply:
        with self._lock:
            here = [one for one in self.instances if (one.project, one.zone) == (project, zone)]
        found = next((one for one in here if name in {one.name, one.number}), None)
        if found is None:
            return _error(404, f"The resource 'instances/{name}' was not found", "notFound")
        if identity and not found.vtpm:
            return _error(400, "The instance has no vTPM", "invalid")
        return as_json(found.identity() if identity else found.resource())


def _throttled() -> Reply:
    reply = _error(429, "Quota exceeded for quota metric 'Read requests'", "rateLimitExceeded")
    return Reply(reply.status, reply.body, {**reply.headers, "Retry-After": "7"})


def _error(code: int, message: str, reason: str) -> Reply:
    errors = [{"message": message, "domain": "global", "reason": reason}]
    return as_json({"error": {"code": code, "message": message, "errors": errors}}, code)
