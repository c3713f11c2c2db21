"""``nodeattest doctor`` as a command: whom it asks for what, and what others wrote on the way to the terminal."""

from __future__ import annotations

import base64
import re

import pytest
from attested_fleet import NAMESPACE, AttestedFleet

from nodeattest_cli.main import main
from nodeattest_sandbox.apiserver.jsonvalue import JsonMap


@pytest.fixture(scope="module", autouse=True)
def policy(fleet: AttestedFleet) -> None:
    """Two clusters under one policy, and no controller."""
    fleet.authorize("tpm")


def test_of_secrets_only_kubeconfigs_of_clusters_are_read(
    fleet: AttestedFleet, capsys: pytest.CaptureFixture[str]
) -> None:
    before = len(fleet.plane.requests())
    assert main(["doctor", *fleet.access]) == 1
    out = capsys.readouterr().out
    assert "FAIL  controller-leader: there is no Lease" in out
    assert "ok    cluster-reachable fleet/blue: it does" in out
    asked = fleet.plane.requests()[before:]
    assert {one.name for one in asked if one.resource == "secrets"} == {"blue-kubeconfig", "green-kubeconfig"}
    reviews = {"subjectaccessreviews", "selfsubjectaccessreviews"}
    assert {one.resource for one in asked if one.verb not in {"get", "list"}} <= reviews


def test_one_cluster_may_be_asked_by_a_kubeconfig_of_the_operators_own(
    fleet: AttestedFleet, capsys: pytest.CaptureFixture[str]
) -> None:
    own = ["--workload-kubeconfig", str(fleet.plane.admin_kubeconfig)]
    assert main(["doctor", *fleet.access, *own]) == 2
    assert "set --cluster" in capsys.readouterr().err
    before = len(fleet.plane.requests())
    assert main(["doctor", *fleet.access, *own, "--cluster", "blue"]) == 1
    assert "workload-rights" not in capsys.readouterr().out
    assert [one for one in fleet.plane.requests()[before:] if one.resource == "secrets"] == []


def test_a_kubeconfig_with_too_few_rights_is_found(fleet: AttestedFleet, capsys: pytest.CaptureFixture[str]) -> None:
    rule: JsonMap = {"apiGroups": ["certificates.k8s.io"], "resources": ["*"], "verbs": ["get", "list", "watch"]}
    given = base64.b64encode(fleet.grant("short", rule).read_bytes()).decode()
    secret = f"/api/v1/namespaces/{NAMESPACE}/secrets/green-kubeconfig"
    fleet.client.patch(secret, {"data": {"value": given}})
    assert main(["doctor", *fleet.access, "--cluster", "green"]) == 1
    out = capsys.readouterr().out
    [lacking] = [line for line in out.splitlines() if "workload-rights" in line]
    assert lacking.startswith("FAIL  workload-rights fleet/green: may not: ")
    assert "delete secrets -n kube-system" in lacking
    assert (
        "do        apply manifests/workload-bootstrap-token, manifests/workload-hardening, manifests/workload-rbac"
        in out
    )
    assert "?     bootstrap-tokens fleet/green: 403 Forbidden" in out


def test_a_kubeconfig_that_no_client_can_use_is_found_and_ends_nothing(
    fleet: AttestedFleet, capsys: pytest.CaptureFixture[str]
) -> None:
    """Whoever writes the Secret of one cluster must not stop the checks of the others."""
    no_ca = base64.b64encode(b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n").decode()
    broken = re.sub(
        r"(certificate-authority-data\W+)[\w+/=]+", rf"\g<1>{no_ca}", fleet.plane.admin_kubeconfig.read_text()
    )
    secret = f"/api/v1/namespaces/{NAMESPACE}/secrets/green-kubeconfig"
    fleet.client.patch(secret, {"data": {"value": base64.b64encode(broken.encode()).decode()}})
    assert main(["doctor", *fleet.access]) == 1
    out = capsys.readouterr().out
    assert "?     cluster-reachable fleet/green: the Secret fleet/green-kubeconfig: kubeconfig: expected CA" in out
    assert "ok    cluster-reachable fleet/blue: it does" in out


def test_when_the_time_is_over_nothing_more_is_asked(fleet: AttestedFleet, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", *fleet.access, "--timeout", "0"]) == 3
    assert "the time in which this process may ask is over" in capsys.readouterr().err
