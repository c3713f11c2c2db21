"""Arguments that several commands share."""

from __future__ import annotations

import argparse
import os
import sys
from typing import cast

from nodeattest_authenticator import console
from nodeattest_authenticator.errors import AgentError, AgentReason, FailureKind
from nodeattest_discovery.node.clock import Clock
from nodeattest_providers.config_fields import parse_setting
from nodeattest_providers.node_interface import JsonObject, JsonValue


def command_clock() -> Clock:
    """Return the clock of a command that a person or a systemd unit runs. It logs each wait."""
    return console.reporting(Clock(), log=console.log)


def describe_provider_settings(command: argparse.ArgumentParser) -> None:
    """Add the flags of a provider's settings."""
    command.add_argument("--tcti", metavar="TCTI", help="how to reach the TPM, e.g. device:/dev/tpmrm0")
    command.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="a provider setting (JSON, or a plain string); tpm.tcti is the setting tcti of the part tpm",
    )


def provider_settings(options: argparse.Namespace) -> JsonObject:
    """Return a provider's settings. Raises ``AgentError``."""
    made: JsonObject = {}
    for word in cast("list[str]", options.set):
        setting = parse_setting(word)
        if setting is None:
            raise wrong("--set: expected KEY=VALUE")
        _put(made, setting[0].split("."), setting[1])
    if options.tcti is not None:
        _put(made, ["tpm", "tcti"] if options.provider == "composite" else ["tcti"], options.tcti)
    return made


def _put(settings: JsonObject, path: list[str], value: JsonValue) -> None:
    *parts, last = path
    for part in parts:
        inner = settings.setdefault(part, {})
        if not isinstance(inner, dict):
            raise wrong(f"--set {'.'.join(path)}: {part} has a value of its own")
        settings = inner
    settings[last] = value


def read(path: str) -> bytes:
    """Read a file, or standard input for ``-``. Raises ``AgentError``."""
    try:
        if path == "-":
            return sys.stdin.buffer.read()
        with open(path, "rb") as file:
            return file.read()
    except OSError as error:
        raise wrong(f"{path}: {error.strerror}") from None


def program_path(program: str) -> str:
    """Return the absolute path of this program, for a kubeconfig. Raises ``AgentError``."""
    if "/" in program and os.access(program, os.F_OK | os.X_OK):
        return absolute(program)
    import shutil

    found = shutil.which(program)
    if found is None:
        raise wrong(f"{program} is not on PATH, so kubelet cannot run it")
    return absolute(found)


def absolute(path: str) -> str:
    """Make a path absolute, because kubelet runs in another directory."""
    return os.path.abspath(path)


def wrong(message: str) -> AgentError:
    """Return the error for an invalid command line."""
    return AgentError(AgentReason.CONFIGURATION_INVALID, message, remedy="see --help", kind=FailureKind.USAGE)
