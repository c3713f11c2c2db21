"""A kubeconfig gives one endpoint that can be used safely, or a refusal that quotes no credential."""

from __future__ import annotations

import json
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import pytest
import yaml
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import Encoding
from hypothesis import given
from hypothesis import strategies as st
from scripted import b64, kubeconfig

from nodeattest_kube.client import ApiClient
from nodeattest_kube.errors import KubeconfigError, Unreachable
from nodeattest_kube.kubeconfig import in_cluster_endpoint, parse_kubeconfig, read_kubeconfig
from nodeattest_parsing.values import JsonObject, JsonValue
from nodeattest_sandbox.pki import ClusterPki

SERVER: Final = "https://10.0.0.1:6443"
SECRET: Final = "s3cr3t-t0ken"


def test_a_secrets_kubeconfig_is_read_whole(pki: ClusterPki) -> None:
    certificate, key = pki.files("admin")
    cluster: JsonObject = {
        "server": SERVER + "/prefix/",
        "certificate-authority-data": b64(pki.ca_certificate),
        "tls-server-name": "api.example.test",
        "proxy-url": "http://user:pass@proxy:3128",
        "extensions": [{"name": "ignored"}],
    }
    user: JsonObject = {"token": SECRET, "client-certificate-data": b64(certificate), "client-key-data": b64(key)}
    endpoint = parse_kubeconfig(kubeconfig(cluster, user))
    assert endpoint.server == SERVER + "/prefix"
    assert endpoint.ca_pem == pki.ca_certificate.read_text()
    assert endpoint.tls_server_name == "api.example.test"
    assert endpoint.proxy_url == "http://user:pass@proxy:3128"
    assert endpoint.token == SECRET
    assert endpoint.client_certificate_pem == certificate.read_bytes()
    assert endpoint.client_key_pem == key.read_bytes()
    for secret in (SECRET, "user:pass", "PRIVATE"):
        assert secret not in repr(endpoint)


def test_file_references_are_relative_to_the_kubeconfig(pki: ClusterPki, tmp_path: Path) -> None:
    certificate, key = pki.files("admin")
    for name, source in (("ca.crt", pki.ca_certificate), ("me.crt", certificate), ("me.key", key)):
        (tmp_path / name).write_bytes(source.read_bytes())
    user: JsonObject = {"client-certificate": "me.crt", "client-key": "me.key", "tokenFile": "token"}
    file = tmp_path / "kubeconfig"
    file.write_bytes(kubeconfig({"server": SERVER, "certificate-authority": "ca.crt"}, user))
    endpoint = read_kubeconfig(file)
    assert endpoint.ca_pem == pki.ca_certificate.read_text()
    assert endpoint.client_certificate_pem == certificate.read_bytes()
    assert endpoint.client_key_pem == key.read_bytes()
    assert endpoint.token_file == tmp_path / "token"


def test_a_byte_order_mark_hides_no_ca_and_a_ca_that_openssl_would_skip_is_refused(pki: ClusterPki) -> None:
    ca = pki.ca_certificate.read_bytes()

    def with_ca(pem: bytes) -> bytes:
        return kubeconfig({"server": SERVER, "certificate-authority-data": b64(pem)}, {})

    assert parse_kubeconfig(with_ca(b"\xef\xbb\xbf" + ca + ca)).ca_pem == (ca + ca).decode()
    for before in (b" ", b"\xef\xbb\xbf", b"# "):
        with pytest.raises(KubeconfigError, match="a BEGIN line with more on it"):
            parse_kubeconfig(with_ca(ca + before + ca))


NO_PEM: Final = b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"
NO_SERVERS: Final = (
    "",
    "h:99999",
    "h:0",
    "h:",
    "[::1]:/path",
    "[::1",
    "user:pw@h",
    "h/?a=b",
    "h/#f",
    "h/\r\nX: y",
    "hü",
)
Faults = dict[tuple[str, str], list[JsonValue]]
"""Values by the field and by what the refusal says."""
CLUSTER_FAULTS: Final[Faults] = {
    ("server", "server"): [None, "", 6443, *(f"https://{rest}" for rest in (*NO_SERVERS, "hü"))],
    ("server", "https"): ["http://10.0.0.1:6443", "10.0.0.1:6443"],
    ("certificate-authority-data", "base64"): ["%%%"],
    ("certificate-authority-data", "CERTIFICATE"): [b64(b"no PEM"), b64(b"  "), b64(b"\x30\x82")],
    ("certificate-authority-data", "CA"): [b64(NO_PEM)],
    ("certificate-authority", "Secret"): ["/etc/ca.crt"],
    ("insecure-skip-tls-verify", "verified"): [True, "true"],
    ("proxy-url", "proxy"): [
        *("socks5://h:1080", "https://h:3128", "h:3128", "http://h:99999", "http://h:", "http://a b"),
    ],
    ("tls-server-name", "tls-server-name"): ["a\nb", "a" * 300],
}
USER_FAULTS: Final[Faults] = {
    ("exec", "command"): [{"command": "rm", "apiVersion": "client.authentication.k8s.io/v1"}, {}],
    ("auth-provider", "command"): [{"name": "oidc"}],
    ("username", "username"): ["admin"],
    ("password", "password"): [SECRET],
    ("as", "users"): ["system:admin"],
    ("as-groups", "users"): [["system:masters"]],
    ("tokenFile", "Secret"): ["/etc/shadow"],
    ("client-certificate", "Secret"): ["/etc/cert"],
    ("client-certificate-data", "both"): [b64(b"x")],
    ("client-key-data", "both"): [b64(b"x")],
    ("token", "line ends"): [SECRET + "\n", SECRET + "\r\nX-Remote-User: admin", SECRET + "ü"],
    ("token", "string"): [123456, ["a"]],
}


