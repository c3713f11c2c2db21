"""A cluster with one server, and discovery files that name it."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

import pytest
from lying_servers import Ca, LyingServer, Reply, Says, VirtualTime, config_map, status

from nodeattest_discovery import clusterinfo
from nodeattest_discovery.node.by_file import FileFound, by_file
from nodeattest_providers.errors import Denied, Reason, Unavailable

CA: Final = Ca()
EVIL: Final = Ca("evil")
PUBLIC: Final = Ca("public")
"""Whom this machine trusts for servers of public names, in the place of the system's CAs."""
SECRET: Final = "hunter2"
ANY_SERVER: Final = "https://127.0.0.1:1"

Config = dict[str, Any]


class Cluster:
    """One server of the cluster, and files that name it."""

    def __init__(self, stack: ExitStack, folder: Path) -> None:
        self.stack, self.folder = stack, folder
        self.time = VirtualTime()
        self.server = self.stand(CA, status(403, "Forbidden"))
        self.stdin: Callable[[], bytes] = lambda: b""

    def stand(self, ca: Ca, says: Says | Reply) -> LyingServer:
        return self.stack.enter_context(LyingServer(ca.server(), says))

    def config(self, *, server: str | None = None, ca: bytes | None = CA.pem, user: Config | None = None) -> Config:
        """Make a kubeconfig: one cluster, and perhaps one user, who is current."""
        cluster: Config = {"server": server or self.server.url}
        if ca is not None:
            cluster["certificate-authority-data"] = base64.b64encode(ca).decode()
        config: Config = {"apiVersion": "v1", "kind": "Config", "clusters": [{"name": "", "cluster": cluster}]}
        if user is not None:
            config["users"] = [{"name": "node", "user": user}]
            config["contexts"] = [{"name": "main", "context": {"cluster": "", "user": "node"}}]
            config["current-context"] = "main"
        return config

    def write(self, content: Config | str | bytes, name: str = "discovery.conf") -> str:
        data = content if isinstance(content, bytes) else text_of(content).encode()
        (self.folder / name).write_bytes(data)
        return str(self.folder / name)

    def find(self, content: Config | str | bytes, *, allow_credentials: bool = False) -> FileFound:
        return self.find_at(self.write(content), allow_credentials=allow_credentials)

    def find_at(self, source: str, *, allow_credentials: bool = False) -> FileFound:
        environment = self.time.environment(limit=12, public_roots=PUBLIC.pem)
        return by_file(source, environment, stdin=self.stdin, allow_credentials=allow_credentials)

    def reason(self, content: Config | str | bytes, *, allow_credentials: bool = False) -> Reason:
        return self.reason_at(self.write(content), allow_credentials=allow_credentials)

    def reason_at(self, source: str, *, allow_credentials: bool = False) -> Reason:
        with pytest.raises((Denied, Unavailable)) as caught:
            self.find_at(source, allow_credentials=allow_credentials)
        assert isinstance(caught.value, Denied | Unavailable)
        assert SECRET not in str(caught.value)
        return caught.value.reason


def text_of(content: Config | str) -> str:
    return content if isinstance(content, str) else json.dumps(content)


def published(server: str, *authorities: Ca) -> Reply:
    return config_map({"kubeconfig": clusterinfo.build(server, b"".join(ca.pem for ca in authorities))})
