"""Request targets: one meaning, or refused."""

from __future__ import annotations

from urllib.parse import unquote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nodeattest_identity.proxy.paths import parse_rule, read_target
from nodeattest_identity.proxy.refusals import Refusal, RefusalError


@pytest.mark.parametrize(
    "raw",
    [
        "/", "/a", "/a/", "/a/b.js", "/.well-known/x", "/a%20b", "/a..b/...", "/caf%C3%A9", "/a;v=1", "/x?next=/../y",
        "/x?q=%2F%5c//", "/x?", "/@me/(1)", "/a%25", "/a|b", "/50%25face", "/a%2525",
    ],
)  # fmt: skip
def test_targets_of_one_meaning_pass_byte_for_byte(raw: str) -> None:
    assert read_target(raw).raw == raw


ENCODED = ("/", "%25", "%32", "2", "%65", "e", "%66", "%35", "5", "%63", "c", "%30", "0", ".")


@given(
    st.text("/.%2eEfF5cC0;a?#\\", max_size=24)
    | st.lists(st.sampled_from(ENCODED)).map(lambda parts: "/" + "".join(parts))
)
def test_no_path_that_passes_leaves_its_place_however_it_is_read(raw: str) -> None:
    try:
        target = read_target(raw)
    except RefusalError:
        return
    for read in (target.path, unquote(target.path), unquote(unquote(target.path))):
        assert "\x00" not in read
        assert not {".", ".."} & {segment.partition(";")[0] for segment in read.split("/")}
        assert "//" not in read
        assert "\\" not in read
        assert read.count("/") == target.path.count("/")


@pytest.mark.parametrize(
    ("rule", "path", "matches"),
    [
        ("/healthz", "/healthz", True), ("/healthz", "/healthz/", False), ("/healthz", "/healthzz", False),
        ("/healthz", "/Healthz", False), ("/healthz", "/%68ealthz", False), ("/static/**", "/static/a/b", True),
        ("/static/**", "/static/", True), ("/static/**", "/static", False), ("/static/**", "/statics/a", False),
        ("/api/*/status", "/api/x/status", True), ("/api/*/status", "/api/x/y/status", False),
        ("/api/*/status", "/api//status", False), ("/", "/", True), ("/", "/a", False), ("/**", "/a", True),
    ],
)  # fmt: skip
def test_rules_match_segment_by_segment(rule: str, path: str, matches: bool) -> None:
    assert parse_rule(rule).matches(path[1:].split("/")) is matches


@pytest.mark.parametrize("rule", ["", "healthz", "/a/**/b", "/a//b", "/a/../b", "/a%2f", "/a*", "/.*", "/a?b"])
def test_rules_that_could_match_more_than_they_say_are_refused(rule: str) -> None:
    with pytest.raises(ValueError, match="plain segments"):
        parse_rule(rule)


@pytest.mark.parametrize(
    "raw",
    [
        "", "*", "a", "/a//b", "/./a", "/a/.", "/%2E", "/a%2Fb", "/a%5cb", "/a%0d%0a", "/a%7f", "/a?x#y", "/a b", "/é",
        "/a%", "/a%2", "/a%zz", "/a%252f", "/%c0%ae%c0%ae/a", "/a%ff", "/static/%252%65%252%65/admin", "/%25%30%30",
        "/%250d%250a", "/a\r\nX: y", "/a\x00", "/a\n", "/" + "a" * 9000,
    ],
)  # fmt: skip
def test_targets_that_mean_different_things_to_different_servers_are_refused(raw: str) -> None:
    with pytest.raises(RefusalError) as refused:
        read_target(raw)
    assert refused.value.refusal is Refusal.PATH_NOT_ALLOWED
