"""A refresh before a renewal: in a process of its own, so that none of its failures can affect the renewal.

It always ends soon after its limit (``watchdog``), and the renewal continues with whatever configuration is
there then. Call it without a running watchdog: a fork must not find a second thread.
"""

from __future__ import annotations

import os
from typing import Final

from nodeattest_authenticator import watchdog
from nodeattest_authenticator.context import AgentContext
from nodeattest_authenticator.errors import AgentError

LIMIT: Final = 10
"""Seconds; a certificate is renewed days before its end, but a person may watch."""


def refresh_in_subprocess(context: AgentContext) -> AgentContext:
    """Refresh; returns the agent under the configuration that is there afterwards. Hold the lock."""
    try:
        child = os.fork()
    except OSError as error:  # EAGAIN, ENOMEM: the renewal continues with what is known
        context.log(f"the cluster was not asked what changed: no process can be started: {error.strerror}")
        return context
    if not child:
        _run(context)
    os.waitpid(child, 0)
    try:
        return context.reload_config()
    except (AgentError, OSError):
        return context


def _run(context: AgentContext) -> None:
    try:
        watchdog.start(LIMIT)
        from nodeattest_authenticator.cluster.refresh import run_locked

        said = run_locked(context, limit=LIMIT)
        if said != "nothing changed":
            context.log(said)
    except AgentError as failure:
        context.log(f"the cluster was not asked what changed: {failure}")
    except BaseException as error:  # noqa: BLE001 - a defect here must not look like one of the renewal
        context.log(f"the refresh before the renewal failed: {type(error).__name__}")
    finally:
        os._exit(0)
