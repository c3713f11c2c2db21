"""One reader for every kind of object that machines are read from. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Final

from nodeattest_controller.model.machine_record import CLUSTER_RECORD, MACHINE_RECORD, views_of_record
from nodeattest_controller.model.machine_view import MachineView, pool_view, view_of_machine, views_of_pool
from nodeattest_parsing.objects import text
from nodeattest_parsing.values import JsonObject

_READERS: Final[Mapping[str, Callable[[JsonObject], list[MachineView]]]] = MappingProxyType(
    {"Machine": lambda obj: [view_of_machine(obj)], "MachinePool": views_of_pool, MACHINE_RECORD: views_of_record}
)
MACHINE_KINDS: Final = frozenset(_READERS)
CLUSTER_KINDS: Final = frozenset({"Cluster", CLUSTER_RECORD})


def machine_views(obj: JsonObject, kind: str = "") -> list[MachineView]:
    """Read the members of an object of one of ``MACHINE_KINDS``; any other has none.

    ``kind`` says what it is where the object itself may not.
    """
    read = _READERS.get(kind or text(obj, "kind"))
    return read(obj) if read is not None else []


def machine_view(obj: JsonObject, kind: str, provider_id: str) -> MachineView | None:
    """Read one member of an object of these kinds; None where the object has none of this provider ID.

    A Machine to which Cluster API has given no provider ID yet is the member of any.
    """
    if kind == "MachinePool":
        pool = pool_view(obj)
        return pool.member(provider_id) if pool.lists(provider_id) else None
    return next((view for view in machine_views(obj, kind) if view.provider_id in {provider_id, ""}), None)
