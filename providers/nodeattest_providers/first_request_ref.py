"""The name of a first request, as a second one claims it: well-formed enough to be looked up, nothing more."""

from __future__ import annotations

import re
from typing import Final

from nodeattest_providers.canonical_json import Fields
from nodeattest_providers.errors import Denied, Reason
from nodeattest_providers.identifiers import is_dns_name, printable
from nodeattest_providers.node_interface import FirstRequestRef

MAX_NAME: Final = 253
MAX_UID: Final = 64
"""Characters; a UID is an RFC 4122 UUID (apimachinery pkg/types/uid.go)."""
_UID: Final = re.compile(r"[0-9A-Za-z-]+", re.ASCII)


def parse_first_request_ref(fields: Fields) -> FirstRequestRef:
    """Read ``{"name", "uid"}``; the name becomes part of a URL, so it is a DNS name as our agent writes them."""
    name, uid = fields.text("name", 1, MAX_NAME), fields.text("uid", 1, MAX_UID)
    if not is_dns_name(name) or _UID.fullmatch(uid) is None:
        raise Denied(
            Reason.EVIDENCE_MALFORMED,
            expected="the first request's name (RFC 1123 subdomain) and UID",
            got=f"{printable(name)} and {printable(uid)}",
            remedy="file the request with the agent, which names its requests so",
        )
    return FirstRequestRef(name=name, uid=uid)
