"""Control planes for every room's tests: each test that asks for one runs on the sandbox and on a real kube-apiserver.

The real ones need KUBEBUILDER_ASSETS, the folder that Kubernetes projects use for their integration tests, such as
`make servers` prints; without it they are skipped, and the report says so.
"""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Final, Literal

import hypothesis
import pytest
from kubernetes_assets import stated_versions
from needs import NOT_POSSIBLE, kubernetes_folder, lacks, programs_folder
from world import Controller, World, built_world
from xdist.remote import Producer
from xdist.scheduler import LoadScopeScheduling

from clouds.aws import SandboxAws
from nodeattest_sandbox.control_plane import ControlPlane, StartControlPlane, start_real, start_sandbox

ControlPlaneKind = Literal["sandbox", "real"]


# A busy machine makes an example slow and its making, too: neither says anything of the law. What must be fast has a
# test of its own. Settings that hypothesis chooses for CI stay.
hypothesis.settings.register_profile(
    "busy",
    hypothesis.settings(),
    deadline=None,
    suppress_health_check=[hypothesis.HealthCheck.too_slow],
)
hypothesis.settings.load_profile("busy")

ATTACK = "attack"
"""User property of a report: the row of tests/attacks/catalogue that its test runs."""


# Which tests run in which process: a file's tests share control planes and keys, so they stay in one

_SPLIT: Final = frozenset({"tests/cli/test_demo.py"})
"""Files whose tests share nothing and take long: each test is distributed alone."""
_FIRST: Final = tuple(f"tests/{folder}/" for folder in ("capi", "system", "conformance", "attacks", "cli", "discovery"))
"""Folders that take longest, in this order; the many short tests fill the gaps at the end."""


class FileScheduling(LoadScopeScheduling):
    """Distributes files, and the tests of ``_SPLIT`` one by one."""

    def __init__(self, config: pytest.Config, log: Producer) -> None:
        config.option.loadscopereorder = False  # the order is ``order``'s
        super().__init__(config, log)

    def _split_scope(self, nodeid: str) -> str:
        file = nodeid.partition("::")[0]
        return nodeid if file in _SPLIT else file


def order(nodeid: str) -> int:
    """Return the rank of a test: those of ``_SPLIT`` first, then folder by folder."""
    if nodeid.partition("::")[0] in _SPLIT:
        return -1
    return next((rank for rank, folder in enumerate(_FIRST) if nodeid.startswith(folder)), len(_FIRST))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> FileScheduling:
    return FileScheduling(config, log)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put the long tests first, and name each attack's row in its reports."""
    items.sort(key=lambda item: order(item.nodeid))
    for item in items:
        mark = item.get_closest_marker("attack")
        if mark is not None:
            item.user_properties.append((ATTACK, str(mark.args[0])))


PROGRAMS = "programs"
"""User property of a report: the programs of others that its test ran beside, with their versions."""


