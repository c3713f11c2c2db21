"""A cold TPM join, alone: wall time, the agent's CPU time, requests of both sides; then the warm credential call."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from statistics import median

from bench.environment import BenchEnvironment
from bench.figures import Figure
from nodeattest_cli.demo.fleet import DemoMachine, node_kubeconfig, provision
from nodeattest_cli.demo.node_client import call_plugin
from nodeattest_cli.demo.platforms.tpm import TpmDemoPlatform
from nodeattest_controller.model.objects import items, mapping, strings, text
from nodeattest_kube.jsontypes import parse_json
from nodeattest_sandbox.control_plane import AuditEntry

JOINS = 7
WARM_CALLS = 60
SETTLE = 1.5
"""Seconds for Events and watches to end up in the audit logs."""


def measure(env: BenchEnvironment) -> list[Figure]:
    first, *machines = [new_machine(env, number) for number in range(JOINS + 1)]
    cold_join(env, first)  # the first join makes the controller look up the kinds of the infrastructure
    time.sleep(SETTLE)
    recorded = env.recorder()
    timings = [cold_join(env, machine) for machine in machines]
    time.sleep(SETTLE)
    made = recorded()
    wall, cpu = (median(column) for column in zip(*timings, strict=True))
    node = sum(entry.user.startswith(("system:bootstrap:", "system:node:")) for entry in made)
    controller = [entry for entry in made if entry.user == "node-attestation-controller" and entry.resource != "leases"]
    server = env.world.version
    return [
        Figure("cold TPM join, wall", wall * 1000, "ms", "<= 250", f"median of {JOINS} on {server}, swtpm"),
        Figure("cold TPM join, agent CPU", cpu * 1000, "ms", "<= 180", "user and system"),
        Figure("API requests a join, node", node / JOINS, "", "<= 4", "create, watch, create, watch"),
        Figure("API requests a join, controller", len(controller) / JOINS, "", "<= 9", _kinds(controller)),
        *_warm(env, _root(env, machines[-1])),
    ]


def new_machine(env: BenchEnvironment, number: int) -> DemoMachine:
    return provision(env.world, number, TpmDemoPlatform(env.directory, env.stack).create_machine(number))


def _root(env: BenchEnvironment, machine: DemoMachine) -> Path:
    return env.directory / "nodes" / machine.identity.node


def cold_join(env: BenchEnvironment, machine: DemoMachine) -> tuple[float, float]:
    """Join, and return wall and CPU seconds of the agent's process."""
    root = _root(env, machine)
    token = root / "token"
    (root / "var").mkdir(parents=True)
    token.write_text(machine.token)
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
        "exec-api-version": env.world.exec_api_version,
    }
    command = [str(env.tools.agent), "join", *(f"--{name}={value}" for name, value in flags.items())]
    start = time.perf_counter()
    pid = os.posix_spawn(command[0], command, installed(root.parent), file_actions=[_silence(1)])
    _, status, usage = os.wait4(pid, 0)
    wall = time.perf_counter() - start
    assert os.waitstatus_to_exitcode(status) == 0, "the join failed"
    return wall, usage.ru_utime + usage.ru_stime


def installed(cache: Path) -> dict[str, str]:
    """Let Python keep its byte code, as beside an installed wheel; the first, uncounted join writes it."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    return environment | {"PYTHONPYCACHEPREFIX": str(cache / "pycache")}


def _silence(descriptor: int) -> tuple[int, int, str, int, int]:
    return (os.POSIX_SPAWN_OPEN, descriptor, os.devnull, os.O_WRONLY, 0)


def _kinds(entries: list[AuditEntry]) -> str:
    counted: dict[str, int] = {}
    for entry in entries:
        what = f"{entry.verb} {'/'.join(filter(None, (entry.resource, entry.subresource)))}"
        counted[what] = counted.get(what, 0) + 1
    return ", ".join(f"{count / JOINS:.2g} {what}" for what, count in sorted(counted.items()))


def _warm(env: BenchEnvironment, root: Path) -> list[Figure]:
    """Compare the exec plugin with an interpreter that does nothing, in turns."""
    call_plugin(env.children, node_kubeconfig(root))  # fills the warm answer
    document = parse_json(node_kubeconfig(root).read_bytes())
    plugin = mapping(items(document, "users")[0], "user", "exec")
    cluster = mapping(items(document, "clusters")[0], "cluster")
    info = {
        "kind": "ExecCredential",
        "apiVersion": text(plugin, "apiVersion"),
        "spec": {"cluster": cluster, "interactive": False},
    }
    warm = [text(plugin, "command"), *strings(plugin, "args")]
    idle = [sys.executable, "-I", "-c", "pass"]
    environment = {**installed(root.parent), "KUBERNETES_EXEC_INFO": json.dumps(info)}
    seconds = [(_time(warm, environment), _time(idle, environment)) for _ in range(WARM_CALLS)]
    plugin_time, idle_time = median(one for one, _ in seconds), median(one for _, one in seconds)
    ratio = plugin_time / idle_time
    note = f"{plugin_time * 1000:.1f} ms against {idle_time * 1000:.1f} ms, medians of {WARM_CALLS} in turns"
    return [Figure("warm credential / python3 -I -c pass", ratio, "x", "<= 1.2", note)]


def _time(command: list[str], environment: dict[str, str]) -> float:
    start = time.perf_counter()
    subprocess.run(command, env=environment, stdout=subprocess.DEVNULL, check=True)
    return time.perf_counter() - start
