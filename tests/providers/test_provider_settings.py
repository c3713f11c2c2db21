"""Settings of policies, of the controller's platforms and of nodes: a wrong one is refused and its field named."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pytest
from worlds import denied_for

from nodeattest_providers.aws import config as aws
from nodeattest_providers.azure import config as azure
from nodeattest_providers.challenge.attestor import ChallengeAttestor
from nodeattest_providers.composite.attestor import CompositeAttestor
from nodeattest_providers.composite.protocol import parse_policy as composite_policy
from nodeattest_providers.errors import Reason
from nodeattest_providers.gcp import config as gcp
from nodeattest_providers.gcp.attestor import GcpAttestor
from nodeattest_providers.node_interface import JsonValue
from nodeattest_providers.oci import verifier as oci
from nodeattest_providers.tpm.attestor import TpmAttestor
from nodeattest_providers.tpm.config import parse_policy as tpm_policy

ROLE = "arn:aws:iam::123456789012:role/reader"
UUID = "8d10da13-8125-4ba9-a717-bf7490507b3d"
KEY = "sha256:" + "0a" * 32
ENTRY: dict[str, JsonValue] = {"providerID": "metal://rack-1/7", "sha256": KEY}
OCIDS = {kind: f"ocid1.{kind}.oc1..aaaa{kind}" for kind in ("tenancy", "compartment")}


def keys(*entries: Mapping[str, JsonValue]) -> dict[str, JsonValue]:
    return {"endorsementKeys": [dict(entry) for entry in entries]}


def named(name: str, provider_id: str = "metal://rack-1/7", key: str = "0a") -> dict[str, JsonValue]:
    return {"providerID": provider_id, "sha256": "sha256:" + key * 32, "nodeName": name}


def aws_policy(settings: Mapping[str, JsonValue]) -> object:
    return aws.parse_policy({"accounts": ["123456789012"], "regions": ["us-east-1"], "roles": ["nodes"], **settings})


def azure_policy(settings: Mapping[str, JsonValue]) -> object:
    return azure.parse_policy({"subscriptions": [], "resourceGroups": [], **settings})


ROWS: dict[Callable[[Mapping[str, JsonValue]], object], list[tuple[dict[str, JsonValue], str]]] = {
    aws_policy: [
        ({"account": []}, "'accounts'"),
        ({"accounts": None}, "spec.aws.accounts"),
        ({"accounts": [123456789012]}, "12 digits"),
        ({"regions": ["us-*"]}, "spec.aws.regions"),
        ({"regions": ["us-isox-east-1"]}, "partitions"),
        ({"roles": [ROLE]}, "without path"),
        ({"tags": {"": "x"}}, "names"),
        ({"tags": {"x": 1}}, "spec.aws.tags[x]"),
        ({"tags": {"x": "y" * 257}}, "256"),
        ({"tags": {"x" * 129: "y"}}, "1 to 128"),
        ({"vpcs": ["vpc-1"]}, "spec.aws.vpcs"),
        ({"vpcs": None}, "spec.aws.vpcs: an array"),
    ],
    aws.parse_platform: [
        ({"endpoint": {}}, "'endpoints'"),
        ({"endpoints": {"sts": "http://sts.example"}}, "https://"),
        ({"endpoints": {"sts": "https://user@sts.example"}}, "https://"),
        ({"endpoints": {"sts": "https://sts.example/?x"}}, "https://"),
        ({"endpoints": {"sts": "https://sts.example:0"}}, "https://"),
        ({"endpoints": {"sts": "https://sts.example/#x"}}, "https://"),
        ({"endpoints": {"sts": "https://st\u0455.example"}}, "https://"),
        ({"endpoints": {"sts": "https://:443"}}, "https://"),
        ({"endpoints": []}, "platforms.aws.endpoints: an object"),
        ({"endpoints": {"sts": 7}}, "a string"),
        ({"trustBundle": "trust.json"}, "absolute"),
        ({"caBundle": 1}, "caBundle"),
        ({"proxy": "socks5://x"}, "http://"),
        ({"profile": ""}, "profile"),
        ({"assumeRoles": {"1": ROLE}}, "12 digits"),
        ({"assumeRoles": {"999999999999": ROLE}}, "that account"),
        ({"assumeRoles": {"123456789012": "reader"}}, "ARN"),
    ],
    azure_policy: [
        ({"subscriptions": ["demo"]}, "subscriptions as Azure"),
        ({"resourceGroups": ["a/b"]}, "resourceGroups as Azure"),
        ({"scaleSets": [1]}, "scaleSets as Azure"),
        ({"tags": {"a": "x", "A": "y"}}, "none twice"),
    ],
    azure.parse_platform: [
        ({"cloud": "AzureGermanCloud"}, "platforms.azure.cloud: AzurePublicCloud or"),
        ({"endpoints": {"authority": "http://x"}}, "platforms.azure.endpoints.authority: https://"),
        ({"credential": {}}, "one of workloadIdentity and managedIdentity"),
        ({"credential": {"managedIdentity": {}, "workloadIdentity": {}}}, "one of workloadIdentity"),
        ({"credential": {"managedIdentity": {"clientID": "x"}}}, "a UUID"),
        ({"credential": {"workloadIdentity": {"tenantID": UUID}}}, "the key clientID"),
    ],
    gcp.parse_policy: [
        ({"trustOnFirstUse": True}, "spec.gcp"),
        ({"projects": "fleet-project"}, "spec.gcp.projects: an array"),
        ({"projects": ["*"]}, "spec.gcp.projects: project IDs"),
        ({"zones": []}, "spec.gcp.zones: at least one"),
        ({"zones": ["europe-west4"]}, "spec.gcp.zones"),
        ({"regions": ["europe-west4-a"]}, "spec.gcp.regions"),
        ({"labels": {"A": "b"}}, "spec.gcp.labels"),
        ({"labels": {"a": "Owned"}}, "lower case, got 'a': 'Owned'"),
        ({"serviceAccounts": ["default"]}, "spec.gcp.serviceAccounts"),
        ({"requireSecureBoot": "yes"}, "spec.gcp.requireSecureBoot"),
        ({"pcrs": {"selection": []}}, "spec.gcp.pcrs.selection"),
    ],
    gcp.parse_platform: [
        ({"endpoints": {"storage": "https://x"}}, "one of compute"),
        ({"endpoints": {"compute": "https://compute.googleapis.com/compute/v1"}}, "https://host"),
        ({"proxy": "https://proxy.example"}, "http://host"),
        ({"caBundle": "/nowhere/ca.pem"}, "platforms.gcp.caBundle"),
        ({"credentialsFile": "/nowhere/key.json"}, "platforms.gcp.credentialsFile"),
    ],
    oci.parse_policy: [
        ({"tenancies": [OCIDS["tenancy"]]}, "the key compartments"),
        ({"tenancies": [OCIDS["compartment"]], "compartments": []}, "OCIDs of tenancies"),
        ({"tenancies": [], "compartments": ["ocid1.instance.oc1.phx.a"]}, "OCIDs of compartments"),
    ],
    tpm_policy: [
        ({"endorsementKey": []}, "did you mean 'endorsementKeys'?"),
        ({"endorsementKeys": {}}, "endorsementKeys: an array"),
        ({"endorsementKeys": [7]}, "endorsementKeys[0]: an object"),
        (keys({"sha256": KEY}), "endorsementKeys[0]: the key providerID"),
        (keys({**ENTRY, "sha256": KEY.upper()}), "64 lower-case hex"),
        (keys({**ENTRY, "sha256": KEY[:-1]}), "64 lower-case hex"),
        (keys({**ENTRY, "sha256": "sha256:" + "0" * 64}), "evidence prints"),
        (keys({**ENTRY, "description": 7}), ".description: a string"),
        (keys(named("Node_7")), ".nodeName: a node's name"),
        (keys(named("a"), named("b", key="0b")), "one name for all keys"),
        (keys(named("a"), named("a", "metal://2", "0b")), "one machine only"),
        ({"endorsementCAs": "no PEM"}, "PEM certificates"),
        ({"endorsementCAs": None}, "endorsementCAs: a string"),
        ({"trustOnFirstUse": "true"}, "true or false"),
        ({"eventLog": "require"}, "Ignore or Require"),
        ({"pcrs": {"bank": "sha1"}}, "sha256 or sha384 or sha512"),
        ({"pcrs": {"selection": []}}, "at least one PCR"),
        ({"pcrs": {"selection": [24]}}, "from 0 to 23"),
        ({"pcrs": {"values": {"4": ["00" * 32]}}}, "PCRs of the selection"),
        ({"pcrs": {"values": {"⁷": ["00" * 32]}}}, "PCRs of the selection"),
        ({"pcrs": {"values": {"7": ["00" * 20]}}}, "64 lower-case hex"),
        ({"pcrs": {"values": {"7": []}}}, "at least one allowed value"),
        ({"endorsementKeysFrom": {"gce": {}}}, "one of ec2"),
        ({"endorsementKeysFrom": {"ec2": {"accounts": ["1"]}}}, "12 digits"),
        ({"endorsementKeysFrom": {"ec2": {"accounts": [f"{one:012d}" for one in range(17)]}}}, "1 to 16 accounts"),
        ({"endorsementKeysFrom": {"ec2": {"accounts": [], "endpoint": "https://x"}}}, "one of accounts"),
    ],
    composite_policy: [
        ({}, "either allOf or anyOf"),
        ({"allOf": ["tpm", "tpm"]}, "different providers"),
        ({"anyOf": []}, "1 to 8 alternatives"),
        ({"anyOf": [*({"allOf": ["tpm", "aws"]} for _ in range(9))]}, "1 to 8 alternatives"),
        ({"allOf": ["tpm", "insecure"]}, "that prove something"),
        ({"allOf": ["tpm", "Challenge"]}, "that prove something"),
        ({"allOf": "tpm"}, "an array"),
        ({"allOf": ["a", "b", "c", "d", "e"]}, "2 to 4 different providers"),
        ({"anyOf": [{"allOf": ["tpm", "aws"], "x": 1}]}, "spec.composite.anyOf[0]"),
        ({"anyOf": [{"allOf": ["tpm", "aws"]}], "allOf": ["tpm", "challenge"]}, "either allOf or anyOf"),
    ],
    TpmAttestor: [
        ({"tctii": "x"}, "did you mean 'tcti'"),
        ({"tcti": ""}, "a string"),
        ({"tcti": 7}, "a string"),
        ({"endorsementKey": "rsa1024"}, "one of auto, ecc-p256"),
    ],
    GcpAttestor: [
        ({"tcit": "x"}, "did you mean 'tcti'"),
        ({"metadataEndpoint": 7}, "gcp.metadataEndpoint"),
        ({"metadataEndpoint": "https://x"}, "http://host"),
    ],
    ChallengeAttestor: [({"secretFile": "relative"}, "absolute"), ({"secretFile": "/x", "more": 1}, "one setting")],
}


@pytest.mark.parametrize(
    ("read", "settings", "words"),
    [
        pytest.param(read, settings, words, id=f"{getattr(read, '__module__', '')}.{read.__name__}-{words}")
        for read, rows in ROWS.items()
        for settings, words in rows
    ],
)
def test_a_wrong_setting_is_refused_in_words_that_help(
    read: Callable[[Mapping[str, JsonValue]], object], settings: dict[str, JsonValue], words: str
) -> None:
    with denied_for(Reason.POLICY_INVALID) as denied:
        read(settings)
    assert words in str(denied.value)


def test_an_empty_description_and_an_ipv6_endpoint_are_settings() -> None:
    assert tpm_policy(keys({**ENTRY, "description": ""})).listed == {KEY}
    assert aws.parse_platform({"endpoints": {"sts": "https://[::1]:8443/"}}).sts == "https://[::1]:8443"


def test_a_composite_proof_holds_the_device_of_any_part() -> None:
    assert CompositeAttestor({"tpm": {}, "aws": {}}).holds_device
    assert not CompositeAttestor({"azure": {}, "aws": {}}).holds_device
    assert GcpAttestor({}).holds_device
