"""The declared runs of docs/proof/ledger.pml."""

from __future__ import annotations

from typing import Final

from tools.prove.declared import SpinRun

__all__ = ["LEDGER_RUNS"]

_CERTIFICATE: Final = "one certificate for one key"
_CHALLENGE: Final = "one key for one answered challenge"
_TPM: Final = "one TPM in a generation"
_WRITE: Final = "one write for one resourceVersion"

LEDGER_RUNS: Final[tuple[SpinRun, ...]] = (
    SpinRun(
        name="the ledger",
        sentence="Two replicas that both believe to lead, caches as old as they like, crashes anywhere and a reset "
        "break no claim.",
    ),
    SpinRun(
        name="without compare-and-swap",
        defines=("M_NO_CAS",),
        fails=_WRITE,
        sentence="Both replicas write from the same old state, and the second overwrites what the first recorded.",
    ),
    SpinRun(
        name="without the same bytes for the same key",
        defines=("M_NO_LOOKUP",),
        fails=_CERTIFICATE,
        sentence="A copy of the second request gets another certificate for its key.",
    ),
    SpinRun(
        name="without the pin of the TPM",
        defines=("M_NO_PIN",),
        fails=_TPM,
        sentence="After the honest TPM, another genuine one is certified for the same Machine.",
    ),
    SpinRun(
        name="without known keys after a reset",
        defines=("M_NO_RETIRED",),
        fails=_CERTIFICATE,
        sentence="After a reset, a key of the time before it is certified anew.",
    ),
    SpinRun(
        name="without the rule of one key for a first request",
        defines=("M_NO_UID_RULE",),
        fails=_CHALLENGE,
        sentence="Two second requests with different keys answer one challenge, and both are certified.",
    ),
    SpinRun(
        name="publish before the record",
        defines=("M_PUBLISH_FIRST",),
        fails=_CERTIFICATE,
        sentence="A replica publishes a certificate and crashes before it records it; the other signs the key again.",
    ),
)
"""First what must hold, then mutants without one check."""
