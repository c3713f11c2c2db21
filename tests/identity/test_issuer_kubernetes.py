"""An issuer's documents and its reader's rights, beside a real kube-apiserver."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Final, cast

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat

from nodeattest_controller import manifests
from nodeattest_controller.controllers.issuer import read_api_server
from nodeattest_identity.issuer.documents import CONFIGURATION_PATH, JWKS_PATH, documents
from nodeattest_identity.issuer.keys import read_jwks, read_pem
from nodeattest_kube.client import ApiClient
from nodeattest_kube.errors import ApiError
from nodeattest_sandbox.apiserver.jsonvalue import JsonMap, text_at
from nodeattest_sandbox.client import ApiRefusal, Client
from nodeattest_sandbox.control_plane import ControlPlane, start_real

ISSUER: Final = "https://issuer.example/clusters/a&b"
JWKS_URI: Final = "https://elsewhere.example/keys"
JWKS_TYPE: Final = {"Accept": "application/jwk-set+json"}
PrivateKey = rsa.RSAPrivateKey | ec.EllipticCurvePrivateKey


def public(key: PrivateKey) -> bytes:
    return key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)


def private(key: PrivateKey, form: PrivateFormat) -> bytes:
    return key.private_bytes(Encoding.PEM, form, NoEncryption())


def rsa_key(exponent: int = 65537) -> rsa.RSAPrivateKey:
    return rsa.generate_private_key(exponent, 2048)


def certificate(key: rsa.RSAPrivateKey) -> bytes:
    nobody = x509.Name([])
    unsigned = x509.CertificateBuilder().subject_name(nobody).issuer_name(nobody).public_key(key.public_key())
    unsigned = unsigned.serial_number(5).not_valid_before(datetime(2020, 1, 1, tzinfo=UTC))
    return (
        unsigned.not_valid_after(datetime(2040, 1, 1, tzinfo=UTC)).sign(key, hashes.SHA256()).public_bytes(Encoding.PEM)
    )


def short_point(curve: ec.EllipticCurve) -> ec.EllipticCurvePrivateKey:
    """Make a key one of whose coordinates begins with a zero byte, which must stay."""
    while True:
        key = ec.generate_private_key(curve)
        point = key.public_key().public_numbers()
        if min(point.x, point.y).bit_length() <= 8 * ((curve.key_size + 7) // 8 - 1):
            return key


@pytest.mark.conformance
def test_both_documents_equal_kube_apiservers_byte_for_byte(assets: Path, tmp_path: Path) -> None:
    p256 = ec.SECP256R1()
    contents = [
        public(short_point(ec.SECP521R1())) + b"a comment\n" + public(short_point(p256)),
        public(short_point(ec.SECP384R1())) + public(rsa_key()),
        public(rsa_key(3)),
        certificate(rsa_key()),
        private(rsa_key(), PrivateFormat.TraditionalOpenSSL),
        private(rsa_key(), PrivateFormat.PKCS8),
        b"-----BEGIN EC PARAMETERS-----\nBggqhkjOPQMBBw==\n-----END EC PARAMETERS-----\n"
        + private(ec.generate_private_key(p256), PrivateFormat.TraditionalOpenSSL),
    ]
    flags = [f"--service-account-jwks-uri={JWKS_URI}"]
    for number, content in enumerate(contents):
        file = tmp_path / f"{9 - number}.pem"
        file.write_bytes(content)
        flags.append(f"--service-account-key-file={file}")
    with start_real(tmp_path / "plane", assets, name="issuer-oracle", flags=flags, issuer=ISSUER) as plane:
        account = plane.pki.account_public_key.read_bytes()
        made = documents(ISSUER, JWKS_URI, [key for each in (account, *contents) for key in read_pem(each)])
        assert made.configuration == plane.client().send("GET", CONFIGURATION_PATH)[1]
        assert made.jwks == plane.client().send("GET", JWKS_PATH, headers=JWKS_TYPE)[1]
    assert len(made.keys) == 10
    assert {key.alg for key in made.keys} == {"RS256", "ES256", "ES384", "ES512"}


RBAC: Final = "/apis/rbac.authorization.k8s.io/v1"
DEFAULT: Final = "system:service-account-issuer-discovery"
READER: Final = "node-attestation-controller"
COLLECTIONS: Final = {
    "ServiceAccount": "/api/v1/namespaces/kube-system/serviceaccounts",
    "ClusterRole": f"{RBAC}/clusterroles",
    "ClusterRoleBinding": f"{RBAC}/clusterrolebindings",
}
URLS: Final = sorted(f"{path}{slash}" for path in (CONFIGURATION_PATH, JWKS_PATH) for slash in ("", "/"))


def shipped(name: str) -> list[JsonMap]:
    made = cast("list[JsonMap]", manifests.objects("workload-issuer"))
    return [each for each in made if text_at(each, "metadata", "name") == name]


def apply(admin: Client, objects: list[JsonMap]) -> None:
    for made in objects:
        try:
            admin.create(COLLECTIONS[str(made["kind"])], made)
        except ApiRefusal as refusal:
            if refusal.code != 409:
                raise
            admin.patch(f"{COLLECTIONS[str(made['kind'])]}/{text_at(made, 'metadata', 'name')}", made)


def reader_token(admin: Client) -> str:
    path = f"{COLLECTIONS['ServiceAccount']}/{READER}/token"
    made = admin.create(path, {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}})
    return text_at(made, "status", "token")


def may(client: Client, **attributes: JsonMap) -> bool:
    body: JsonMap = {"spec": {**attributes}}
    answer = client.create("/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", body)
    return cast("JsonMap", answer["status"])["allowed"] is True


@pytest.mark.conformance
async def test_the_reader_reads_both_documents_and_may_nothing_else(real_control_plane: ControlPlane) -> None:
    plane, admin = real_control_plane, real_control_plane.client()
    default = f"{RBAC}/clusterrolebindings/{DEFAULT}"
    admin.delete(default)  # the reader's own binding has to suffice
    try:
        apply(admin, [{"kind": "ServiceAccount", "metadata": {"name": READER, "namespace": "kube-system"}}])
        kubeconfig = plane.token_kubeconfig(reader_token(admin))
        issuer = plane.server  # what the control plane of tests is started with
        async with ApiClient.from_kubeconfig_file(kubeconfig) as client:
            with pytest.raises(ApiError, match="manifests/workload-issuer"):
                await read_api_server(client, issuer)
            apply(admin, shipped("nodeattest:issuer-reader"))
            keys = await _read(client, issuer)
        theirs = admin.send("GET", "/openid/v1/jwks", headers=JWKS_TYPE)[1]
        assert keys == read_jwks(theirs)
        bearer = plane.client(kubeconfig)
        for path, verb, allowed in (
            ("/openid/v1/jwks", "get", True),
            ("/.well-known/openid-configuration", "get", True),
            ("/openid/v1/jwks", "post", False),
            ("/metrics", "get", False),
            ("/logs", "get", False),
        ):
            assert may(bearer, nonResourceAttributes={"path": path, "verb": verb}) == allowed
        for resource, verb in (("secrets", "get"), ("secrets", "list"), ("configmaps", "get"), ("pods", "list"),
                               ("serviceaccounts/token", "create"), ("users", "impersonate")):  # fmt: skip
            assert not may(bearer, resourceAttributes={"resource": resource, "verb": verb, "namespace": "kube-system"})
    finally:
        apply(admin, shipped(DEFAULT))


async def _read(client: ApiClient, issuer: str) -> object:
    """Read as soon as the binding is known to the server's authorizer."""
    for _ in range(200):
        try:
            return await read_api_server(client, issuer)
        except ApiError as error:
            if error.reason != "forbidden":
                raise
    raise AssertionError("the binding had no effect")


def test_the_role_has_kubernetes_own_name_and_its_four_urls() -> None:
    role, binding = shipped(DEFAULT)
    assert role["rules"] == [{"nonResourceURLs": URLS, "verbs": ["get"]}]
    assert binding["subjects"] == [
        {"apiGroup": "rbac.authorization.k8s.io", "kind": "Group", "name": "system:serviceaccounts"}
    ]
    assert role["metadata"] == binding["metadata"]
