"""One token's flood, and what it costs another node: TPM joins alone, and joins beside a flood of requests."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path
from statistics import median

from bench import joins
from bench.environment import BenchEnvironment
from bench.figures import Figure
from bench.flooder import PROGRESS
from nodeattest_cli.demo.fleet import DemoMachine

ALONE = 5
BESIDE = 12
FIRST_MACHINE = 5000
SHARE = 0.07
"""Of the flood, that is filed before the first join and before each further one, so that they meet all of it."""
ROOT = Path(__file__).parents[1]


def measure(env: BenchEnvironment, requests: int) -> list[Figure]:
    machines = [joins.new_machine(env, FIRST_MACHINE + number) for number in range(1 + ALONE + BESIDE)]
    first, alone, beside = machines[0], machines[1 : 1 + ALONE], machines[1 + ALONE :]
    joins.cold_join(env, first)
    unflooded = [joins.cold_join(env, machine).wall for machine in alone]
    before = env.controller_cpu()
    with _flood(env, requests, victim=first) as flooder:
        start = time.perf_counter()
        assert _await_progress(flooder, int(requests * SHARE)), "the flood ended early"
        flooded = _joins_beside(env, flooder, beside, share=int(requests * SHARE))
        flooder.communicate()
        seconds = time.perf_counter() - start
    cpu = env.controller_cpu() - before
    usual, each = median(unflooded), f"controller CPU {cpu / requests * 1000:.1f} ms each"
    delay = max(flooded) - usual
    note = f"worst of {len(flooded)} joins beside {requests} requests of one token; alone {usual * 1000:.0f} ms"
    return [
        Figure("delay of a join by another's flood, worst", delay, "s", "<= 1", note),
        Figure("delay of a join by another's flood, median", median(flooded) - usual, "s", ""),
        Figure("the flood's requests", requests / seconds, "/s", "", each),
    ]


def _joins_beside(
    env: BenchEnvironment, flooder: subprocess.Popen[str], machines: list[DemoMachine], *, share: int
) -> list[float]:
    """Join one machine after another until the flood is filed, and two more while the rest of it is evaluated."""
    seconds: list[float] = []
    left = 2
    for machine in machines:
        if not left:
            break
        seconds.append(joins.cold_join(env, machine).wall)
        left -= not _await_progress(flooder, share)
    return seconds


def _flood(env: BenchEnvironment, requests: int, *, victim: DemoMachine) -> subprocess.Popen[str]:
    workload = env.world.workload
    token = victim.token
    command = [sys.executable, "-m", "bench.flooder", workload.server, str(workload.ca_certificate), str(requests)]
    command += [victim.identity.node, victim.identity.provider_id]
    flooder = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert flooder.stdin is not None
    flooder.stdin.write(token + "\n")
    flooder.stdin.flush()
    return flooder


def _await_progress(flooder: subprocess.Popen[str], filed: int) -> bool:
    """Wait until so many more were filed; False when the flood ended before."""
    assert flooder.stdout is not None
    wanted = max(1, filed // PROGRESS)
    return len(flooder.stdout.read(wanted)) == wanted
