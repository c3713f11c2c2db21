"""The command line: join, adopt, refresh, serving, status, evidence, and credential with unusual arguments."""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from nodeattest_authenticator import console, settings, watchdog
from nodeattest_authenticator.commands import flags, join_flags
from nodeattest_authenticator.errors import AgentError
from nodeattest_authenticator.exec_plugin.fast_path import DEFAULT_CACHE_DIR, DEFAULT_CONFIG
from nodeattest_discovery.node.clock import Clock
from nodeattest_providers.node_interface import JsonObject

if TYPE_CHECKING:
    from nodeattest_authenticator.context import AgentContext


_JOIN = (
    "Joins a cluster before kubelet starts: finds the cluster, attests the machine, and writes certificate and "
    "kubeconfig. Name the cluster in one of the ways below, and pass a bootstrap token and --provider."
)
_EVIDENCE = (
    "Shows what this machine would send, without sending it. With --provider tpm it needs no configuration and prints "
    "the fingerprint of the endorsement key, for registration."
)
_REFRESH_LIMIT = 60
_COLUMNS = 100
"""Width of help."""


def main(argv: Sequence[str]) -> int:
    """Run one command and return the exit code."""
    if argv[1:] == ["--version"]:
        from nodeattest_providers.version import describe

        console.document(describe("kubelet-authenticator", "attestor"))
        return 0
    options = _parsed(argv[1:])
    options.program = argv[0]
    try:
        return _COMMANDS[options.command](options)
    except AgentError as failure:
        return console.report(failure)


def _parsed(arguments: Sequence[str]) -> argparse.Namespace:
    """Parse the command line. Unlike in argparse, join's positional servers may stand anywhere."""
    top = parser()
    options, rest = top.parse_known_args(arguments)
    unknown = [word for word in rest if word.startswith("-")] if options.command == "join" else rest
    if unknown:
        top.error(f"unrecognized arguments: {' '.join(unknown)}")
    if rest:
        options.endpoint = [*options.endpoint, *rest]
    return options


def _help(prog: str) -> argparse.HelpFormatter:
    """Return a formatter of fixed width: argparse would import ``shutil`` for each flag."""
    return argparse.HelpFormatter(prog, width=_COLUMNS)


def parser() -> argparse.ArgumentParser:
    """Build the parser."""
    top = argparse.ArgumentParser(
        prog="kubelet-authenticator",
        description="Gets and renews this node's kubelet certificates by attesting the machine.",
        formatter_class=_help,
    )
    top.add_argument("--version", action="store_true", help="show version, commit and supported evidence")
    commands = top.add_subparsers(dest="command", required=True, metavar="COMMAND")
    places = argparse.ArgumentParser(add_help=False, formatter_class=_help)
    places.add_argument("--config", default=DEFAULT_CONFIG, metavar="FILE", help="configuration (%(default)s)")
    places.add_argument("--cache-dir", default=DEFAULT_CACHE_DIR, metavar="DIR", help="state, 0700 (%(default)s)")

    def command(name: str, said: str, **more: Any) -> argparse.ArgumentParser:  # noqa: ANN401 - argparse's own
        return commands.add_parser(name, parents=[places], help=said, formatter_class=_help, **more)

    command("credential", "answer kubelet (client-go exec plugin); the default")
    join = "join a cluster: get the first certificate, write the kubeconfig"
    join_flags.describe(command("join", join, description=_JOIN, allow_abbrev=False))
    adopt_said = "attest a node that joined without attestation, using the certificate in kubelet's kubeconfig"
    adopt = command("adopt", adopt_said, allow_abbrev=False)
    join_flags.describe_proof(adopt)
    kubeconfig = join_flags.DEFAULT_KUBECONFIG
    adopt.add_argument("--kubeconfig", default=kubeconfig, metavar="FILE", help="which is replaced (%(default)s)")
    refresh = command("refresh", "follow changes of the cluster's CAs and API servers")
    refresh.add_argument(
        "--timeout", type=int, default=_REFRESH_LIMIT, metavar="SECONDS", help="for the whole command (%(default)s)"
    )
    command("serving", "get or renew kubelet's serving certificate if it is due")
    status = command("status", "show the certificate and the last failure")
    status.add_argument("--json", action="store_true", help="one JSON object")
    evidence = command("evidence", "show the evidence and the EK fingerprint to register", description=_EVIDENCE)
    evidence.add_argument("--provider", help="show only the fingerprint of this provider's key; needs no configuration")
    flags.describe_provider_settings(evidence)
    return top


def _credential(options: argparse.Namespace) -> int:
    from nodeattest_authenticator.exec_plugin import handle

    handle.run(options.cache_dir, options.config)
    return 0


def _join(options: argparse.Namespace) -> int:
    return _serve(_agent(options)) if join_flags.run(options, options.program) else 0


def _adopt(options: argparse.Namespace) -> int:
    from nodeattest_authenticator.commands import adopt

    adopt.run(options, options.program)
    return 0


def _refresh(options: argparse.Namespace) -> int:
    from nodeattest_authenticator import refresh

    context, limit = _agent(options), max(1, options.timeout)
    with context.storage, watchdog.running(2 * limit):  # for the lock, and for the work
        console.show(str(refresh.run(context, limit=limit)))
    return 0


def _serving(options: argparse.Namespace) -> int:
    context = _agent(options)
    with watchdog.running(context.settings.timeout_seconds):
        return _serve(context)


def _serve(context: AgentContext) -> int:
    from nodeattest_authenticator.kubelet_serving import FILE, ensure_serving_certificate

    with context.storage:
        served = ensure_serving_certificate(context)
    until, renewal = (console.moment(at) for at in (served.credential.not_after, served.credential.renew_at))
    console.show(
        f"{context.storage.path}/{FILE}: certificate for {served.names}, valid until {until}, renewed from {renewal}"
    )
    return 0


def _agent(options: argparse.Namespace) -> AgentContext:
    from nodeattest_authenticator.context import AgentContext

    hostname, clock = os.uname().nodename, console.reporting(Clock())
    return AgentContext.open(options.config, options.cache_dir, hostname=hostname, clock=clock, create=False)


def _status(options: argparse.Namespace) -> int:
    from nodeattest_authenticator.commands import report

    context = _agent(options)
    with context.storage:
        document = report.status(context)
    if options.json:
        console.document(json.dumps(document, indent=2))
    else:
        console.show(*report.to_lines(document))
    return 1 if document["state"] == "none" else 0


def _evidence(options: argparse.Namespace) -> int:
    from nodeattest_authenticator.commands import report
    from nodeattest_authenticator.enrollment import issue

    if options.provider is not None:
        chosen = flags.provider_settings(options)
        with (
            watchdog.running(settings.DEFAULT_TIMEOUT),
            issue.attestor_of(options.provider, chosen) as attestor,
        ):
            document: JsonObject = {"provider": options.provider} | report.fingerprint(attestor)
    else:
        loaded = settings.load(options.config, hostname=os.uname().nodename)
        with watchdog.running(loaded.timeout_seconds):
            document = report.evidence(loaded)
    console.document(json.dumps(document, indent=2))
    return 0


_COMMANDS: Final[Mapping[str, Callable[[argparse.Namespace], int]]] = {
    "credential": _credential,
    "join": _join,
    "adopt": _adopt,
    "refresh": _refresh,
    "serving": _serving,
    "status": _status,
    "evidence": _evidence,
}
