"""Mutations inside PEM: one block's content is changed by its own mutator, and all are written anew."""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping
from dataclasses import dataclass
from random import Random
from typing import Final

from fuzz.target import Mutator, Plain
from nodeattest_providers import pem

_BLOCK: Final = re.compile(rb"-----BEGIN ([A-Z0-9 ]+)-----\n(.*?)-----END \1-----\n", re.DOTALL)
_PLAIN_SHARE: Final = 0.1


@dataclass(frozen=True)
class PemBlocks:
    """A mutator of PEM blocks; labels without a mutator are changed plainly."""

    inner: Mapping[str, Mutator]

    def __call__(self, data: bytes, size: int, random: Random, plain: Plain) -> bytes:
        """Change the content of one block."""
        try:
            blocks = [(match[1].decode(), base64.b64decode(match[2])) for match in _BLOCK.finditer(data)]
        except ValueError:
            return plain(data, size)
        if not blocks or random.random() < _PLAIN_SHARE:
            return plain(data, size)
        at = random.randrange(len(blocks))
        label, content = blocks[at]
        mutate = self.inner.get(label)
        most = 2 * len(content) + 64
        blocks[at] = label, mutate(content, most, random, plain) if mutate else plain(content, most)
        written = pem.encode(blocks)
        return written if len(written) <= size else plain(data, size)
