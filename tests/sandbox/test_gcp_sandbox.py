"""The sandbox's Google Cloud refuses what the real one refuses: requests without its header, tokens that are none."""

from __future__ import annotations

import base64
import json
import ssl
import time
from collections.abc import Generator, Mapping
from dataclasses import replace
from http.client import HTTPConnection, HTTPSConnection
from pathlib import Path
from urllib.parse import quote, urlencode, urlsplit

import pytest
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import padding, rsa
from cryptography.hazmat.primitives.serialization import load_pem_private_key

from clouds.gcp.cloud import GoogleCloud
from clouds.gcp.instances import CloudInstance, filtered, masked

READER = "reader@fleet-project.iam.gserviceaccount.com"
AUDIENCE = "https://oauth2.googleapis.com/token"
SCOPE = "https://www.googleapis.com/auth/compute.readonly"
INSTANCES = "/compute/v1/projects/fleet-project/zones/europe-west4-a/instances"


@pytest.fixture(scope="module")
def cloud(tmp_path_factory: pytest.TempPathFactory) -> Generator[GoogleCloud]:
    with GoogleCloud(tmp_path_factory.mktemp("gcp")) as running:
        for number in range(3):
            running.add(
                CloudInstance(
                    project="fleet-project",
                    zone="europe-west4-a",
                    name=f"node-{number}",
                    number=str(100 + number),
                    service_account=READER,
                    keys={"encryptionKey": "a key"},
                )
            )
        yield running


@pytest.fixture(scope="module")
def key_file(cloud: GoogleCloud) -> Path:
    return cloud.account(READER, project="fleet-project", reads=("fleet-project",))


def ask(
    cloud: GoogleCloud, path: str, *, method: str = "GET", body: bytes = b"", token: str = ""
) -> tuple[int, Mapping[str, object]]:
    parts = urlsplit(cloud.endpoint)
    context = ssl.create_default_context(cafile=cloud.ca_file)
    connection = HTTPSConnection(parts.hostname or "", parts.port, context=context, timeout=60)
    try:
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        connection.request(method, path, body, headers)
        answer = connection.getresponse()
        return answer.status, json.loads(answer.read() or b"{}")
    finally:
        connection.close()


def encoded(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).decode().rstrip("=")


def assertion(key: rsa.RSAPrivateKey, *, algorithm: str = "RS256", **claims: object) -> str:
    now = int(time.time())
    whole = {"iss": READER, "aud": AUDIENCE, "scope": SCOPE, "iat": now, "exp": now + 3600, **claims}
    head = encoded(json.dumps({"alg": algorithm, "typ": "JWT"}).encode())
    message = f"{head}.{encoded(json.dumps(whole).encode())}"
    return f"{message}.{encoded(key.sign(message.encode(), padding.PKCS1v15(), hashes.SHA256()))}"


def granted(cloud: GoogleCloud, text: str) -> tuple[int, Mapping[str, object]]:
    form = {"grant_type": "urn:ietf:params:oauth:grant-type:jwt-bearer", "assertion": text}
    return ask(cloud, "/token", method="POST", body=urlencode(form).encode())


@pytest.fixture(scope="module")
def key(key_file: Path) -> rsa.RSAPrivateKey:
    loaded = load_pem_private_key(json.loads(key_file.read_text())["private_key"].encode(), None)
    assert isinstance(loaded, rsa.RSAPrivateKey)
    return loaded


@pytest.fixture(scope="module")
def token(cloud: GoogleCloud, key: rsa.RSAPrivateKey) -> str:
    status, answer = granted(cloud, assertion(key))
    assert status == 200
    return str(answer["access_token"])


@pytest.mark.parametrize(
    "claims",
    [
        {"iss": "somebody@fleet-project.iam.gserviceaccount.com"},
        {"aud": "https://elsewhere.example/token"},
        {"scope": ""},
        {"exp": int(time.time()) - 3600},
        {"exp": int(time.time()) + 7200},
        {"iat": int(time.time()) + 3600, "exp": int(time.time()) + 7000},
        {"iat": "now"},
        {"algorithm": "HS256"},
        {"algorithm": "none"},
    ],
)
def test_an_assertion_that_is_wrong_in_one_claim_gets_no_token(
    cloud: GoogleCloud, key: rsa.RSAPrivateKey, claims: dict[str, str]
) -> None:
    assert granted(cloud, assertion(key, **claims))[0] == 400


def test_an_assertion_by_another_key_gets_no_token(cloud: GoogleCloud, key: rsa.RSAPrivateKey) -> None:
    assert key
    assert granted(cloud, assertion(rsa.generate_private_key(65537, 2048)))[0] == 400


