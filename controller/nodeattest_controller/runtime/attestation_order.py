"""Which of several answers about one MachineAttestation is the newest: the index of records never goes back.

A watch, the answers of our own writes and single reads tell of the same records over different connections, so one
that tells of an earlier state may come later. Were it taken in, what was just recorded would be hidden, and with it
that a node name, key or fingerprint is another machine's.
Promises: an answer counts only if the index is as it was when the question was sent; what a watch shows counts unless
an answer told of something later. Versions are compared as Kubernetes 1.35 allows (KEP-5504); what is no number is
taken in. An API server that was set back is followed from its next answer on.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from nodeattest_kube.jsontypes import JsonObject, is_before, version_of

__all__ = ["AttestationOrder", "RecordState"]

RecordState = tuple[str, str] | None
"""UID and resourceVersion of the record that the index has; None where it has none."""


@dataclass(frozen=True, slots=True)
class _Ahead:
    """An answer of which the watch has not told yet."""

    version: str
    is_new: bool
    """Whether the watch has not shown this object at all: if it tells of an end, that is another one's."""


class AttestationOrder:
    """Takes what is told about records into an index, in the order in which it happened."""

    def __init__(self, put: Callable[[str, JsonObject | None], None]) -> None:
        """``put`` replaces a record in the index, by its ``namespace/name``."""
        self._put = put
        self._known: dict[str, tuple[str, str]] = {}
        self._ahead: dict[str, _Ahead] = {}

    def known(self, key: str) -> RecordState:
        """Return which state of a record the index has; to be asked before a write or read is sent."""
        return self._known.get(key)

    def shown(self, key: str, attestation: JsonObject | None) -> None:
        """Take in what the watch shows of a record: a state, or its end."""
        ahead = self._ahead.get(key)
        if ahead is not None:
            if ahead.is_new if attestation is None else is_before(version_of(attestation)[1], ahead.version):
                return
            del self._ahead[key]
        self._take_in(key, attestation)

    def answered(self, key: str, before: RecordState, attestation: JsonObject | None) -> None:
        """Take in the answer to a write, or to a read, that was sent when the index had ``before``."""
        if self._known.get(key) != before:
            return  # the watch was faster, or another answer
        if attestation is None:
            self._ahead.pop(key, None)
        elif (now := version_of(attestation)) != before:
            earlier = self._ahead.get(key)
            is_new = before is None or before[0] != now[0] or (earlier is not None and earlier.is_new)
            self._ahead[key] = _Ahead(now[1], is_new)
        self._take_in(key, attestation)

    def _take_in(self, key: str, attestation: JsonObject | None) -> None:
        if attestation is None:
            self._known.pop(key, None)
        else:
            self._known[key] = version_of(attestation)
        self._put(key, attestation)
