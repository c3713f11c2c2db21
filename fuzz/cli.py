"""Targets of the operator's tool: documents that people hand to it."""

from __future__ import annotations

from typing import Final

from fuzz.files import as_file
from fuzz.mutators.json_tree import JsonTree
from fuzz.target import Target, require
from nodeattest_cli.documents import read_objects
from nodeattest_cli.errors import UserError

__all__ = ["TARGETS"]


def _documents(data: bytes) -> bool:
    with as_file(data) as path:
        try:
            found = read_objects(str(path))
        except UserError:
            return False
    require(bool(found), "at least one object")
    return True


TARGETS: Final = (Target("documents", _documents, JsonTree()),)
