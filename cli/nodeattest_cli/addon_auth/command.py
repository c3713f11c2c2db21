"""``nodeattest addon-auth``: the gateway beside the API server and the sidecar beside the add-on."""

from __future__ import annotations

from typing import Final

import click

from nodeattest_cli.lazy import LazyGroup

__all__ = ["addon_auth"]

_COMMANDS: Final[dict[str, tuple[str, str]]] = {
    "gateway": ("nodeattest_cli.addon_auth.gateway:gateway", "Forward users' requests to add-ons, with who asks."),
    "sidecar": (
        "nodeattest_cli.addon_auth.sidecar:sidecar",
        "Verify who calls the add-on beside it.",
    ),
}


@click.group(cls=LazyGroup, lazy=_COMMANDS, name="addon-auth")
def addon_auth() -> None:
    """Tell an add-on who its caller is, and nothing that it could use in the caller's place.

    See docs/addon-auth.md.
    """
