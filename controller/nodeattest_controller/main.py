"""``node-attestation-controller``: reads flags and the configuration file, then runs until a signal.

A user's mistake is one line on standard error and exit code 2, never a traceback. SIGTERM and SIGINT end the
controller in order with exit code 0; a second signal ends it at once. The environment is read here and nowhere below.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import signal
import socket
import sys
import uuid
from collections.abc import Callable, Coroutine, Mapping
from pathlib import Path
from typing import Final

import click

from nodeattest_controller import configfile, logs
from nodeattest_controller.settings import (
    INVENTORIES,
    LOG_FORMATS,
    LOG_LEVELS,
    OFF_BY_DEFAULT,
    Settings,
)
from nodeattest_kube.errors import KubeconfigError
from nodeattest_parsing.values import visible_lines
from nodeattest_serving.bounded_server import SettingsError

_NAME: Final = "node-attestation-controller"
_USER_ERROR: Final = 2
_INTERRUPTED: Final = 130
"""128 + SIGINT, as shells say it."""

_GC_THRESHOLDS: Final = (5_000, 2, 10)
"""Containers that were made and not freed, young collections, and middle ones: 700, 10 and 10 by default. While 400,000
containers are made, the three generations are collected 58, 19 and once, by default 519, 47 and 4 times."""

_log = logging.getLogger(__name__)


def main(arguments: list[str] | None = None) -> None:
    try:
        code: object = cli.main(arguments, prog_name=_NAME, standalone_mode=False)
    except click.exceptions.Abort:
        sys.exit(_INTERRUPTED)
    except click.exceptions.NoArgsIsHelpError as asked:
        click.echo(visible_lines(*asked.format_message().splitlines()), err=True, nl=False)
        sys.exit(_USER_ERROR)
    except (click.ClickException, SettingsError, KubeconfigError) as error:
        message = error.format_message() if isinstance(error, click.ClickException) else str(error)
        click.echo(visible_lines(f"{_NAME}: {' '.join(message.split())}"), err=True, nl=False)
        sys.exit(_USER_ERROR)
    sys.exit(code if isinstance(code, int) else 0)


def serve(work: Coroutine[object, object, int]) -> int:
    """Run until the work ends or a signal asks it to, and return the exit code."""
    _collect_rarely()
    with asyncio.Runner() as runner:
        return runner.run(_until_signal(work))


def _collect_rarely() -> None:
    """Never again look for cycles in what is loaded by now, and less often in what is young."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(*_GC_THRESHOLDS)


async def _until_signal(work: Coroutine[object, object, int]) -> int:
    loop = asyncio.get_running_loop()
    task = loop.create_task(work, name=_NAME)
    received: list[signal.Signals] = []

    def stop(signum: signal.Signals) -> None:
        received.append(signum)
        for handled in (signal.SIGTERM, signal.SIGINT):
            loop.remove_signal_handler(handled)
        _log.info("shutting down", extra=logs.fields(signal=signum.name))
        task.cancel()

    for signum in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(signum, stop, signum)
    try:
        return await task
    except asyncio.CancelledError:
        if received:
            return 0
        raise


def _print_version(context: click.Context, _: click.Parameter, asked: bool) -> None:
    if asked:
        context.exit(context.invoke(version))


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.option("--version", is_flag=True, is_eager=True, expose_value=False, callback=_print_version, help="As version.")
def cli() -> None:
    """Verify, approve and sign kubelet certificate requests of Cluster API workload clusters."""


_OPTIONS: Final[Mapping[str, str]] = {
    "config": "Component configuration file.",
    "kubeconfig": "Kubeconfig of the management cluster; without it, the pod's service account.",
    "namespace": "Namespace of the controller's own Lease and Secret.",
    "watch-namespace": "The only namespace whose Clusters are served.",
    "watch-filter": "Serve only Clusters whose label cluster.x-k8s.io/watch-filter has this value; without it, only "
    "those that lack the label.",
    "controllers": '"*", "name" and "-name", separated by commas; a name wins over "*"; of several entries for one '
    f'name, the first. "*" does not mean {" and ".join(OFF_BY_DEFAULT)}.',
    "inventory": f"Where clusters and machines come from, separated by commas: {', '.join(INVENTORIES)}; the first by "
    "default.",
    "leader-elect": "Whether replicas elect a leader.",
    "health-bind-address": "host:port of /healthz, /livez and /readyz.",
    "metrics-bind-address": 'host:port of /metrics; "0" serves none.',
    "metrics-secure": "Whether /metrics is served over HTTPS, only to whom the API server authenticates and allows it.",
    "metrics-cert-dir": "Folder of its tls.crt and tls.key; without it, the certificate is self-signed.",
    "webhook-bind-address": 'host:port of the bootstrap-config webhook, over TLS; "0" serves none.',
    "webhook-cert-dir": "Folder of its tls.crt and tls.key; read again when they change.",
    "webhook-client-ca-file": "CAs in PEM of API servers' client certificates; without it, anybody who reaches the "
    "webhook may ask.",
    "webhook-allowed-cidrs": "Networks of API servers, separated by commas; the webhook closes connections from others "
    "at once.",
    "allowed-addresses": "Networks, separated by commas, that kubeconfigs of workload clusters may lead to although "
    "they are loopback, link-local, a cloud's own or of the controller's pod.",
    "workers": "Requests that are worked on at the same time.",
    "certificate-lifetime": "Of certificates where the policy names none, such as 336h.",
    "log-level": "What is logged.",
    "log-format": "How it is logged.",
}
"""What an operator turns daily; the configuration file holds every setting. A flag beats the file."""
_TYPES: Final[Mapping[str, object]] = {
    "config": click.Path(path_type=Path),
    "leader-elect": bool,
    "metrics-secure": bool,
    "workers": int,
    "log-level": click.Choice(LOG_LEVELS),
    "log-format": click.Choice(LOG_FORMATS),
}
"""Of options that are no text."""


def _with_options(command: Callable[..., int]) -> Callable[..., int]:
    for name, text in reversed(_OPTIONS.items()):
        command = click.option(f"--{name}", type=_TYPES.get(name), help=text)(command)
    return command


@cli.command()
@_with_options
def run(**flags: object) -> int:
    """Run the controller."""
    settings = _settings(flags)
    logs.configure(level=settings.log_level, log_format=settings.log_format, stream=sys.stderr)
    from nodeattest_controller import build

    return serve(build.run(settings, os.environ))


@cli.command("print-config")
@_with_options
def print_config(**flags: object) -> int:
    """Print the effective configuration.

    Defaults, file and flags together, as a file that gives the same again.
    """
    click.echo(visible_lines(*configfile.dump(_settings(flags)).splitlines()), nl=False)
    return 0


@cli.command()
def version() -> int:
    """Print version and commit, and which evidence is understood."""
    from nodeattest_providers.version import describe

    click.echo(visible_lines(*describe(_NAME, "signer").splitlines()), nl=False)
    return 0


def _settings(flags: dict[str, object]) -> Settings:
    config = flags.pop("config")
    for name in ("controllers", "inventory", "allowed_addresses", "webhook_allowed_cidrs"):
        listed = flags[name]
        if isinstance(listed, str):
            flags[name] = [word.strip() for word in listed.split(",") if word.strip()]
    # client-go's leader identity: unique among replicas and across restarts, readable in the Lease.
    identity = f"{socket.gethostname()}_{uuid.uuid4()}"
    settings = configfile.load(config if isinstance(config, Path) else None, flags, identity=identity)
    if settings.platforms:
        configfile.check_platforms(settings.platforms, str(config))
    return settings


if __name__ == "__main__":
    main()
