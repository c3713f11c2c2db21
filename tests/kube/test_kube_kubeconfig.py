from __future__ import annotations

import base64
import json
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

import pytest
import yaml
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import NameOID
from hypothesis import given
from hypothesis import strategies as st
from scripted import Authority, Pair, kubeconfig

from nodeattest_kube.client import ApiClient
from nodeattest_kube.errors import KubeconfigError, Unreachable
from nodeattest_kube.kubeconfig import (
    MAX_SELF_CONTAINED,
    MAX_SELF_CONTAINED_VALUES,
    in_cluster_endpoint,
    parse_kubeconfig,
    read_kubeconfig,
)
from nodeattest_parsing.values import JsonObject, JsonValue

SERVER = "https://10.0.0.1:6443"
SECRET = "s3cr3t-t0ken"


def b64(data: bytes) -> str:
    return base64.b64encode(data).decode()


@pytest.fixture(scope="module")
def authority() -> Authority:
    return Authority()


@pytest.fixture(scope="module")
def pair(authority: Authority) -> Pair:
    return authority.issue("admin")


def test_a_secrets_kubeconfig_is_read_whole(authority: Authority, pair: Pair) -> None:
    cluster: JsonObject = {
        "server": SERVER + "/prefix/",
        "certificate-authority-data": b64(authority.pem),
        "tls-server-name": "api.example.test",
        "proxy-url": "http://user:pass@proxy:3128",
        "extensions": [{"name": "ignored"}],
    }
    user: JsonObject = {
        "token": SECRET,
        "client-certificate-data": b64(pair.certificate),
        "client-key-data": b64(pair.key),
    }
    endpoint = parse_kubeconfig(kubeconfig(cluster, user))
    assert endpoint.server == SERVER + "/prefix"
    assert endpoint.ca_pem == authority.pem.decode()
    assert endpoint.tls_server_name == "api.example.test"
    assert endpoint.proxy_url == "http://user:pass@proxy:3128"
    assert endpoint.token == SECRET
    assert (endpoint.client_certificate_pem, endpoint.client_key_pem) == (pair.certificate, pair.key)
    for secret in (SECRET, "user:pass", "PRIVATE"):
        assert secret not in repr(endpoint)


def test_a_byte_order_mark_hides_no_ca(authority: Authority) -> None:
    both = authority.pem + Authority().pem
    cluster: JsonObject = {"server": SERVER, "certificate-authority-data": b64(b"\xef\xbb\xbf" + both)}
    assert parse_kubeconfig(kubeconfig(cluster, {})).ca_pem == both.decode()


@pytest.mark.parametrize("before", [b" ", b"\xef\xbb\xbf", b"# "])
def test_a_ca_that_openssl_would_skip_is_refused(authority: Authority, before: bytes) -> None:
    cluster: JsonObject = {"server": SERVER, "certificate-authority-data": b64(authority.pem + before + authority.pem)}
    with pytest.raises(KubeconfigError, match="a BEGIN line with more on it"):
        parse_kubeconfig(kubeconfig(cluster, {}))


def test_file_references_are_relative_to_the_kubeconfig(tmp_path: Path, authority: Authority, pair: Pair) -> None:
    (tmp_path / "ca.crt").write_bytes(authority.pem)
    (tmp_path / "me.crt").write_bytes(pair.certificate)
    (tmp_path / "me.key").write_bytes(pair.key)
    user: JsonObject = {"client-certificate": "me.crt", "client-key": "me.key", "tokenFile": "token"}
    file = tmp_path / "kubeconfig"
    file.write_bytes(kubeconfig({"server": SERVER, "certificate-authority": "ca.crt"}, user))
    endpoint = read_kubeconfig(file)
    assert endpoint.ca_pem == authority.pem.decode()
    assert (endpoint.client_certificate_pem, endpoint.client_key_pem) == (pair.certificate, pair.key)
    assert endpoint.token_file == tmp_path / "token"


