from __future__ import annotations

import pytest

from nodeattest_providers.aws.config import AwsPolicy, parse_platform, parse_policy
from nodeattest_providers.errors import Denied, Reason
from nodeattest_providers.node_interface import JsonValue

POLICY: dict[str, JsonValue] = {"accounts": ["123456789012"], "regions": ["us-east-1"], "roles": ["nodes"]}
ROLE = "arn:aws:iam::123456789012:role/reader"


def test_no_settings_let_nobody_in() -> None:
    assert parse_policy({}) == AwsPolicy()
    assert not AwsPolicy().accounts | AwsPolicy().regions | AwsPolicy().roles


def test_a_policy_reads_to_what_it_lists() -> None:
    policy = parse_policy({**POLICY, "tags": {"team": ""}, "vpcs": ["vpc-0a1b2c3d"]})
    assert policy.accounts == {"123456789012"}
    assert policy.roles == {"nodes"}
    assert dict(policy.tags) == {"team": ""}
    assert policy.vpcs == {"vpc-0a1b2c3d"}


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"account": []}, "'accounts'"),
        ({"endpoint": "https://sts.evil.example"}, "endpoint"),
        ({"accounts": None}, "spec.aws.accounts"),
        ({"accounts": "123456789012"}, "spec.aws.accounts"),
        ({"accounts": [123456789012]}, "12 digits"),
        ({"accounts": ["*"]}, "12 digits"),
        ({"regions": ["us-*"]}, "spec.aws.regions"),
        ({"regions": ["us-isox-east-1"]}, "partitions"),
        ({"regions": [""]}, "spec.aws.regions"),
        ({"roles": ["*"]}, "roles"),
        ({"roles": ["path/nodes"]}, "without path"),
        ({"roles": [ROLE]}, "without path"),
        ({"tags": []}, "spec.aws.tags"),
        ({"tags": {"": "x"}}, "keys"),
        ({"tags": {"x": 1}}, "spec.aws.tags[x]"),
        ({"tags": {"x": "y" * 257}}, "256"),
        ({"vpcs": ["vpc-1"]}, "spec.aws.vpcs"),
    ],
)
def test_any_other_setting_is_denied_naming_it(change: dict[str, JsonValue], named: str) -> None:
    with pytest.raises(Denied) as denied:
        parse_policy({**POLICY, **change})
    assert denied.value.reason is Reason.POLICY_INVALID
    assert named in denied.value.expected + denied.value.got


@pytest.mark.parametrize("missing", POLICY)
def test_accounts_regions_and_roles_are_the_authors_to_say(missing: str) -> None:
    with pytest.raises(Denied) as denied:
        parse_policy({key: value for key, value in POLICY.items() if key != missing})
    assert missing in denied.value.expected


def test_no_configuration_is_aws_itself() -> None:
    configuration = parse_platform({})
    assert (configuration.sts, configuration.ec2, configuration.proxy, configuration.trust_bundle) == (None,) * 4


def test_a_configuration_reads_to_what_it_says() -> None:
    configuration = parse_platform(
        {
            "trustBundle": "/etc/x/aws-trust.json",
            "endpoints": {"sts": "https://127.0.0.1:4443/", "ec2": "https://vpce-1.ec2.example"},
            "proxy": "http://proxy:3128",
            "profile": "reader",
            "assumeRoles": {"123456789012": ROLE},
        }
    )
    assert configuration.sts == "https://127.0.0.1:4443"
    assert configuration.ec2 == "https://vpce-1.ec2.example"
    assert configuration.assume_roles == {"123456789012": ROLE}


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"endpoint": {}}, "'endpoints'"),
        ({"endpoints": {"sst": "https://x"}}, "'sts'"),
        ({"endpoints": {"sts": "http://sts.example"}}, "https://"),
        ({"endpoints": {"sts": "https://user@sts.example"}}, "https://"),
        ({"endpoints": {"sts": "https://sts.example/?x"}}, "https://"),
        ({"endpoints": {"sts": "https://sts.example/path"}}, "https://"),
        ({"endpoints": {"sts": "https://sts.example:x"}}, "https://"),
        ({"endpoints": {"sts": "https://sts.example:99999"}}, "https://"),
        ({"endpoints": {"sts": "https://[::1"}}, "https://"),
        ({"endpoints": {"sts": ""}}, "a string"),
        ({"trustBundle": "trust.json"}, "absolute"),
        ({"caBundle": 1}, "caBundle"),
        ({"proxy": "socks5://x"}, "http://"),
        ({"profile": ""}, "profile"),
        ({"assumeRoles": {"1": ROLE}}, "12 digits"),
        ({"assumeRoles": {"999999999999": ROLE}}, "that account"),
        ({"assumeRoles": {"123456789012": "reader"}}, "ARN"),
        ({"trustBundle": "/does/not/exist/trust.json"}, ""),
    ],
)
def test_any_other_configuration_is_denied_naming_it(settings: dict[str, JsonValue], named: str) -> None:
    if not named:
        assert parse_platform(settings).trust_bundle
        return
    with pytest.raises(Denied) as denied:
        parse_platform(settings)
    assert named in denied.value.expected + denied.value.got
