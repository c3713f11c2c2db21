"""Decides the desired content of cluster-info. Pure.

Promises: ``data.kubeconfig`` is signed as the exact string that it is. Every other key with the signature prefix is
removed. Everything else stays unchanged, known or not.
Source: kubernetes pkg/controller/bootstrap/bootstrapsigner.go, which leaves stale signatures if the kubeconfig key is
missing: here they are removed, since they sign nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import datetime

from nodeattest_discovery import jws
from nodeattest_discovery.clusterinfo import KUBECONFIG_KEY, SIGNATURE_PREFIX
from nodeattest_discovery.secret import Expiry, expiry, signing_token
from nodeattest_discovery.token import BootstrapToken
from nodeattest_kube.jsontypes import JsonObject, dig

__all__ = ["SigningTokens", "current_signatures", "desired_cluster_info", "find_signing_tokens", "signed_content"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SigningTokens:
    """Who signs at a moment."""

    tokens: tuple[BootstrapToken, ...]
    until: datetime | None
    """When the first of them will have expired; None: never."""


def find_signing_tokens(secrets: Iterable[JsonObject], now: datetime) -> SigningTokens:
    """Find the tokens that sign now."""
    tokens: list[BootstrapToken] = []
    ends: list[datetime] = []
    for secret in secrets:
        token = signing_token(secret, now)
        if token is None:
            continue
        tokens.append(token)
        state, moment = expiry(secret, now)
        if state is Expiry.PENDING and moment is not None:
            ends.append(moment)
    return SigningTokens(tokens=tuple(tokens), until=min(ends, default=None))


def signed_content(config_map: JsonObject) -> bytes | None:
    """Return what is to be signed; None where there is nothing."""
    kubeconfig = dig(config_map, "data", KUBECONFIG_KEY)
    return kubeconfig.encode() if isinstance(kubeconfig, str) else None


def desired_cluster_info(
    config_map: JsonObject,
    tokens: Iterable[BootstrapToken],
    sign: Callable[[bytes, BootstrapToken], str] = jws.sign,
) -> JsonObject | None:
    """Return cluster-info as it must be; None where it is so already."""
    found = dig(config_map, "data")
    data = found if isinstance(found, dict) else {}
    wanted = {key: value for key, value in data.items() if not key.startswith(SIGNATURE_PREFIX)}
    content = signed_content(config_map)
    if content is not None:
        wanted |= {SIGNATURE_PREFIX + token.id: sign(content, token) for token in tokens}
    return None if wanted == data else {**config_map, "data": wanted}


def current_signatures(config_map: JsonObject) -> dict[str, object]:
    """Return the signatures that are in cluster-info, and what else is spelt like one."""
    found = dig(config_map, "data")
    data = found if isinstance(found, dict) else {}
    return {key: value for key, value in data.items() if key.startswith(SIGNATURE_PREFIX)}
