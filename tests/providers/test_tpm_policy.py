"""The ``tpm`` section of a policy: closed, strict, and its defaults are the strictest."""

from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tpm_authority import Authority
from tpm_world import MACHINE, SoftTpm

from nodeattest_providers.errors import Denied, Reason
from nodeattest_providers.node_interface import JsonValue
from nodeattest_providers.tpm.config import PolicyCache, TpmPolicy, parse_policy
from nodeattest_providers.tpm.structures import Alg, PcrSelection

KEY = "sha256:" + "0a" * 32
ENTRY: dict[str, JsonValue] = {"providerID": MACHINE, "sha256": KEY, "description": "rack 1, slot 7"}


def test_the_defaults_trust_nothing_and_record_firmware_and_secure_boot() -> None:
    policy = parse_policy({})
    assert not policy.registered
    assert policy.anchors is None
    assert policy.trust_on_first_use is False
    assert policy.selection == PcrSelection(Alg.SHA256, (0, 7))
    assert not policy.allowed_pcrs
    assert not policy.event_log_required


def test_every_setting_is_read() -> None:
    policy = parse_policy(
        {
            "endorsementKeys": [ENTRY, {"providerID": MACHINE, "sha256": "sha256:" + "0b" * 32}],
            "endorsementCAs": Authority.root().pem,
            "trustOnFirstUse": True,
            "eventLog": "Require",
            "pcrs": {"selection": [7, 0, 4], "bank": "sha384", "values": {"7": ["0c" * 48]}},
        }
    )
    assert policy.registered[MACHINE] == {KEY, "sha256:" + "0b" * 32}
    assert policy.anchors is not None
    assert policy.trust_on_first_use
    assert policy.event_log_required
    assert policy.selection == PcrSelection(Alg.SHA384, (0, 4, 7))
    assert policy.allowed_pcrs == {7: {b"\x0c" * 48}}


def named(name: JsonValue, machine: str = MACHINE, key: str = "0a") -> dict[str, JsonValue]:
    return {"providerID": machine, "sha256": "sha256:" + key * 32, "nodeName": name}


def test_an_entry_may_name_the_machines_node() -> None:
    replaced: dict[str, JsonValue] = {"providerID": MACHINE, "sha256": "sha256:" + "0b" * 32}
    policy = parse_policy({"endorsementKeys": [named("node-7"), replaced, named("node-8", "metal://rack-1/8", "0c")]})
    assert policy.node_names == {MACHINE: "node-7", "metal://rack-1/8": "node-8"}
    assert parse_policy({"endorsementKeys": [ENTRY]}).node_names == {}


WRONG: list[tuple[str, dict[str, JsonValue], str]] = [
    ("unknown key", {"endorsementKey": []}, "did you mean 'endorsementKeys'"),
    ("unknown key of an entry", {"endorsementKeys": [{**ENTRY, "sha265": KEY}]}, "did you mean 'sha256'"),
    ("unknown key of pcrs", {"pcrs": {"value": {}}}, "did you mean 'values'"),
    ("no provider ID", {"endorsementKeys": [{"sha256": KEY}]}, "the key providerID"),
    ("no fingerprint", {"endorsementKeys": [{"providerID": MACHINE}]}, "the key sha256"),
    ("upper-case fingerprint", {"endorsementKeys": [{**ENTRY, "sha256": KEY.upper()}]}, "lower-case hex"),
    ("short fingerprint", {"endorsementKeys": [{**ENTRY, "sha256": KEY[:-1]}]}, "64 lower-case hex"),
    ("an example's fingerprint", {"endorsementKeys": [{**ENTRY, "sha256": "sha256:" + "0" * 64}]}, "evidence prints"),
    ("fingerprint with a newline", {"endorsementKeys": [{**ENTRY, "sha256": KEY + "\n"}]}, "64 lower-case hex"),
    ("empty provider ID", {"endorsementKeys": [{**ENTRY, "providerID": ""}]}, "a string"),
    ("a description that is no text", {"endorsementKeys": [{**ENTRY, "description": 7}]}, ".description: a string"),
    ("a node name that is none", {"endorsementKeys": [named("Node_7")]}, ".nodeName: a node's name"),
    ("an empty node name", {"endorsementKeys": [named("")]}, ".nodeName: a string"),
    ("two names of a machine", {"endorsementKeys": [named("a"), named("b", key="0b")]}, "one name for all keys"),
    ("a name of two machines", {"endorsementKeys": [named("a"), named("a", "metal://2", "0b")]}, "one machine only"),
    ("entries that are no array", {"endorsementKeys": {}}, "an array"),
    ("an entry that is no object", {"endorsementKeys": [KEY]}, "an object"),
    ("CAs that are no text", {"endorsementCAs": []}, "a string"),
    ("CAs that are no PEM", {"endorsementCAs": "no PEM"}, "PEM certificates"),
    ("first use that is no boolean", {"trustOnFirstUse": "true"}, "true or false"),
    ("first use that is a number", {"trustOnFirstUse": 1}, "true or false"),
    ("an event log neither ignored nor required", {"eventLog": "require"}, "Ignore or Require"),
    ("an event log that is a boolean", {"eventLog": True}, "a string"),
    ("SHA-1 bank", {"pcrs": {"bank": "sha1"}}, "sha256 or sha384 or sha512"),
    ("no PCR", {"pcrs": {"selection": []}}, "at least one PCR"),
    ("PCR 24", {"pcrs": {"selection": [24]}}, "from 0 to 23"),
    ("a boolean PCR", {"pcrs": {"selection": [True]}}, "from 0 to 23"),
    ("a value of no selected PCR", {"pcrs": {"values": {"4": ["00" * 32]}}}, "PCRs of the selection"),
    ("a value of PCR 07", {"pcrs": {"values": {"07": ["00" * 32]}}}, "PCRs of the selection"),
    ("a value of PCR ⁷", {"pcrs": {"values": {"⁷": ["00" * 32]}}}, "PCRs of the selection"),
    ("a value of another bank's size", {"pcrs": {"values": {"7": ["00" * 20]}}}, "64 lower-case hex"),
    ("no allowed value", {"pcrs": {"values": {"7": []}}}, "at least one allowed value"),
]


