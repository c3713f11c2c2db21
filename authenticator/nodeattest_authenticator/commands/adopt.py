"""Adopts a node that joined without attestation: its own certificate is replaced by an attested one.

Promises: kubelet's kubeconfig is replaced last, whole, and only when the attested credential works; the old one stays
in the same folder under a name that no other content can take. Killed at any instant it is resumed where it stopped:
the same request, the same backup, the same files. An adopted node is left as it is.
Leaves to others: kubelet's own settings and its restart, which ``what_remains`` names.
"""

from __future__ import annotations

import argparse
import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from nodeattest_authenticator import console, watchdog
from nodeattest_authenticator.certificate import check_validity
from nodeattest_authenticator.commands.cli_args import absolute, command_clock, program_path, read
from nodeattest_authenticator.commands.join_flags import DEFAULT_KUBECONFIG, describe_proof, settings_of
from nodeattest_authenticator.config.settings import Settings, settings_to_json
from nodeattest_authenticator.context import AgentContext
from nodeattest_authenticator.enrollment.issue import attestor_of, issue_and_store
from nodeattest_authenticator.errors import AgentError, AgentReason, FailureKind
from nodeattest_authenticator.formats import kubeconfig
from nodeattest_authenticator.state import failure_backoff, kubelet_files
from nodeattest_authenticator.state.credential_cache import CacheEntry
from nodeattest_authenticator.state.storage import Storage, exclusive
from nodeattest_discovery.node.clock import Clock, Deadline, random_unit
from nodeattest_providers.node_interface import JsonObject

if TYPE_CHECKING:
    from nodeattest_authenticator.commands.existing_kubeconfig import KubeletAccess

_DIGITS: Final = 12
"""Hex digits of the content's hash in the backup's name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AdoptOptions:
    """What was typed and found."""

    settings: Settings
    access: KubeletAccess
    kubeconfig: str
    old_kubeconfig: bytes
    config: str
    cache_dir: str
    command: str
    """Absolute path of kubelet-authenticator, for the kubeconfig."""


def adopt(
    options: AdoptOptions, *, clock: Clock, random: Callable[[], float], log: Callable[[str], None]
) -> CacheEntry:
    """Adopt the node; returns its attested credential. Raises ``AgentError``."""
    settings = options.settings
    if not settings.renewable:
        raise AgentError(
            AgentReason.CONFIGURATION_INVALID,
            "the insecure provider proves nothing, so it cannot tell this node from another that has its certificate",
            remedy="let an operator open the Machine (nodeattest machines adopt --open), then join with that token",
            kind=FailureKind.USAGE,
        )
    _check_old(options, now=clock.now())
    with attestor_of(settings.provider, settings.provider_settings):
        pass  # a wrong setting is found before anything is written
    deadline = Deadline.after(clock, settings.timeout_seconds)
    with Storage(options.cache_dir) as storage, exclusive(storage, deadline):
        if kubelet_files.write_private(options.config, settings_to_json(settings)):
            failure_backoff.forget(storage)
    context = AgentContext.open(options.config, options.cache_dir, hostname="", clock=clock, random=random, log=log)
    with context.storage, exclusive(context.storage, deadline):
        found = context.load_valid_credential() or issue_and_store(context, options.access.credential, deadline)
        _replace(options)
    return found


def backup_of(path: str, data: bytes) -> str:
    """Name the copy of a replaced kubeconfig: by its content, so that it is made once and never overwritten."""
    return f"{path}.before-nodeattest-{hashlib.sha256(data).hexdigest()[:_DIGITS]}"


def what_remains(node_name: str) -> list[str]:
    """Say what kubelet still needs; until then it uses the certificate that it had."""
    return [
        "kubelet still runs with the old certificate, and renews it by itself. To finish, on this machine:",
        "  1. rotateCertificates: false in kubelet's configuration (kubeadm: /var/lib/kubelet/config.yaml; also in",
        "     ConfigMap kube-system/kubelet-config, or kubeadm upgrade node writes it back)",
        "  2. no --bootstrap-kubeconfig among kubelet's flags (kubeadm: KUBELET_KUBECONFIG_ARGS in",
        "     kubelet.service.d/10-kubeadm.conf)",
        "  3. systemctl daemon-reload && systemctl restart kubelet",
        f"then see that node {node_name} is Ready, and remove the backup: its certificate is valid until it ends",
    ]


def _check_old(options: AdoptOptions, *, now: float) -> None:
    credential = options.access.credential
    if now < credential.not_after:
        check_validity(credential.not_before, credential.not_after, now=now, clock_skew=None)
        return
    raise AgentError(
        AgentReason.CERTIFICATE_REFUSED,
        f"the certificate in {options.kubeconfig} has ended, so this node cannot ask by it",
        remedy="let an operator open the Machine (nodeattest machines adopt --open), then join with that token",
    )


def _replace(options: AdoptOptions) -> None:
    kubelet_files.write_private(backup_of(options.kubeconfig, options.old_kubeconfig), options.old_kubeconfig)
    rendered = kubeconfig.render(
        options.settings.cluster,
        command=options.command,
        config=options.config,
        cache_dir=options.cache_dir,
    )
    kubelet_files.write_private(options.kubeconfig, rendered)


def describe(adopt: argparse.ArgumentParser) -> None:
    """Add the flags."""
    describe_proof(adopt)
    adopt.add_argument(
        "--kubeconfig", default=DEFAULT_KUBECONFIG, metavar="FILE", help="kubelet's, which is replaced (%(default)s)"
    )


def run(options: argparse.Namespace, program: str) -> None:
    """Adopt the node; raises ``AgentError``."""
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
        settings=settings_of(options, cluster),
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
