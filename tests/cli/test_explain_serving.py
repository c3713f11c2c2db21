"""``nodeattest explain`` on serving requests: kubelet's own, and attested ones."""

from __future__ import annotations

from ipaddress import ip_address

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from stored import made, policy, stored_csr

from nodeattest_cli.explain.replay import CheckOutcome, Explanation, explain_request
from nodeattest_parsing.values import JsonObject, JsonValue

NODE = "worker-1"
CAPI = "cluster.x-k8s.io/v1beta1"
CLUSTER = made(CAPI, "Cluster", "blue", spec={"controlPlaneEndpoint": {"host": "10.0.0.100"}})


def machine(name: str, address: str) -> JsonObject:
    status: JsonObject = {
        "nodeRef": {"name": name},
        "bootstrapReady": True,
        "addresses": [{"type": "InternalIP", "address": address}],
    }
    spec: JsonObject = {"clusterName": "blue", "providerID": f"x://{name}"}
    return made(CAPI, "Machine", name, uid=name, spec=spec, status=status)


def serving(**serving: JsonValue) -> JsonObject:
    return policy(authorizedAttestors=["challenge"], serving=serving)


def registered(name: str) -> JsonObject:
    return {"kind": "Node", "metadata": {"name": name, "uid": f"n-{name}"}, "spec": {"providerID": f"x://{name}"}}


def kubelets(*addresses: str, node: str = NODE) -> JsonObject:
    subject = [(NameOID.ORGANIZATION_NAME, "system:nodes"), (NameOID.COMMON_NAME, f"system:node:{node}")]
    names = [x509.IPAddress(ip_address(each)) for each in addresses]
    builder = x509.CertificateSigningRequestBuilder(x509.Name([x509.NameAttribute(*each) for each in subject]))
    signed = builder.add_extension(x509.SubjectAlternativeName(names), critical=False).sign(
        ec.generate_private_key(ec.SECP256R1()), hashes.SHA256()
    )
    return stored_csr(
        "csr-1",
        signed.public_bytes(serialization.Encoding.PEM),
        signerName="kubernetes.io/kubelet-serving",
        usages=["digital signature", "server auth"],
        username=f"system:node:{NODE}",
        groups=["system:nodes"],
    )


def refused(explanation: Explanation) -> list[str]:
    """Return the reasons, each once: a rule that is asked of the live Machine, too, refuses twice."""
    return list(dict.fromkeys(step.reason for step in explanation.steps if step.outcome is CheckOutcome.FAILED))


GIVEN = (
    CLUSTER,
    serving(kubelet="Approve"),
    machine(NODE, "10.0.0.1"),
    machine("worker-2", "10.0.0.2"),
    registered(NODE),
)


def test_kubelets_own_request_passes_every_check_when_everything_is_given() -> None:
    explanation = explain_request(kubelets("10.0.0.1"), GIVEN)
    assert {step.outcome for step in explanation.steps} == {CheckOutcome.PASSED}
    assert ("names", "10.0.0.1") in explanation.facts


@pytest.mark.parametrize(
    ("csr", "given", "reason"),
    [
        (kubelets("10.0.0.2"), GIVEN, "AddressNotAllowed"),
        (kubelets("10.0.0.1"), (CLUSTER, serving(), *GIVEN[2:]), "ServingNotAllowed"),
        (kubelets("10.0.0.1"), (*GIVEN[:2], *GIVEN[3:]), "MachineNotFound"),
        (kubelets("10.0.0.1", node="worker-2"), GIVEN, "RequesterNotAllowed"),
    ],
)
def test_what_refuses_kubelets_own_request_is_named(
    csr: JsonObject, given: tuple[JsonObject, ...], reason: str
) -> None:
    assert refused(explain_request(csr, given)) == [reason]


def test_what_is_not_given_leaves_kubelets_own_request_unchecked() -> None:
    explanation = explain_request(kubelets("10.0.0.1"), ())
    assert refused(explanation) == []
    assert CheckOutcome.NOT_CHECKED in {step.outcome for step in explanation.steps}
