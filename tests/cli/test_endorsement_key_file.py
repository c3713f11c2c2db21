"""The file of ``endorsement-keys import``: rows of either format, and every mistake by line, expected, got, remedy."""

from __future__ import annotations

import csv
import io
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nodeattest_cli.errors import UserError
from nodeattest_cli.key_file import (
    COLUMNS,
    HOST_KINDS,
    MAX_ROWS,
    HostRef,
    KeyRow,
    parse_key_file,
)
from nodeattest_providers.identifiers import ProviderID

ONE, TWO, THREE = (f"sha256:{digit * 64}" for digit in "123")
HOST = HostRef("BareMetalHost", "metal3", "node-7")
CSV = f"""host,providerID,endorsementKey,nodeName,description
BareMetalHost/metal3/node-7,,{ONE},,
,metal://rack-1/8,{TWO},worker-8,"rack 1, slot 8"

Hardware/tink-system/node-9,,{THREE},,
"""


def as_csv(rows: tuple[KeyRow, ...]) -> str:
    out = io.StringIO()
    writer = csv.writer(out)
    writer.writerow(COLUMNS)
    for row in rows:
        host, machine = ("/".join(row.machine), "") if isinstance(row.machine, HostRef) else ("", row.machine)
        writer.writerow([host, machine, row.fingerprint, row.node_name, row.description])
    return out.getvalue()


def test_rows_of_a_csv_file_know_their_line() -> None:
    first, second, third = parse_key_file(CSV)
    assert first == KeyRow(position="line 2", machine=HOST, fingerprint=ONE)
    assert second == KeyRow(
        position="line 3",
        machine=ProviderID("metal://rack-1/8"),
        fingerprint=TWO,
        node_name="worker-8",
        description="rack 1, slot 8",
    )
    assert (third.position, third.machine) == ("line 5", HostRef("Hardware", "tink-system", "node-9"))


def test_spreadsheets_may_write_a_byte_order_mark_and_their_line_ends() -> None:
    assert as_csv(parse_key_file("\ufeff" + CSV.replace("\n", "\r\n"))) == as_csv(parse_key_file(CSV))


def header(*lines: str, columns: str = "host,providerID,endorsementKey") -> str:
    return "\n".join([columns, *lines]) + "\n"


BMH = "BareMetalHost/metal3/node"
WRONG: list[tuple[str, str, str]] = [
    ("an empty file", "", "expected at least one row"),
    ("a header alone", header(), "expected at least one row"),
    ("no header", f"{BMH}-7,,{ONE}\n", "line 1: expected columns"),
    ("semicolons", "host;providerID;endorsementKey\n", "line 1: expected columns"),
    ("a column almost right", header(columns="hosts,endorsementKey"), "did you mean host?"),
    ("a column twice", header(columns="host,host,endorsementKey"), "each column once"),
    ("no column for the key", header(columns="host,providerID"), "each column once"),
    ("a cell too many", header(f"{BMH},,{ONE},"), "line 2: expected 3 cells, as in the header, got 4"),
    ("a quote without end", header(f'{BMH},,"{ONE}'), "line 2: expected CSV by RFC 4180"),
    ("a cell without end", header(f"{BMH},,{'A' * 140_000}"), "line 2: expected CSV by RFC 4180"),
    ("host and provider ID", header(f"{BMH},metal://7,{ONE}"), "either a host or a providerID, got both"),
    ("neither", header(f",,{ONE}"), "either a host or a providerID, got neither"),
    ("a kind that has no keys", header(f"ByoHost/default/a,,{ONE}"), "of the kinds BareMetalHost"),
    ("a host with a path in its name", header(f"BareMetalHost/metal3/../a,,{ONE}"), "expected Kind/namespace/name"),
    ("a namespace with a dot", header(f"BareMetalHost/a.b/c,,{ONE}"), "expected Kind/namespace/name"),
    ("an invisible character", header(f",metal://7\u200b,{ONE}"), "none of them invisible"),
    ("a key that is none", header(f"{BMH},,AAAA"), "line 2: expected"),
    ("a machine twice", header(f"{BMH},,{ONE}", f"{BMH},,{ONE}"), "a machine once, got BareMetalHost metal3/node"),
    ("a machine with two keys", header(f",m://7,{ONE}", f",m://7,{TWO}"), "line 3: expected a machine once"),
    ("two machines with one key", header(f"{BMH}-7,,{ONE}", f",m://8,{ONE}"), "line 3: expected a key of one machine"),
    (
        "a node name of a host",
        header(f"{BMH},{ONE},a", columns="host,endorsementKey,nodeName"),
        "a nodeName beside a providerID",
    ),
    (
        "a node name in capitals",
        header(f"m://7,{ONE},A", columns="providerID,endorsementKey,nodeName"),
        "RFC 1123 subdomain",
    ),
    (
        "a long description",
        header(f"m://7,{ONE},{'a' * 257}", columns="providerID,endorsementKey,description"),
        "at most 256 printable characters",
    ),
    ("too many rows", header(*(f",m://{n},sha256:{n + 1:064x}" for n in range(MAX_ROWS + 1))), "at most 10000 rows"),
]


@pytest.mark.parametrize(("text", "words"), [row[1:] for row in WRONG], ids=[row[0] for row in WRONG])
def test_a_mistake_is_refused_by_its_place_and_with_a_remedy(text: str, words: str) -> None:
    with pytest.raises(UserError) as refused:
        parse_key_file(text)
    assert words in str(refused.value)


FINGERPRINTS = st.integers(1, 2**256 - 1).map(lambda number: f"sha256:{number:064x}")
LABELS = st.from_regex(r"[a-z0-9]([-a-z0-9]{0,8}[a-z0-9])?", fullmatch=True)
HOSTS = st.builds(HostRef, st.sampled_from(sorted(HOST_KINDS)), LABELS, LABELS)
PROVIDER_IDS = st.from_regex(r"[a-z]{2,6}://[!-~]{1,20}", fullmatch=True).map(ProviderID)


@given(st.dictionaries(HOSTS | PROVIDER_IDS, FINGERPRINTS, min_size=1, max_size=8))
def test_what_is_written_is_read(keys: dict[HostRef | ProviderID, str]) -> None:
    rows = tuple(KeyRow(position="", machine=one, fingerprint=key) for one, key in keys.items())
    if len(set(keys.values())) == len(keys):
        assert as_csv(parse_key_file(as_csv(rows))) == as_csv(rows)
    else:
        with pytest.raises(UserError):
            parse_key_file(as_csv(rows))


@given(st.text(max_size=120) | st.text(max_size=60).map(lambda text: CSV + text))
def test_any_text_gives_rows_or_a_user_error(text: str) -> None:
    with suppress(UserError):
        rows = parse_key_file(text)
        assert len({row.machine for row in rows}) == len({row.fingerprint for row in rows}) == len(rows)
