"""Bootstrap tokens that are worth one machine: the group that names it, and the rule about its holder. Pure.

A token's Secret may give its user further groups (``auth-extra-groups``). One of ours names a machine by a hash; the
API server writes the groups of the requester into a request, so they can be believed. Every provider is held to
this, ``insecure`` too: a stolen bound token opens one door.
Source: k8s.io/cluster-bootstrap/token/api (BootstrapGroupPattern); docs/decisions.md.
"""

from __future__ import annotations

import hashlib
from typing import Final

from nodeattest_providers.binding import length_prefix
from nodeattest_providers.errors import Denied, Reason
from nodeattest_providers.verifier_interface import NodeRequest

__all__ = ["BOUND_GROUP_PREFIX", "bound_group", "check_bound_token"]

BOUND_GROUP_PREFIX: Final = "system:bootstrappers:nodeattest:"
_LABEL: Final = b"nodeattest/v1/token-machine"
_DIGITS: Final = 32
"""Hex digits of the hash: 128 bits, as many as an attestation record's name has."""


def bound_group(cluster: str, provider_id: str) -> str:
    """Name the group of the tokens that are good for one machine; ``cluster`` is ``namespace/name``."""
    digest = hashlib.sha256(length_prefix(_LABEL, cluster.encode(), provider_id.encode())).hexdigest()
    return BOUND_GROUP_PREFIX + digest[:_DIGITS]


def check_bound_token(request: NodeRequest, cluster: str) -> None:
    """Identity rule 4: who is bound to a machine asks for that machine, and is bound to no other besides."""
    bound = {group for group in request.groups if group.startswith(BOUND_GROUP_PREFIX)}
    if bound and bound != {bound_group(cluster, request.csr.provider_id)}:
        raise Denied(
            Reason.TOKEN_NOT_THIS_MACHINES,
            expected="a requester that is bound to the requested machine, or to none",
            got=f"{request.username}, bound to another machine",
            remedy="use the bootstrap token that was made for this machine",
        )
