"""``endorsement-keys import``: each row becomes the object that registers its key, or one line says what is wrong."""

from __future__ import annotations

import json
import subprocess
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import yaml
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, ed25519
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat
from hypothesis import given
from hypothesis import strategies as st
from needs import kubernetes_folder

from nodeattest_cli.endorsement_keys import HOST_KINDS, read_key
from nodeattest_cli.main import main
from nodeattest_cli.output import UserError
from nodeattest_controller import manifests
from nodeattest_providers.identifiers import ANNOTATION_TPM_ENDORSEMENT_KEY
from nodeattest_providers.keys import ENDORSEMENT_FINGERPRINT, endorsement_fingerprint
from nodeattest_sandbox.apiserver.jsonvalue import JsonMap, map_at, maps_at, text_at
from nodeattest_sandbox.control_plane import start_real
from nodeattest_sandbox.definitions import install_definitions

ONE, TWO, THREE = (f"sha256:{digit * 64}" for digit in "123")
HOST = "BareMetalHost/fleet/node-7"
KEY = ec.generate_private_key(ec.SECP384R1())
NAMES: dict[str, object] = {"namespace": "fleet", "name": "node-7"}
POLICY = {
    "apiVersion": "attestation.cluster.x-k8s.io/v1alpha1",
    "kind": "NodeAttestationPolicy",
    "metadata": {"namespace": "fleet", "name": "metal"},
}


def spki(key: ec.EllipticCurvePrivateKey | ed25519.Ed25519PrivateKey) -> str:
    return key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo).decode()


def certificate() -> str:
    now, name = datetime.now(UTC), x509.Name([])
    builder = x509.CertificateBuilder(name, name, KEY.public_key(), 1, now, now + timedelta(days=1))
    return builder.sign(KEY, hashes.SHA256()).public_bytes(Encoding.PEM).decode()


@pytest.mark.parametrize("text", [spki(KEY), spki(KEY).replace("\n", "\r\n"), certificate()])
def test_a_certificate_and_a_public_key_have_the_fingerprint_of_the_key(text: str) -> None:
    assert read_key(text) == endorsement_fingerprint(KEY.public_key())


def test_of_a_private_key_no_line_is_shown() -> None:
    private = KEY.private_bytes(Encoding.PEM, PrivateFormat.TraditionalOpenSSL, NoEncryption()).decode()
    with pytest.raises(UserError) as refused:
        read_key(private)
    assert private.splitlines()[1][:20] not in str(refused.value)


@given(st.text(max_size=200))
def test_any_text_is_a_fingerprint_or_a_user_error(text: str) -> None:
    with suppress(UserError):
        assert ENDORSEMENT_FINGERPRINT.fullmatch(read_key(text))


CSV = f"""host,providerID,endorsementKey,nodeName,description
{HOST},,{ONE},,
,metal://8,{TWO},node-8,"rack 1, unit 8"
"""
JSON = json.dumps(
    [
        {"host": HOST, "endorsementKey": ONE},
        {"providerID": "metal://8", "endorsementKey": TWO, "nodeName": "node-8", "description": "rack 1, unit 8"},
    ]
)


