"""An instance's metadata server: what it says of itself, to clients that ask in Google's way.

Promises: as the real one, no answer without ``Metadata-Flavor: Google``, none to a request that came through a proxy.
Source: Google, "View and query VM metadata".
"""

from __future__ import annotations

import json
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
