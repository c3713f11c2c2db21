"""Answers an exec credential call that the fast path cannot answer.

With a valid certificate nothing waits. Without one, one process enrolls and the others wait for it.
"""

from __future__ import annotations

import os
import sys
from dataclasses import replace

from nodeattest_authenticator import watchdog
from nodeattest_authenticator.context import AgentContext, ignore_message
from nodeattest_authenticator.exec_plugin import fast_path
from nodeattest_authenticator.formats import client_go
from nodeattest_authenticator.state.storage import exclusive, exclusive_if_free
from nodeattest_discovery.node.clock import Clock, Deadline


def run(cache_dir: str, config: str) -> None:
    """Write the ExecCredential to standard output. Raises ``AgentError``."""
    hostname = os.uname().nodename
    context = AgentContext.open(config, cache_dir, hostname=hostname, clock=Clock())
    with context.storage, watchdog.running(context.settings.timeout_seconds):
        answer = credential(context, os.environb.get(b"KUBERNETES_EXEC_INFO"))
    sys.stdout.buffer.write(answer)


def credential(context: AgentContext, info: bytes | None) -> bytes:
    """Return the ExecCredential for one call. Raises ``AgentError``."""
    call = client_go.parse_exec_info(info)
    client_go.check_cluster(call, context.settings.cluster, context.settings.previous_clusters)
    raw = info or b""
    found = context.load_valid_credential()
    if found is None:
        return _first(context, raw)
    if context.settings.renewable and context.clock.now() >= found.credential.renew_at:
        from nodeattest_authenticator.exec_plugin import background_renewal

        return found.credential.answer(expires_at=background_renewal.spawn(context, found.credential))
    with exclusive_if_free(context.storage) as held:
        if held:
            context.cache_response(found, raw)
    return found.credential.answer()


def _first(context: AgentContext, info: bytes) -> bytes:
    deadline = Deadline.after(context.clock, context.settings.timeout_seconds)
    context.raise_while_backing_off()
    with exclusive(context.storage, deadline):
        # The process that held the lock before may have enrolled.
        ready = _ready(context, info)
        if ready is not None:
            return ready
        context.raise_while_backing_off()
        found = replace(context, log=ignore_message).load_valid_credential()
        if found is None:
            from nodeattest_authenticator.enrollment.issue import issue_and_store

            found = issue_and_store(context, None, deadline, info=info)
        context.cache_response(found, info)
        return found.credential.answer()


def _ready(context: AgentContext, info: bytes) -> bytes | None:
    found = fast_path.lookup(context.storage.path, context.config, info, context.clock.now())
    return found[1] if found is not None and found[0] == 0 else None
