"""The controller as a library: an infrastructure provider runs it in its own process, with signers of its own.

``run`` touches no signals and no logs, unless the caller uses ``serve`` and ``configure_logs``. A signer that is handed
in needs no entry point, is never closed here, and cannot replace a provider of the catalogue.
"""

from __future__ import annotations

import socket
import sys
import uuid
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Final

from nodeattest_controller import build, configfile, logs
from nodeattest_controller.main import serve
from nodeattest_controller.settings import Settings
from nodeattest_providers.identifiers import ProviderName
from nodeattest_providers.verifier_interface import ClusterAPISigner
from nodeattest_serving.bounded_server import SettingsError

__all__ = ["ClusterAPISigner", "Settings", "SettingsError", "configure_logs", "read_settings", "run", "serve"]

_NO_SETTINGS: Final[Mapping[str, object]] = MappingProxyType({})


def read_settings(path: Path | None = None, flags: Mapping[str, object] = _NO_SETTINGS) -> Settings:
    """Read the configuration file of ``node-attestation-controller``; ``flags`` beat it, by the names of ``Settings``.

    Raises ``SettingsError``, whose message is one line for the operator.
    """
    return configfile.load(path, flags, identity=f"{socket.gethostname()}_{uuid.uuid4()}")


def configure_logs(settings: Settings) -> None:
    """Log to standard error as the settings say, for the whole process."""
    logs.configure(level=settings.log_level, log_format=settings.log_format, stream=sys.stderr)


async def run(settings: Settings, environment: Mapping[str, str], *, signers: Mapping[str, ClusterAPISigner]) -> int:
    """Run the controller until cancelled; return 0, or 1 when this process may not act any more.

    ``environment`` says where a pod's API server is. ``signers`` are the caller's providers by name. Raises
    ``SettingsError`` for a signer that cannot be used and for settings that a provider refuses.
    """
    own = {ProviderName(name): signer for name, signer in signers.items()}
    configfile.check_signers(own, settings.platforms)
    configfile.check_platforms(settings.platforms, "settings")
    return await build.run(settings, environment, signers=own)
