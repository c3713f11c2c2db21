"""The flags of ``join``, and their parser."""

from __future__ import annotations

import argparse
import json
import os
from typing import TYPE_CHECKING, Final, cast

from nodeattest_authenticator import console, settings, watchdog
from nodeattest_authenticator.api_client import FIRST_BOOT, retry_until
from nodeattest_authenticator.commands import flags
from nodeattest_authenticator.commands.flags import ClusterSource, StaticCluster, provider_settings, wrong
from nodeattest_authenticator.errors import said
from nodeattest_authenticator.formats.strict_json import FieldsError
from nodeattest_authenticator.settings import Settings
from nodeattest_discovery.node.clock import Clock, Deadline, random_unit
from nodeattest_providers.errors import Denied
from nodeattest_providers.node_interface import JsonObject, JsonValue

if TYPE_CHECKING:
    from nodeattest_authenticator.commands.kubeadm_config import Joining
    from nodeattest_authenticator.state.credential_cache import CacheEntry


DEFAULT_KUBECONFIG: Final = "/etc/kubernetes/kubelet.conf"
_DEFAULT_CA_FILE: Final = "/etc/kubernetes/pki/ca.crt"
"""kubeadm's path; used if a kubelet configuration is written that names it."""
_LONGEST_RETRY: Final = 86400
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
}
"""The flag for a field of the configuration, by the start of the parser's message."""
_SERVING_FLAGS: Final = (
    ("--serving-dns-name", "NAME", "a DNS name in it; may be repeated (the node's name)"),
    (
        "--serving-ip-address",
        "IP",
        "an IP address in it; may be repeated (the addresses by which this machine reaches the API server)",
    ),
)
_FILE_FLAGS: Final = (
    ("--kubelet-config", "write the cluster's KubeletConfiguration to this file"),
    (
        "--kubelet-ca-file",
        f"write the cluster's CA certificates to this file ({_DEFAULT_CA_FILE} with --kubelet-config)",
    ),
)
_NOT_KNOWN_YET: Final[JsonObject] = {
    "server": "https://discovery.invalid",
    "certificateAuthority": "-----BEGIN CERTIFICATE-----\nAA==\n-----END CERTIFICATE-----\n",
}
"""Placeholders for the cluster until join has discovered it (RFC 6761 §6.4)."""


def describe(join: argparse.ArgumentParser) -> None:
    """Add the flags."""
    flags.describe_cluster(join)
    join.add_argument(
        "--node-name", metavar="NAME", help="the Node's name (the host name in lower case, as in kubelet)"
    )
    describe_proof(join)
    join.add_argument(
        "--patience",
        type=int,
        metavar="SECONDS",
        help=f"retry temporary failures for so long (0; {FIRST_BOOT} with --kubeadm-config)",
    )
    join.add_argument(
        "--renew",
        action="store_true",
        help="attest again with the node's certificate, which must be valid; needs no token",
    )
    join.add_argument("--serving", action="store_true", help="also get kubelet's serving certificate")
    for flag, metavar, text in _SERVING_FLAGS:
        join.add_argument(flag, action="append", metavar=metavar, help=text)
    for flag, text in _FILE_FLAGS:
        join.add_argument(flag, metavar="FILE", help=text)
    join.add_argument("--kubeconfig", default=DEFAULT_KUBECONFIG, metavar="FILE", help="for kubelet (%(default)s)")
    join.add_argument("--replace-kubeconfig", action="store_true", help="replace a kubeconfig that join did not write")
    join.add_argument(
        "--replace-kubelet-files", action="store_true", help="replace kubelet's files that join did not write"
    )


def describe_proof(command: argparse.ArgumentParser) -> None:
    """Add the flags for provider and provider ID."""
    command.add_argument("--provider", required=True, help="attestation provider, such as tpm, aws or composite")
    source = command.add_mutually_exclusive_group()
    source.add_argument(
        "--provider-id",
        type=_unquoted,
        metavar="ID",
        help="the Machine's spec.providerID, or a template with {dmi:product_uuid}, {dmi:product_serial}, {hostname} "
        "or {cloud-init:KEY} (found by a cloud's provider; else assigned by the controller)",
    )
    source.add_argument("--provider-id-file", metavar="FILE", help="a file with the provider ID")
    source.add_argument(
        "--provider-id-command", metavar="COMMAND", help="a command that prints the provider ID; run without a shell"
    )
    flags.describe_provider_settings(command)
    command.add_argument(
        "--expiration-seconds", type=int, metavar="N", help="requested lifetime of the certificate (the signer decides)"
    )
    command.add_argument(
        "--timeout",
        type=int,
        default=settings.DEFAULT_TIMEOUT,
        metavar="SECONDS",
        help="to wait for the certificate (%(default)s)",
    )


def _unquoted(text: str) -> str:
    from nodeattest_providers.provider_id_template import unquote

    try:
        return unquote(text)
    except Denied as denied:
        raise argparse.ArgumentTypeError(said(denied)) from None


