"""Kubernetes objects from YAML or JSON files, as ``kubectl get -o yaml`` writes them and people edit them.

Promises: objects or ``UserError``; lists are taken apart; a key that stands twice is an error, since the parsers differ
in which one counts; times stay text. Leaves to others what the objects mean.
"""

from __future__ import annotations

from typing import Final

from nodeattest_cli.errors import UserError
from nodeattest_cli.files import file_name, read_bounded
from nodeattest_parsing import strict_yaml
from nodeattest_parsing.objects import items, text
from nodeattest_parsing.strict_yaml import Scalars
from nodeattest_parsing.values import JsonObject, ParseError

_MAX_DEPTH: Final = 64
"""Levels; Kubernetes objects have some ten."""
_MAX_VALUES: Final = 1 << 19
"""Values and keys of all objects of a file."""
_MAX_DOCUMENTS: Final = 1 << 14


def read_objects(path: str) -> list[JsonObject]:
    """Read every object of a file; ``-`` is standard input."""
    name = file_name(path)
    try:
        documents = strict_yaml.parse_objects(
            read_bounded(path),
            scalars=Scalars.KUBERNETES,
            max_depth=_MAX_DEPTH,
            max_values=_MAX_VALUES,
            max_documents=_MAX_DOCUMENTS,
        )
    except ParseError as error:
        raise UserError(f"{name}: expected YAML or JSON, got {error.found}; expected {error.expected}") from None
    found = [part for document in documents for part in _parts(document)]
    if not found:
        raise UserError(f"{name}: expected a Kubernetes object, got none")
    return found


def _parts(document: JsonObject) -> list[JsonObject]:
    return items(document, "items") if text(document, "kind").endswith("List") else [document]
