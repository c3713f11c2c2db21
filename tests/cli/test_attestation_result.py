"""Signed attestation results: what they say of a machine, who is believed, and what is refused."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import cast

import pytest
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat
from hypothesis import given, settings
from hypothesis import strategies as st
from stored import MACHINE, NODE, PROVIDER_ID, Join

from nodeattest_cli.evidence.attestation_result import RECORD, TYPE, Tier, make_claims, verify_result
from nodeattest_cli.explain.bundle import make_bundle
from nodeattest_cli.explain.collect import Collected
from nodeattest_cli.machines.row import rows_of
from nodeattest_cli.main import main
from nodeattest_controller.controllers.node_attested.severity import DENIAL_SEVERITIES, DenialSeverity
from nodeattest_controller.model.attestation import attestation_name, parse_attestation
from nodeattest_controller.model.objects import mapping
from nodeattest_identity.tokens.signing import SigningKey, mint, sign_claims, signing_key
from nodeattest_kube.jsontypes import JsonObject, JsonValue
from nodeattest_parsing.strict_base64 import decode_base64url, encode_base64url
from nodeattest_providers.errors import Denied, Reason
from nodeattest_providers.names import ProviderID
from nodeattest_sandbox.pki import ClusterPki

NOW = datetime(2026, 5, 4, 12, 0, 30, tzinfo=UTC)
KEY = signing_key(ec.generate_private_key(ec.SECP256R1()))
OTHER = signing_key(ec.generate_private_key(ec.SECP256R1()))


def record(**spec: JsonValue) -> JsonObject:
    """Make the MachineAttestation of a machine that joined a moment ago."""
    issued: JsonObject = {
        "requestName": "second",
        "requestUID": "uid-of-second",
        "firstRequestUID": "uid-of-first",
        "spki": f"sha256:{'0' * 64}",
        "serial": "1f",
        "notBefore": "2026-05-04T11:55:00Z",
        "notAfter": "2026-05-18T12:00:00Z",
        "issuedAt": "2026-05-04T12:00:10Z",
        "certificate": "PEM",
        "policy": "blue",
    }
    return {
        "apiVersion": "attestation.cluster.x-k8s.io/v1alpha1",
        "kind": "MachineAttestation",
        "metadata": {"name": attestation_name("blue", ProviderID(PROVIDER_ID)), "namespace": "fleet"},
        "spec": {
            "clusterName": "blue",
            "machineName": MACHINE,
            "providerID": PROVIDER_ID,
            "nodeName": NODE,
            "provider": "tpm",
            "fingerprints": {"tpm.ek": f"sha256:{'1' * 64}"},
            "issued": [issued],
            "expires": "2026-05-18T12:00:00Z",
            "lastVerdict": {"verdict": "Approved", "reason": "Attested", "time": "2026-05-04T12:00:10Z"},
            **spec,
        },
    }


def bundle(
    documents: list[JsonObject], recorded: JsonObject, csr: JsonObject | None = None, *, at: datetime = NOW
) -> bytes:
    """Export what was collected of the machine."""
    machines = [one for one in documents if one["kind"] == "Machine"]
    [row] = rows_of(machines, [recorded], at)
    found = Collected(csr=csr, row=row, documents=[*documents, recorded], attestation=parse_attestation(recorded))
    return json.dumps(make_bundle(found, at)).encode()


@pytest.fixture(scope="module")
def join(tmp_path_factory: pytest.TempPathFactory) -> Join:
    return Join(ClusterPki.make(tmp_path_factory.mktemp("pki"), "blue"))


def exported(join: Join, spec: JsonObject | None = None, *, at: datetime = NOW) -> JsonObject:
    return make_claims(bundle(join.documents(), record(**(spec or {})), at=at), at, build="1")


def signed(claims: JsonObject, key: SigningKey = KEY, *, typ: str = TYPE) -> bytes:
    return sign_claims(key, claims, typ=typ).encode()


def refused(token: bytes, *, at: datetime = NOW) -> Reason:
    with pytest.raises(Denied) as caught:
        verify_result(token, [KEY.verifying], at)
    return caught.value.reason


def test_what_was_signed_is_verified_years_later_with_all_that_it_says(join: Join) -> None:
    result = verify_result(signed(exported(join)), [OTHER.verifying, KEY.verifying], NOW + timedelta(days=3650))
    assert (result.machine, result.tier, result.made) == (f"fleet/blue/{MACHINE}", Tier.AFFIRMING, NOW)
    assert result.key_id == KEY.verifying.kid
    assert result.appraisal["ear_trustworthiness_vector"] == {"instance-identity": 2}
    assert result.appraisal["ear_appraisal_policy_ids"] == ["fleet/blue"]
    said = mapping(result.appraisal, RECORD)
    assert (said["providerID"], said["nodeName"], said["provider"]) == (PROVIDER_ID, NODE, "tpm")
    assert mapping(said, "certificate")["serial"] == "1f"
    assert result.evidence.row is not None


def test_the_claims_are_those_of_the_profile_and_no_others(join: Join) -> None:
    claims = exported(join)
    assert claims["eat_profile"] == "tag:ietf.org,2026:rats/ear#03"
    assert claims.keys() == {"eat_profile", "iat", "ear_status", "ear_verifier_id", "ear_raw_evidence", "submods"}
    [appraisal] = cast("dict[str, JsonObject]", claims["submods"]).values()
    assert claims["ear_status"] == appraisal["ear_status"] == "affirming"
    assert appraisal.keys() == {
        "ear_status", "ear_trustworthiness_vector", "ear_appraisal_policy_ids", RECORD,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("spec", "tier", "vector"),
    [
        ({"issued": []}, Tier.NONE, {"instance-identity": 0}),
        ({"provider": "insecure"}, Tier.NONE, {"instance-identity": 0}),
        (
            {"lastVerdict": {"verdict": "Denied", "reason": "PCRValueNotAllowed", "time": "2026-05-04T12:00:20Z"}},
            Tier.CONTRAINDICATED,
            {"instance-identity": 2, "executables": 96},
        ),
        (
            {"lastVerdict": {"verdict": "Denied", "reason": "EndorsementKeyChanged", "time": "2026-05-04T12:00:20Z"}},
            Tier.CONTRAINDICATED,
            {"instance-identity": 97},
        ),
        (
            {"lastVerdict": {"verdict": "Denied", "reason": "AttestorNotAuthorized", "time": "2026-05-04T12:00:20Z"}},
            Tier.NONE,
            {"instance-identity": 0},
        ),
    ],
    ids=["never-joined", "insecure", "boot", "hardware", "policy-changed"],
)
def test_a_result_says_no_more_than_the_record(join: Join, spec: JsonObject, tier: Tier, vector: JsonObject) -> None:
    result = verify_result(signed(exported(join, spec)), [KEY.verifying], NOW)
    assert (result.tier, result.appraisal["ear_trustworthiness_vector"]) == (tier, vector)


def test_a_certificate_that_ended_affirms_nothing(join: Join) -> None:
    later = NOW + timedelta(days=15)
    assert verify_result(signed(exported(join, at=later)), [KEY.verifying], later).tier is Tier.NONE


def test_every_reason_that_weighs_as_the_machines_is_contraindicated(join: Join) -> None:
    for reason, severity in DENIAL_SEVERITIES.items():
        verdict: JsonObject = {"verdict": "Denied", "reason": str(reason), "time": "2026-05-04T12:00:20Z"}
        status = exported(join, {"lastVerdict": verdict})["ear_status"]
        assert (status == "contraindicated") is (severity is DenialSeverity.MACHINE), reason


def test_only_the_given_keys_are_believed(join: Join) -> None:
    claims = exported(join)
    assert refused(signed(claims, OTHER)) is Reason.JWT_KEY_UNKNOWN
    token = signed(claims)
    assert refused(token[:-2] + (b"AA" if token[-2:] != b"AA" else b"BB")) in {
        Reason.JWT_SIGNATURE_INVALID,
        Reason.JWT_MALFORMED,
    }
    header, payload, signature = token.split(b".")
    grown = json.loads(decode_base64url(payload)) | {"ear_status": "contraindicated"}
    changed = encode_base64url(json.dumps(grown).encode()).encode()
    assert refused(b".".join((header, changed, signature))) is Reason.JWT_SIGNATURE_INVALID


def test_an_rsa_key_signs_too(join: Join) -> None:
    key = signing_key(rsa.generate_private_key(65537, 2048))
    assert verify_result(signed(exported(join), key), [key.verifying], NOW).tier is Tier.AFFIRMING


def test_a_token_of_another_kind_is_no_result(join: Join) -> None:
    assert refused(signed(exported(join), typ="JWT")) is Reason.JWT_MALFORMED
    minted = mint(KEY, issuer="i", subject="s", audience="a", now=1.0, lifetime=1, jwt_id="x")
    assert refused(minted.encode()) is Reason.JWT_MALFORMED


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"ear_status": "affirming", "exp": 1}, Reason.JWT_MALFORMED),
        ({"eat_profile": "tag:github.com,2023:veraison/ear"}, Reason.JWT_MALFORMED),
        ({"iat": int(NOW.timestamp()) + 301}, Reason.JWT_NOT_YET_VALID),
        ({"iat": 1.5}, Reason.JWT_MALFORMED),
        ({"iat": True}, Reason.JWT_MALFORMED),
        ({"iat": 2**60}, Reason.JWT_MALFORMED),
        ({"ear_verifier_id": {"developer": "nodeattest"}}, Reason.JWT_MALFORMED),
        ({"ear_verifier_id": {"developer": "somebody", "build": "1"}}, Reason.EVIDENCE_MALFORMED),
        ({"ear_status": "contraindicated"}, Reason.EVIDENCE_MALFORMED),
        ({"submods": {}}, Reason.EVIDENCE_MALFORMED),
        ({"ear_raw_evidence": "e30"}, Reason.JWT_MALFORMED),
        ({"ear_raw_evidence": "%"}, Reason.JWT_MALFORMED),
        ({"ear_raw_evidence": 1}, Reason.JWT_MALFORMED),
    ],
)
def test_a_signed_result_with_one_claim_changed_is_refused(join: Join, change: JsonObject, reason: Reason) -> None:
    assert refused(signed({**exported(join), **change})) is reason


def test_a_signed_result_that_says_more_than_its_evidence_is_refused(join: Join) -> None:
    """Whoever has the key can sign anything; a reader still sees that the record does not say it."""
    never = exported(join, {"issued": []})
    affirming = exported(join)
    assert refused(signed({**affirming, "ear_raw_evidence": never["ear_raw_evidence"]})) is Reason.EVIDENCE_MALFORMED


@given(st.binary(max_size=64) | st.binary(max_size=64).map(lambda data: b"e30." + data + b".e30"))
@settings(max_examples=200)
def test_any_bytes_are_denied(data: bytes) -> None:
    assert refused(data) is Reason.JWT_MALFORMED


def _written(path: Path, token: bytes) -> str:
    path.write_bytes(token + b"\n")
    return str(path)


@pytest.fixture
def public_key(tmp_path: Path) -> str:
    path = tmp_path / "results.pub"
    spki = KEY.verifying.public.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    path.write_bytes(spki)
    return str(path)


def test_verify_shows_the_result_and_evaluates_the_request_again(
    join: Join, tmp_path: Path, public_key: str, capsys: pytest.CaptureFixture[str]
) -> None:
    first, second = join.round()
    evidence = bundle([*join.documents(), first], record(fingerprints={"tpm.ek": join.fingerprint}), second)
    path = _written(tmp_path / "blue.ear", signed(make_claims(evidence, NOW, build="1")))
    assert main(["evidence", "verify", path, "--key", public_key]) == 0
    shown = capsys.readouterr().out
    assert f"machine      fleet/blue/{MACHINE}" in shown
    assert "status       affirming" in shown
    assert "pass  quote signature" in shown
    assert main(["evidence", "verify", path, "--key", public_key, "-o", "json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["appraisal"]["ear_status"] == "affirming"
    assert said["explanation"]["refused"] is False


def test_verify_fails_for_evidence_that_does_not_hold(
    join: Join, tmp_path: Path, public_key: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """The record says attested, and the request inside was never the machine's."""
    stranger = Join(join.pki)
    first, second = stranger.round()
    evidence = bundle([*join.documents(), first], record(fingerprints={"tpm.ek": join.fingerprint}), second)
    path = _written(tmp_path / "blue.ear", signed(make_claims(evidence, NOW, build="1")))
    assert main(["evidence", "verify", path, "--key", public_key]) == 1
    assert f"refused: {Reason.ENDORSEMENT_KEY_CHANGED}" in capsys.readouterr().out


def test_verify_says_what_it_wants_of_its_files(
    join: Join, tmp_path: Path, public_key: str, capsys: pytest.CaptureFixture[str]
) -> None:
    missing = str(tmp_path / "absent")
    assert main(["evidence", "verify", missing, "--key", public_key]) == 2
    assert "expected a signed attestation result, got No such file" in capsys.readouterr().err
    path = _written(tmp_path / "blue.ear", signed(exported(join), OTHER))
    assert main(["evidence", "verify", path, "--key", public_key]) == 1
    assert "expected a kid of one of the 1 keys that were given" in capsys.readouterr().err
    bundled = _written(tmp_path / "bundle.json", bundle(join.documents(), record()))
    assert main(["evidence", "verify", bundled, "--key", public_key]) == 1
    assert "a signed attestation result" in capsys.readouterr().err


def test_a_private_key_is_read_once_and_never_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "key.pem"
    pem = ec.generate_private_key(ec.SECP384R1()).private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    path.write_bytes(pem)
    assert main(["evidence", "export", "machine/m", "-o", "-", "--signing-key", str(path)]) == 2
    said = capsys.readouterr()
    assert "expected a private key of RSA or P-256" in said.err
    assert pem.decode().splitlines()[1] not in said.err + said.out
