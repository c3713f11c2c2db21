"""How long a certificate lasts, and until when it is handed out again; tests/system holds the rest of issuing."""

from __future__ import annotations

from datetime import datetime, timedelta

import pytest
from builders import CREATED

from nodeattest_controller.controllers.csr.issuer import clamp_lifetime, is_reusable
from nodeattest_controller.model.attestation import IssuedCertificate


@pytest.mark.parametrize(
    ("longest", "asked", "lasts"),
    [
        (1209600, None, 1209600),
        (1209600, 3600, 3600),
        (3600, 1209600, 3600),
        (120, 600, 120),  # the API server lets nobody ask for less than ten minutes
        (3600, 1, 60),
        (3600, -5, 60),
    ],
)
def test_a_certificate_lasts_as_asked_but_never_longer_than_the_policy_says(
    longest: int, asked: int | None, lasts: int
) -> None:
    assert clamp_lifetime(longest, asked) == lasts


def entry(lifetime: timedelta) -> IssuedCertificate:
    return IssuedCertificate(
        request_name="r",
        request_uid="u",
        first_request_uid="",
        spki="sha256:00",
        serial="1",
        not_before=CREATED - timedelta(minutes=5),
        not_after=CREATED + lifetime,
        issued_at=CREATED,
        certificate="",
    )


def at(seconds: float) -> datetime:
    return CREATED + timedelta(seconds=seconds)


def test_a_certificate_is_handed_out_again_until_a_minute_before_its_end() -> None:
    assert is_reusable(entry(timedelta(hours=1)), at(3539))
    assert not is_reusable(entry(timedelta(hours=1)), at(3540))


def test_a_short_certificate_is_handed_out_again_for_three_quarters_of_its_life() -> None:
    assert is_reusable(entry(timedelta(minutes=1)), at(44))
    assert not is_reusable(entry(timedelta(minutes=1)), at(45))
