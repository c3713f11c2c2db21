"""The files, commands and kubelet arguments of an attested node; the same for cloud-init and Ignition.

Facts this rests on, each with its source:

* kubeadm waits for ``/etc/kubernetes/kubelet.conf`` and uses whatever kubeconfig it finds there, so no phase is skipped
  (kubernetes cmd/kubeadm/app/cmd/phases/join/kubelet.go ``waitForTLSBootstrappedClient``, and
  ``kubelet-wait-bootstrap`` of control planes in local mode).
* Its preflight refuses that very file, and no other one of ours (app/preflight/checks.go ``addCommonChecks``).
* kubeadm's drop-in takes ``--bootstrap-kubeconfig`` from ``KUBELET_KUBECONFIG_ARGS``; systemd merges drop-ins of all
  directories by name, and a later ``Environment=`` wins (kubernetes/release cmd/krel/templates; systemd.unit(5)).
* kubelet's last flag wins, and flags win over its configuration file (cmd/kubelet/app/server.go
  ``kubeletConfigFlagPrecedence``). ``$KUBELET_KUBEADM_ARGS`` comes after ``$KUBELET_KUBECONFIG_ARGS``. So arguments do
  what a patch of KubeletConfiguration would, and leave the directory of patches to users.
* cloud-init runs commands as one ``sh`` script that continues after a failure (cloud-init cc_runcmd, util.shellify),
  hence ``exit 1``: kubeadm without a credential would wait five minutes and blame kubelet.
* Where Cluster API puts kubeadm's configuration: cluster-api bootstrap/kubeadm/internal/cloudinit and ignition/clc.

No text here holds ``$`` or ``{{``: clusterctl substitutes the one, cloud-init's jinja the other.
"""

from __future__ import annotations

import json
import posixpath
import shlex
from typing import Final

from nodeattest_controller.controllers.bootstrap_config.kubeadmconfig.fields import (
    NEEDS_PROVIDER_ID,
    RenderOptions,
    ServingOptions,
)
from nodeattest_controller.model.challenge_secret import SECRET_FILE, SECRET_KEY
from nodeattest_parsing.objects import text
from nodeattest_parsing.values import JsonObject

KUBELET_CONF: Final = "/etc/kubernetes/kubelet.conf"
IGNORED_PREFLIGHT: Final = "FileAvailable--etc-kubernetes-kubelet.conf"
MARK: Final = "# nodeattest"
"""Ends a command of ours, so that another rendering replaces it; a comment to sh and bash."""
DROP_IN: Final = "/etc/systemd/system/kubelet.service.d/90-nodeattest.conf"
_ADOPT_SERVICE: Final = "nodeattest-adopt.service"
ADOPT_UNIT: Final = f"/etc/systemd/system/{_ADOPT_SERVICE}"
ADOPT_SCRIPT: Final = "/etc/kubernetes/nodeattest-adopt.sh"
PROVIDER_ID_SCRIPT: Final = "/etc/kubernetes/nodeattest-provider-id.sh"
_JOIN_CONFIG: Final = {"cloud-config": "/run/kubeadm/kubeadm-join-config.yaml", "ignition": "/etc/kubeadm.yml"}
_INIT_CONFIG: Final = "/run/kubeadm/kubeadm.yaml"
"""cloud-init's; with Ignition both are one file, and the agent sees by its kinds what kubeadm is going to do."""
_DROP_IN_TEXT: Final = f"""\
# Written by nodeattest: kubelet gets its credential from kubelet-authenticator and bootstraps none by itself.
[Service]
Environment="KUBELET_KUBECONFIG_ARGS=--kubeconfig={KUBELET_CONF}"
"""
_PROVIDER_ID_TEXT: Final = r"""# Written by nodeattest: tells what kubeadm told kubelet, without the quotes, as systemd.
exec sed -n "/--provider-id=/{s/^.*--provider-id=\([^ ]*\).*/\1/;s/['\\\"]//g;p;}" \
  /var/lib/kubelet/kubeadm-flags.env
"""
# Not oneshot: systemd before 244 restarts none. The management controller reaches the cluster minutes later at best,
# so nothing waits for this unit, and it never gives up.
_ADOPT_UNIT_TEXT: Final = f"""\
# Written by nodeattest: takes over the node that kubeadm init made, as soon as the cluster's controller answers.
[Unit]
Description=Attest this node and replace its kubelet credential
Wants=network-online.target
After=network-online.target kubelet.service
StartLimitIntervalSec=0
[Service]
ExecStart=/bin/sh {ADOPT_SCRIPT}
Restart=on-failure
RestartSec=30
[Install]
WantedBy=multi-user.target
"""


