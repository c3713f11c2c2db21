"""Quotes, sources and templates in a configured provider ID."""

from __future__ import annotations

import pytest
from worlds import denied_for

from nodeattest_providers.errors import Reason
from nodeattest_providers.provider_id_template import check_template, fill, has_sources, unquote

UUID = "875fd7a2-0e42-4ba6-8e3c-0c3a0a6a2a4f"


@pytest.mark.parametrize(
    ("written", "word"),
    [
        ("metal://rack-1/7", "metal://rack-1/7"),
        (f"openstack:///'{UUID}'", f"openstack:///{UUID}"),
        (f'"proxmox://{UUID}"', f"proxmox://{UUID}"),
        ("a'b c'd", "ab cd"),
        ("a'\"'b", 'a"b'),
    ],
)
def test_quotes_are_removed_as_systemd_does(written: str, word: str) -> None:
    assert unquote(written) == word


@pytest.mark.parametrize("written", ["a b", " ", "'a", 'a"', r"a\'b", "a\\"])
def test_what_is_not_one_whole_word_is_denied(written: str) -> None:
    with denied_for(Reason.PROVIDER_ID_INVALID):
        unquote(written)


@pytest.mark.parametrize(
    "template",
    [
        "metal://7",
        "{hostname}",
        "metal3://{cloud-init:ds.meta_data.providerid}",
        "docker:////{hostname}-{cloud-init:v1.instance_id}",
    ],
)
def test_a_template_of_known_sources_is_accepted(template: str) -> None:
    check_template(template)
    assert has_sources(template) == ("{" in template)


@pytest.mark.parametrize(
    "template",
    [
        "",
        "a\0",
        "{dmi:chassis_serial}",
        "{dmi:../../../etc/shadow}",
        "{cloud-init:a..b}",
        "{hostname",
        "{{hostname}}",
        "x://CI_MISSING_JINJA_VAR/uuid",
        "{machine.metadata.name}",
    ],
)
def test_any_other_template_is_denied(template: str) -> None:
    with denied_for(Reason.PROVIDER_ID_INVALID):
        check_template(template)


def test_each_source_is_asked_once_and_its_value_is_not_read_again() -> None:
    assert fill(
        "a{hostname}b{dmi:product_uuid}", {"hostname": "{dmi:product_uuid}", "dmi:product_uuid": "1"}.__getitem__
    ) == ("a{dmi:product_uuid}b1")
