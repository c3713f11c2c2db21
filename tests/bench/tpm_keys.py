"""The endorsement keys that a software TPM keeps: ``swtpm_setup`` makes them persistent, as firmware may."""

from __future__ import annotations

import importlib
import os
from typing import Any

FIRST, COUNT = 0x81010000, 16
"""Persistent handles of endorsement keys (TCG TPM v2.0 Provisioning Guidance 1.0, section 7.8)."""


def forget(tcti: str) -> None:
    """Take them away, so that the key is made at each use."""
    os.environ.setdefault("TSS2_LOG", "all+none")
    tss: Any = importlib.import_module("tpm2_pytss")  # it has no types
    with tss.ESAPI(tcti) as esys:
        _, found = esys.get_capability(tss.TPM2_CAP.HANDLES, FIRST, COUNT)
        handles = [handle for handle in found.data.handles if FIRST <= handle <= FIRST | 0xFFFF]
        assert handles, "the TPM keeps no endorsement key"
        for handle in handles:
            esys.evict_control(tss.ESYS_TR.OWNER, esys.tr_from_tpmpublic(tss.TPM2_HANDLE(handle)), handle)
