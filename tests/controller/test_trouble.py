"""What keeps a part from its work is logged at once, once a minute while it lasts, and again when it comes back."""

from __future__ import annotations

import logging

import pytest

from nodeattest_controller.logs import JsonFormatter
from nodeattest_controller.runtime.trouble import PERIOD, TroubleLog
from nodeattest_kube.client import ApiError, Forbidden, Unreachable

AWAY, REFUSED = Unreachable("no route"), Forbidden(403, "Forbidden", "may not get leases")


def test_an_error_is_logged_at_once_when_it_changes_when_it_returns_and_once_a_minute(
    caplog: pytest.LogCaptureFixture,
) -> None:
    seconds = 0.0
    errors: list[ApiError | None] = []
    log = TroubleLog(
        logging.getLogger("test"),
        "cannot do it",
        lambda: errors[-1],
        lambda found: "get the right" if isinstance(found, Forbidden) else "check the network",
        clock=lambda: seconds,
        server="https://a.example",
    )
    script: list[ApiError | None] = [None, AWAY, AWAY, REFUSED, None, REFUSED, REFUSED]
    for error in script:
        errors.append(error)
        seconds += 1
        log.check()
    seconds += PERIOD
    log.check()
    lines = [JsonFormatter().format(record) for record in caplog.records]
    assert ["no route" in line for line in lines] == [True, False, False, False]
    assert all("https://a.example" in line and "cannot do it" in line for line in lines)
    assert "check the network" in lines[0]
    assert "get the right" in lines[1]
