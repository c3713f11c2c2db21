"""Checks between a valid write and the store: NodeRestriction, CertificateApproval, CertificateSigning.

Promises: ``approve`` and ``sign`` are asked on the signer of the *old* object, by its name and then by ``<domain>/*``.
Source: plugin/pkg/admission/certificates/{approval,signing}, pkg/certificates authorization helper.
"""

from __future__ import annotations

from typing import Final

from nodeattest_sandbox.apiserver.jsonvalue import JsonMap, items_at, text_at
from nodeattest_sandbox.apiserver.nodes import restrict_node
from nodeattest_sandbox.apiserver.rbac import Attributes, Authorizer
from nodeattest_sandbox.apiserver.requestinfo import RequestInfo
from nodeattest_sandbox.apiserver.status_errors import forbidden
from nodeattest_sandbox.apiserver.users import User

__all__ = ["admit"]

_GROUP: Final = "certificates.k8s.io"
_REQUESTS: Final = "certificatesigningrequests"


def admit(authorizer: Authorizer, user: User, info: RequestInfo, value: JsonMap | None, before: JsonMap | None) -> None:
    """Refuse a write that the user may not make; ``value`` is None for a removal, ``before`` for a creation."""
    restrict_node(user, info, value, before)
    if (info.group, info.resource) != (_GROUP, _REQUESTS) or value is None or before is None:
        return
    verb = _verb(info.subresource, value, before)
    signer = text_at(before, "spec", "signerName")
    if verb and not _may(authorizer, user, verb, signer):
        why = f'user not permitted to {verb} requests with signerName "{signer}"'
        raise forbidden(_GROUP, _REQUESTS, info.name, why)


def _verb(subresource: str, value: JsonMap, before: JsonMap) -> str:
    if subresource == "approval":
        return "approve"
    changed = text_at(value, "status", "certificate") != text_at(before, "status", "certificate") or items_at(
        value, "status", "conditions"
    ) != items_at(before, "status", "conditions")
    return "sign" if subresource == "status" and changed else ""


def _may(authorizer: Authorizer, user: User, verb: str, signer: str) -> bool:
    names = (signer, f"{signer.partition('/')[0]}/*")
    return any(
        authorizer.allows(Attributes(user, verb, _GROUP, "signers", name=name)) for name in names
    )  # fmt: skip
