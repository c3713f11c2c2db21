"""Exit codes mean the same for every command: usage is 2, a server that is not there is 3, always in one line."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from attested_fleet import AttestedFleet

from nodeattest_cli.errors import ExitCode
from nodeattest_cli.main import cli, main
from nodeattest_sandbox.control_plane import ControlPlane, start_sandbox
from nodeattest_sandbox.pki import ClusterPki
from tools import cli_reference

DOCS = Path(__file__).parents[2] / "docs"


def leaves(group: click.Group = cli, words: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    context = click.Context(group)
    for name in group.list_commands(context):
        _, command, _ = group.resolve_command(context, [name])
        assert command is not None
        if isinstance(command, click.Group):
            yield from leaves(command, (*words, name))
        else:
            yield (*words, name), command


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AttestedFleet]:
    with start_sandbox(tmp_path_factory.mktemp("fleet"), name="fleet") as plane:
        yield AttestedFleet.build(plane, "blue")


COMMANDS = dict(leaves())
ASK_A_CLUSTER: dict[tuple[str, ...], tuple[str, ...]] = {
    ("cluster-info", "publish"): (),
    ("cluster-info", "show"): (),
    ("doctor",): (),
    ("endorsement-keys", "import"): (str(Path(__file__).with_name("keys.csv")), "--policy", "p"),
    ("evidence", "export"): ("machine/m", "-o", "-"),
    ("explain",): ("csr/c",),
    ("machines", "list"): (),
    ("machines", "reset"): ("m", "--reason", "r"),
    ("machines", "rejoin"): ("m",),
    ("machines", "adopt"): ("--all",),
    ("policy", "learn"): ("--all",),
    ("policy", "simulate"): ("-f", str(Path(__file__).with_name("policy.json"))),
    ("token", "create"): (),
}
SERVE: set[tuple[str, ...]] = {
    ("addon-auth", "gateway"),
    ("addon-auth", "sidecar"),
    ("discovery", "serve"),
    ("issuer", "serve"),
}
"""They wait for their API server."""


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_an_unknown_option_is_usage(words: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*words, "--no-such-option"]) == ExitCode.USAGE
    assert capsys.readouterr().err.count("\n") == 1


def test_every_command_that_asks_a_cluster_is_here() -> None:
    asking = {words for words, command in COMMANDS.items() if any(one.name == "kubeconfig" for one in command.params)}
    assert asking == ASK_A_CLUSTER.keys() | SERVE


@pytest.mark.parametrize("words", ASK_A_CLUSTER, ids=" ".join)
def test_a_server_that_is_not_there_is_no_access(
    words: tuple[str, ...], control_plane: ControlPlane, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    away = tmp_path / "kubeconfig"
    away.write_text(control_plane.admin_kubeconfig.read_text().replace(control_plane.server, "https://127.0.0.1:1"))
    assert main([*words, *ASK_A_CLUSTER[words], "--kubeconfig", str(away)]) == ExitCode.NO_ACCESS
    error = capsys.readouterr().err
    assert error.startswith("nodeattest: ")
    assert error.count("\n") == 1


@pytest.mark.parametrize("words", ASK_A_CLUSTER, ids=" ".join)
def test_a_kubeconfig_that_is_not_there_is_usage(
    words: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*words, *ASK_A_CLUSTER[words], "--kubeconfig", str(tmp_path / "none")]) == ExitCode.USAGE
    assert capsys.readouterr().err.count("\n") == 1


@pytest.mark.parametrize(
    "words", [words for words, command in COMMANDS.items() if any(one.name == "cluster" for one in command.params)]
)
def test_a_cluster_that_is_not_there_is_named(
    words: tuple[str, ...], fleet: AttestedFleet, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*words, *ASK_A_CLUSTER[words], *fleet.access, "--cluster", "nosuch"]) == ExitCode.REFUSED
    assert "no Cluster or ClusterRecord nosuch in namespace fleet" in capsys.readouterr().err


def test_a_server_of_another_ca_is_no_access(
    control_plane: ControlPlane, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = ClusterPki.make(tmp_path / "pki", "another")
    kubeconfig = other.client_kubeconfig(tmp_path / "kubeconfig", control_plane.server, "u", ())
    assert main(["token", "create", "--kubeconfig", str(kubeconfig)]) == ExitCode.NO_ACCESS
    assert "expected a certificate for 127.0.0.1" in capsys.readouterr().err


def test_the_page_has_every_exit_code() -> None:
    page = (DOCS / "commands.md").read_text()
    assert [code for code in ExitCode if f"\n| {code.value} |" not in page] == []


def test_the_page_is_what_the_commands_say() -> None:
    page = (DOCS / "commands.md").read_text()
    assert cli_reference.markdown(page) == page, "make reference"