def pytest_report_header() -> list[str]:
    """Name the programs that the tests run beside."""
    assets = programs_folder()
    return [] if assets is None else [f"KUBEBUILDER_ASSETS: {stated_versions(assets)}"]


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say beside which programs tests ran, which attacks did not, and in CI what was skipped and could have run."""
    for programs in sorted(_properties(terminalreporter, PROGRAMS)):
        terminalreporter.write_line(f"ran beside {programs}")
    for row in sorted(_attacks_not_run(terminalreporter)):
        terminalreporter.write_line(f"attack {row} was selected and did not run to its end", red=True)
    if not os.environ.get("NODEATTEST_REQUIRE_ALL"):
        return
    reasons = [_reason(report) for report in terminalreporter.stats.get("skipped", [])]
    for reason in sorted({reason for reason in reasons if not reason.startswith(NOT_POSSIBLE)}):
        terminalreporter.write_line(f"must not be skipped: {reason}", red=True)


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """Turn such a run red."""
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    if not isinstance(reporter, pytest.TerminalReporter):
        return
    if session.exitstatus == 0 and _attacks_not_run(reporter):
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
    if not os.environ.get("NODEATTEST_REQUIRE_ALL"):
        return
    skipped = [_reason(report) for report in reporter.stats.get("skipped", [])]
    if session.exitstatus == 0 and any(not reason.startswith(NOT_POSSIBLE) for reason in skipped):
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def _attacks_not_run(reporter: pytest.TerminalReporter) -> set[str]:
    """Return the rows of the catalogue whose tests were selected, and did not run to their end."""
    selected: set[str] = set()
    ran: set[str] = set()
    for outcome, reports in reporter.stats.items():
        for report in reports:
            if isinstance(report, pytest.TestReport):
                rows = {str(value) for name, value in report.user_properties if name == ATTACK}
                selected |= rows
                ran |= rows if outcome == "passed" else set[str]()
    return selected - ran


def _properties(reporter: pytest.TerminalReporter, name: str) -> set[str]:
    """Return the values of a user property, of all reports."""
    reports = [report for found in reporter.stats.values() for report in found]
    properties = [one for report in reports if isinstance(report, pytest.TestReport) for one in report.user_properties]
    return {str(value) for key, value in properties if key == name}


def _reason(report: object) -> str:
    told = getattr(report, "longrepr", None)
    reason = str(told[2]) if isinstance(told, tuple) else str(told)  # pyright: ignore[reportUnknownArgumentType] - (file, line, reason)
    return reason.removeprefix("Skipped: ")


@pytest.fixture(autouse=True)
def _root_logger_as_it_was() -> Iterator[None]:
    """Take back what a command that ran in this process did to the log: its stream is closed by then."""
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)


@pytest.fixture(scope="session", params=["sandbox", pytest.param("real", marks=pytest.mark.conformance)])
def control_plane_kind(request: pytest.FixtureRequest) -> ControlPlaneKind:
    if request.param == "real":
        kubernetes_folder()
    return request.param


@pytest.fixture(scope="session")
def start_control_plane(
    control_plane_kind: ControlPlaneKind, tmp_path_factory: pytest.TempPathFactory
) -> StartControlPlane:
    """Start control planes of the kind under test by name; each stops at its block's end: an idle one costs CPU."""
    assets = programs_folder()

    def start(name: str) -> AbstractContextManager[ControlPlane]:
        directory = tmp_path_factory.mktemp(f"{control_plane_kind}-{name}")
        if control_plane_kind == "real" and assets is not None:
            return start_real(directory, assets, name=name)
        return start_sandbox(directory, name=name)

    return start


@pytest.fixture(scope="session")
def control_plane(start_control_plane: StartControlPlane) -> Iterator[ControlPlane]:
    """One control plane that tests share: use names of your own in it."""
    with start_control_plane("shared") as plane:
        yield plane


@pytest.fixture(scope="session")
def world(start_control_plane: StartControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """One management and one workload cluster that system tests and attacks share: use names of your own in it."""
    with built_world(start_control_plane, tmp_path_factory.mktemp("world")) as built:
        yield built


@pytest.fixture(scope="module")
def controller(world: World) -> Iterator[Controller]:
    """A controller that admits machines by their TPMs."""
    world.set_policy(authorizedAttestors=["tpm"])
    with world.controller() as running:
        world.await_service(running)
        yield running


@pytest.fixture(scope="session")
def assets() -> Path:
    """The folder of Kubernetes' own programs; for tests marked ``conformance``."""
    return kubernetes_folder()


@pytest.fixture(scope="session")
def real_control_plane(assets: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """One real control plane beside which Kubernetes' own programs run; for tests marked ``conformance``."""
    with start_real(tmp_path_factory.mktemp("oracle"), assets, name="oracle") as plane:
        yield plane


@pytest.fixture(scope="session")
def aws(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SandboxAws]:
    """One sandbox AWS that tests share: launch instances of your own, and leave its services up."""
    with SandboxAws(tmp_path_factory.mktemp("aws") / "cloud") as running:
        yield running


@pytest.fixture(scope="session")
def capi_definitions() -> Path:
    """Cluster API's own CRDs, of the Go module that tests/servers pins."""
    command = [sys.executable, str(Path(__file__).parent / "servers" / "build.py"), "--definitions"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    if done.returncode != 0:
        lacks(f"Cluster API's definitions: {done.stderr.strip()}")
    return Path(done.stdout.strip())
