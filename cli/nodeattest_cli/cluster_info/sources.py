"""Where cluster-info comes from: the cluster, or a file that holds the ConfigMap or its kubeconfig alone.

Promises: a ConfigMap or ``UserError``; the kubeconfig's text is what was signed, to the byte.
"""

from __future__ import annotations

from datetime import UTC, datetime

from nodeattest_cli.cluster_info.publication import config_map
from nodeattest_cli.documents import read_objects, read_text
from nodeattest_cli.errors import StateError, UserError
from nodeattest_cli.token.list import token_secrets
from nodeattest_controller.model.objects import text
from nodeattest_discovery.clusterinfo import NAME, PATH
from nodeattest_discovery.controllers.bootstrap_signer.decide import find_signing_tokens
from nodeattest_discovery.token import BootstrapToken
from nodeattest_kube.client import ApiClient, Forbidden, NotFound
from nodeattest_kube.jsontypes import JsonObject

__all__ = ["from_cluster", "from_file", "signing_tokens"]


async def from_cluster(client: ApiClient) -> JsonObject:
    """Read it; raises ``UserError`` where there is none."""
    try:
        return await client.get(PATH)
    except NotFound:
        raise StateError("there is no cluster-info: write it with nodeattest cluster-info publish") from None


def from_file(path: str) -> JsonObject:
    """Read the ConfigMap, or make one of a kubeconfig; ``-`` is standard input. Raises ``UserError``."""
    content = read_text(path)
    found = read_objects(path, content)
    for one in found:
        if text(one, "kind") == "ConfigMap" and text(one, "metadata", "name") == NAME:
            return one
    if len(found) == 1 and text(found[0], "kind") == "Config":
        return config_map(content)
    raise UserError(f"{path}: expected the ConfigMap {NAME} or its kubeconfig, got another object")


async def signing_tokens(client: ApiClient) -> tuple[BootstrapToken, ...] | None:
    """Read the tokens that sign now; None where we may not."""
    try:
        secrets = await token_secrets(client)
    except Forbidden:
        return None
    return find_signing_tokens(secrets, datetime.now(UTC)).tokens
