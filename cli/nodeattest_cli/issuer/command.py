"""``nodeattest issuer``: serve, publish and check what verifies service accounts' tokens."""

from __future__ import annotations

from typing import Final

import click

from nodeattest_cli.lazy import LazyGroup

__all__ = ["issuer"]

_COMMANDS: Final[dict[str, tuple[str, str]]] = {
    "verify": ("nodeattest_cli.issuer.verify:verify", "Verify a token as a strict relying party, and show its claims."),
    "publish": (
        "nodeattest_cli.issuer.publish:publish",
        "Keep a bucket, blobs or a directory equal to an issuer's keys.",
    ),
    "serve": ("nodeattest_cli.issuer.serve:serve", "Serve the documents of one issuer or of many, over HTTPS."),
}


@click.group(cls=LazyGroup, lazy=_COMMANDS)
def issuer() -> None:
    """Let anybody verify tokens of a cluster's service accounts without asking its API server.

    See docs/issuer.md.
    """
