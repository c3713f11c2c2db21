"""``nodeattest demo``: options, signals, and exit codes.

Exit codes: 0 everything went as it must; 1 something did not; 2 called wrongly or something is missing here;
130 or 143 interrupted.
"""

from __future__ import annotations

import os
import shutil
import signal
import sysconfig
import tempfile
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from http.client import HTTPException
from pathlib import Path
from types import FrameType
from typing import Final, NoReturn

import click

from nodeattest_cli.output import UserError, print_document, print_lines, to_json
from nodeattest_demo.machines import PLATFORMS, DemoFailure
from nodeattest_demo.run import DemoConfig, DemoReport, Display, run, tables
from nodeattest_demo.world import CLUSTER, NAMESPACE, World, find_tools
from nodeattest_providers.registry import BUILT_IN
from nodeattest_sandbox.child_process import StartFailed
from nodeattest_sandbox.client import ApiRefusal
from nodeattest_sandbox.swtpm import SoftwareTpmError

_MOST_NODES: Final = 64
"""Each machine is a software TPM and an agent; more would measure this computer."""
_ENDING: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""Ctrl-C, a service manager, a terminal that was closed."""


class _StoppedError(Exception):
    """A signal to end came."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.code = 128 + number


@click.command()
@click.option("--nodes", type=click.IntRange(1, _MOST_NODES), default=3, show_default=True, help="Machines that join.")
@click.option(
    "--provider", type=click.Choice(tuple(PLATFORMS)), default="tpm", show_default=True, help="How they prove it."
)
@click.option("--real/--sandbox", default=None, help="Which API servers; real ones where KUBEBUILDER_ASSETS is set.")
@click.option(
    "--assets",
    envvar="KUBEBUILDER_ASSETS",
    type=click.Path(path_type=Path),
    show_envvar=True,
    help="Folder of etcd and kube-apiserver.",
)
@click.option("--keep", is_flag=True, help="Leave everything running until Ctrl-C, and the files after it.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object on standard output, progress on standard error.")
def demo(*, nodes: int, provider: str, real: bool | None, assets: Path | None, keep: bool, as_json: bool) -> int:
    """Watch nodes join and attackers be refused, on this machine.

    Two control planes, the real controller, and a real agent for every machine run as separate processes on loopback.
    """
    if real and assets is None:
        raise UserError("--real needs KUBEBUILDER_ASSETS (or --assets): a folder with etcd and kube-apiserver")
    scripts = Path(sysconfig.get_path("scripts"))
    tools = find_tools(scripts, provider=provider, assets=None if real is False else assets)
    directory = Path(tempfile.mkdtemp(prefix="nodeattest-"))
    plan = DemoConfig(
        provider=provider,
        nodes=nodes,
        directory=directory,
        tools=tools,
        # Not what would make an agent think that kubelet had called it.
        environment={name: value for name, value in os.environ.items() if name != "KUBERNETES_EXEC_INFO"},
    )

    def present(world: World, report: DemoReport) -> None:
        _tell(report, as_json=as_json)
        if keep:
            print_lines(*_how_to_look(world, plan, report), err=as_json)
            with suppress(_StoppedError):
                threading.Event().wait()

    try:
        report = _run(plan, present, as_json=as_json)
    except _StoppedError as stopped:
        return stopped.code
    finally:
        if not keep:
            shutil.rmtree(directory, ignore_errors=True)
    return 1 if report.problems else 0


def _run(plan: DemoConfig, present: Callable[[World, DemoReport], None], *, as_json: bool) -> DemoReport:
    try:
        with _signals():
            return run(plan, Display(err=as_json), present=present)
    except (StartFailed, SoftwareTpmError, DemoFailure, ApiRefusal, OSError, HTTPException) as failure:
        print_lines("the demo could not be set up:", *str(failure).splitlines(), err=as_json)
        return DemoReport(joined=(), refused=(), problems=("set-up failed",))


@contextmanager
def _signals() -> Generator[None]:
    """Turn the first signal to end into an exception of the main thread; what comes later must not stop the end."""

    def stop(number: int, _frame: FrameType | None) -> NoReturn:
        for each in _ENDING:
            signal.signal(each, signal.SIG_IGN)
        raise _StoppedError(number)

    before = {each: signal.signal(each, stop) for each in _ENDING}
    try:
        yield
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)


def _how_to_look(world: World, plan: DemoConfig, report: DemoReport) -> list[str]:
    directory, command = plan.directory, plan.tools.command
    ours = "nodeattest" if shutil.which("nodeattest") else str(command)
    lines = [
        f"kept in {directory}; Ctrl-C ends the processes. Look at it from another terminal:",
        f"  export KUBECONFIG={world.management.admin_kubeconfig}",
        f"  {ours} machines list -A",
        f"  {ours} explain machine/{CLUSTER}-md-{len(report.joined) + 1} -n {NAMESPACE}",
        f"  {ours} machines adopt --all -n {NAMESPACE}",
    ]
    if report.joined and not BUILT_IN[report.joined[0].provider].attests_once:
        rejoin = f"machines rejoin {report.joined[0].machine} -n {NAMESPACE}"
        lines.append(f"  {ours} {rejoin} --workload-kubeconfig {world.workload.admin_kubeconfig}")
    lines += [
        "With kubectl:",
        "  kubectl get machines,machineattestations,nodeattestationpolicies -A",
        f"  kubectl --kubeconfig {world.workload.admin_kubeconfig} get nodes,csr",
    ]
    if report.joined:
        root = directory / "nodes" / report.joined[0].node
        lines.append(f"  kubectl --kubeconfig {root}/etc/kubernetes/kubelet.conf get node {report.joined[0].node}")
    return lines


def _tell(report: DemoReport, *, as_json: bool) -> None:
    """Say how it went."""
    if as_json:
        print_document(to_json(report.to_json()))
    else:
        print_lines(*tables(report))
    print_lines(*(f"WRONG: {problem}" for problem in report.problems), err=as_json)
    if not report.problems:
        print_lines(f"{len(report.joined)} joined, {len(report.refused)} refused, as it must be.", err=as_json)
