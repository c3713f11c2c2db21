"""The shipped manifests: complete, least privilege, and in step with the code that relies on them."""

from __future__ import annotations

import re
from pathlib import Path

import yaml

from nodeattest_controller import manifests
from nodeattest_controller.controllers.bootstrap_config import config_reviewer, decide, server
from nodeattest_controller.model import attestation, policy, webhook_configuration
from nodeattest_controller.settings import Settings
from nodeattest_parsing.objects import items, mapping, strings, text
from nodeattest_parsing.values import JsonObject, JsonValue
from nodeattest_providers import identifiers

TREE = Path(manifests.__file__).parents[2] / "manifests"


def schema_of(kind: str) -> JsonObject:
    [crd] = [crd for crd in manifests.crds() if text(crd, "spec", "names", "kind") == kind]
    [version] = items(crd, "spec", "versions")
    return mapping(version, "schema", "openAPIV3Schema")


def rules_of(base: str, *kinds: str) -> list[JsonObject]:
    return [rule for entry in manifests.objects(base) if entry["kind"] in kinds for rule in items(entry, "rules")]


def find(base: str, kind: str) -> JsonObject:
    [found] = [entry for entry in manifests.objects(base) if entry["kind"] == kind]
    return found


def test_clusterctl_move_takes_policies_records_and_the_ledger_along() -> None:
    for crd in manifests.crds():
        kind, labels = text(crd, "spec", "names", "kind"), set(mapping(crd, "metadata", "labels"))
        roots = {"MachineRecord", "ClusterRecord"}  # they own what else goes with them, as a Cluster does
        how = "move-hierarchy" if kind in roots else "move"
        assert {"clusterctl.cluster.x-k8s.io", f"clusterctl.cluster.x-k8s.io/{how}"} <= labels
        assert text(crd, "metadata", "labels", "cluster.x-k8s.io/provider") == "addon-nodeattest"


def test_no_ledger_entry_can_outgrow_the_schema() -> None:
    issued = mapping(schema_of("MachineAttestation"), "properties", "spec", "properties", "issued")
    maximum = issued["maxItems"]
    assert isinstance(maximum, int)
    assert maximum >= len(identifiers.Purpose) * attestation.KEEP_ISSUED


def test_rbac_has_no_wildcard_but_the_kinds_of_infrastructure_providers() -> None:
    for rule in rules_of("rbac", "Role", "ClusterRole") + rules_of("workload-rbac", "ClusterRole"):
        assert "*" not in strings(rule, "verbs")
        assert "*" not in strings(rule, "apiGroups")
        if "*" in strings(rule, "resources"):
            assert strings(rule, "apiGroups") == ("infrastructure.cluster.x-k8s.io",)
            assert set(strings(rule, "verbs")) == {"get", "list", "watch"}


def test_the_operators_role_is_bound_to_nobody_and_reads_no_secret() -> None:
    bindings = [entry for entry in manifests.objects("rbac") if str(entry["kind"]).endswith("RoleBinding")]
    assert "nodeattest:operator" not in {text(entry, "roleRef", "name") for entry in bindings}
    [role] = [entry for entry in manifests.objects("rbac") if text(entry, "metadata", "name") == "nodeattest:operator"]
    assert not {"secrets", "*"} & {name for rule in items(role, "rules") for name in strings(rule, "resources")}


def test_the_admission_policy_reserves_exactly_our_output_annotations() -> None:
    variables = items(find("admission-policy", "ValidatingAdmissionPolicy"), "spec", "variables")
    [reserved] = [text(variable, "expression") for variable in variables if variable["name"] == "reserved"]
    listed = set(yaml.safe_load(reserved))
    assert listed == {
        identifiers.ANNOTATION_CHALLENGE,
        identifiers.ANNOTATION_SUPPORTED_VERSIONS,
        identifiers.ANNOTATION_REASON,
        identifiers.ANNOTATION_PROVIDER_ID,
        identifiers.ANNOTATION_TPM_ENDORSEMENT_KEY,
    }


