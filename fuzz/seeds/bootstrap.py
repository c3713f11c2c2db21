"""Seeds of rendering: the kinds, versions and formats, with what users put into them."""

from __future__ import annotations

import json

__all__ = ["seeds"]


def seeds() -> dict[str, list[bytes]]:
    """Return seeds by target."""
    bootstrap, control_plane = "bootstrap.cluster.x-k8s.io", "controlplane.cluster.x-k8s.io"
    listed = [{"name": "node-labels", "value": "a=b"}, {"name": "rotate-certificates", "value": "false"}]
    own: dict[str, object] = {
        "files": [{"path": "/etc/systemd/system/kubelet.service.d/20-own.conf", "content": "[Service]\n"}],
        "preKubeadmCommands": ["true # nodeattest", "envsubst"],
        "format": "ignition",
        "joinConfiguration": {"nodeRegistration": {"kubeletExtraArgs": listed, "ignorePreflightErrors": ["Swap"]}},
    }
    mapped = {"nodeRegistration": {"kubeletExtraArgs": {"v": "4", "rotate-certificates": "true"}}}
    documents: list[dict[str, object]] = [
        _object(f"{bootstrap}/v1beta2", "KubeadmConfigTemplate", {"template": {"spec": own}}),
        _object(f"{bootstrap}/v1beta1", "KubeadmConfig", {"joinConfiguration": {"skipPhases": ["kubelet-start"]}}),
        _object(
            f"{control_plane}/v1beta1", "KubeadmControlPlane", {"kubeadmConfigSpec": {"initConfiguration": mapped}}
        ),
        _object(f"{control_plane}/v1beta2", "KubeadmControlPlane", {"kubeadmConfigSpec": {"files": []}}),
        _object(f"{bootstrap}/v1beta2", "KubeadmConfig", {"initConfiguration": {}, "clusterConfiguration": {}}),
    ]
    return {"bootstrap-configuration": [json.dumps(document).encode() for document in documents]}


def _object(api_version: str, kind: str, spec: dict[str, object]) -> dict[str, object]:
    return {"apiVersion": api_version, "kind": kind, "metadata": {"name": "x"}, "spec": spec}