@pytest.mark.parametrize(("settings", "words"), [row[1:] for row in WRONG], ids=[row[0] for row in WRONG])
def test_a_wrong_setting_is_refused_in_words_that_help(settings: dict[str, JsonValue], words: str) -> None:
    with pytest.raises(Denied) as denied:
        parse_policy(settings)
    assert denied.value.reason is Reason.POLICY_INVALID
    assert words in str(denied.value)


def test_a_leaf_certificate_is_no_trust_anchor() -> None:
    root = Authority.root()
    leaf = Authority(certificate=root.issuer(ca=False).certificate, key=root.key)
    with pytest.raises(Denied, match="CA certificates only"):
        parse_policy({"endorsementCAs": root.pem + leaf.pem})


def test_the_same_settings_are_parsed_once_and_equal_ones_again() -> None:
    cache, settings = PolicyCache(), SoftTpm().settings
    assert cache.get(settings) is cache.get(settings)
    assert cache.get(dict(settings)) is not cache.get(settings)


def settings_of(number: int) -> dict[str, JsonValue]:
    return {"endorsementKeys": [{"providerID": MACHINE, "sha256": f"sha256:f{number:063x}"}]}


def test_the_cache_never_answers_for_other_settings_that_took_an_old_place_in_memory() -> None:
    cache = PolicyCache()
    for number in range(600):
        assert cache.get(settings_of(number)).listed == {f"sha256:f{number:063x}"}


def test_the_cache_holds_sixteen_policies_and_lets_go_of_the_one_that_was_not_asked_for_longest() -> None:
    cache, asked, idle = PolicyCache(), settings_of(0), settings_of(1)
    others = [settings_of(number) for number in range(2, 17)]
    first, forgotten = cache.get(asked), cache.get(idle)
    held = [(cache.get(settings), cache.get(asked)) for settings in others]
    assert all(again is first for _, again in held)
    assert all(cache.get(settings) is policy for settings, (policy, _) in zip(others, held, strict=True))
    assert cache.get(idle) is not forgotten


def test_settings_that_say_nothing_crowd_out_none_that_do() -> None:
    cache, settings = PolicyCache(), settings_of(0)
    policy = cache.get(settings)
    assert all(not cache.get({}).listed for _ in range(100))
    assert cache.get(settings) is policy


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=10,
)
KEYS = ["endorsementKeys", "endorsementCAs", "trustOnFirstUse", "pcrs", "eventLog", "other"]


@given(st.dictionaries(st.sampled_from(KEYS), json_values))
def test_any_settings_give_a_policy_or_denied(settings: dict[str, JsonValue]) -> None:
    with suppress(Denied):
        assert isinstance(parse_policy(settings), TpmPolicy)
