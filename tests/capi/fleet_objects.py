"""What a user applies: a Cluster, its control plane, machines in deployments and pools."""

from __future__ import annotations

from typing import Any

from infrastructure import PATCHES
from kinds import (
    CLUSTER,
    CLUSTER_CLASS,
    CLUSTER_LABEL,
    CONFIG,
    CONFIG_TEMPLATE,
    CONTROL_PLANE,
    CONTROL_PLANE_TEMPLATE,
    DEPLOYMENT,
    HEALTH_CHECK,
    POOL,
    PROCESS_CLUSTER,
    PROCESS_CLUSTER_TEMPLATE,
    PROCESS_POOL,
    PROCESS_TEMPLATE,
    Kind,
    Object,
    made,
)

HERE = (
    "NumCPU",
    "Mem",
    "Swap",
    "CRI",
    "ContainerRuntimeVersion",
    "SystemVerification",
    "Port-10250",
    "Hostname",
    "Service-Kubelet",
    *(
        f"FileExisting-{name}"
        for name in ("conntrack", "crictl", "ip", "iptables", "ebtables", "ethtool", "socat", "tc")
    ),
    *(f"FileContent--proc-sys-net-{name}" for name in ("bridge-bridge-nf-call-iptables", "ipv4-ip_forward")),
)
"""What this machine lacks to be a node, and a real one would not; what attestation needs is not in it."""


def policy(name: str, attestor: str, cluster_name: str, **spec: Any) -> Object:
    selector = {"matchLabels": {CLUSTER_LABEL: cluster_name}}
    return {
        "apiVersion": "attestation.cluster.x-k8s.io/v1alpha1",
        "kind": "NodeAttestationPolicy",
        "metadata": {"name": name},
        "spec": {"authorizedAttestors": [attestor], "clusterSelector": selector, **spec},
    }


def registration() -> Object:
    """How every machine names itself; cloud-init fills in what differs."""
    return {
        "name": "{{ ds.meta_data.local_hostname }}",
        "kubeletExtraArgs": [{"name": "provider-id", "value": "process://{{ ds.meta_data.instance_id }}"}],
        "ignorePreflightErrors": list(HERE),
    }


def joining() -> Object:
    """How every machine joins: with the patches of its image."""
    return {"nodeRegistration": registration(), "patches": {"directory": PATCHES}}


def control_plane() -> Object:
    """How kubeadm makes every control plane."""
    return {"initConfiguration": {"nodeRegistration": registration()}, "joinConfiguration": joining()}


def reference(kind: Kind, name: str) -> Object:
    return {"apiGroup": kind.group, "kind": kind.kind, "name": name}


def cluster(name: str, version: str) -> list[tuple[Kind, Object]]:
    """Make a Cluster with one control-plane machine."""
    spec = {"infrastructureRef": reference(PROCESS_CLUSTER, name), "controlPlaneRef": reference(CONTROL_PLANE, name)}
    machine = {"spec": {"infrastructureRef": reference(PROCESS_TEMPLATE, name)}}
    plane = {"replicas": 1, "version": version, "machineTemplate": machine, "kubeadmConfigSpec": control_plane()}
    return [
        (PROCESS_TEMPLATE, made(PROCESS_TEMPLATE, name, name, {"template": {"spec": {}}})),
        (PROCESS_CLUSTER, made(PROCESS_CLUSTER, name, name, {})),
        (CLUSTER, made(CLUSTER, name, name, spec)),
        (CONTROL_PLANE, made(CONTROL_PLANE, name, name, plane)),
    ]


