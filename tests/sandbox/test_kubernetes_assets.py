"""What the summary of a test run says of the Kubernetes programs that it had."""

from __future__ import annotations

from pathlib import Path

import pytest
from kubernetes_assets import stated_versions
from needs import kubernetes_folder


def program(folder: Path, name: str, stated: str) -> None:
    path = folder / name
    path.write_text(f"#!/bin/sh\ncat <<'END'\n{stated}\nEND\n", encoding="ascii")
    path.chmod(0o755)


def test_each_program_is_named_with_the_version_that_it_states_and_what_is_missing_too(tmp_path: Path) -> None:
    program(tmp_path, "etcd", "etcd Version: 3.5.30\nGit SHA: none\nGo OS/Arch: linux/amd64")
    program(tmp_path, "kube-apiserver", "Kubernetes v1.36.2")
    program(tmp_path, "kubectl", "Client Version: v1.31.14\nKustomize Version: v5.4.2")
    assert stated_versions(tmp_path) == (
        "kube-apiserver v1.36.2, kubectl v1.31.14, etcd 3.5.30, no kube-controller-manager, no kubeadm, no kubelet"
    )


@pytest.mark.conformance
def test_real_programs_state_their_versions() -> None:
    told = stated_versions(kubernetes_folder())
    assert all(f"{name} " in told for name in ("kube-apiserver", "etcd"))
