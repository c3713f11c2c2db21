"""Options that several commands share, and the types of their values."""

from __future__ import annotations

import functools
from collections.abc import Callable
from datetime import timedelta
from typing import Final, TypeVar

import click

from nodeattest_cli.connection import DEFAULT_KUBECONFIG, Connection
from nodeattest_cli.output import UserError
from nodeattest_parsing.times import format_seconds, parse_duration
from nodeattest_parsing.values import ParseError

T = TypeVar("T")
Command = Callable[..., T]

_CENTURY: Final = timedelta(days=36_600)


class Duration(click.ParamType[timedelta]):
    """A duration as Go writes it, such as ``1h30m``."""

    name = "duration"

    def __init__(self, least: timedelta = timedelta(0), most: timedelta = _CENTURY) -> None:
        self._least, self._most = least, most

    def convert(self, value: str | timedelta, param: click.Parameter | None, ctx: click.Context | None) -> timedelta:
        """Parse it; the error names the option."""
        if isinstance(value, timedelta):
            return value
        try:
            found = timedelta(microseconds=parse_duration(value) / 1000)
        except (ParseError, OverflowError):
            raise UserError(f"{option_name(param)}: expected a duration such as 1h30m, got {value[:40]!a}") from None
        if not self._least <= found <= self._most:
            span = f"{format_seconds(self._least.total_seconds())} to {format_seconds(self._most.total_seconds())}"
            raise UserError(f"{option_name(param)}: expected {span}, got {value[:40]!a}")
        return found


def option_name(param: click.Parameter | None) -> str:
    """Return the option that a value was given by."""
    return param.opts[0] if param is not None else "the value"


def connected(command: Command[T]) -> Command[T]:
    """Pass ``connection``, made of ``--kubeconfig`` and ``--context``."""

    @click.option(
        "--kubeconfig",
        envvar="KUBECONFIG",
        show_envvar=True,
        metavar="FILE",
        help=f"Whose cluster to ask ({DEFAULT_KUBECONFIG}).",
    )
    @click.option("--context", help="Context of the kubeconfig.")
    @functools.wraps(command)
    def call(*, kubeconfig: str | None, context: str | None, **rest: object) -> T:
        return command(connection=Connection(kubeconfig, context), **rest)

    return call


namespace_option = click.option("-n", "--namespace", help="Namespace of the Cluster  [the context's; default]")
cluster_option = click.option("--cluster", help="Of this workload cluster only.")
selector_option = click.option("-l", "--selector", help="Labels of the Machines, such as pool=gpu,tier!=dev.")


def workload_option(command: Command[T]) -> Command[T]:
    """Pass ``workload``: the connection of ``--workload-kubeconfig``, or None."""

    @click.option(
        "--workload-kubeconfig",
        metavar="FILE",
        help="How to reach the workload cluster  [the Secret <cluster>-kubeconfig]",
    )
    @functools.wraps(command)
    def call(*, workload_kubeconfig: str | None, **rest: object) -> T:
        workload = Connection(workload_kubeconfig, None) if workload_kubeconfig is not None else None
        return command(workload=workload, **rest)

    return call


def output_option(*formats: str) -> Callable[[Command[T]], Command[T]]:
    """Add ``-o`` to a command; the first format is the default."""
    return click.option("-o", "--output", type=click.Choice(formats), default=formats[0], help="How to print it.")


def files_option(
    text: str = "YAML or JSON; - is standard input.", *, required: bool = True
) -> Callable[[Command[T]], Command[T]]:
    """Add ``-f`` to a command that takes files."""
    return click.option("-f", "--file", "paths", required=required, multiple=True, metavar="FILE", help=text)


installed_option = click.option(
    "--installed", multiple=True, metavar="NAME", help="A provider that the controller has and this machine has not."
)
