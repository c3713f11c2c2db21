"""Runs commands on one control plane, and sees what they wrote."""

from __future__ import annotations

import base64
from contextlib import suppress

import pytest

from nodeattest_cli.main import main
from nodeattest_discovery import clusterinfo
from nodeattest_sandbox.apiserver.jsonvalue import map_at, text_at
from nodeattest_sandbox.client import ApiRefusal
from nodeattest_sandbox.control_plane import ControlPlane

SECRETS = "/api/v1/namespaces/kube-system/secrets"
RBAC = "/apis/rbac.authorization.k8s.io/v1/namespaces/kube-public"
ROLE = "kubeadm:bootstrap-signer-clusterinfo"


class Tool:
    """Runs commands on one control plane, which has neither tokens nor cluster-info at first."""

    def __init__(self, plane: ControlPlane, capsys: pytest.CaptureFixture[str]) -> None:
        self.plane, self.client = plane, plane.client()
        self.err = ""
        self._capsys = capsys

    def run(self, *words: str, code: int = 0) -> str:
        """Run a command without a kubeconfig and return standard output."""
        done = main([*words])
        out, self.err = self._capsys.readouterr()
        assert done == code, self.err
        return out

    def __call__(self, *words: str, code: int = 0) -> str:
        """Run it as administrator."""
        return self.run(*words, "--kubeconfig", str(self.plane.admin_kubeconfig), code=code)

    def refuse(self, *words: str, code: int = 2) -> str:
        """Run it, see that it made no token and printed one line, and return that."""
        before = self.tokens()
        assert self(*words, code=code) == ""
        assert self.err.count("\n") == 1
        assert self.tokens() == before
        return self.err

    def tokens(self) -> set[str]:
        """Name the tokens."""
        found = self.client.list(SECRETS, fieldSelector="type=bootstrap.kubernetes.io/token")
        return {text_at(one, "metadata", "name").removeprefix("bootstrap-token-") for one in found}

    def token(self, token_id: str) -> dict[str, str]:
        """Read a token's Secret."""
        stored = map_at(self.client.get(f"{SECRETS}/bootstrap-token-{token_id}"), "data")
        return {key: base64.b64decode(str(value)).decode() for key, value in stored.items()}

    def clear(self) -> None:
        """Delete what may have been made."""
        paths = [clusterinfo.PATH, f"{RBAC}/roles/{ROLE}", f"{RBAC}/rolebindings/{ROLE}"]
        for path in [*paths, *(f"{SECRETS}/bootstrap-token-{one}" for one in self.tokens())]:
            with suppress(ApiRefusal):
                self.client.delete(path)
