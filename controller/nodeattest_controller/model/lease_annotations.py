"""What a replica writes of itself beside its Lease: which version serves, for operators to read.

It is written with every renewal, with the holder: the version is that of no other one.
"""

from __future__ import annotations

from typing import Final

from nodeattest_providers import __version__
from nodeattest_providers.version import COMMIT

VERSION_ANNOTATION: Final = "nodeattest.x-k8s.io/version"
COMMIT_ANNOTATION: Final = "nodeattest.x-k8s.io/commit"
HOLDER_ANNOTATION: Final = "nodeattest.x-k8s.io/version-of"
"""Whose version and commit they are: the Lease's ``holderIdentity`` when they were written."""


def lease_annotations(holder: str) -> dict[str, str]:
    """Return the annotations of a Lease that ``holder`` holds; a checkout has no commit."""
    commit = {COMMIT_ANNOTATION: COMMIT} if COMMIT else {}
    return {VERSION_ANNOTATION: __version__, HOLDER_ANNOTATION: holder, **commit}
