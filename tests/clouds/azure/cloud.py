"""One Azure on loopback: started, filled with machines, and ended with its starter.

Promises: real servers in threads of this process, over TLS with an authority of their own where Azure has TLS; what a
controller needs to reach and trust them is in files and in ``configuration``. Nothing of Azure's is asked.
"""

from __future__ import annotations

import ssl
import uuid
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Final, Self

from clouds.azure import manager, metadata
from clouds.azure.authority import Issuer, pem, signer_of
from clouds.azure.state import SandboxMachine, State
from clouds.serving import Reply, Request, Serving
from nodeattest_sandbox.child_process import LOOPBACK
from nodeattest_sandbox.pki import server_tls

_GROUP: Final = "Fleet-RG"
"""With upper case, as people write them."""


class SandboxAzure:
    """A cloud; a context manager."""

    def __init__(self, directory: Path) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self.directory = directory
        self.state = State()
        self.subscription = str(uuid.uuid4())
        self.root = Issuer.root("Sandbox Global Root")
        self.issuing = self.root.issuing("Sandbox Azure TLS Issuing CA 01")
        self.signing = metadata.Signing(*signer_of(self.issuing))
        self.tenant = manager.Directory(str(uuid.uuid4()), str(uuid.uuid4()), str(uuid.uuid4()))
        self._servers: list[Serving] = []
        self.ca_bundle, context = server_tls(directory / "tls", "azure")
        self.trust_bundle = self._write("trust.pem", pem(self.root.certificate, self.issuing.certificate))
        self.token_file = self._write("token", self.tenant.federated.encode())
        self.url = (
            f"https://{LOOPBACK}:{self._serve(partial(manager.answer_manager, self.state, self.tenant), context)}"
        )

    @property
    def configuration(self) -> dict[str, object]:
        """``platforms.azure`` for a controller of this cloud."""
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
        """Make a machine and start its metadata service."""
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
        answer = partial(metadata.answer_metadata, machine, self.signing, self.tenant.managed_token)
        machine.metadata = f"http://{LOOPBACK}:{self._serve(answer)}"
        return machine

    def stop(self) -> None:
        """End all servers."""
        while self._servers:
            self._servers.pop().stop()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _serve(self, answer: Callable[[Request], Reply], context: ssl.SSLContext | None = None) -> int:
        """Start a server; returns its port."""
        self._servers.append(Serving(answer, context))
        return self._servers[-1].port

    def _write(self, name: str, content: bytes) -> Path:
        path = self.directory / name
        path.touch(mode=0o600)
        path.write_bytes(content)
        return path
