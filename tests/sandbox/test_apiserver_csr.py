"""CertificateSigningRequests, on the sandbox and on the real server: the same rules, the same refusals."""

from __future__ import annotations

import copy

import pytest
from apiserver_kit import CSRS, SIGNER, bind, condition, csr_object, encoded, grant, refusal
from polling import succeeds

from nodeattest_sandbox.apiserver.jsonvalue import JsonMap, items_at, map_at, maps_at, text_at
from nodeattest_sandbox.client import Client
from nodeattest_sandbox.control_plane import ControlPlane
from nodeattest_sandbox.fleet import create_bootstrap_token


def approved(admin: Client, name: str) -> JsonMap:
    value = admin.create(CSRS, csr_object(name))
    value["status"] = {"conditions": [condition("Approved")]}
    return admin.replace(f"{CSRS}/{name}/approval", value)


def test_requester_and_status_come_from_the_server(control_plane: ControlPlane, admin: Client, unique: str) -> None:
    bind(admin, unique, "system:node-bootstrapper", "Group", "system:bootstrappers")
    token = create_bootstrap_token(admin, f"{unique:0>6.6}.0123456789abcdef")
    client = control_plane.client(control_plane.token_kubeconfig(token))
    forged = csr_object(unique, username="system:node:a", uid="u", groups=["system:masters"], extra={"k": ["v"]})
    forged["status"] = {"conditions": [condition("Approved")], "certificate": encoded(b"x")}
    map_at(forged, "metadata")["annotations"] = {"kept": "as sent"}
    stored = succeeds(lambda: client.create(CSRS, forged))
    assert text_at(stored, "spec", "username") == f"system:bootstrap:{token[:6]}"
    assert items_at(stored, "spec", "groups") == [
        "system:bootstrappers",
        "system:bootstrappers:kubeadm:default-node-token",
        "system:authenticated",
    ]
    assert not {"uid", "extra"} & set(map_at(stored, "spec"))
    assert stored["status"] == {}
    assert text_at(stored, "metadata", "annotations", "kept") == "as sent"


def test_main_resource_changes_metadata_only(admin: Client, unique: str) -> None:
    before = admin.create(CSRS, csr_object(unique))
    changed = copy.deepcopy(before)
    map_at(changed, "spec").update({"signerName": "a.b/c", "username": "other"})
    changed["status"] = {"conditions": [condition("Approved")], "certificate": encoded(b"x")}
    map_at(changed, "metadata")["annotations"] = {"new": "one"}
    after = admin.replace(f"{CSRS}/{unique}", changed)
    assert (after["spec"], after["status"]) == (before["spec"], {})
    assert text_at(after, "metadata", "annotations", "new") == "one"


def test_approval_takes_conditions_and_no_certificate(admin: Client, control_plane: ControlPlane, unique: str) -> None:
    value = admin.create(CSRS, csr_object(unique))
    value["status"] = {
        "conditions": [condition("Approved")],
        "certificate": encoded(control_plane.ca_certificate.read_bytes()),
    }
    after = admin.replace(f"{CSRS}/{unique}/approval", value)
    assert "certificate" not in map_at(after, "status")
    (stored,) = maps_at(after, "status", "conditions")
    assert text_at(stored, "type") == "Approved"
    assert text_at(stored, "lastUpdateTime") == text_at(stored, "lastTransitionTime") != ""


def test_a_decision_is_irrevocable(admin: Client, unique: str) -> None:
    value = approved(admin, unique)
    value["status"] = {}
    assert refusal(lambda: admin.replace(f"{CSRS}/{unique}/approval", value)).fields == ["status.conditions"]
    value["status"] = {"conditions": [condition("Denied")]}
    assert refusal(lambda: admin.replace(f"{CSRS}/{unique}/approval", value)).fields == ["status.conditions"]


def test_status_keeps_the_decision_as_it_was(admin: Client, unique: str) -> None:
    value = approved(admin, unique)
    before = list(maps_at(value, "status", "conditions"))
    value["status"] = {"conditions": [condition("Approved", reason="Rewritten"), condition("Custom", "False")]}
    after = list(maps_at(admin.replace(f"{CSRS}/{unique}/status", value), "status", "conditions"))
    assert after[0] == before[0]
    assert text_at(after[1], "type") == "Custom"


def test_certificate_is_written_once(admin: Client, control_plane: ControlPlane, unique: str) -> None:
    approved(admin, unique)
    certificate = control_plane.ca_certificate.read_bytes()
    first = admin.patch(f"{CSRS}/{unique}/status", {"status": {"certificate": encoded(certificate)}})
    again = admin.patch(f"{CSRS}/{unique}/status", {"status": {"certificate": encoded(certificate)}})
    assert text_at(again, "metadata", "resourceVersion") == text_at(first, "metadata", "resourceVersion")
    other: JsonMap = {"status": {"certificate": encoded(certificate + certificate)}}
    assert refusal(lambda: admin.patch(f"{CSRS}/{unique}/status", other)).fields == ["status.certificate"]


@pytest.mark.parametrize("allowed", [SIGNER, "cluster.x-k8s.io/*"])
@pytest.mark.parametrize("verb", ["approve", "sign"])
def test_signer_verbs_are_asked_by_name_and_by_domain(
    control_plane: ControlPlane, admin: Client, unique: str, allowed: str, verb: str
) -> None:
    subresource = "approval" if verb == "approve" else "status"
    certificates, resource = "certificates.k8s.io", f"certificatesigningrequests/{subresource}"
    grant(admin, unique, "User", unique, ("update", certificates, resource))
    client = control_plane.client(control_plane.client_kubeconfig(unique))
    value = admin.create(CSRS, csr_object(unique))
    value["status"] = {"conditions": [condition("Approved" if verb == "approve" else "Failed")]}

    def write() -> JsonMap:
        return client.replace(f"{CSRS}/{unique}/{subresource}", value)

    def is_asked_for_the_verb() -> None:
        assert f'not permitted to {verb} requests with signerName "{SIGNER}"' in str(refusal(write))

    succeeds(is_asked_for_the_verb)
    grant(admin, f"{unique}-s", "User", unique, (verb, certificates, "signers", allowed))
    after = succeeds(write)
    assert len(list(maps_at(after, "status", "conditions"))) == 1
