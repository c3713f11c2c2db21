"""A provider ID as people configure it: with quotes that systemd removes, and with parts that the machine knows.

Source: systemd.service(5), "Command lines", and systemd src/basic/extract-word.c (kubeadm's packages start kubelet with
``$KUBELET_KUBEADM_ARGS``); cloud-init cloudinit/templater.py (CI_MISSING_JINJA_VAR).
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable
from typing import Final

from nodeattest_providers.errors import Denied, Reason
from nodeattest_providers.identifiers import printable, provider_id

SOURCES: Final = "{dmi:product_uuid}, {dmi:product_serial}, {hostname} or {cloud-init:KEY}"
_SOURCE: Final = re.compile(
    r"\{(hostname|dmi:product_(?:uuid|serial)|cloud-init:[A-Za-z0-9_-]+(?:\.[A-Za-z0-9_-]+)*)\}"
)
_UNRENDERED: Final = ("{{", "${", "CI_MISSING_JINJA_VAR")


def unquote(text: str) -> str:
    """Return what kubelet gets from systemd for a word of its command line; anything but one word is ``Denied``.

    Without backslashes, systemd and a POSIX shell remove the same quotes.
    """
    try:
        words = shlex.split(text) if "\\" not in text else []
    except ValueError:
        words = []
    if len(words) != 1:
        raise _denied("one word without backslashes, each quote closed, as systemd splits kubelet's arguments", text)
    return words[0]


def check_rendered(text: str) -> None:
    """Refuse a template of cloud-init or of a shell that nobody filled in."""
    for mark in _UNRENDERED:
        if mark in text:
            raise _denied(f"a value without {mark}, which cloud-init or clusterctl fills in", text)


def check_template(text: str) -> None:
    """Accept a provider ID that may hold sources; anything else is ``Denied``."""
    check_rendered(text)
    sample = _SOURCE.sub("x", text)
    if "{" in sample or "}" in sample:
        raise _denied(f"no braces, except as {SOURCES}", text)
    provider_id(sample)


def has_sources(text: str) -> bool:
    """Return whether the machine itself has to fill in a part; a template of cloud-init is none."""
    return "{{" not in text and _SOURCE.search(text) is not None


def fill(text: str, value_of: Callable[[str], str]) -> str:
    return _SOURCE.sub(lambda found: value_of(found[1]), text)


def _denied(expected: str, got: str) -> Denied:
    return Denied(
        Reason.PROVIDER_ID_INVALID,
        expected=expected,
        got=printable(got),
        remedy="give the value of the Machine's spec.providerID, or where the machine finds it",
    )
