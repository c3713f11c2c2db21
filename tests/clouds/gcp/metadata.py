"""An instance's metadata server: what it says of itself, to clients that ask in Google's way.

Promises: as the real one, no answer without ``Metadata-Flavor: Google``, none to a request that came through a proxy.
Source: Google, "View and query VM metadata".
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Final

from clouds.gcp.instances import CloudInstance
from clouds.gcp.oauth import TokenServer
from clouds.serving import Reply, Request

_FLAVOR: Final = {"Metadata-Flavor": "Google", "Server": "Metadata Server for VM"}
_ROOT: Final = "/computeMetadata/v1/"
_SCOPES: Final = "https://www.googleapis.com/auth/cloud-platform"


def answer_metadata(instance: CloudInstance, tokens: TokenServer, request: Request) -> Reply:
    """Answer one request."""
    if request.headers.get("metadata-flavor") != "Google" or "x-forwarded-for" in request.headers:
        return Reply(403, b"Missing Metadata-Flavor:Google header.", _FLAVOR)
    if request.path == "/":
        return Reply(200, b"computeMetadata/\n", _FLAVOR)
    found = _documents(instance, tokens, request).get(request.path.removeprefix(_ROOT))
    if found is None or not request.path.startswith(_ROOT):
        return Reply(404, b"not found", _FLAVOR)
    kind = "application/json" if found.startswith("{") else "application/text"
    return Reply(200, found.encode(), {**_FLAVOR, "Content-Type": kind})


def _documents(instance: CloudInstance, tokens: TokenServer, request: Request) -> Mapping[str, str]:
    account = instance.service_account
    found = {
        "project/project-id": instance.project,
        "instance/id": instance.number,
        "instance/name": instance.name,
        "instance/zone": f"projects/123456789012/zones/{instance.zone}",
        "instance/hostname": f"{instance.name}.{instance.zone}.c.{instance.project}.internal",
    }
    if account is not None and request.path.endswith("/token"):
        answer = {"access_token": tokens.issue(account), "expires_in": 3599, "token_type": "Bearer"}
        found["instance/service-accounts/default/token"] = json.dumps(answer)
    if account is not None:
        described = {"aliases": ["default"], "email": account, "scopes": [_SCOPES]}
        found["instance/service-accounts/default/"] = json.dumps(described)
    return found
