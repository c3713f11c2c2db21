"""One node alone: a cold TPM join, and the credential that kubelet asks for, beside an idle interpreter."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from bench.burst import BenchEnvironment, start_environment
from bench.report import Case
from nodeattest_demo.machines import DemoMachine, TpmDemoPlatform, call_plugin, node_kubeconfig, write_private_file
from nodeattest_demo.world import Tools, provision
from nodeattest_kube.answers import parse_json
from nodeattest_parsing.objects import items, mapping, strings, text

IDLE = (sys.executable, "-I", "-c", "pass")
"""An interpreter that does nothing: what any Python program takes here."""


def root_of(env: BenchEnvironment, machine: DemoMachine) -> Path:
    return env.directory / "nodes" / machine.identity.node


def cold_join(env: BenchEnvironment, machine: DemoMachine) -> dict[str, float]:
    root = root_of(env, machine)
    token = root / "token"
    (root / "var").mkdir(parents=True)
    write_private_file(token, machine.token)
    flags = {
        "server": env.world.workload.server,
        "ca-file": env.world.workload.ca_certificate,
        "token-file": token,
        "provider": "tpm",
        "tcti": machine.attestor.settings["tcti"],
        "node-name": machine.identity.node,
        "provider-id": machine.identity.provider_id,
        "config": root / "etc/kubelet-authenticator.json",
        "cache-dir": root / "var/cache",
        "kubeconfig": node_kubeconfig(root),
    }
    command = [str(env.tools.agent), "join", *(f"--{name}={value}" for name, value in flags.items())]
    return taken_by(command, installed(root.parent))


def installed(cache: Path) -> dict[str, str]:
    """Let Python keep its byte code, as beside an installed wheel; the first, uncounted join writes it."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    return environment | {"PYTHONPYCACHEPREFIX": str(cache / "pycache")}


def warm_call(env: BenchEnvironment, machine: DemoMachine) -> tuple[list[str], dict[str, str]]:
    """Return the command line and the environment with which kubelet asks a node that has joined."""
    root = root_of(env, machine)
    call_plugin(env.children, node_kubeconfig(root))  # fills the warm answer
    document = parse_json(node_kubeconfig(root).read_bytes())
    plugin = mapping(items(document, "users")[0], "user", "exec")
    cluster = mapping(items(document, "clusters")[0], "cluster")
    info = {
        "kind": "ExecCredential",
        "apiVersion": text(plugin, "apiVersion"),
        "spec": {"cluster": cluster, "interactive": False},
    }
    command = [text(plugin, "command"), *strings(plugin, "args")]
    return command, {**installed(root.parent), "KUBERNETES_EXEC_INFO": json.dumps(info)}


def taken_by(command: Sequence[str], environment: Mapping[str, str]) -> dict[str, float]:
    """Run a program to its end, which must be a good one; returns the milliseconds."""
    start = time.perf_counter()
    pid = os.posix_spawn(
        command[0], list(command), environment, file_actions=[(os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0)]
    )
    _, status, usage = os.wait4(pid, 0)
    wall = time.perf_counter() - start
    assert os.waitstatus_to_exitcode(status) == 0, f"{' '.join(command[:2])} failed"
    return {"wall": 1000 * wall, "cpu": 1000 * (usage.ru_utime + usage.ru_stime)}


def measure(tools: Tools, count: int, settle: int) -> list[Case]:
    """Let one node after the other join, in turns with the warm credential and an interpreter that does nothing."""
    cold, warm, idle = Case("cold"), Case("warm"), Case("idle")
    with start_environment(tools) as env:
        platform = TpmDemoPlatform(env.directory, env.stack)
        first, *machines = [provision(env.world, each, platform.create_machine(each)) for each in range(1 + count)]
        cold_join(env, first)  # writes byte code; the controller looks up the kinds of the infrastructure
        call, environment = warm_call(env, first)
        taken_by(call, environment)
        time.sleep(settle)
        for machine in machines:
            cold.add(**cold_join(env, machine))
            for _ in range(3):
                warm.add(**taken_by(call, environment))
                idle.add(**taken_by(IDLE, environment))
    return [cold, warm, idle]
