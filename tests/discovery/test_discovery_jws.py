"""Signatures of cluster-info: the bytes of kube-controller-manager, by its own vectors and by itself."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nodeattest_discovery import jws, token
from nodeattest_discovery.token import BootstrapToken

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
