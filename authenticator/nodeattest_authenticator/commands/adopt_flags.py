"""The command line of ``adopt``: its flags, kubelet's kubeconfig, and one frozen value out of both."""

from __future__ import annotations

import argparse
import json
import os
from typing import Final

from nodeattest_authenticator import console, watchdog
from nodeattest_authenticator.commands.cli_args import (
    absolute,
    command_clock,
    program_path,
    provider_settings,
    read,
    wrong,
)
from nodeattest_authenticator.commands.join_flags import describe_proof, provider_id_source
from nodeattest_authenticator.config import settings
from nodeattest_authenticator.config.settings import Settings
from nodeattest_authenticator.formats import kubeconfig
from nodeattest_authenticator.formats.strict_json import FieldsError
from nodeattest_discovery.node.clock import random_unit
from nodeattest_providers.node_interface import JsonObject

__all__ = ["describe", "run"]

_DEFAULT_KUBECONFIG: Final = "/etc/kubernetes/kubelet.conf"


def describe(adopt: argparse.ArgumentParser) -> None:
    """Add the flags."""
    adopt.add_argument(
        "--provider", required=True, help="how the machine proves what it is, such as tpm, aws or composite"
    )
    describe_proof(adopt)
    adopt.add_argument(
        "--kubeconfig", default=_DEFAULT_KUBECONFIG, metavar="FILE", help="kubelet's, which is replaced (%(default)s)"
    )


def run(options: argparse.Namespace, program: str) -> None:
    """Adopt the node; raises ``AgentError``."""
    from nodeattest_authenticator.commands.adopt import (
        AdoptOptions,
        adopt,
        backup_of,
        what_remains,
    )
    from nodeattest_authenticator.commands.existing_kubeconfig import read_access

    path = absolute(options.kubeconfig)
    old = read(path)
    if kubeconfig.is_ours(old):
        console.show(f"{path} is kubelet-authenticator's already: this node has joined attested or was adopted")
        return
    access = read_access(path, old, read)
    cluster: JsonObject = {
        "server": access.server,
        "certificateAuthority": access.ca_pem,
        "tlsServerName": access.tls_server_name,
        "nodeName": access.node_name,
    }
    made = AdoptOptions(
        settings=_settings(options, cluster),
        access=access,
        kubeconfig=path,
        old_kubeconfig=old,
        config=absolute(options.config),
        cache_dir=absolute(options.cache_dir),
        command=program_path(program),
    )
    with watchdog.running(made.settings.timeout_seconds):
        credential = adopt(made, clock=command_clock(), random=random_unit, log=console.log)
    until = console.moment(credential.credential.not_after)
    said = f"node {made.settings.node_name} is adopted: {path} runs kubelet-authenticator, certificate until {until}"
    remains = what_remains(made.settings.node_name)
    console.show(said, f"the old one is {backup_of(path, old)}", *remains)


def _settings(options: argparse.Namespace, cluster: JsonObject) -> Settings:
    """Build the configuration by way of its own parser: one set of rules."""
    provider: JsonObject = {"name": options.provider, "settings": provider_settings(options)}
    document: JsonObject = {
        "apiVersion": settings.API_VERSION,
        "kind": settings.KIND,
        "provider": provider,
        "providerID": provider_id_source(options),
        "timeoutSeconds": options.timeout,
        "expirationSeconds": options.expiration_seconds,
    }
    try:
        return settings.parse(json.dumps(document | cluster).encode(), hostname=os.uname().nodename)
    except FieldsError as error:
        raise wrong(str(error)) from None
