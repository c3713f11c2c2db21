"""The controller in a container of the image, for tests on real API servers."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from needs import lacks
from oci_container import Container
from world import Controller


def needs_runc() -> None:
    """End a test where no container can be started."""
    if shutil.which("runc") is None:
        lacks("runc is not installed: tools/system-packages images")
    if os.geteuid() != 0:
        lacks("root, for a container like a kubelet's")


class ImageController(Controller):
    """The controller in a container, with the words of its Deployment."""

    def __init__(self, container: Container, log: Path, flags: Sequence[str]) -> None:
        super().__init__(Path(), log, flags)
        self._container = container

    def command(self) -> list[str]:
        """Run the Deployment's command and arguments."""
        return self._container.deployed(*self._flags)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()
        self._container.remove()
