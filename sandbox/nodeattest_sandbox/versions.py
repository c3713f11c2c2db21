"""What a real API server's build can and cannot do.

Kubernetes before 1.24 carries github.com/modern-go/reflect2 1.0.1, which crashes when it is compiled with Go 1.18 or
newer: such a kube-apiserver dies at the first custom resource (modern-go/reflect2 pull request 25 repaired it for
1.0.2). Distributions build such pairs. It can be a workload cluster, not a management cluster.
"""

from __future__ import annotations

import re
from typing import Final

from nodeattest_sandbox.apiserver.jsonvalue import text_at
from nodeattest_sandbox.client import Client

__all__ = ["why_no_custom_resources"]

_KUBERNETES: Final = re.compile(r"v1\.(\d+)\.")
_GO: Final = re.compile(r"go1\.(\d+)")
FIRST_SOUND_KUBERNETES: Final = 24
FIRST_BREAKING_GO: Final = 18


def why_no_custom_resources(client: Client) -> str:
    """Say why this server must not be given a custom resource; an empty string when it may."""
    version = client.get("/version")
    kubernetes = _KUBERNETES.match(text_at(version, "gitVersion"))
    go = _GO.match(text_at(version, "goVersion"))
    if kubernetes is None or go is None:
        return ""
    if int(kubernetes[1]) >= FIRST_SOUND_KUBERNETES or int(go[1]) < FIRST_BREAKING_GO:
        return ""
    built = f"kube-apiserver {text_at(version, 'gitVersion')} built with {text_at(version, 'goVersion')}"
    return f"{built} crashes on custom resources (reflect2 1.0.1)"
