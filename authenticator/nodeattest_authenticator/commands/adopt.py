"""Adopts a node that joined without attestation: replaces its client certificate by an attested one.

kubelet's kubeconfig is replaced last, atomically, after the attested credential is stored; its backup stays in the same
folder under a name derived from its content. An interrupted adoption continues with the same request and files.
Out of scope: kubelet's own settings and its restart, which ``_REMAINING_STEPS`` lists.
"""

from __future__ import annotations

import argparse
import hashlib
from typing import TYPE_CHECKING, Final

from nodeattest_authenticator import console, watchdog
from nodeattest_authenticator.certificate import check_validity
from nodeattest_authenticator.commands.cli_args import absolute, command_clock, program_path, read
from nodeattest_authenticator.commands.join_flags import settings_of
from nodeattest_authenticator.config.settings import Settings, settings_to_json
from nodeattest_authenticator.context import AgentContext
from nodeattest_authenticator.enrollment.issue import attestor_of, issue_and_store
from nodeattest_authenticator.errors import AgentError, AgentReason, FailureKind
from nodeattest_authenticator.formats import kubeconfig
from nodeattest_authenticator.state import failure_backoff, kubelet_files
from nodeattest_authenticator.state.credential_cache import CachedCredential
from nodeattest_authenticator.state.storage import Storage, exclusive
from nodeattest_discovery.node.clock import Clock, Deadline, random_unit
from nodeattest_providers.node_interface import JsonObject

if TYPE_CHECKING:
    from nodeattest_authenticator.commands.existing_kubeconfig import KubeletAccess

_DIGITS: Final = 12
"""Hex digits of the content's hash in the backup's name."""
_REMAINING_STEPS: Final = (
    "kubelet still runs with the old certificate, and renews it by itself. To finish, on this machine:",
    "  1. rotateCertificates: false in kubelet's configuration (kubeadm: /var/lib/kubelet/config.yaml; also in",
    "     ConfigMap kube-system/kubelet-config, or kubeadm upgrade node writes it back)",
    "  2. no --bootstrap-kubeconfig among kubelet's flags (kubeadm: KUBELET_KUBECONFIG_ARGS in",
    "     kubelet.service.d/10-kubeadm.conf)",
    "  3. systemctl daemon-reload && systemctl restart kubelet",
)


def run(options: argparse.Namespace, program: str) -> None:
    """Adopt the node. Raises ``AgentError``."""
    from nodeattest_authenticator.commands.existing_kubeconfig import read_access

    path = absolute(options.kubeconfig)
    old = read(path)
    if kubeconfig.is_ours(old):
        console.show(f"{path} already runs kubelet-authenticator: this node joined with attestation or was adopted")
        return
    access = read_access(path, old, read)
    settings, clock = _settings(options, access), command_clock()
    _check_not_expired(path, access.credential, now=clock.now())
    config, cache_dir = absolute(options.config), absolute(options.cache_dir)
    rendered = kubeconfig.render(settings.cluster, command=program_path(program), config=config, cache_dir=cache_dir)
    backup = f"{path}.before-nodeattest-{hashlib.sha256(old).hexdigest()[:_DIGITS]}"
    with watchdog.running(settings.timeout_seconds):
        context, deadline = _prepared(settings, config, cache_dir, clock)
        with context.storage, exclusive(context.storage, deadline):
            found = context.load_valid_credential() or issue_and_store(context, access.credential, deadline)
            kubelet_files.write_private(backup, old)
            kubelet_files.write_private(path, rendered)
    until, node = console.moment(found.credential.not_after), settings.node_name
    console.show(
        f"node {node} is adopted: {path} runs kubelet-authenticator, certificate until {until}",
        f"the old one is {backup}",
        *_REMAINING_STEPS,
        f"then see that node {node} is Ready, and remove the backup: its certificate is valid until it expires",
    )


def _settings(options: argparse.Namespace, access: KubeletAccess) -> Settings:
    cluster: JsonObject = {
        "server": access.server,
        "certificateAuthority": access.ca_pem,
        "tlsServerName": access.tls_server_name,
        "nodeName": access.node_name,
    }
    settings = settings_of(options, cluster)
    if settings.renewable:
        return settings
    raise AgentError(
        AgentReason.CONFIGURATION_INVALID,
        "the insecure provider cannot renew a certificate",
        remedy="ask an operator to open the Machine (nodeattest machines adopt --open), then join with that token",
        kind=FailureKind.USAGE,
    )


def _check_not_expired(path: str, credential: CachedCredential, *, now: float) -> None:
    if now < credential.not_after:
        check_validity(credential.not_before, credential.not_after, now=now, clock_skew=None)
        return
    raise AgentError(
        AgentReason.CERTIFICATE_REFUSED,
        f"the certificate in {path} has expired",
        remedy="ask an operator to open the Machine (nodeattest machines adopt --open), then join with that token",
    )


def _prepared(settings: Settings, config: str, cache_dir: str, clock: Clock) -> tuple[AgentContext, Deadline]:
    """Write the configuration and open it."""
    with attestor_of(settings.provider, settings.provider_settings):
        pass  # find invalid settings before anything is written
    deadline = Deadline.after(clock, settings.timeout_seconds)
    with Storage(cache_dir) as storage, exclusive(storage, deadline):
        if kubelet_files.write_private(config, settings_to_json(settings)):
            failure_backoff.forget(storage)
    context = AgentContext.open(config, cache_dir, hostname="", clock=clock, random=random_unit, log=console.log)
    return context, deadline
