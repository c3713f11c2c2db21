"""What an operator does, by the real command."""

from __future__ import annotations

import json
import subprocess
from typing import cast

from world import BIN, NAMESPACE, World

from nodeattest_sandbox.apiserver.jsonvalue import JsonMap, text_at


def nodeattest(world: World, *words: str) -> subprocess.CompletedProcess[str]:
    """Run one of the operator's commands against the management cluster."""
    access = ["--kubeconfig", str(world.management.admin_kubeconfig), "-n", NAMESPACE]
    command = [BIN / "nodeattest", *words, *access]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


def reset(world: World, name: str, reason: str = "a test") -> None:
    """Reset a machine's ledger."""
    done = nodeattest(world, "machines", "reset", name, "--reason", reason, "--yes")
    assert done.returncode == 0, done.stderr


def rejoin_token(world: World, name: str) -> str:
    """Make a token for one machine and wait until the server takes it."""
    done = nodeattest(world, "machines", "rejoin", name, "-o", "json")
    assert done.returncode == 0, done.stderr
    return world.workload.await_token(text_at(cast("JsonMap", json.loads(done.stdout)), "token"))
