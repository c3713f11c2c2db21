"""A loopback cluster that publishes cluster-info, and a machine that knows no more of it than a token and a pin."""

from __future__ import annotations

import base64
import json
import subprocess
import sys
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from agent_cluster import TOKEN, Authority, FakeApi
from agent_machine import COMMAND, Machine
from test_join import Joiner

from nodeattest_authenticator.config.settings import Settings, load
from nodeattest_discovery import clusterinfo, jws, token
from nodeattest_discovery.pins import pin_of

KUBELET_CONFIG = "/api/v1/namespaces/kube-system/configmaps/kubelet-config"


def publish(
    api: FakeApi, *, server: str | None = None, trusts: Sequence[Authority] = (), signed: Sequence[str] = (TOKEN,)
) -> str:
    """Publish cluster-info as the cluster would; returns its text."""
    pem = b"".join(authority.pem for authority in trusts or (api.authority,))
    text = clusterinfo.build(server or api.url, pem)
    data = {clusterinfo.KUBECONFIG_KEY: text}
    for made in map(token.parse, signed):
        data[clusterinfo.SIGNATURE_PREFIX + made.id] = jws.sign(text.encode(), made)
    document = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "cluster-info"}, "data": data}
    document["metadata"] = {"name": clusterinfo.NAME, "namespace": clusterinfo.NAMESPACE}
    api.public[clusterinfo.PATH] = document
    return text


def give_kubelet_configuration(api: FakeApi, text: str) -> None:
    """Keep kubelet's configuration as kubeadm does."""
    api.readable[KUBELET_CONFIG] = {"apiVersion": "v1", "kind": "ConfigMap", "data": {"kubelet": text}}


@contextmanager
def other_cluster(tmp_path: Path, authority: Authority) -> Generator[FakeApi]:
    folder = tmp_path / "elsewhere"
    folder.mkdir()
    with FakeApi(folder, authority) as api:
        yield api


KILLED = """
import os, sys
left = int(sys.argv.pop(1))
def count(event, arguments):
    global left
    if event == "os.rename":
        left -= 1
        if left < 0:
            os.kill(os.getpid(), 9)
sys.addaudithook(count)
from nodeattest_authenticator.commands.cli import main
sys.exit(main(sys.argv[1:]))
"""
"""Runs the command, which dies of SIGKILL when it is about to put one more file in its place."""


def killed(deaths: int, *words: str) -> subprocess.CompletedProcess[str]:
    """Run a command that dies before it puts its file number ``deaths`` in its place, if it comes so far."""
    return subprocess.run(
        [sys.executable, "-c", KILLED, str(deaths), str(COMMAND), *words], capture_output=True, text=True, check=False
    )


def pin(authority: Authority) -> str:
    return str(pin_of(authority.certificate))


class Discoverer(Joiner):
    """A machine that has been told a token and a pin."""

    def __init__(self, folder: Path, api: FakeApi) -> None:
        super().__init__(folder, api)
        self.by_file = folder / "discovery.conf"
        folder.joinpath("token").chmod(0o600)
        self.options |= {
            "--server": None,
            "--ca-file": None,
            "--discovery-server": api.url.removeprefix("https://"),
            "--discovery-token-ca-cert-hash": pin(api.authority),
            "--discovery-timeout": "60",
        }

    def with_file(self, text: str | None = None, **user: object) -> dict[str, str | None]:
        """Return the changes that make it discover by a file; ``user`` is the user in it."""
        if text is None:
            cluster = {
                "server": self.api.url,
                "certificate-authority-data": base64.b64encode(self.api.authority.pem).decode(),
            }
            document: dict[str, Any] = {
                "apiVersion": "v1",
                "kind": "Config",
                "clusters": [{"name": "c", "cluster": cluster}],
            }
            if user:
                document["users"] = [{"name": "u", "user": user}]
                document["contexts"] = [{"name": "x", "context": {"cluster": "c", "user": "u"}}]
                document["current-context"] = "x"
            text = json.dumps(document)
        self.by_file.write_text(text)
        self.by_file.chmod(0o600)
        return {
            "discovery_server": None,
            "discovery_token_ca_cert_hash": None,
            "discovery_file": str(self.by_file),
        }

    @property
    def settings(self) -> Settings:
        return load(str(self.folder / "config.json"), hostname="host")

    @property
    def installed(self) -> Machine:
        """The machine as join left it."""
        return Machine(self.folder, self.api)

    @property
    def info(self) -> str:
        """What client-go makes of the kubeconfig as it is now."""
        cluster = json.loads(self.kubeconfig.read_bytes())["clusters"][0]["cluster"]
        return self.machine.info(**cluster)
