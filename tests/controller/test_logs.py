"""Logs: one line a record, plain values only."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nodeattest_controller import logs
from nodeattest_controller.logs import JsonFormatter, TextFormatter, fields
from nodeattest_providers.errors import Reason
from nodeattest_providers.names import ProviderName
from nodeattest_providers.node_interface import Evidence, SecretBytes


def line(formatter: logging.Formatter, message: str, **values: object) -> str:
    record = logging.LogRecord("room.module", logging.INFO, "", 0, message, (), None)
    record.created = 1_700_000_000.25
    record.__dict__.update(fields(**values))
    return formatter.format(record)


def parsed(message: str, **values: object) -> dict[str, object]:
    entries: dict[str, object] = json.loads(line(JsonFormatter(), message, **values))
    return entries


def test_a_json_record_says_when_how_bad_where_what_and_about_what() -> None:
    assert parsed("approved", cluster="ns/name", reason=Reason.REPLAYED, seconds=0.5, first=True, none=None) == {
        "ts": "2023-11-14T22:13:20.250000Z",
        "level": "info",
        "logger": "room.module",
        "msg": "approved",
        "cluster": "ns/name",
        "reason": "Replayed",
        "seconds": 0.5,
        "first": True,
        "none": None,
    }


def test_a_text_record_is_one_readable_line() -> None:
    written = line(TextFormatter(), "request approved", csr="csr-1", why="two words", n=3)
    assert written == (
        '2023-11-14T22:13:20.250000Z INFO    request approved logger=room.module csr=csr-1 why="two words" n=3'
    )


@given(st.text(), st.dictionaries(st.from_regex(r"[a-z]{1,8}", fullmatch=True), st.text() | st.floats() | st.binary()))
def test_no_value_breaks_the_line(message: str, values: dict[str, object]) -> None:
    for formatter in (JsonFormatter(), TextFormatter()):
        written = line(formatter, message.replace("%", ""), **values)
        assert len(written.splitlines()) == 1
        written.encode("ascii" if isinstance(formatter, JsonFormatter) else "utf-8", "strict")
    assert isinstance(parsed(message.replace("%", ""), **values), dict)


def test_bytes_secrets_and_evidence_show_as_their_type_only() -> None:
    secret = b"\x00very secret"
    evidence = Evidence(ProviderName("tpm"), 1, {"quote": "very secret"})
    written = line(
        JsonFormatter(),
        "refused",
        raw=secret,
        wrapped=SecretBytes(secret),
        evidence=evidence,
        nested={"deep": [secret, {"deeper": evidence}]},
        request="-----BEGIN CERTIFICATE REQUEST-----\nvery secret",
    )
    assert "secret" not in written.lower().replace("secretbytes", "")
    assert json.loads(written)["nested"] == {"deep": ["<bytes>", {"deeper": "<Evidence>"}]}
    assert json.loads(written)["request"] == "<PEM>"


def test_long_values_and_collections_are_cut() -> None:
    entries = parsed("x", text="a" * 5000, items=list(range(1000)), deep=[[[[[1]]]]])
    assert len(str(entries["text"])) == 1025
    assert len(entries["items"]) == 32  # pyright: ignore[reportArgumentType] - it is a list
    assert entries["deep"] == [[["<list>"]]]


def test_a_field_cannot_overwrite_what_the_record_says() -> None:
    entries = parsed("real", msg="forged", level="forged", ts="forged")
    assert (entries["msg"], entries["level"], entries["msg_"]) == ("real", "info", "forged")


def test_times_paths_errors_and_sets_are_readable() -> None:
    entries = parsed("x", at=datetime(2024, 1, 2, tzinfo=UTC), error=ValueError("why"), names=frozenset({"b", "a"}))
    assert entries["at"] == "2024-01-02T00:00:00+00:00"
    assert entries["error"] == "ValueError: why"
    assert entries["names"] == ["a", "b"]


@pytest.fixture
def root_logger() -> Iterator[logging.Logger]:
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    yield root
    root.handlers[:] = handlers
    root.setLevel(level)


def test_configured_logs_go_to_the_stream_from_the_level_on(root_logger: logging.Logger) -> None:
    stream = io.StringIO()
    logs.configure(level="warning", log_format="json", stream=stream)
    logging.getLogger("any").info("not this")
    try:
        int("boom")
    except ValueError:
        logging.getLogger("any").exception("a bug", extra=fields(csr="csr-1"))
    [written] = stream.getvalue().splitlines()
    entries = json.loads(written)
    assert (entries["level"], entries["msg"], entries["csr"]) == ("error", "a bug", "csr-1")
    assert entries["exception"] == "ValueError: invalid literal for int() with base 10: 'boom'"
    assert "Traceback" in entries["stack"]
    assert len(root_logger.handlers) == 1
