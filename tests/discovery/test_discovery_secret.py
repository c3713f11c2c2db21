"""Bootstrap tokens as Secrets: judged as the control plane judges them, written so that all of it agrees."""

from __future__ import annotations

import base64
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import cast

import pytest
from core_kit import NOW
from hypothesis import given
from hypothesis import strategies as st

from nodeattest_discovery import secret, token
from nodeattest_discovery.secret import Expiry, TokenSecret
from nodeattest_discovery.token import BootstrapToken
from nodeattest_providers.errors import Denied, Reason
from nodeattest_sandbox.apiserver.jsonvalue import JsonMap

TOKEN = BootstrapToken("abcdef", "0123456789abcdef")


# The table ``odd_secrets.toml``, also for test_discovery_oracles


_SOUND = {
    "token-id": "ID",
    "token-secret": "0123456789abcdef",
    "usage-bootstrap-signing": "true",
    "usage-bootstrap-authentication": "true",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class OddSecret:
    """A Secret, the token of whoever knows it, and what Kubernetes makes of both."""

    description: str
    id: str
    body: JsonMap
    token: str
    signed: bool
    cleaned: bool
    groups: tuple[str, ...] | None

    @property
    def name(self) -> str:
        return cast("dict[str, str]", self.body["metadata"])["name"]


def odd_secrets(prefix: str) -> list[OddSecret]:
    """Make the Secrets; their ids begin with the letter ``prefix``."""
    table = tomllib.loads(Path(__file__).with_name("odd_secrets.toml").read_text(encoding="utf-8"))
    outcomes = cast("list[dict[str, list[object]]]", table["outcome"])
    rows = [(outcome, row) for outcome in outcomes for row in [*outcome.get("secrets", []), *_expiring(outcome)]]
    return [_odd_secret(*cast("tuple[_Row, _Row]", row), f"{prefix}{number:05}") for number, row in enumerate(rows)]


_Row = Mapping[str, object]


def _expiring(outcome: Mapping[str, list[object]]) -> list[object]:
    return [{"is": f"expiration {text!r}", "data": {"expiration": text}} for text in outcome.get("expirations", [])]


def _odd_secret(outcome: _Row, row: _Row, token_id: str) -> OddSecret:
    without = cast("list[str]", row.get("without", []))
    data = {**_SOUND, **cast("dict[str, str]", row.get("data", {}))}
    data = {key: value.replace("ID", token_id, 1) for key, value in data.items() if key not in without}
    name = secret.secret_name(token_id) + str(row.get("name-suffix", ""))
    groups = outcome.get("groups")
    encoded = {key: base64.b64encode(value.encode()).decode() for key, value in data.items()}
    return OddSecret(
        description=str(row["is"]),
        id=token_id,
        body={"metadata": {"name": name}, "type": str(row.get("type", secret.SECRET_TYPE)), "data": {**encoded}},
        token=f"{token_id}.{data['token-secret']}",
        signed=outcome["signed"] is True,
        cleaned=outcome["cleaned"] is True,
        groups=tuple(cast("list[str]", groups)) if groups is not None else None,
    )


ODD = odd_secrets("u")


def stored(data: Mapping[str, str], **metadata: str) -> dict[str, object]:
    return {"metadata": {"name": "bootstrap-token-abcdef", **metadata}, "type": secret.SECRET_TYPE, "data": dict(data)}


def known(odd: OddSecret, now: datetime = NOW) -> tuple[str, ...] | None:
    """Judge as the API server does, which compares the secret first."""
    try:
        shown = token.parse(odd.token)
    except Denied:
        return None
    return secret.authenticating_groups(odd.body, now) if secret.stored_token(odd.body) == shown else None


@pytest.mark.parametrize("odd", ODD, ids=lambda odd: odd.description)
def test_an_odd_secret_is_read_as_kubernetes_reads_it(odd: OddSecret) -> None:
    signs = secret.signing_token(odd.body, NOW)
    assert (signs is not None) is odd.signed
    assert signs is None or signs.id == odd.id
    assert (secret.expiry(odd.body, NOW)[0] is Expiry.PAST) is odd.cleaned
    assert known(odd) == odd.groups


def test_a_token_expires_at_its_very_moment() -> None:
    body = stored(secret.encode(TokenSecret(token=TOKEN, expires=NOW)))
    just_before = NOW - timedelta(microseconds=1)
    assert secret.expiry(body, just_before) == (Expiry.PENDING, NOW)
    assert secret.signing_token(body, just_before) == TOKEN
    assert secret.expiry(body, NOW) == (Expiry.PAST, NOW)
    assert secret.signing_token(body, NOW) is None
    assert secret.authenticating_groups(body, NOW) is None


def test_a_secret_that_is_being_deleted_still_signs_and_authenticates_nobody() -> None:
    body = stored(secret.encode(TokenSecret(token=TOKEN)), deletionTimestamp="2026-01-01T00:00:00Z")
    assert secret.authenticating_groups(body, NOW) is None
    assert secret.signing_token(body, NOW) == TOKEN


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"metadata": None, "type": None, "data": None},
        {"metadata": [], "type": [], "data": []},
        {"metadata": {"name": 7}, "type": secret.SECRET_TYPE, "data": {"token-id": 7}},
        {"metadata": {"name": "bootstrap-token-"}, "type": secret.SECRET_TYPE, "data": {"token-id": ""}},
        {
            "metadata": {"name": "bootstrap-token-abcdef\n"},
            "type": secret.SECRET_TYPE,
            "data": {"token-id": "YWJjZGVmCg=="},
        },
        {"metadata": {"name": "bootstrap-token-abcdef"}, "type": secret.SECRET_TYPE, "data": {"token-id": "no base64"}},
        {
            "metadata": {"name": "bootstrap-token-abcdef"},
            "type": f"{secret.SECRET_TYPE}\n",
            "data": {"token-id": "YWJjZGVm"},
        },
    ],
    ids=str,
)
def test_whatever_is_no_token_signs_nothing_and_is_nobody(body: dict[str, object]) -> None:
    assert secret.stored_token(body) is None
    assert secret.signing_token(body, NOW) is None
    assert secret.authenticating_groups(body, NOW) is None
    assert secret.expiry(body, NOW) == (Expiry.NEVER, None)