@pytest.mark.parametrize("text", ["", "a.b", "a.b.c", "e30.e30.AAAA", "....", "W10.W10.AAAA"])
def test_what_is_no_assertion_gets_no_token(cloud: GoogleCloud, text: str) -> None:
    assert granted(cloud, text)[0] == 400


@pytest.mark.parametrize("invented", ["", "ya29.invented", "Bearer"])
def test_a_token_that_nobody_issued_reads_nothing(cloud: GoogleCloud, invented: str) -> None:
    assert ask(cloud, INSTANCES, token=invented)[0] == 401


def test_a_token_reads_the_projects_of_its_account_only(cloud: GoogleCloud, token: str) -> None:
    assert ask(cloud, INSTANCES, token=token)[0] == 200
    assert ask(cloud, INSTANCES.replace("fleet-project", "other-project"), token=token)[0] == 403


def names(answer: Mapping[str, object]) -> list[object]:
    items = answer["items"]
    assert isinstance(items, list)
    return [item["name"] for item in items if isinstance(item, dict)]  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType] - JSON


def test_a_list_heeds_filter_fields_and_pages(cloud: GoogleCloud, token: str) -> None:
    chosen = quote('(name = "node-0") OR (name = "node-2")')
    _, answer = ask(cloud, f"{INSTANCES}?filter={chosen}&fields=items(name)", token=token)
    assert answer == {"items": [{"name": "node-0"}, {"name": "node-2"}]}
    _, first = ask(cloud, f"{INSTANCES}?maxResults=2", token=token)
    _, rest = ask(cloud, f"{INSTANCES}?maxResults=2&pageToken={first['nextPageToken']}", token=token)
    assert [*names(first), *names(rest)] == ["node-0", "node-1", "node-2"]
    assert "nextPageToken" not in rest


def test_an_instance_is_found_by_name_and_by_number(cloud: GoogleCloud, token: str) -> None:
    for name in ("node-1", "101"):
        status, identity = ask(cloud, f"{INSTANCES}/{name}/getShieldedInstanceIdentity", token=token)
        assert (status, identity["encryptionKey"]) == (200, {"ekPub": "a key"})
    assert ask(cloud, f"{INSTANCES}/node-9/getShieldedInstanceIdentity", token=token)[0] == 404


def test_a_mask_leaves_what_it_names_at_every_depth() -> None:
    value = {"a": [{"b": 1, "c": {"d": 2, "e": 3}}], "f": 4}
    assert masked(value, "a(b,c/d)") == {"a": [{"b": 1, "c": {"d": 2}}]}
    assert masked(value, "f,a/c") == {"f": 4, "a": [{"c": {"d": 2, "e": 3}}]}
    assert masked(value, "") == value


def test_another_language_of_filters_is_refused() -> None:
    assert filtered("") is None
    with pytest.raises(ValueError, match="by name only"):
        filtered('name eq "node-.*"')


def metadata(cloud: GoogleCloud, path: str, **headers: str) -> tuple[int, str]:
    parts = urlsplit(cloud.metadata_endpoint(cloud.instances[0]))
    connection = HTTPConnection(parts.hostname or "", parts.port, timeout=60)
    try:
        connection.request("GET", path, headers={name.replace("_", "-"): value for name, value in headers.items()})
        answer = connection.getresponse()
        return answer.status, answer.read().decode()
    finally:
        connection.close()


def test_a_metadata_server_answers_its_own_instance_in_googles_way_only(cloud: GoogleCloud) -> None:
    path = "/computeMetadata/v1/instance/name"
    assert metadata(cloud, path, Metadata_Flavor="Google") == (200, "node-0")
    assert metadata(cloud, path)[0] == 403
    assert metadata(cloud, path, Metadata_Flavor="Google", X_Forwarded_For="10.0.0.1")[0] == 403
    assert metadata(cloud, "/computeMetadata/v1/instance/nothing", Metadata_Flavor="Google")[0] == 404
    assert metadata(cloud, "/instance/name", Metadata_Flavor="Google")[0] == 404


def test_an_instance_of_the_same_name_replaces_the_old_one(tmp_path: Path) -> None:
    with GoogleCloud(tmp_path) as cloud:
        first = cloud.add(CloudInstance(project="p12345", zone="z", name="n", number="1"))
        second = cloud.add(replace(first, number="2"))
        assert cloud.instances == [second]
        cloud.remove(second)
        assert cloud.instances == []
