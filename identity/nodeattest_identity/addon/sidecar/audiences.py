"""The audiences of an add-on: ``namespace/name`` of the Services that select its pod by the pod's current labels.

Source: companion proposal 003 ("periodically list services in the namespace"); core/v1 ServiceSpec.selector (equality
only, empty selects nothing); downward API, ``fieldPath: metadata.labels`` (``key="escaped value"`` a line).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final

from nodeattest_kube import paths
from nodeattest_kube.client import ApiClient
from nodeattest_kube.reflector import Reflector
from nodeattest_parsing import strict_json
from nodeattest_parsing.objects import dig, metadata, object_identity, text
from nodeattest_parsing.values import JsonObject
from nodeattest_serving.bounded_server import SettingsError

_MAX_SERVICES: Final = 10_000
_MAX_BYTES: Final = 32 << 20
_MAX_LABELS: Final = 256 * 1024
"""Bytes of the labels file: kube-apiserver's limit for all annotations."""
_MAX_STALE: Final = 300.0
"""Seconds; a Service may have been deleted meanwhile."""
_CHECK_PERIOD: Final = 2.0
"""Seconds between two reads of labels and Services."""


class ServiceAudiences:
    """The Services of one namespace that select one pod."""

    def __init__(
        self, client: ApiClient, *, namespace: str, labels: Path, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """``labels``: the downward API's file; raises ``SettingsError``."""
        self._namespace = namespace
        self._path = labels
        self._clock = clock
        self._labels = _read(labels)
        self._next_check = clock()
        self._audiences: frozenset[str] = frozenset()
        self._services = Reflector(
            client,
            paths.core_path("services", namespace=namespace),
            on_change=lambda _key, _service: None,
            transform=_slim,
            max_objects=_MAX_SERVICES,
            max_bytes=_MAX_BYTES,
            clock=clock,
        )

    async def run(self) -> None:
        await self._services.run()

    def audiences(self) -> frozenset[str]:
        if self.unready_reason() is not None:
            return frozenset()
        if self._clock() >= self._next_check:
            self._next_check = self._clock() + _CHECK_PERIOD
            with suppress(SettingsError):  # an unreadable file leaves the current labels in force
                self._labels = _read(self._path)
            self._audiences = frozenset(
                f"{self._namespace}/{name}"
                for service in self._services.values()
                if (name := text(service, "metadata", "name")) and selects(service, self._labels)
            )
        return self._audiences

    def unready_reason(self) -> str | None:
        """Return why there is no audience now; None if the Services decide."""
        if not self._services.synced:
            return "the Services of this namespace were not read yet"
        if self._clock() - self._services.last_contact > _MAX_STALE:
            return f"no contact to the API server about Services for more than {_MAX_STALE:.0f} s"
        return None


def selects(service: JsonObject, labels: Mapping[str, str]) -> bool:
    """Return whether a Service selects a pod with these labels; without a selector it selects nothing."""
    selector = dig(service, "spec", "selector")
    if not isinstance(selector, dict) or not selector:
        return False
    return all(isinstance(value, str) and labels.get(name) == value for name, value in selector.items())


def read_labels(text: str) -> dict[str, str]:
    """Read the downward API's lines, ``key="value"``; raises ``ValueError``."""
    labels: dict[str, str] = {}
    for line in text.splitlines():
        name, equals, quoted = line.partition("=")
        value = strict_json.parse(quoted, max_size=None) if equals else None
        if not name or not isinstance(value, str):
            raise ValueError("expected labels as the downward API writes them")
        labels[name] = value
    return labels


def _read(path: Path) -> dict[str, str]:
    try:
        with path.open(encoding="utf-8") as file:
            return read_labels(file.read(_MAX_LABELS))
    except OSError as error:
        raise SettingsError(
            f"{path}: expected the pod's labels, got {error.strerror}; mount them by the downward API "
            "(fieldPath: metadata.labels), or name the audience (--audience)"
        ) from None
    except ValueError:
        raise SettingsError(f"{path}: expected the pod's labels as the downward API writes them, got others") from None


def _slim(service: JsonObject) -> JsonObject:
    selector = dig(service, "spec", "selector")
    return {"metadata": object_identity(metadata(service)), "spec": {"selector": selector}}
