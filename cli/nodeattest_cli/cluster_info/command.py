"""``nodeattest cluster-info``: where a cluster is and whom to trust, published for machines that join."""

from __future__ import annotations

from typing import Final

import click

from nodeattest_cli.lazy import LazyGroup

__all__ = ["cluster_info"]

_COMMANDS: Final = {
    "publish": (
        "nodeattest_cli.cluster_info.publish:publish",
        "Publish where the cluster is and whom to trust, and make a token.",
    ),
    "show": ("nodeattest_cli.cluster_info.show:show", "Show it: server, CAs with their pins, who signed."),
    "sign": ("nodeattest_cli.cluster_info.sign:sign", "Sign it, where no bootstrap signer runs."),
    "verify": ("nodeattest_cli.cluster_info.verify:verify", "Verify it as a machine that joins does."),
    "refresh": ("nodeattest_cli.cluster_info.refresh:refresh", "Bring a kubeconfig's CAs up to date with it."),
}


@click.group("cluster-info", cls=LazyGroup, lazy=_COMMANDS)
def cluster_info() -> None:
    """Manage where machines find the cluster, and which CAs they trust there.

    That is the ConfigMap cluster-info in kube-public: a kubeconfig without users, signed by bootstrap tokens.
    See docs/discovery.md.
    """
