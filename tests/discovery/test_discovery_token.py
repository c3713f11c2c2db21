"""Bootstrap tokens: exactly the texts that Kubernetes takes, and no secret in any message."""

from __future__ import annotations

import re

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from nodeattest_discovery import token
from nodeattest_discovery.token import BootstrapToken
from nodeattest_providers.errors import Denied

SECRET = "0123456789abcdef"
SOUND = f"abcdef.{SECRET}"
NO_TOKENS = [
    "",
    "abcdef",
    SECRET,
    f"abcdefg.{SECRET}",
    f"abcdef.{SECRET}0",
    f"abcdef:{SECRET}",
    f"abcdef..{SECRET}",
    f"ABCDEF.{SECRET}",
    f"{SOUND}\n",
    f" {SOUND}",
    f"{SOUND}\0",
    f"abcdef.{SECRET[:-1]}\u0663",
    f"abcdef.{SECRET[:-1]}\ud800",
]
"""What is no token, here and to kubeadm."""
texts = st.text(st.sampled_from("abz059AZ.:\n \u0663"), max_size=30) | st.text(max_size=30)


def test_a_token_is_taken_apart() -> None:
    assert token.parse(SOUND) == BootstrapToken("abcdef", SECRET)
    assert token.parse(SOUND).reveal() == SOUND
    assert token.parse(SOUND).username == "system:bootstrap:abcdef"


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


def test_no_representation_shows_a_secret() -> None:
    made = token.parse(SOUND)
    assert SECRET not in f"{made!r} {made} {[made]}"
