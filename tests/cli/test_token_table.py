"""The columns of a token table."""

from __future__ import annotations

import pytest

from nodeattest_cli.token.table import short


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (-2.5, "<invalid>"),
        (-1.5, "0s"),
        (-0.5, "0s"),
        (0.3, "0s"),
        (59.9, "59s"),
        (60, "1m"),
        (3599, "59m"),
        (3600, "1h"),
        (86399, "23h"),
        (86400, "1d"),
        (3 * 86400 + 5, "3d"),
        (364 * 86400, "364d"),
        (365 * 86400, "1y"),
        (800 * 86400, "2y"),
    ],
)
def test_a_time_to_live_is_shown_in_its_largest_unit(seconds: float, text: str) -> None:
    assert short(seconds) == text