CLUSTER_FAULTS: list[tuple[JsonObject, str]] = [
    ({"server": None}, "server"),
    ({"server": ""}, "server"),
    ({"server": 6443}, "server"),
    ({"server": "http://10.0.0.1:6443"}, "https"),
    ({"server": "10.0.0.1:6443"}, "https"),
    ({"server": "https://"}, "server"),
    ({"server": "https://h:99999"}, "server"),
    ({"server": "https://h:0"}, "server"),
    ({"server": "https://h:"}, "server"),
    ({"server": "https://[::1]:/path"}, "server"),
    ({"server": "https://[::1"}, "server"),
    ({"server": "https://user:pw@h"}, "server"),
    ({"server": "https://h/?a=b"}, "server"),
    ({"server": "https://h/#f"}, "server"),
    ({"server": "https://h/\r\nX: y"}, "server"),
    ({"server": "https://hü"}, "server"),
    ({"certificate-authority-data": "%%%"}, "base64"),
    ({"certificate-authority-data": b64(b"no PEM")}, "CERTIFICATE"),
    ({"certificate-authority-data": b64(b"  ")}, "CERTIFICATE"),
    ({"certificate-authority-data": b64(b"\x30\x82")}, "CERTIFICATE"),
    ({"certificate-authority-data": b64(b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n")}, "CA"),
    ({"certificate-authority": "/etc/ca.crt"}, "Secret"),
    ({"insecure-skip-tls-verify": True}, "verified"),
    ({"insecure-skip-tls-verify": "true"}, "verified"),
    ({"proxy-url": "socks5://h:1080"}, "proxy"),
    ({"proxy-url": "https://h:3128"}, "proxy"),
    ({"proxy-url": "h:3128"}, "proxy"),
    ({"proxy-url": "http://h:99999"}, "proxy"),
    ({"proxy-url": "http://h:"}, "proxy"),
    ({"proxy-url": "http://a b"}, "proxy"),
    ({"tls-server-name": "a\nb"}, "tls-server-name"),
    ({"tls-server-name": "a" * 300}, "tls-server-name"),
]


@pytest.mark.parametrize(("fault", "says"), CLUSTER_FAULTS, ids=lambda value: str(value)[:40])
def test_a_cluster_that_cannot_be_used_safely_is_refused(fault: JsonObject, says: str) -> None:
    with pytest.raises(KubeconfigError, match=says):
        ApiClient.from_kubeconfig(kubeconfig({"server": SERVER, **fault}, {"token": SECRET}))


USER_FAULTS: list[tuple[JsonObject, str]] = [
    ({"exec": {"command": "rm", "apiVersion": "client.authentication.k8s.io/v1"}}, "command"),
    ({"exec": {}}, "command"),
    ({"auth-provider": {"name": "oidc"}}, "command"),
    ({"username": "admin", "password": SECRET}, "username"),
    ({"as": "system:admin"}, "users"),
    ({"as-groups": ["system:masters"]}, "users"),
    ({"tokenFile": "/etc/shadow"}, "Secret"),
    ({"client-certificate": "/etc/cert", "client-key": "/etc/key"}, "Secret"),
    ({"client-certificate-data": b64(b"x")}, "both"),
    ({"client-key-data": b64(b"x")}, "both"),
    ({"client-certificate-data": b64(b"x"), "client-key-data": b64(b"y")}, "client certificate"),
    ({"token": SECRET + "\n"}, "line ends"),
    ({"token": SECRET + "\r\nX-Remote-User: admin"}, "line ends"),
    ({"token": SECRET + "ü"}, "line ends"),
    ({"token": 123456}, "string"),
    ({"token": ["a"]}, "string"),
]


@pytest.mark.parametrize(("fault", "says"), USER_FAULTS, ids=lambda value: str(value)[:40])
def test_a_user_that_is_not_plainly_us_is_refused_without_its_secret(fault: JsonObject, says: str) -> None:
    with pytest.raises(KubeconfigError, match=says) as caught:
        ApiClient.from_kubeconfig(kubeconfig({"server": SERVER}, fault))
    assert SECRET not in str(caught.value)


def test_a_key_of_another_certificate_is_refused(authority: Authority, pair: Pair) -> None:
    other = authority.issue("other")
    user: JsonObject = {"client-certificate-data": b64(pair.certificate), "client-key-data": b64(other.key)}
    with pytest.raises(KubeconfigError, match="its own"):
        ApiClient.from_kubeconfig(kubeconfig({"server": SERVER}, user))


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("current-context", None),
        ("current-context", "absent"),
        ("current-context", 7),
        ("contexts", None),
        ("contexts", {"c": {}}),
        ("contexts", ["c"]),
        ("contexts", [{"name": "c", "context": None}]),
        ("contexts", [{"name": "c", "context": {"cluster": ["cl"]}}]),
        ("contexts", [{"name": "c", "context": {"user": "u"}}]),
        ("clusters", []),
        ("clusters", [{"name": "cl"}]),
        ("clusters", [{"name": "cl", "cluster": {"server": SERVER}}] * 2),
        ("users", []),
        ("users", "u"),
        ("kind", "Secret"),
    ],
)
def test_a_kubeconfig_of_another_shape_is_refused(field: str, value: JsonValue) -> None:
    config = json.loads(kubeconfig({"server": SERVER}, {"token": SECRET}))
    config[field] = value
    with pytest.raises(KubeconfigError):
        parse_kubeconfig(json.dumps(config).encode())


@pytest.mark.parametrize(
    "document",
    [
        b"",
        b"null",
        b"[]",
        b"a: [",
        b"\xff\xfe",
        b"a: 2001-99-99",
        b"a: 1:99999999999999999999",
        b"? [a]\n: b",
        b"!!python/object/apply:os.system [id]",
        b"[" * 100_000,
        b"a" * (2 << 20),
        b"a: &a [*a]",
        b"--- a\n--- b",
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


@given(
    st.sampled_from(["contexts", "clusters", "users", "current-context", "cluster", "user"]),
    st.sampled_from(
        [
            "server",
            "certificate-authority-data",
            "proxy-url",
            "tls-server-name",
            "token",
            "client-key-data",
            "tokenFile",
        ]
    ),
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


SEXAGESIMAL = ":".join(["59"] * 130_000)
"""PyYAML makes a number of it in time quadratic in its length: 400 KB took 15 s."""


@pytest.mark.parametrize(
    ("extension", "says"),
    [
        (SEXAGESIMAL, f"at most {MAX_SELF_CONTAINED} bytes"),
        (SEXAGESIMAL[:60_000], "text in quotes"),
        ("[" + "1," * MAX_SELF_CONTAINED_VALUES + "]", f"more than {MAX_SELF_CONTAINED_VALUES} values"),
        ("[" * 33 + "]" * 33, "nesting deeper than 32"),
        ("x" * MAX_SELF_CONTAINED, f"at most {MAX_SELF_CONTAINED} bytes"),
    ],
    ids=["400 KB of sexagesimal", "60 KB of sexagesimal", "values", "nesting", "bytes"],
)
def test_a_kubeconfig_in_a_secret_is_small(extension: str, says: str) -> None:
    document = f"extensions: {extension}\n".encode() + kubeconfig({"server": SERVER}, {})
    with pytest.raises(KubeconfigError, match=says):
        parse_kubeconfig(document)


def test_a_client_key_that_is_costly_to_sign_with_is_refused(authority: Authority, pair: Pair) -> None:
    long = rsa.RSAPublicNumbers(65537, (1 << 8191) + 1).public_key()
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "admin")])
    now = datetime.now(UTC)
    certificate = x509.CertificateBuilder(name, name, long, 1, now, now).sign(
        ec.generate_private_key(ec.SECP256R1()), hashes.SHA256()
    )
    pem = certificate.public_bytes(Encoding.PEM)
    user: JsonObject = {"client-certificate-data": b64(pem), "client-key-data": b64(pair.key)}
    cluster: JsonObject = {"server": SERVER, "certificate-authority-data": b64(authority.pem)}
    with pytest.raises(KubeconfigError, match="8192 bits"):
        parse_kubeconfig(kubeconfig(cluster, user))


def test_in_cluster_takes_the_mounted_account(tmp_path: Path, authority: Authority) -> None:
    (tmp_path / "ca.crt").write_bytes(authority.pem)
    environment = {"KUBERNETES_SERVICE_HOST": "fd00::1", "KUBERNETES_SERVICE_PORT": "443"}
    endpoint = in_cluster_endpoint(environment, account=tmp_path)
    assert endpoint.server == "https://[fd00::1]:443"
    assert endpoint.token_file == tmp_path / "token"
    with pytest.raises(KubeconfigError, match="pod"):
        in_cluster_endpoint({})
