"""The example of an add-on: its pod may little, and only the sidecar of it is reached."""

from __future__ import annotations

from addon_kit import documents

from nodeattest_identity.addon.gateway.target import GROUP
from nodeattest_parsing.objects import dig
from nodeattest_parsing.values import JsonObject, JsonValue


def only(kind: str) -> JsonObject:
    [found] = [each for each in documents() if each["kind"] == kind]
    return found


def objects(value: JsonValue) -> list[JsonObject]:
    assert isinstance(value, list)
    return [each for each in value if isinstance(each, dict)]


def pod() -> JsonObject:
    found = dig(only("Deployment"), "spec", "template", "spec")
    assert isinstance(found, dict)
    return found


def test_the_pod_keeps_to_the_restricted_profile_and_has_no_token() -> None:
    """Source: Kubernetes docs, concepts/security/pod-security-standards."""
    assert dig(only("Namespace"), "metadata", "labels", "pod-security.kubernetes.io/enforce") == "restricted"
    assert pod()["automountServiceAccountToken"] is False
    assert only("ServiceAccount")["automountServiceAccountToken"] is False
    assert dig(pod(), "securityContext", "runAsNonRoot") is True
    assert dig(pod(), "securityContext", "seccompProfile") == {"type": "RuntimeDefault"}
    for container in objects(pod()["containers"]):
        assert dig(container, "securityContext", "allowPrivilegeEscalation") is False
        assert dig(container, "securityContext", "readOnlyRootFilesystem") is True
        assert dig(container, "securityContext", "capabilities") == {"drop": ["ALL"]}
        assert dig(container, "resources", "limits", "memory")
    assert {key for volume in objects(pod()["volumes"]) for key in volume} == {"name", "configMap"}


def test_service_and_network_policy_lead_to_the_sidecar_and_never_to_the_dashboard_itself() -> None:
    ports = {
        str(each["name"]) for container in objects(pod()["containers"]) for each in objects(container.get("ports", []))
    }
    assert ports == {"authenticated", "health"}
    assert [each["targetPort"] for each in objects(dig(only("Service"), "spec", "ports"))] == ["authenticated"]
    ingress = objects(dig(only("NetworkPolicy"), "spec", "ingress"))
    assert [each["port"] for rule in ingress for each in objects(rule["ports"])] == ["authenticated", "health"]
    assert "from" in ingress[0]


def test_users_get_one_verb_on_one_service_of_the_gateway() -> None:
    [rule] = objects(only("Role")["rules"])
    assert rule == {
        "apiGroups": [GROUP],
        "resources": ["services/proxy"],
        "resourceNames": ["dashboard"],
        "verbs": ["get"],
    }