def test_the_data_of_a_token_are_those_that_kubeadm_writes() -> None:
    # kubeadm init with 1.36.2: kube-system/bootstrap-token-abcdef
    written = secret.encode(
        TokenSecret(
            token=TOKEN,
            expires=datetime(2026, 11, 21, 11, 0, 8, tzinfo=UTC),
            description="the default kubeadm bootstrap token",
        )
    )
    assert written == {
        "auth-extra-groups": "c3lzdGVtOmJvb3RzdHJhcHBlcnM6a3ViZWFkbTpkZWZhdWx0LW5vZGUtdG9rZW4=",
        "description": "dGhlIGRlZmF1bHQga3ViZWFkbSBib290c3RyYXAgdG9rZW4=",
        "expiration": "MjAyNi0xMS0yMVQxMTowMDowOFo=",
        "token-id": "YWJjZGVm",
        "token-secret": "MDEyMzQ1Njc4OWFiY2RlZg==",
        "usage-bootstrap-authentication": "dHJ1ZQ==",
        "usage-bootstrap-signing": "dHJ1ZQ==",
    }


@pytest.mark.parametrize(
    "group",
    [
        "",
        "system:bootstrappers",
        "system:bootstrappers:",
        "system:bootstrappers:A",
        "system:bootstrappers:a-",
        "system:bootstrappers:a\n",
        " system:bootstrappers:a",
        "system:bootstrappers:a,system:masters",
        "system:bootstrappers:\u0663",
        "system:bootstrappers:" + "a" * 257,
    ],
)
def test_a_group_that_would_cost_the_token_its_life_is_not_written(group: str) -> None:
    with pytest.raises(Denied) as raised:
        secret.encode(TokenSecret(token=TOKEN, groups=(group,)))
    assert raised.value.reason is Reason.TOKEN_MALFORMED


leaves = st.none() | st.booleans() | st.integers() | st.text() | st.sampled_from([secret.SECRET_TYPE, "dHJ1ZQ=="])
members = st.sampled_from(["name", "token-id", "token-secret", "expiration"])
objects = st.recursive(leaves, lambda inner: st.lists(inner) | st.dictionaries(members, inner))


@given(st.dictionaries(st.sampled_from(["metadata", "type", "data", "x"]), objects))
def test_every_object_has_an_answer(body: dict[str, object]) -> None:
    found = secret.signing_token(body, NOW)
    assert found is None or found.secret
    secret.authenticating_groups(body, NOW)
    secret.expiry(body, NOW)