def file_path(file: JsonObject) -> str:
    """Return the path that an entry of ``files`` is written to."""
    return posixpath.normpath("/" + text(file, "path").lstrip("/"))


def kubelet_arguments(plan: RenderOptions) -> dict[str, str]:
    """Return kubelet's arguments, by their flags."""
    arguments = {"bootstrap-kubeconfig": "", "rotate-certificates": "false"}
    if plan.serving is ServingOptions.KUBELET:
        arguments["rotate-server-certificates"] = "true"
    if plan.provider_id is not None and plan.agent_provider_id is None:
        arguments["provider-id"] = plan.provider_id
    return arguments


def join_files(plan: RenderOptions) -> list[JsonObject]:
    """Return the files of each node; one from a Secret is root's alone."""
    drop_in = _file(DROP_IN, _DROP_IN_TEXT)
    if not plan.challenge_secret:
        return [drop_in]
    secret: JsonObject = {"secret": {"name": plan.challenge_secret, "key": SECRET_KEY}}
    return [
        drop_in,
        {"path": SECRET_FILE, "owner": "root:root", "permissions": "0600", "contentFrom": secret},
    ]


def agent_join_command(plan: RenderOptions, *, file_format: str, may_init: bool) -> str:
    """Return the command that comes last before kubeadm."""
    words = [plan.program, "join", "--kubeadm-config", _JOIN_CONFIG[file_format], *_agent_words(plan)]
    guard = f"[ -e {_INIT_CONFIG} ] || " if may_init and file_format == "cloud-config" else ""
    return f"{guard}{shlex.join(words)} || exit 1 {MARK}"


def adopt_files(plan: RenderOptions) -> list[JsonObject]:
    """Return what a node gets besides that ``kubeadm init`` may make.

    What is here depends on the plan alone, so that init and join of one control plane are rendered alike. kubelet is
    told its provider ID in kubeadm's file of flags, with every template filled in, and the agent takes it from there.
    """
    words = [plan.program, "adopt", *_agent_words(plan)]
    asks_kubelet = plan.provider in NEEDS_PROVIDER_ID and not plan.tells_agent
    if asks_kubelet:
        words += ["--provider-id-command", f"/bin/sh {PROVIDER_ID_SCRIPT}"]
    # A node that joined is adopted already. kubelet reads its kubeconfig when it starts, and only then.
    script = f"""\
# Written by nodeattest. Killed at any point, it is run again from the start.
set -e
{shlex.join(words)}
systemctl restart kubelet.service
systemctl disable {_ADOPT_SERVICE}
"""
    files = [_file(ADOPT_UNIT, _ADOPT_UNIT_TEXT), _file(ADOPT_SCRIPT, script)]
    return [*files, _file(PROVIDER_ID_SCRIPT, _PROVIDER_ID_TEXT)] if asks_kubelet else files


def adopt_command() -> str:
    """Return the command that comes after kubeadm; it returns at once."""
    return f"systemctl enable --now --no-block {_ADOPT_SERVICE} {MARK}"


def _agent_words(plan: RenderOptions) -> list[str]:
    """Tell the agent how it attests."""
    words = ["--provider", str(plan.provider)]
    for name in sorted(plan.settings):
        words += ["--set", f"{name}={json.dumps(plan.settings[name], separators=(',', ':'), sort_keys=True)}"]
    sources = {
        "--provider-id": plan.agent_provider_id,
        "--provider-id-file": plan.provider_id_file,
        "--provider-id-command": plan.provider_id_command,
    }
    for flag, value in sources.items():
        words += [flag, value] if value is not None else []
    return words


def _file(path: str, content: str) -> JsonObject:
    return {"path": path, "owner": "root:root", "permissions": "0644", "content": content}
