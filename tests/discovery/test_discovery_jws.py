"""Signatures of cluster-info: the bytes of kube-controller-manager, by its own vectors and by itself."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from polling import eventually

from nodeattest_discovery import clusterinfo, jws, token
from nodeattest_discovery.secret import SECRET_TYPE, TokenSecret, encode, secret_name
from nodeattest_discovery.token import BootstrapToken
from nodeattest_sandbox.apiserver.jsonvalue import JsonMap, text_at
from nodeattest_sandbox.control_plane import ControlPlane, controller_manager

CONTENT = b"Hello from the other side. I must have called a thousand times."
JOSHUA = BootstrapToken("joshua", "my voice is my passcode")
OF_JOSHUA = "eyJhbGciOiJIUzI1NiIsImtpZCI6Impvc2h1YSJ9.."
SIGNATURE = OF_JOSHUA + "VShe2taLd-YTrmWuRkcL_8QTNDHYxQIEBsAYYiIj1_8"


@pytest.mark.parametrize(
    ("content", "key", "signature"),
    [
        # k8s.io/cluster-bootstrap token/jws/jws_test.go
        (CONTENT, JOSHUA, SIGNATURE),
        (b"", JOSHUA, OF_JOSHUA + "7Ui1ALizW4jXphVUB7xUqC9vLYLL9RZeOFfVLoB7Tgk"),
        (CONTENT, BootstrapToken("joshua", ""), OF_JOSHUA + "UfkqvDGiIFxrMnFseDj9LYJOLNrvjW8aHhF71mvvAs8"),
        # kubernetes pkg/controller/bootstrap/bootstrapsigner_test.go
        (
            b"payload",
            BootstrapToken("abc123", "tokenSecret"),
            "eyJhbGciOiJIUzI1NiIsImtpZCI6ImFiYzEyMyJ9..QSxpUG7Q542CirTI2ECPSZjvBOJURUW5a7XqFpNI958",
        ),
    ],
    ids=["content", "no content", "no secret", "signer"],
)
def test_kubernetes_own_vectors_come_out_byte_for_byte(content: bytes, key: BootstrapToken, signature: str) -> None:
    assert jws.sign(content, key) == signature
    assert jws.is_valid(signature, content, key)


HEADER, MAC = SIGNATURE.split("..")


@given(st.binary(), st.from_regex(r"[a-z0-9]{6}\.[a-z0-9]{16}", fullmatch=True), st.text())
def test_a_signature_holds_for_what_was_signed_and_any_text_has_an_answer(
    content: bytes, text: str, other: str
) -> None:
    key = token.parse(text)
    signature = jws.sign(content, key)
    assert jws.is_valid(signature, content, key)
    assert jws.is_valid(other, content, key) is (other == signature)


@pytest.mark.conformance
def test_kube_controller_manager_signs_what_we_build_with_the_bytes_that_we_compute(
    real_control_plane: ControlPlane, assets: Path
) -> None:
    plane, made = real_control_plane, token.generate()
    admin = plane.client()
    metadata: JsonMap = {"name": secret_name(made.id)}
    secret: JsonMap = {"metadata": metadata, "type": SECRET_TYPE, "data": {**encode(TokenSecret(token=made))}}
    admin.create("/api/v1/namespaces/kube-system/secrets", secret)
    kubeconfig = clusterinfo.build(plane.server, plane.ca_certificate.read_bytes())
    body: JsonMap = {"metadata": {"name": clusterinfo.NAME}, "data": {clusterinfo.KUBECONFIG_KEY: kubeconfig}}
    admin.create(f"/api/v1/namespaces/{clusterinfo.NAMESPACE}/configmaps", body)
    try:
        with controller_manager(plane, assets, ["bootstrapsigner"]):
            place = clusterinfo.SIGNATURE_PREFIX + made.id
            signature = eventually(lambda: text_at(admin.get(clusterinfo.PATH), "data", place), "the signature")
    finally:
        admin.send("DELETE", clusterinfo.PATH)
        admin.send("DELETE", f"/api/v1/namespaces/kube-system/secrets/{secret_name(made.id)}")
    assert signature == jws.sign(kubeconfig.encode(), made)
