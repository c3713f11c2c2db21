"""The commands that people type: join, serving, status, evidence, and credential in its unusual forms.

argparse only; what was typed becomes one frozen value, and everything else happens elsewhere.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import shutil
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, cast

from nodeattest_authenticator import bootstrap_token, cold, settings
from nodeattest_authenticator.clock import Clock, chance
from nodeattest_authenticator.errors import Failure, Fate, Local
from nodeattest_authenticator.fields import FieldsError
from nodeattest_authenticator.kubeconfig import DEFAULT_EXEC_API_VERSION, EXEC_API_VERSIONS
from nodeattest_authenticator.warm import DEFAULT_CACHE_DIR, DEFAULT_CONFIG
from nodeattest_providers.exchange import JsonObject, JsonValue

if TYPE_CHECKING:
    from nodeattest_authenticator.agent import Agent

__all__ = ["main", "parser"]

DEFAULT_KUBECONFIG: Final = "/etc/kubernetes/kubelet.conf"
_FLAGS: Final = {
    "server ": "--server",
    "certificateAuthority": "--ca-file",
    "nodeName": "--node-name",
    "providerID": "--provider-id",
    "provider.name": "--provider",
    "timeoutSeconds": "--timeout",
    "expirationSeconds": "--expiration-seconds",
    "tlsServerName": "--tls-server-name",
    "serving.dnsNames": "--serving-dns-name",
    "serving.ipAddresses": "--serving-ip-address",
    "serving.file": "--serving-file",
}
"""What was typed for a field of the configuration, by the begin of the message about it."""


def main(argv: Sequence[str]) -> int:
    """Run one command; returns the exit code."""
    options = parser().parse_args(argv[1:])
    try:
        match cast("str", options.command):
            case "join":
                return _join(options, argv[0])
            case "serving":
                return _serving(options, argv[0])
            case "status":
                return _status(options)
            case "evidence":
                return _evidence(options)
            case _:
                return cold.main(
                    [argv[0], "credential", f"--config={options.config}", f"--cache-dir={options.cache_dir}"]
                )
    except Failure as failure:
        return cold.report(failure)


def parser() -> argparse.ArgumentParser:
    """Describe the command line."""
    top = argparse.ArgumentParser(
        prog="kubelet-authenticator",
        description="Gets and renews this node's kubelet certificate by proving what the machine is.",
    )
    commands = top.add_subparsers(dest="command", required=True, metavar="COMMAND")
    places = argparse.ArgumentParser(add_help=False)
    places.add_argument("--config", default=DEFAULT_CONFIG, metavar="FILE", help="configuration (%(default)s)")
    places.add_argument("--cache-dir", default=DEFAULT_CACHE_DIR, metavar="DIR", help="state, 0700 (%(default)s)")
    commands.add_parser("credential", parents=[places], help="answer kubelet (client-go exec plugin); the default")
    _describe_join(commands.add_parser("join", parents=[places], help="join a cluster: first certificate, kubeconfig"))
    serving = commands.add_parser(
        "serving", parents=[places], help="keep the certificate that kubelet serves: get or renew it if need be"
    )
    serving.add_argument("--watch", action="store_true", help="stay, and renew it in time (for a systemd service)")
    status = commands.add_parser("status", parents=[places], help="show the certificate and the last failure")
    status.add_argument("--json", action="store_true", help="one JSON object")
    evidence = commands.add_parser(
        "evidence", parents=[places], help="show what would be sent, and the EK fingerprint to register"
    )
    evidence.add_argument("--provider", help="without a configuration: the fingerprint of this provider's key only")
    _describe_provider_settings(evidence)
    return top


def _describe_join(join: argparse.ArgumentParser) -> None:
    join.add_argument("--server", required=True, metavar="URL", help="the API server, https://host:port")
    join.add_argument("--ca-file", required=True, metavar="FILE", help="the cluster's CA certificates, PEM")
    join.add_argument("--tls-server-name", metavar="NAME", help="name in the server's certificate, if not the host")
    join.add_argument("--token-file", required=True, metavar="FILE", help="bootstrap token; - reads standard input")
    join.add_argument(
        "--provider", required=True, help="how the machine proves what it is, such as tpm, aws or composite"
    )
    join.add_argument("--node-name", metavar="NAME", help="the Node's name (the host name in lower case, as kubelet)")
    source = join.add_mutually_exclusive_group()
    source.add_argument(
        "--provider-id",
        metavar="ID",
        help="the value that kubelet gets with --provider-id; a cloud's provider finds it",
    )
    source.add_argument("--provider-id-file", metavar="FILE", help="a file that holds it")
    source.add_argument("--provider-id-command", metavar="COMMAND", help="a command that prints it (no shell)")
    _describe_provider_settings(join)
    join.add_argument(
        "--minimum-version",
        type=int,
        metavar="N",
        help="oldest version of the provider's evidence that an older controller may get (any that the agent makes)",
    )
    join.add_argument("--expiration-seconds", type=int, metavar="N", help="lifetime to ask for (the signer decides)")
    join.add_argument("--timeout", type=int, default=settings.DEFAULT_TIMEOUT, metavar="SECONDS", help="%(default)s")
    join.add_argument("--serving", action="store_true", help="also get the certificate that kubelet serves")
    join.add_argument(
        "--serving-dns-name", action="append", metavar="NAME", help="a name in it, may be repeated (the node's name)"
    )
    join.add_argument(
        "--serving-ip-address",
        action="append",
        metavar="IP",
        help="an address in it, may be repeated (those from which the API server is reached)",
    )
    join.add_argument("--serving-file", metavar="FILE", help="where it goes (serving.pem in the cache directory)")
    join.add_argument("--kubeconfig", default=DEFAULT_KUBECONFIG, metavar="FILE", help="for kubelet (%(default)s)")
    join.add_argument("--replace-kubeconfig", action="store_true", help="also replace one that join did not write")
    join.add_argument(
        "--exec-api-version",
        choices=EXEC_API_VERSIONS,
        default=DEFAULT_EXEC_API_VERSION,
        help="%(default)s; Kubernetes before 1.22 needs v1beta1",
    )
    join.add_argument("--renew", action="store_true", help="attest anew even if the node's certificate is still valid")
    join.add_argument("--no-wait", action="store_true", help="write the files only; kubelet asks for the certificate")


def _describe_provider_settings(command: argparse.ArgumentParser) -> None:
    command.add_argument("--tcti", metavar="TCTI", help="how to reach the TPM, e.g. device:/dev/tpmrm0")
    command.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="a provider setting (JSON, or a plain string); tpm.tcti is the setting tcti of the part tpm",
    )


def _join(options: argparse.Namespace, program: str) -> int:
    from nodeattest_authenticator import status  # noqa: PLC0415 - cryptography is not for --help
    from nodeattest_authenticator.join import JoinOptions, join  # noqa: PLC0415 - the same

    made = JoinOptions(
        settings=_settings(options),
        token=bootstrap_token.parse(_read(options.token_file)),
        config=os.path.abspath(options.config),  # noqa: PTH100 - kubelet runs elsewhere
        cache_dir=os.path.abspath(options.cache_dir),  # noqa: PTH100 - the same
        kubeconfig=options.kubeconfig,
        exec_api_version=options.exec_api_version,
        command=_command(program),
        wait=not options.no_wait,
        replace_kubeconfig=options.replace_kubeconfig,
        renew=options.renew,
    )
    found = join(made, clock=Clock(), chance=chance, tell=cold.tell)
    until = f"; its certificate lasts until {status.moment(found.credential.not_after)}" if found else ""
    sys.stdout.write(f"node {made.settings.node_name} may start kubelet with {made.kubeconfig}{until}\n")
    if not made.settings.renewable:
        cold.tell("the insecure provider renews nothing: join again before the certificate ends")
    return _serve(_agent(options)) if made.wait and made.settings.serving is not None else 0


def _serving(options: argparse.Namespace, program: str) -> int:
    if options.watch:
        from nodeattest_authenticator.serving import watch  # noqa: PLC0415 - subprocess is not for the other commands

        once = ["serving", "--config", options.config, "--cache-dir", options.cache_dir]
        watch.run(lambda: _agent(options), [_command(program), *once], clock=Clock(), chance=chance, tell=cold.tell)
    from nodeattest_authenticator import watchdog  # noqa: PLC0415 - not for --help

    agent = _agent(options)
    watchdog.start(agent.settings.timeout_seconds)
    try:
        return _serve(agent)
    finally:
        watchdog.stop()


def _serve(agent: Agent) -> int:
    from nodeattest_authenticator import status  # noqa: PLC0415 - cryptography is not for --help
    from nodeattest_authenticator.serving.serve import file_of, serve  # noqa: PLC0415 - the same

    with agent.storage:
        served = serve(agent)
    until, renewal = (status.moment(at) for at in (served.credential.not_after, served.credential.renew_at))
    sys.stdout.write(f"{file_of(agent)} serves {served.names} until {until} and is renewed from {renewal} on\n")
    return 0


def _agent(options: argparse.Namespace) -> Agent:
    from nodeattest_authenticator.agent import Agent  # noqa: PLC0415 - not for --help

    return Agent.open(
        options.config,
        options.cache_dir,
        hostname=os.uname().nodename,
        clock=Clock(),
        chance=chance,
        tell=cold.tell,
        create=False,
    )


def _status(options: argparse.Namespace) -> int:
    from nodeattest_authenticator import status  # noqa: PLC0415 - cryptography is not for --help

    agent = _agent(options)
    with agent.storage:
        document = status.status(agent)
    sys.stdout.write(json.dumps(document, indent=2) + "\n" if options.json else status.to_text(document))
    return 1 if document["state"] == "none" else 0


def _evidence(options: argparse.Namespace) -> int:
    from nodeattest_authenticator import evidence, issue  # noqa: PLC0415 - cryptography is not for --help

    if options.provider is not None:
        with issue.attestor_of(options.provider, _provider_settings(options)) as attestor:
            document: JsonObject = {"provider": options.provider} | evidence.fingerprint(attestor)
    else:
        document = evidence.evidence(settings.load(options.config, hostname=os.uname().nodename))
    sys.stdout.write(json.dumps(document, indent=2) + "\n")
    return 0


def _settings(options: argparse.Namespace) -> settings.Settings:
    """Build the configuration from what was typed, by way of its own parser: one set of rules."""
    provider: JsonObject = {
        "name": options.provider,
        "settings": _provider_settings(options),
        "minimumVersion": options.minimum_version,
    }
    document: JsonObject = {
        "apiVersion": settings.API_VERSION,
        "kind": settings.KIND,
        "server": options.server,
        "certificateAuthority": _read(options.ca_file).decode("utf-8", "replace"),
        "tlsServerName": options.tls_server_name,
        "nodeName": options.node_name,
        "provider": provider,
        "providerID": _provider_id(options),
        "timeoutSeconds": options.timeout,
        "expirationSeconds": options.expiration_seconds,
        "serving": _serving_section(options),
    }
    try:
        return settings.parse(json.dumps(document).encode(), hostname=os.uname().nodename)
    except FieldsError as error:
        flag = next((flag for field, flag in _FLAGS.items() if str(error).startswith(field)), None)
        raise _wrong(f"{flag}: {error}" if flag else str(error)) from None


def _serving_section(options: argparse.Namespace) -> JsonValue:
    values: JsonObject = {
        "dnsNames": options.serving_dns_name,
        "ipAddresses": options.serving_ip_address,
        "file": os.path.abspath(options.serving_file) if options.serving_file else None,  # noqa: PTH100 - as above
    }
    section: JsonObject = {name: value for name, value in values.items() if value is not None}
    return section if section or options.serving else None


def _provider_id(options: argparse.Namespace) -> JsonValue:
    if options.provider_id is not None:
        return {"value": options.provider_id}
    if options.provider_id_file is not None:
        return {"file": os.path.abspath(options.provider_id_file)}  # noqa: PTH100 - kubelet runs elsewhere
    if options.provider_id_command is not None:
        words: list[JsonValue] = [*shlex.split(options.provider_id_command)]
        return {"command": words}
    return None


def _provider_settings(options: argparse.Namespace) -> JsonObject:
    made: JsonObject = {}
    for word in cast("list[str]", options.set):
        name, equals, text = word.partition("=")
        if not name or not equals:
            raise _wrong("--set needs KEY=VALUE")
        try:
            value = cast("JsonValue", json.loads(text))
        except ValueError:
            value = text
        _put(made, name.split("."), value)
    if options.tcti is not None:
        _put(made, ["tpm", "tcti"] if options.provider == "composite" else ["tcti"], options.tcti)
    return made


def _put(settings: JsonObject, path: list[str], value: JsonValue) -> None:
    *parts, last = path
    for part in parts:
        inner = settings.setdefault(part, {})
        if not isinstance(inner, dict):
            raise _wrong(f"--set {'.'.join(path)}: {part} was given a value of its own")
        settings = inner
    settings[last] = value


def _read(path: str) -> bytes:
    try:
        if path == "-":
            return sys.stdin.buffer.read()
        with open(path, "rb") as file:  # noqa: PTH123 - strings throughout, as in storage
            return file.read()
    except OSError as error:
        raise _wrong(f"{path}: {error.strerror}") from None


def _command(program: str) -> str:
    found = shutil.which(program)
    if found is None:
        raise _wrong(f"{program} is not on PATH, so kubelet could not run it")
    return os.path.abspath(found)  # noqa: PTH100 - kubelet runs elsewhere


def _wrong(message: str) -> Failure:
    return Failure(Local.CONFIGURATION_INVALID, message, remedy="see --help", fate=Fate.USAGE)
