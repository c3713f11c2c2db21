"""The example's manifests: what they run exists, what they grant is little, the sidecar is the documented one."""

from __future__ import annotations

from typing import cast

from addon_kit import documents, sidecar_arguments

from nodeattest_cli.addon_auth import sidecar
from nodeattest_identity.proxy.limits import CONNECTION_BYTES
from nodeattest_parsing.objects import dig
from nodeattest_parsing.values import JsonObject, JsonValue


def only(kind: str) -> JsonObject:
    [found] = [each for each in documents() if each["kind"] == kind]
    return found


def pod() -> JsonObject:
    return cast("JsonObject", dig(only("Deployment"), "spec", "template", "spec"))


def objects(value: JsonValue) -> list[JsonObject]:
    assert isinstance(value, list)
    return [each for each in value if isinstance(each, dict)]


def test_the_sidecar_s_arguments_are_those_that_it_knows_and_needs() -> None:
    options = {name: parameter for parameter in sidecar.params for name in parameter.opts}
    given = {argument.partition("=")[0] for argument in sidecar_arguments()[2:]}
    assert sidecar_arguments()[:2] == ["addon-auth", "sidecar"]
    assert given <= set(options)
    assert {name for name, parameter in options.items() if parameter.required} <= given


def test_service_and_network_policy_lead_to_the_sidecar_and_never_to_the_dashboard_itself() -> None:
    ports = {
        str(each["name"]) for container in objects(pod()["containers"]) for each in objects(container.get("ports", []))
    }
    assert ports == {"authenticated", "health"}
    assert [each["targetPort"] for each in objects(dig(only("Service"), "spec", "ports"))] == ["authenticated"]
    ingress = objects(dig(only("NetworkPolicy"), "spec", "ingress"))
    assert [each["port"] for rule in ingress for each in objects(rule["ports"])] == ["authenticated", "health"]
    assert "from" in ingress[0]


def test_all_connections_at_once_fit_into_the_memory_that_a_sidecar_may_use() -> None:
    """Over TLS, which the manifest leaves to whoever wants it; to the add-on there is none."""
    [container] = [each for each in objects(pod()["containers"]) if each["name"] == "sidecar"]
    limit = str(dig(container, "resources", "limits", "memory"))
    [connections] = [each.partition("=")[2] for each in sidecar_arguments() if each.startswith("--max-connections=")]
    process, to_the_add_on = 96 << 20, 25 << 10
    assert limit.endswith("Mi")
    most = process + int(connections) * (CONNECTION_BYTES + to_the_add_on)
    assert most <= int(limit.removesuffix("Mi")) << 20
