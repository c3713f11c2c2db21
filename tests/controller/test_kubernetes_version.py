"""model/kubernetes_version: the minor version, in every form in which servers and Clusters say it."""

from __future__ import annotations

import pytest

from nodeattest_controller.model.kubernetes_version import minor_version


@pytest.mark.parametrize(
    ("version", "minor"),
    [
        ("v1.36.2", (1, 36)),
        ("1.22.0", (1, 22)),
        ("v1.30", (1, 30)),
        ("v1.28.7-gke.1026000", (1, 28)),
        ("v1.31+", (1, 31)),
        ("v1.20.0-alpha.1+k3s1", (1, 20)),
        ("", None),
        ("v1", None),
        ("v1.", None),
        ("v1.99999.1", None),
        ("release-1.2", None),
        ("v\u0661.2", None),
    ],
)
def test_the_minor_version_is_read_from_every_form(version: str, minor: tuple[int, int] | None) -> None:
    assert minor_version(version) == minor
