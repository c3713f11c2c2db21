"""A first request is claimed by its name, which ends in a URL: two-step providers take it only as agents write it."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from nodeattest_providers.canonical_json import b64encode
from nodeattest_providers.challenge import protocol as challenge
from nodeattest_providers.errors import Denied, Reason
from nodeattest_providers.node_interface import JsonObject
from nodeattest_providers.tpm import protocol as tpm

UID = "7f3c1a52-4b1e-4a3e-9d0c-1f2e3d4c5b6a"
REST: dict[str, JsonObject] = {
    "challenge": {"phase": 2, "mac": b64encode(bytes(32))},
    "tpm": {
        "phase": 2,
        "mac": b64encode(bytes(32)),
        "quote": b64encode(b"quote"),
        "signature": b64encode(b"signature"),
        "pcrs": [],
    },
}
PARSERS: dict[str, Callable[[JsonObject], object]] = {
    "challenge": challenge.parse_evidence,
    "tpm": tpm.parse_evidence,
}


def claim(provider: str, name: str, uid: str = UID) -> object:
    """Read evidence that answers the first request of this name and UID."""
    return PARSERS[provider]({**REST[provider], "first": {"name": name, "uid": uid}})


@pytest.mark.parametrize("provider", PARSERS)
@pytest.mark.parametrize("name", ["nodeattest-0a1b2c3d", "nodeattest-0a1b2c3d-4e5f", "a", ".".join(["a" * 50] * 4)])
def test_a_name_and_a_uid_as_api_servers_give_them_pass(provider: str, name: str) -> None:
    assert claim(provider, name)


@pytest.mark.parametrize("provider", PARSERS)
@pytest.mark.parametrize(
    "name",
    [
        "",
        ".",
        "..",
        "a/b",
        "a\\b",
        "../secrets",
        "%2e%2e",
        "a?b",
        "a#b",
        "a b",
        "A",
        "ñ",
        "a\n",
        "a\0",
        "-a",
        "a" * 254,
    ],
)
def test_a_name_that_no_agent_gives_is_denied(provider: str, name: str) -> None:
    with pytest.raises(Denied) as denied:
        claim(provider, name)
    assert denied.value.reason is Reason.EVIDENCE_MALFORMED


@pytest.mark.parametrize("provider", PARSERS)
@pytest.mark.parametrize("uid", ["", "a/b", "..", "a\n", "\0", "é", "a b", "a" * 65])
def test_a_uid_that_no_api_server_gives_is_denied(provider: str, uid: str) -> None:
    with pytest.raises(Denied) as denied:
        claim(provider, "nodeattest-0a1b2c3d", uid)
    assert denied.value.reason is Reason.EVIDENCE_MALFORMED


@pytest.mark.parametrize("provider", PARSERS)
def test_a_name_of_sixty_thousand_characters_stays_out_of_the_message(provider: str) -> None:
    with pytest.raises(Denied) as denied:
        claim(provider, "a" * 60_000)
    assert len(str(denied.value)) < 500
