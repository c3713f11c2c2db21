"""What a replica writes of itself beside its Lease: which version serves, for operators to read.

Promises: what runs says it, not what a Deployment asks for; it is written with every renewal, so that after an upgrade
it is the new holder's.
Leaves to others: writing it (``elector``), comparing it (``nodeattest_cli.doctor``).
"""

from __future__ import annotations

from typing import Final

from nodeattest_providers import __version__
from nodeattest_providers.build_commit import COMMIT

__all__ = ["COMMIT_ANNOTATION", "VERSION_ANNOTATION", "lease_annotations"]

VERSION_ANNOTATION: Final = "nodeattest.x-k8s.io/version"
COMMIT_ANNOTATION: Final = "nodeattest.x-k8s.io/commit"


def lease_annotations() -> dict[str, str]:
    """Return the annotations; a checkout has no commit."""
    return {VERSION_ANNOTATION: __version__, **({COMMIT_ANNOTATION: COMMIT} if COMMIT else {})}
