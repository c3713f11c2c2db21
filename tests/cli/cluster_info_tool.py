"""``nodeattest cluster-info`` on one control plane, which has neither tokens nor cluster-info at first."""

from __future__ import annotations

from contextlib import suppress

import pytest

from nodeattest_cli.main import main
from nodeattest_discovery import clusterinfo, jws
from nodeattest_discovery.token import BootstrapToken, generate
from nodeattest_sandbox.apiserver.jsonvalue import JsonMap, map_at, text_at
from nodeattest_sandbox.client import ApiRefusal
from nodeattest_sandbox.control_plane import ControlPlane

SECRETS = "/api/v1/namespaces/kube-system/secrets"
RBAC = "/apis/rbac.authorization.k8s.io/v1/namespaces/kube-public"
ROLE = "kubeadm:bootstrap-signer-clusterinfo"


class ClusterInfoTool:
    """Runs the sub-commands, and looks at what they wrote."""

    def __init__(self, plane: ControlPlane, capsys: pytest.CaptureFixture[str]) -> None:
        self.plane = plane
        self.client = plane.client()
        self.out, self.err = "", ""
        self._capsys = capsys

    def run(self, *words: str, code: int = 0) -> str:
        """Run ``cluster-info …`` without a kubeconfig and return standard output."""
        done = main(["cluster-info", *words])
        self.out, self.err = self._capsys.readouterr()
        assert done == code, self.err
        return self.out

    def __call__(self, *words: str, code: int = 0) -> str:
        """Run ``cluster-info …`` as administrator and return standard output."""
        return self.run(*words, "--kubeconfig", str(self.plane.admin_kubeconfig), code=code)

    def object(self) -> JsonMap:
        """Read the ConfigMap."""
        return self.client.get(clusterinfo.PATH)

    def data(self) -> JsonMap:
        """Read what stands in it."""
        return map_at(self.object(), "data")

    def kubeconfig(self) -> str:
        """Read the text that is signed."""
        return text_at(self.object(), "data", "kubeconfig")

    def tokens(self) -> set[str]:
        """Name the tokens."""
        found = self.client.list(SECRETS, fieldSelector="type=bootstrap.kubernetes.io/token")
        return {text_at(one, "metadata", "name").removeprefix("bootstrap-token-") for one in found}

    def publish(self) -> BootstrapToken:
        """Publish, and make a token of our own."""
        made = generate()
        self("publish")
        done = main(["token", "create", made.reveal(), "--kubeconfig", str(self.plane.admin_kubeconfig)])
        self._capsys.readouterr()
        assert done == 0
        return made

    def put(self, **data: str | None) -> None:
        """Change what stands in cluster-info."""
        self.client.patch(clusterinfo.PATH, {"data": {key.replace("_", "-"): value for key, value in data.items()}})

    def sign(self, token: BootstrapToken, text: str | None = None) -> None:
        """Sign it as a bootstrap signer does, or another text."""
        signed = (self.kubeconfig() if text is None else text).encode()
        self.put(**{f"jws-kubeconfig-{token.id}": jws.sign(signed, token)})

    def clear(self) -> None:
        """Delete what may have been made."""
        paths = [clusterinfo.PATH, f"{RBAC}/roles/{ROLE}", f"{RBAC}/rolebindings/{ROLE}"]
        for path in [*paths, *(f"{SECRETS}/bootstrap-token-{one}" for one in self.tokens())]:
            with suppress(ApiRefusal):
                self.client.delete(path)