@pytest.mark.parametrize("text", [CSV, "\ufeff" + CSV.replace("\n", "\r\n"), JSON], ids=["csv", "spreadsheet", "json"])
def test_each_row_becomes_what_registers_its_key(text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "keys"
    file.write_text(text, newline="")
    assert main(["endorsement-keys", "import", str(file), "--policy", "metal", "-n", "fleet"]) == 0
    annotations = {ANNOTATION_TPM_ENDORSEMENT_KEY: ONE}
    entry = {"providerID": "metal://8", "sha256": TWO, "nodeName": "node-8", "description": "rack 1, unit 8"}
    assert list(yaml.safe_load_all(capsys.readouterr().out)) == [
        {
            "apiVersion": "metal3.io/v1alpha1",
            "kind": "BareMetalHost",
            "metadata": {**NAMES, "annotations": annotations},
        },
        {**POLICY, "spec": {"tpm": {"endorsementKeys": [entry]}}},
    ]


def test_each_kind_of_host_gets_the_annotation_and_a_record_its_own_field(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "keys"
    rows = [f"{kind}/fleet/node-7,sha256:{number:064x}" for number, kind in enumerate(HOST_KINDS, start=1)]
    file.write_text("\n".join(["host,endorsementKey", *rows]))
    assert main(["endorsement-keys", "import", str(file)]) == 0
    found = {one["kind"]: one for one in yaml.safe_load_all(capsys.readouterr().out)}
    assert {kind: one["apiVersion"] for kind, one in found.items()} == dict(HOST_KINDS)
    assert "annotations" not in found["MachineRecord"]["metadata"]
    assert found.pop("MachineRecord")["spec"]["endorsementKeyHash"].startswith("sha256:")
    assert all(ANNOTATION_TPM_ENDORSEMENT_KEY in one["metadata"]["annotations"] for one in found.values())


WRONG: list[tuple[str, tuple[str, ...], str]] = [
    ("", (), "expected the columns host"),
    ("host,endorsementKey\n", (), "expected 1 to 10000 rows, got 0"),
    ("hosts,endorsementKey\n", (), "got the column 'hosts'"),
    ("host,providerID\n", (), "no column endorsementKey"),
    (f"host,endorsementKey\n{HOST},{ONE},x", (), "got the column ''"),
    (f'host,endorsementKey\n{HOST},"{ONE}', (), "expected CSV or JSON"),
    ("[{]", (), "expected CSV or JSON"),
    (f"host,providerID,endorsementKey\n{HOST},m://7,{ONE}", (), "row 1: expected either host or providerID, got both"),
    (f"host,providerID,endorsementKey\n,,{ONE}", (), "got neither"),
    (f"host,endorsementKey\nByoHost/fleet/a,{ONE}", (), "with a kind of BareMetalHost"),
    (f"host,endorsementKey\nBareMetalHost/fleet/../a,{ONE}", (), "expected Kind/namespace/name"),
    (f"providerID,endorsementKey\nm://\u200b,{ONE}", ("--policy", "p"), "none of them invisible"),
    (f"host,endorsementKey\n{HOST},{ONE}\n{HOST},{TWO}", (), f"row 2: {HOST} is already in row 1"),
    (f"host,endorsementKey\n{HOST},{ONE}\n{HOST}8,{ONE}", (), f"row 2: {ONE} is already in row 1"),
    (f"providerID,endorsementKey,nodeName\nm://7,{ONE},A", ("--policy", "p"), "DNS name in lower case"),
    (f"providerID,endorsementKey\nm://7,{ONE}", (), "--policy: set it"),
    (f"host,endorsementKey\n{HOST},{ONE}", ("--policy", "p"), "--policy: no row has a providerID"),
    (f"host,endorsementKey,nodeName\n{HOST},{ONE},a", (), "row 1: expected nodeName and description with a providerID"),
    (f'[{{"host": "{HOST}", "endorsementKey": "{ONE}"}}, "{HOST}"]', (), "row 2: expected an object of strings"),
    (f'[{{"providerID": "m://7", "endorsementKey": "{ONE}", "description": 7}}]', (), "row 1: expected an object"),
    (f"host,endorsementKey\n{HOST},sha256:{'0' * 64}", (), "64 lower-case hex digits"),
    (
        json.dumps([{"host": HOST, "endorsementKey": spki(ed25519.Ed25519PrivateKey.generate())}]),
        (),
        "RSA 2048",
    ),
]


@pytest.mark.parametrize(("text", "words", "problem"), WRONG)
def test_a_mistake_is_one_line_and_prints_no_object(
    text: str, words: tuple[str, ...], problem: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "keys"
    file.write_text(text)
    assert main(["endorsement-keys", "import", str(file), *words]) == 2
    printed = capsys.readouterr()
    assert problem in printed.err
    assert (printed.out, len(printed.err.splitlines())) == ("", 1)


def made(kind: str, name: str, spec: JsonMap) -> JsonMap:
    return {"apiVersion": HOST_KINDS["MachineRecord"], "kind": kind, "metadata": {"name": name}, "spec": spec}


@pytest.mark.conformance
def test_kubectl_applies_the_output_and_a_second_time_changes_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    base = "/apis/attestation.cluster.x-k8s.io/v1alpha1/namespaces/default"
    file = tmp_path / "keys"
    file.write_text(
        f"host,providerID,endorsementKey\nMachineRecord/default/node-7,,{ONE}\n,metal://8,{TWO}\n,metal://9,{THREE}\n"
    )
    assert main(["endorsement-keys", "import", str(file), "--policy", "metal"]) == 0
    printed = capsys.readouterr().out
    with start_real(tmp_path, kubernetes_folder(), name="keys") as plane:
        client = plane.client()
        install_definitions(client, manifests.objects("crd"))
        tpm: JsonMap = {"endorsementKeys": [{"providerID": "metal://1", "sha256": "sha256:" + "a" * 64}]}
        policy: JsonMap = {"authorizedAttestors": ["tpm"], "tpm": tpm}
        client.create(f"{base}/nodeattestationpolicies", made("NodeAttestationPolicy", "metal", policy))
        record: JsonMap = {"clusterName": "cellar", "providerID": "metal://7", "nodeName": "node-7"}
        client.create(f"{base}/machinerecords", made("MachineRecord", "node-7", record))
        versions: list[str] = []
        for _ in range(2):
            command = [plane.kubectl or "", "--kubeconfig", plane.admin_kubeconfig, "apply", "--server-side", "-f", "-"]
            subprocess.run(command, input=printed, text=True, check=True, timeout=60)
            found = client.get(f"{base}/nodeattestationpolicies/metal")
            versions.append(text_at(found, "metadata", "resourceVersion"))
            machines = [text_at(one, "providerID") for one in maps_at(found, "spec", "tpm", "endorsementKeys")]
            assert machines == ["metal://1", "metal://8", "metal://9"]
        assert map_at(client.get(f"{base}/machinerecords/node-7"), "spec") == {**record, "endorsementKeyHash": ONE}
        assert versions[0] == versions[1]
