"""Bootstrap tokens: exactly the texts that Kubernetes takes, and no secret in any message."""

from __future__ import annotations

import re
from itertools import cycle

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from nodeattest_discovery import token
from nodeattest_discovery.token import BootstrapToken
from nodeattest_providers.errors import Denied, Reason

SECRET = "0123456789abcdef"
SOUND = f"abcdef.{SECRET}"
NO_TOKENS = [
    "",
    "abcdef",
    SECRET,
    f"abcde.{SECRET}",
    f"abcdefg.{SECRET}",
    f"abcdef.{SECRET[1:]}",
    f"abcdef.{SECRET}0",
    f"abcdef:{SECRET}",
    f"abcdef{SECRET}",
    f"abcdef..{SECRET}",
    f"ABCDEF.{SECRET}",
    f"abcdef.{SECRET.upper()}",
    f"{SOUND}\n",
    f"{SOUND}\r\n",
    f"\n{SOUND}",
    f" {SOUND}",
    f"{SOUND} ",
    f"{SOUND}\0",
    f"{SOUND}\n{SOUND}",
    f"abcdef.{SECRET[:-1]}٣",
    f"abcde１.{SECRET}",  # noqa: RUF001 - the full-width digit is what is tested
    f"abcde\u0131.{SECRET}",
    f"abcdef\u2024{SECRET}",
    f"abcdef.{SECRET[:-1]}-",
    f"abcdef.{SECRET[:-1]}\ud800",
]
texts = st.text(st.sampled_from("abz059AZ.:\n \u0663"), max_size=30) | st.text(max_size=30)


def test_a_token_is_taken_apart() -> None:
    assert token.parse(SOUND) == BootstrapToken("abcdef", SECRET)
    assert token.parse(SOUND).reveal() == SOUND
    assert token.parse(SOUND).username == "system:bootstrap:abcdef"


@pytest.mark.parametrize("text", NO_TOKENS, ids=ascii)
def test_what_is_no_token_is_described_and_not_shown(text: str) -> None:
    with pytest.raises(Denied) as raised:
        token.parse(text)
    assert raised.value.reason is Reason.TOKEN_MALFORMED
    shown = f"{raised.value} {raised.value.got}"
    assert not any(part in shown for part in re.split(r"[.\s:]", text) if len(part) > 3)


@given(texts)
@example(f"{SOUND}\n")
def test_a_text_is_a_token_exactly_if_the_pattern_of_kubernetes_says_so(text: str) -> None:
    # k8s.io/cluster-bootstrap token/api/types.go, BootstrapTokenPattern; \z of Go is \Z of Python
    pattern = re.compile(r"\A([a-z0-9]{6})\.([a-z0-9]{16})\Z")
    if pattern.match(text):
        assert token.parse(text).reveal() == text
    else:
        with pytest.raises(Denied):
            token.parse(text)


@pytest.mark.parametrize("text", ["abcdef", SOUND])
def test_an_id_is_read_from_an_id_and_from_a_token(text: str) -> None:
    assert token.parse_id(text) == "abcdef"


@pytest.mark.parametrize("text", ["", "abcde", "abcdefg", "ABCDEF", "abcdef\n", "abcdef.", f".{SECRET}", "abcde٣"])
def test_what_is_no_id_is_denied(text: str) -> None:
    assert not token.is_token_id(text)
    with pytest.raises(Denied) as raised:
        token.parse_id(text)
    assert raised.value.reason is Reason.TOKEN_MALFORMED


def test_no_representation_shows_a_secret() -> None:
    made = token.parse(SOUND)
    assert SECRET not in f"{made!r} {made} {[made]}"


def test_a_generated_token_is_a_token() -> None:
    made = {token.generate().reveal() for _ in range(100)}
    assert len(made) == 100
    assert all(token.parse(text) for text in made)


def test_each_of_the_22_characters_is_drawn_by_itself_from_all_36() -> None:
    alphabets: list[str] = []
    digits = cycle("0123456789")

    def choose(alphabet: str) -> str:
        alphabets.append(alphabet)
        return next(digits)

    assert token.generate(choose).reveal() == "012345.6789012345678901"
    assert len(alphabets) == 22
    assert {"".join(sorted(alphabet)) for alphabet in alphabets} == {"0123456789abcdefghijklmnopqrstuvwxyz"}
