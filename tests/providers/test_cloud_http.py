from __future__ import annotations

import pytest

from nodeattest_providers.cloud_http import retry_after_seconds


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("7", 7), ("0", 1), ("99999", 120), ("9" * 400, 120), ("", 15), ("-1", 15), ("1.5", 15), ("٣", 15), ("soon", 15)],
)
def test_a_wait_that_an_answer_asks_for_is_seconds_within_bounds(text: str, seconds: float) -> None:
    assert retry_after_seconds(text, default=15, longest=120) == seconds
