"""One reader for every kind of object that machines are read from. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Final

from nodeattest_controller.core.clusterapi import Member, machine_members, pool_members
from nodeattest_controller.core.objects import text
from nodeattest_controller.core.records import CLUSTER_RECORD, MACHINE_RECORD, record_members
from nodeattest_kube.jsontypes import JsonObject

__all__ = ["CLUSTER_KINDS", "MEMBER_KINDS", "members_of"]

_READERS: Final[Mapping[str, Callable[[JsonObject], list[Member]]]] = MappingProxyType(
    {"Machine": machine_members, "MachinePool": pool_members, MACHINE_RECORD: record_members}
)
MEMBER_KINDS: Final = frozenset(_READERS)
CLUSTER_KINDS: Final = frozenset({"Cluster", CLUSTER_RECORD})


def members_of(obj: JsonObject, kind: str = "") -> list[Member]:
    """Read the members of an object of one of ``MEMBER_KINDS``; any other has none.

    ``kind`` says what it is where the object itself may not.
    """
    read = _READERS.get(kind or text(obj, "kind"))
    return read(obj) if read is not None else []