def run(options: argparse.Namespace, program: str) -> bool:
    """Join. Return whether to get a serving certificate now. Raises ``AgentError``."""
    from nodeattest_authenticator.commands.join import JoinOptions, join

    retry_for = _retry_seconds(options)
    if options.kubeadm_config is None:
        way, token = flags.read_cluster(options)
    else:
        joining = _by_kubeadm(options)
        if joining is None:
            console.show(f"{options.kubeadm_config} is for kubeadm init, which creates the first node: nothing to join")
            return False
        way, token = joining.way, joining.token
    ca_file = options.kubelet_ca_file or (options.kubelet_config and _DEFAULT_CA_FILE)
    made = JoinOptions(
        settings=_settings(options, way),
        way=way,
        token=token,
        config=os.path.abspath(options.config),
        cache_dir=os.path.abspath(options.cache_dir),
        kubeconfig=os.path.abspath(options.kubeconfig),
        command=flags.program_path(program),
        kubelet_ca_file=os.path.abspath(ca_file) if ca_file else None,
        kubelet_config=os.path.abspath(options.kubelet_config) if options.kubelet_config else None,
        replace_kubelet_files=options.replace_kubelet_files,
        replace_kubeconfig=options.replace_kubeconfig,
        renew=options.renew,
    )
    _warn_of_readable_token(options)
    clock = console.reporting(Clock())

    def attempt() -> CacheEntry:
        discovery = 0 if isinstance(way, StaticCluster) else way.limit
        with watchdog.running(discovery + 3 * made.settings.timeout_seconds):  # lock, certificate, kubelet's files
            return join(made, clock)

    credential = retry_until(attempt, Deadline.after(clock, retry_for), random=random_unit)
    until = f"the certificate is valid until {console.moment(credential.credential.not_after)}"
    console.show(f"node {made.settings.node_name} joined: start kubelet with {made.kubeconfig}; {until}")
    if not made.settings.renewable:
        console.log("the insecure provider cannot renew: join again before the certificate expires")
    return made.settings.serving is not None


def _by_kubeadm(options: argparse.Namespace) -> Joining | None:
    """Parse kubeadm's configuration, and set the flags that it stands for. None if it is for kubeadm init."""
    from nodeattest_authenticator.commands import kubeadm_config

    others = flags.typed_cluster(options) + (["--node-name"] if options.node_name is not None else [])
    if others:
        raise wrong(f"--kubeadm-config and {others[0]} exclude each other")
    joining = kubeadm_config.load(options.kubeadm_config, limit=flags.limit_of(options))
    if joining is None:
        return None
    options.node_name = joining.node_name
    if joining.provider_id is not None:
        others = (options.provider_id_file, options.provider_id_command)
        if options.provider_id not in {None, joining.provider_id} or others != (None, None):
            raise wrong("the provider-id in kubeadm's configuration differs from the flags: remove one of them")
        options.provider_id = joining.provider_id
    return joining


def _retry_seconds(options: argparse.Namespace) -> int:
    given = cast("int | None", options.patience)
    if given is None:
        return 0 if options.kubeadm_config is None else FIRST_BOOT
    if not 0 <= given <= _LONGEST_RETRY:
        raise wrong(f"--patience: expected 0 to {_LONGEST_RETRY} seconds, got {given}")
    return given


def _warn_of_readable_token(options: argparse.Namespace) -> None:
    path = options.token_file
    if options.token is not None:
        console.log(
            "--token: every user of this machine can read the command line; write the token to a file with mode 0600"
        )
    elif path not in {None, "-"} and os.stat(path).st_mode & 0o077:
        console.log(f"{path} is readable by other users: chmod 0600 {path}, and delete it when the node has joined")


def _settings(options: argparse.Namespace, way: ClusterSource) -> Settings:
    more: JsonObject = {"nodeName": options.node_name, "serving": _serving_section(options)}
    if not isinstance(way, StaticCluster):
        return settings_of(options, _NOT_KNOWN_YET | more)
    ca_pem = flags.read(way.ca_file).decode("utf-8", "replace")
    cluster: JsonObject = {"server": way.server, "certificateAuthority": ca_pem, "tlsServerName": way.tls_server_name}
    return settings_of(options, cluster | more)


def settings_of(options: argparse.Namespace, more: JsonObject) -> Settings:
    """Build the configuration from flags and ``more`` with the parser of the file, so that the same rules apply."""
    provider: JsonObject = {"name": options.provider, "settings": provider_settings(options)}
    document: JsonObject = {
        "apiVersion": settings.API_VERSION,
        "kind": settings.KIND,
        "provider": provider,
        "providerID": _provider_id_source(options),
        "timeoutSeconds": options.timeout,
        "expirationSeconds": options.expiration_seconds,
    }
    try:
        return settings.parse(json.dumps(document | more).encode(), hostname=os.uname().nodename)
    except FieldsError as error:
        known = {field: flag for field, flag in _FLAGS.items() if hasattr(options, flag[2:].replace("-", "_"))}
        flag = next((flag for field, flag in known.items() if str(error).startswith(field)), None)
        raise wrong(f"{flag}: {error}" if flag else str(error)) from None


def _serving_section(options: argparse.Namespace) -> JsonValue:
    values: JsonObject = {
        "dnsNames": options.serving_dns_name,
        "ipAddresses": options.serving_ip_address,
    }
    section: JsonObject = {name: value for name, value in values.items() if value is not None}
    return section if section or options.serving else None


def _provider_id_source(options: argparse.Namespace) -> JsonValue:
    if options.provider_id is not None:
        return {"value": options.provider_id}
    if options.provider_id_file is not None:
        return {"file": os.path.abspath(options.provider_id_file)}
    if options.provider_id_command is not None:
        import shlex

        words: list[JsonValue] = [*shlex.split(options.provider_id_command)]
        return {"command": words}
    return None
