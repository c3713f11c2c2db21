"""Which evidence versions a controller accepts: the text of an annotation, such as ``acme/v2,acme/v1``, and back.

Source: docs/wire-format.md, "Versions".
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from typing import Final

from nodeattest_providers.errors import Denied, Reason
from nodeattest_providers.identifiers import ANNOTATION_SUPPORTED_VERSIONS, ProviderName
from nodeattest_providers.node_interface import Evidence

HIGHEST: Final = 9999
"""The envelope's provider block takes no higher version."""
MAX_VERSIONS: Final = 16
"""Entries; a controller that understands more names its newest ones."""
MAX_TEXT: Final = MAX_VERSIONS * len(f"{'p' * 63}/v{HIGHEST},")
"""Characters."""

_NUMBER: Final = re.compile(r"[1-9][0-9]{0,3}")


def check(evidence: Evidence, accepted: Collection[int]) -> None:
    """Refuse evidence of a version that is not accepted; the refusal brings the annotation along."""
    if evidence.version in accepted:
        return
    raise Denied(
        Reason.EVIDENCE_VERSION_UNSUPPORTED,
        expected=versions_to_text(evidence.provider, accepted),
        got=evidence.block,
        remedy=f"send {evidence.provider} evidence of a version in the annotation {ANNOTATION_SUPPORTED_VERSIONS}: "
        "upgrade the node's agent if all of them are newer than it, and the controller if they are older",
        annotations=annotations_for(evidence.provider, accepted),
    )


def annotations_for(provider: ProviderName, accepted: Iterable[int]) -> Mapping[str, str]:
    """Return the annotation that goes with a refusal for a version; none where no version is accepted."""
    text = versions_to_text(provider, accepted)
    return {ANNOTATION_SUPPORTED_VERSIONS: text} if text else {}


def versions_to_text(provider: ProviderName, versions: Iterable[int]) -> str:
    """Write the annotation's value."""
    newest = sorted(set(versions), reverse=True)[:MAX_VERSIONS]
    return ",".join(f"{provider}/v{version}" for version in newest)


def parse(text: str, provider: ProviderName) -> tuple[int, ...]:
    """Read the annotation's value, newest first; anything but a canonical list for this provider is ``Denied``."""
    entries = text.split(",") if len(text) <= MAX_TEXT else []
    prefix = f"{provider}/v"
    numbers = [entry.removeprefix(prefix) for entry in entries if entry.startswith(prefix)]
    versions = tuple(int(number) for number in numbers if _NUMBER.fullmatch(number))
    if not versions or versions_to_text(provider, versions) != text:
        raise Denied(
            Reason.EVIDENCE_VERSION_UNSUPPORTED,
            expected=f"1 to {MAX_VERSIONS} versions of {provider}, newest first, such as {provider}/v2,{provider}/v1",
            got=f"another text of {len(text)} characters",
            remedy="let the controller write the annotation",
        )
    return versions
