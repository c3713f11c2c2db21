"""A machine in a temporary folder: the files that join writes, and the real command run on them."""

from __future__ import annotations

import base64
import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from agent_cluster import TOKEN, FakeApi

from nodeattest_authenticator.context import AgentContext
from nodeattest_discovery.node.clock import Clock, random_unit

COMMAND = Path(sys.executable).parent / "kubelet-authenticator"
NODE = "node-0"


@dataclass(frozen=True)
class Machine:
    folder: Path
    api: FakeApi

    @property
    def cache(self) -> Path:
        return self.folder / "cache"

    @property
    def config(self) -> Path:
        return self.folder / "config.json"

    def prepare(self, **changes: object) -> Machine:
        document = {
            "apiVersion": "config.nodeattest.x-k8s.io/v1alpha1",
            "kind": "KubeletAuthenticatorConfiguration",
            "server": self.api.url,
            "certificateAuthority": self.api.authority.pem.decode(),
            "nodeName": NODE,
            "provider": {"name": "insecure"},
            "providerID": {"value": "sandbox://machine-0"},
            "timeoutSeconds": 60,
        } | changes
        self.config.write_text(json.dumps({name: value for name, value in document.items() if value is not None}))
        self.cache.mkdir(mode=0o700, exist_ok=True)
        self.write("bootstrap-token", TOKEN.encode())
        return self

    def challenged(self, **changes: object) -> Machine:
        self.folder.joinpath("secret").write_bytes(b"s" * 40)
        self.folder.joinpath("secret").chmod(0o600)
        settings = {"secretFile": str(self.folder / "secret")}
        return self.prepare(provider={"name": "challenge", "settings": settings}, **changes)

    def write(self, name: str, data: bytes) -> None:
        path = self.cache / name
        path.unlink(missing_ok=True)
        path.write_bytes(data)
        path.chmod(0o600)

    def info(self, version: str = "v1", **cluster: object) -> str:
        ca = base64.b64encode(self.api.authority.pem).decode()
        described = {"server": self.api.url, "certificate-authority-data": ca} | cluster
        return (
            json.dumps(
                {
                    "kind": "ExecCredential",
                    "apiVersion": f"client.authentication.k8s.io/{version}",
                    "spec": {"cluster": described, "interactive": False},
                }
            )
            + "\n"
        )

    def environment(self, info: str | None) -> dict[str, str]:
        environment = {key: value for key, value in os.environ.items() if key != "KUBERNETES_EXEC_INFO"}
        return environment if info is None else environment | {"KUBERNETES_EXEC_INFO": info}

    def arguments(self, command: str = "credential", *more: str) -> list[str]:
        return [str(COMMAND), command, "--config", str(self.config), "--cache-dir", str(self.cache), *more]

    def start(self, *arguments: str, info: str | None = None) -> subprocess.Popen[str]:
        environment = self.environment(self.info() if info is None else info)
        return subprocess.Popen(
            self.arguments(*arguments), env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )

    def run(self, *arguments: str, info: str | None = None) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            self.arguments(*arguments),
            env=self.environment(self.info() if info is None else info),
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )

    def agent(self, *, clock: Clock | None = None, said: list[str] | None = None) -> AgentContext:
        notes = said if said is not None else []
        return AgentContext.open(
            str(self.config),
            str(self.cache),
            hostname="host",
            clock=clock or Clock(),
            random=random_unit,
            log=notes.append,
        )