@pytest.mark.parametrize("of_user", [False, True])
def test_what_cannot_be_used_safely_or_is_not_plainly_us_is_refused_without_its_secret(*, of_user: bool) -> None:
    for (field, says), values in (USER_FAULTS if of_user else CLUSTER_FAULTS).items():
        for value in values:
            cluster: JsonObject = {"server": SERVER, **({} if of_user else {field: value})}
            with pytest.raises(KubeconfigError, match=says) as caught:
                ApiClient.from_kubeconfig(kubeconfig(cluster, {field: value} if of_user else {"token": SECRET}))
            assert SECRET not in str(caught.value), field


def costly() -> bytes:
    """Make a certificate whose key takes a second to sign with."""
    key = rsa.RSAPublicNumbers(65537, (1 << 8191) + 1).public_key()
    name, now = x509.Name([]), datetime.now(UTC)
    by = ec.generate_private_key(ec.SECP256R1())
    return x509.CertificateBuilder(name, name, key, 1, now, now).sign(by, hashes.SHA256()).public_bytes(Encoding.PEM)


def test_a_client_key_of_another_certificate_or_costly_to_sign_with_is_refused(pki: ClusterPki) -> None:
    certificate, _ = pki.files("admin")
    _, key = pki.files("other")
    for shown, says in ((certificate.read_bytes(), "its own"), (costly(), "8192 bits"), (b"x", "client certificate")):
        user: JsonObject = {"client-certificate-data": b64(shown), "client-key-data": b64(key)}
        with pytest.raises(KubeconfigError, match=says):
            ApiClient.from_kubeconfig(kubeconfig({"server": SERVER}, user))


CLUSTER: Final[JsonValue] = {"name": "cl", "cluster": {"server": SERVER}}
SHAPES: Final[dict[str, list[JsonValue]]] = {
    "current-context": [None, "absent", 7],
    "contexts": [
        *(None, {"c": {}}, ["c"], [{"name": "c", "context": None}], [{"name": "c", "context": {"user": "u"}}]),
        [{"name": "c", "context": {"cluster": ["cl"]}}],
    ],
    "clusters": [[], [{"name": "cl"}], [CLUSTER, CLUSTER]],
    "users": [[], "u"],
    "kind": ["Secret"],
}


@pytest.mark.parametrize(("field", "value"), [(field, each) for field, values in SHAPES.items() for each in values])
def test_a_kubeconfig_of_another_shape_is_refused(field: str, value: JsonValue) -> None:
    with pytest.raises(KubeconfigError):
        parse_kubeconfig(kubeconfig({"server": SERVER}, {"token": SECRET}, **{field: value}))


@pytest.mark.parametrize(
    "document",
    [
        *(b"", b"null", b"[]", b"a: [", b"\xff\xfe", b"a: 2001-99-99", b"a: 1:99999999999999999999", b"? [a]\n: b"),
        *(b"!!python/object/apply:os.system [id]", b"[" * 100_000, b"a" * (2 << 20), b"a: &a [*a]", b"--- a\n--- b"),
    ],
    ids=lambda document: repr(document[:20]),
)
def test_bytes_that_are_no_kubeconfig_are_refused(document: bytes) -> None:
    with pytest.raises(KubeconfigError):
        parse_kubeconfig(document)


SCALARS = st.one_of(st.none(), st.booleans(), st.integers(), st.text(max_size=20), st.floats())
ANYTHING = st.recursive(
    SCALARS, lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=8), inner))
)
FIELDS = ["server", "certificate-authority-data", "proxy-url", "tls-server-name", "token", "client-key-data"]


@given(
    st.sampled_from(["contexts", "clusters", "users", "current-context", "cluster", "user"]),
    st.sampled_from([*FIELDS, "tokenFile"]),
    ANYTHING,
)
def test_any_value_anywhere_gives_a_client_or_a_kubeconfig_error(place: str, name: str, value: JsonValue) -> None:
    cluster: JsonObject = {"server": SERVER, **({name: value} if place == "cluster" else {})}
    config = json.loads(kubeconfig(cluster, {name: value} if place == "user" else {}))
    if place not in {"cluster", "user"}:
        config[place] = value
    with suppress(KubeconfigError):
        ApiClient.from_kubeconfig(yaml.safe_dump(config, allow_unicode=True).encode("utf-8", "surrogatepass"))


@given(st.text(st.characters(max_codepoint=0x17F), max_size=12))
async def test_whatever_server_is_accepted_can_be_asked(server: str) -> None:
    try:
        client = ApiClient.from_kubeconfig(kubeconfig({"server": f"https://{server}"}, {}), request_timeout=0.001)
    except KubeconfigError:
        return
    async with client:
        with pytest.raises(Unreachable):
            await client.get("/x")


def test_in_cluster_takes_the_mounted_account(pki: ClusterPki, tmp_path: Path) -> None:
    (tmp_path / "ca.crt").write_bytes(pki.ca_certificate.read_bytes())
    environment = {"KUBERNETES_SERVICE_HOST": "fd00::1", "KUBERNETES_SERVICE_PORT": "443"}
    endpoint = in_cluster_endpoint(environment, account=tmp_path)
    assert endpoint.server == "https://[fd00::1]:443"
    assert endpoint.token_file == tmp_path / "token"
    with pytest.raises(KubeconfigError, match="pod"):
        in_cluster_endpoint({})