def test_the_policy_s_defaults_are_the_code_s() -> None:
    properties = mapping(schema_of("NodeAttestationPolicy"), "properties", "spec", "properties")
    # No default here: absent means the controller's setting, and the in-tree year for the insecure provider.
    assert "default" not in mapping(properties, "certificateLifetime")
    assert Settings(identity="replica-a").certificate_lifetime == 336 * 3600
    parsed = policy.parse_attestation_policy({"spec": {"authorizedAttestors": ["tpm"]}})
    assert (parsed.lifetime, parsed.enforce) == (None, True)
    assert mapping(properties, "enforcement")["default"] == "Enforce"
    serving = mapping(properties, "serving", "properties")
    assert (mapping(serving, "kubelet")["default"], mapping(serving, "attested")["default"]) == ("Ignore", "Sign")
    assert (parsed.approves_kubelet, parsed.signs_serving) == (False, True)


def test_webhooks_are_called_where_they_serve_by_label_and_no_longer_than_they_answer() -> None:
    name, service = Settings(identity="replica-a").webhook_configuration, find("webhook", "Service")
    selector = mapping(find("manager", "Deployment"), "spec", "selector", "matchLabels")
    bootstrap, control_plane = "bootstrap.cluster.x-k8s.io", "controlplane.cluster.x-k8s.io"
    rendered = {(bootstrap, "kubeadmconfigs"), (control_plane, "kubeadmcontrolplanes")}
    reviewed = {("attestation.cluster.x-k8s.io", "nodeattestationpolicies")}
    found: list[tuple[object, ...]] = []
    for kind in ("MutatingWebhookConfiguration", "ValidatingWebhookConfiguration"):
        configuration = find("webhook", kind)
        assert text(configuration, "metadata", "name") == name
        for called in items(configuration, "webhooks"):
            where, patience = mapping(called, "clientConfig", "service"), called["timeoutSeconds"]
            assert where["name"] == text(service, "metadata", "name")
            ports: list[JsonValue] = [{"name": "webhook", "port": where["port"], "targetPort": 9443}]
            assert service["spec"] == {"selector": selector, "ports": ports}
            assert isinstance(patience, int)
            assert patience > server.MAX_WAIT
            rules = items(called, "rules")
            kinds = {(*strings(rule, "apiGroups"), *strings(rule, "resources")) for rule in rules}
            assert {strings(rule, "operations") for rule in rules} == {("CREATE", "UPDATE")}
            [term] = items(called, "namespaceSelector", "matchExpressions")
            label = (text(term, "operator"), strings(term, "values"))
            assert text(term, "key") == webhook_configuration.LABEL
            found.append((where["path"], kinds, called["failurePolicy"], called["sideEffects"], *label))
    assert found == [
        (config_reviewer.PATH, rendered, "Fail", "NoneOnDryRun", "In", ("enabled",)),
        (decide.POLICY_PATH, reviewed, "Ignore", "None", "In", ("enabled", "disabled")),
        (decide.UNLABELLED_PATH, reviewed, "Ignore", "None", "NotIn", ("enabled", "disabled")),
    ]
    for value in ("enabled", "disabled", "Enabled", ""):
        namespace: JsonObject = {"metadata": {"labels": {webhook_configuration.LABEL: value}}}
        assert webhook_configuration.is_decided(namespace) == (value in ("enabled", "disabled"))


_WHOLE_OBJECTS = {
    "secrets",
    "nodes",
    "pods",
    "deployments",
    "serviceaccounts",
    "serviceaccounts/token",
    "users",
    "groups",
}
_GRANTING = {"rbac.authorization.k8s.io", "admissionregistration.k8s.io"}


def test_each_right_on_whole_objects_that_could_be_misused_is_in_the_threat_model() -> None:
    page = (TREE.parent / "docs/threat-model.md").read_text()
    told = set(
        re.findall(r"^\| (`[\w-]+`: `[a-z,]+` `[a-z/]+`) \|", page.partition("## Rights that cover")[2], re.MULTILINE)
    )
    folders = ["rbac", "webhook", "challenge-secrets", *(one.name for one in TREE.glob("workload-*"))]
    found: set[str] = set()
    for folder in folders:
        for rule in rules_of(folder, "Role", "ClusterRole"):
            verbs = [verb for verb in strings(rule, "verbs") if verb not in {"bind", "approve", "sign"}]
            writes = not {"get", "list", "watch"}.issuperset(verbs)
            for resource in strings(rule, "resources"):
                grants = writes and not _GRANTING.isdisjoint(strings(rule, "apiGroups"))
                whole = resource in _WHOLE_OBJECTS and (writes or resource == "secrets")
                if verbs and not strings(rule, "resourceNames") and (grants or whole):
                    found.add(f"`{folder}`: `{','.join(verbs)}` `{resource}`")
    assert found == told
