"""``nodeattest token``: create, list and delete bootstrap tokens, or generate one without a cluster."""

from __future__ import annotations

from typing import Final

import click

from nodeattest_cli.lazy import LazyGroup

__all__ = ["token"]

_COMMANDS: Final = {
    "create": ("nodeattest_cli.token.create:create", "Create a bootstrap token in the cluster, and print it."),
    "delete": ("nodeattest_cli.token.delete:delete", "Delete bootstrap tokens."),
    "generate": ("nodeattest_cli.token.generate:generate_token", "Print a random token, and create nothing."),
    "list": ("nodeattest_cli.token.list:list_tokens", "List the cluster's bootstrap tokens, secrets included."),
}


@click.group(cls=LazyGroup, lazy=_COMMANDS)
def token() -> None:
    """Manage bootstrap tokens, with kubeadm's options and output.

    A bootstrap token, <id>.<secret>, lets a machine trust a cluster (usage signing) and ask it for a certificate
    (usage authentication). It is the Secret bootstrap-token-<id> in kube-system. See docs/discovery.md; and
    docs/decisions.md where this departs from kubeadm.
    """
