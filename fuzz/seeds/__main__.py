"""Write the seeds: ``python -m fuzz.seeds``."""

from __future__ import annotations

from fuzz.catalogue import CORPUS
from fuzz.seeds.corpus import files

for name, content in files().items():
    path = CORPUS / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
