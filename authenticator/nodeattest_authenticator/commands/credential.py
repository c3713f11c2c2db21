"""``credential``: answers kubelet, which runs this as a client-go exec plugin, where the fast path could not."""

from __future__ import annotations

import os
import sys

from nodeattest_authenticator import console, watchdog
from nodeattest_authenticator.context import AgentContext
from nodeattest_authenticator.exec_plugin.handle import credential
from nodeattest_discovery.node.clock import Clock, random_unit


def run(cache_dir: str, config: str) -> None:
    """Write the ExecCredential to standard output; raises ``AgentError``."""
    hostname = os.uname().nodename
    context = AgentContext.open(
        config, cache_dir, hostname=hostname, clock=Clock(), random=random_unit, log=console.log
    )
    with context.storage, watchdog.running(context.settings.timeout_seconds):
        answer = credential(context, os.environb.get(b"KUBERNETES_EXEC_INFO"))
    sys.stdout.buffer.write(answer)
