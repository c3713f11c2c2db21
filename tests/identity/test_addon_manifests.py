"""manifests/addon-gateway and the example of an add-on: their rights, places and limits."""

from __future__ import annotations

from pathlib import Path
from typing import cast

import yaml

from nodeattest_controller import manifests
from nodeattest_identity.addon.gateway.keyset import SECRET_NAME
from nodeattest_identity.addon.gateway.service import DEFAULT_PROXY
from nodeattest_identity.addon.gateway.target import GROUP, RESOURCE, SUBRESOURCE, VERSION
from nodeattest_identity.proxy.refusals import CONNECTION_BYTES, STALLED_BYTES
from nodeattest_parsing.objects import items, mapping, strings, text
from nodeattest_parsing.values import JsonObject

MADE = manifests.objects("addon-gateway")


EXAMPLE = cast(
    "list[JsonObject]",
    list(yaml.safe_load_all((Path(__file__).parents[2] / "examples/dashboard/manifests.yaml").read_text())),
)


def find(kind: str, documents: list[JsonObject] = MADE) -> JsonObject:
    [found] = [each for each in documents if each["kind"] == kind]
    return found


def rules(
    *kinds: str, name: str = "nodeattest:addon-gateway"
) -> set[tuple[str, str, tuple[str, ...], tuple[str, ...]]]:
    return {
        (group, resource, strings(rule, "resourceNames"), strings(rule, "verbs"))
        for each in MADE
        if each["kind"] in kinds and text(each, "metadata", "name") == name
        for rule in items(each, "rules")
        for group in strings(rule, "apiGroups")
        for resource in strings(rule, "resources")
    }


def test_the_gateway_reads_one_service_at_a_time_and_keeps_one_secret() -> None:
    assert rules("ClusterRole") == {
        ("", "services", (), ("get",)),
        ("", "endpoints", (), ("get",)),
        ("authorization.k8s.io", "subjectaccessreviews", (), ("create",)),
    }
    assert rules("Role") == {
        ("", "secrets", (), ("create",)),
        ("", "secrets", (SECRET_NAME,), ("get", "update")),
    }
    bound = {text(each, "roleRef", "name") for each in MADE if str(each["kind"]).endswith("RoleBinding")}
    assert bound == {"nodeattest:addon-gateway", "extension-apiserver-authentication-reader"}


def test_all_connections_at_once_fit_into_the_memory_that_the_gateway_may_use() -> None:
    [container] = items(find("Deployment"), "spec", "template", "spec", "containers")
    assert not any(word.startswith("--max-connections") for word in strings(container, "args"))
    limit = text(container, "resources", "limits", "memory")
    assert limit.endswith("Gi")
    process = 128 << 20
    assert DEFAULT_PROXY.upstream_connections == DEFAULT_PROXY.connections
    inside = DEFAULT_PROXY.connections * STALLED_BYTES + DEFAULT_PROXY.unauthenticated_connections * CONNECTION_BYTES
    assert process + inside <= int(limit.removesuffix("Gi")) << 30


def test_kube_apiserver_is_sent_where_the_gateway_listens_and_verifies_it() -> None:
    service, api_service = find("Service"), find("APIService")
    spec = mapping(api_service, "spec")
    assert (spec["group"], spec["version"]) == (GROUP, VERSION)
    assert "insecureSkipTLSVerify" not in spec
    assert mapping(spec, "service") == {**mapping(service, "metadata"), "port": 443}
    [container] = items(find("Deployment"), "spec", "template", "spec", "containers")
    named = {text(port, "name"): port["containerPort"] for port in items(container, "ports")}
    [port] = items(service, "spec", "ports")
    assert f"--bind-address=:{named[text(port, 'targetPort')]}" in strings(container, "args")


def test_users_get_the_one_sub_resource_and_nobody_is_bound_to_it() -> None:
    verbs = ("get", "create", "update", "patch", "delete")
    assert rules("ClusterRole", name="nodeattest:addon-user") == {(GROUP, f"{RESOURCE}/{SUBRESOURCE}", (), verbs)}
    subjects = [subject for each in MADE for subject in items(each, "subjects")]
    assert {text(subject, "kind") for subject in subjects} == {"ServiceAccount"}


def test_the_examples_pod_keeps_to_the_restricted_profile_and_has_no_token() -> None:
    """Source: Kubernetes docs, concepts/security/pod-security-standards."""
    pod = mapping(find("Deployment", EXAMPLE), "spec", "template", "spec")
    namespace = mapping(find("Namespace", EXAMPLE), "metadata", "labels")
    assert namespace["pod-security.kubernetes.io/enforce"] == "restricted"
    for each in (pod, find("ServiceAccount", EXAMPLE)):
        assert each["automountServiceAccountToken"] is False
    context = mapping(pod, "securityContext")
    assert (context["runAsNonRoot"], context["seccompProfile"]) == (True, {"type": "RuntimeDefault"})
    for container in items(pod, "containers"):
        context = mapping(container, "securityContext")
        assert (context["allowPrivilegeEscalation"], context["readOnlyRootFilesystem"]) == (False, True)
        assert context["capabilities"] == {"drop": ["ALL"]}
        assert text(container, "resources", "limits", "memory")
    assert {key for volume in items(pod, "volumes") for key in volume} == {"name", "configMap"}


def test_the_examples_service_and_network_policy_lead_to_the_sidecar_only() -> None:
    pod = mapping(find("Deployment", EXAMPLE), "spec", "template", "spec")
    ports = {text(port, "name") for container in items(pod, "containers") for port in items(container, "ports")}
    assert ports == {"authenticated", "health"}
    assert [text(each, "targetPort") for each in items(find("Service", EXAMPLE), "spec", "ports")] == ["authenticated"]
    ingress = items(find("NetworkPolicy", EXAMPLE), "spec", "ingress")
    assert [text(each, "port") for rule in ingress for each in items(rule, "ports")] == ["authenticated", "health"]
    assert "from" in ingress[0]
    [rule] = items(find("Role", EXAMPLE), "rules")
    assert (strings(rule, "resources"), strings(rule, "resourceNames")) == (("services/proxy",), ("dashboard",))
    assert (strings(rule, "apiGroups"), strings(rule, "verbs")) == ((GROUP,), ("get",))