def deployment(
    name: str, cluster_name: str, version: str, annotations: dict[str, str] | None = None
) -> list[tuple[Kind, Object]]:
    """Make a MachineDeployment with its bootstrap template; the cluster's machine template serves it, too.

    ``annotations``: of each KubeadmConfig.
    """
    labels = {CLUSTER_LABEL: cluster_name, "deployment": name}
    machine = {
        "clusterName": cluster_name,
        "version": version,
        "bootstrap": {"configRef": reference(CONFIG_TEMPLATE, name)},
        "infrastructureRef": reference(PROCESS_TEMPLATE, cluster_name),
    }
    rolling = {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 1}}
    spec = {
        "clusterName": cluster_name,
        "replicas": 1,
        "selector": {"matchLabels": labels},
        "rollout": {"strategy": rolling},
        "template": {"metadata": {"labels": labels}, "spec": machine},
    }
    config = {"template": {"metadata": {"annotations": annotations or {}}, "spec": {"joinConfiguration": joining()}}}
    return [
        (CONFIG_TEMPLATE, made(CONFIG_TEMPLATE, name, cluster_name, config)),
        (DEPLOYMENT, made(DEPLOYMENT, name, cluster_name, spec)),
    ]


def topology(name: str, version: str) -> list[tuple[Kind, Object]]:
    """Make a ClusterClass and a Cluster of it, with one control-plane machine and one worker."""

    def template(kind: Kind, spec: Object) -> tuple[Kind, Object]:
        value = made(kind, name, name, {"template": {"spec": spec}})
        del value["metadata"]["labels"]  # a class and its templates serve many clusters
        return kind, value

    def refer(kind: Kind) -> Object:
        return {"templateRef": {"apiVersion": kind.api_version, "kind": kind.kind, "name": name}}

    worker = {"class": "worker", "bootstrap": refer(CONFIG_TEMPLATE), "infrastructure": refer(PROCESS_TEMPLATE)}
    parts = {
        "infrastructure": refer(PROCESS_CLUSTER_TEMPLATE),
        "controlPlane": {**refer(CONTROL_PLANE_TEMPLATE), "machineInfrastructure": refer(PROCESS_TEMPLATE)},
        "workers": {"machineDeployments": [worker]},
    }
    of_class = made(CLUSTER_CLASS, name, name, parts)
    del of_class["metadata"]["labels"]
    spec = {
        "classRef": {"name": name},
        "version": version,
        "controlPlane": {"replicas": 1},
        "workers": {"machineDeployments": [{"class": "worker", "name": "workers", "replicas": 1}]},
    }
    return [
        template(PROCESS_CLUSTER_TEMPLATE, {}),
        template(PROCESS_TEMPLATE, {}),
        template(CONTROL_PLANE_TEMPLATE, {"kubeadmConfigSpec": control_plane()}),
        template(CONFIG_TEMPLATE, {"joinConfiguration": joining()}),
        (CLUSTER_CLASS, of_class),
        (CLUSTER, made(CLUSTER, name, name, {"topology": spec})),
    ]


def pool(name: str, cluster_name: str, version: str) -> list[tuple[Kind, Object]]:
    """Make a MachinePool of one machine; its configuration is nobody's until Cluster API labels it."""
    machine = {
        "clusterName": cluster_name,
        "version": version,
        "bootstrap": {"configRef": reference(CONFIG, name)},
        "infrastructureRef": reference(PROCESS_POOL, name),
    }
    spec = {"clusterName": cluster_name, "replicas": 1, "template": {"spec": machine}}
    config = made(CONFIG, name, cluster_name, {"joinConfiguration": joining()})
    del config["metadata"]["labels"]
    return [
        (CONFIG, config),
        (PROCESS_POOL, made(PROCESS_POOL, name, cluster_name, {})),
        (POOL, made(POOL, name, cluster_name, spec)),
    ]


def health_check(cluster_name: str, condition: str, status: str) -> tuple[Kind, Object]:
    """Replace machines of which this condition says this."""
    check = {"type": condition, "status": status, "timeoutSeconds": 0}
    spec = {
        "clusterName": cluster_name,
        "selector": {"matchLabels": {CLUSTER_LABEL: cluster_name}},
        "checks": {"unhealthyMachineConditions": [check]},
        "remediation": {"triggerIf": {"unhealthyLessThanOrEqualTo": "100%"}},
    }
    return HEALTH_CHECK, made(HEALTH_CHECK, "attested", cluster_name, spec)
