"""The declared runs of docs/proof/ledger.pml and docs/proof/takeover.pml."""

from __future__ import annotations

from typing import Final

from tools.prove.declared import SpinRun

__all__ = ["LEDGER_RUNS"]

_CERTIFICATE: Final = "one certificate for one key"
_CHALLENGE: Final = "one key for one answered challenge"
_TPM: Final = "one TPM in a generation"
_WRITE: Final = "one write for one resourceVersion"
_PAUSE: Final = "one new key in ten minutes outside renewal"
_MACHINE: Final = "one machine for one name, key or TPM"
_TAKEOVER: Final = "takeover.pml"

LEDGER_RUNS: Final[tuple[SpinRun, ...]] = (
    SpinRun(
        name="the ledger",
        sentence="Two replicas that both believe to lead, caches as old as they like, crashes anywhere and resets "
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
        name="without what retired keys answered",
        defines=("M_FORGET_UIDS",),
        fails=_CHALLENGE,
        sentence="After a reset, a challenge that was answered before it is answered by another key.",
    ),
    SpinRun(
        name="without the pause between two keys",
        defines=("M_NO_PAUSE",),
        fails=_PAUSE,
        sentence="A machine gets key after key outside renewal.",
    ),
    SpinRun(
        name="publish before the record",
        defines=("M_PUBLISH_FIRST",),
        fails=_CERTIFICATE,
        sentence="A replica publishes a certificate and crashes before it records it; the other signs the key again.",
    ),
    SpinRun(
        name="two Machines and the Lease",
        file=_TAKEOVER,
        sentence="Takeovers at any step, replicas that do not notice, crashes and late writes certify one of two "
        "Machines with one name, key or TPM.",
    ),
    SpinRun(
        name="two Machines: what is searched",
        file=_TAKEOVER,
        defines=("REACHABLE",),
        fails="nothing is published after takeovers and crashes",
        sentence="A certificate is published after all takeovers and crashes of the model: its claims are not empty.",
    ),
    SpinRun(
        name="without confirmation",
        file=_TAKEOVER,
        defines=("M_NO_CONFIRMATION",),
        fails=_MACHINE,
        sentence="A replica loses the Lease before its record lands, and publishes what the new owner gave to another.",
    ),
    SpinRun(
        name="confirmation before the record",
        file=_TAKEOVER,
        defines=("M_CONFIRM_FIRST",),
        fails=_MACHINE,
        sentence="The Lease is lost between the confirmation and the record.",
    ),
    SpinRun(
        name="without the term in the confirmation",
        file=_TAKEOVER,
        defines=("M_NO_TERM",),
        fails=_MACHINE,
        sentence="A replica has the Lease again, unaware that another one had it in between.",
    ),
    SpinRun(
        name="without a list by the new owner",
        file=_TAKEOVER,
        defines=("M_NO_LIST",),
        fails=_MACHINE,
        sentence="The new owner does not know a record that was confirmed before its takeover.",
    ),
    SpinRun(
        name="without reservation",
        file=_TAKEOVER,
        defines=("M_NO_RESERVATION",),
        fails=_MACHINE,
        sentence="One replica evaluates both requests before it records either.",
    ),
    SpinRun(
        name="without the second look at a recorded certificate",
        file=_TAKEOVER,
        defines=("M_NO_SECOND_LOOK",),
        fails=_MACHINE,
        sentence="A former owner's record lands while the other machine's is being written, and both are published.",
    ),
)
"""First what must hold, then mutants without one check."""
