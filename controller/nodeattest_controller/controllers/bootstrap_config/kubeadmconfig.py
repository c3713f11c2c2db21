"""KubeadmConfigSpecs: where they are in the four kinds that hold one, and what an attested node needs in them. Pure.

A value of another type than its CRD allows is refused by its path. Our texts hold neither ``$``, which clusterctl
substitutes, nor ``{{``, which cloud-init substitutes. They rest on these facts:

* kubeadm uses the kubeconfig that it finds (join/kubelet.go ``waitForTLSBootstrappedClient``), and its preflight
  refuses no other file of ours (app/preflight/checks.go).
* systemd merges drop-ins of all directories by name, and a later ``Environment=`` wins (systemd.unit(5)).
* kubelet's last flag wins, and flags win over its configuration file (``kubeletConfigFlagPrecedence``).
* cloud-init runs commands as one ``sh`` script that continues after a failure, hence ``exit 1``.
* kubeletExtraArgs is a map in v1beta1, a list of name and value in v1beta2.
"""

from __future__ import annotations

import json
import posixpath
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from nodeattest_controller.model.kubeadm_config import SECRET_FILE, SECRET_KEY
from nodeattest_controller.model.machine_view import CONTROL_PLANE_LABEL
from nodeattest_parsing.objects import text
from nodeattest_parsing.values import IntegerJsonValue, JsonObject, JsonValue
from nodeattest_providers.errors import Denied, Reason
from nodeattest_providers.identifiers import ProviderName
from nodeattest_providers.provider_id_template import has_sources
from nodeattest_providers.registry import BUILT_IN

_BOOTSTRAP: Final = "bootstrap.cluster.x-k8s.io"
_TEMPLATE: Final = "KubeadmConfigTemplate"
_CONTROL_PLANE: Final = "controlplane.cluster.x-k8s.io"
_PATHS: Final[Mapping[tuple[str, str], tuple[str, ...]]] = {
    (_BOOTSTRAP, "KubeadmConfig"): ("spec",),
    (_BOOTSTRAP, _TEMPLATE): ("spec", "template", "spec"),
    (_CONTROL_PLANE, "KubeadmControlPlane"): ("spec", "kubeadmConfigSpec"),
    (_CONTROL_PLANE, "KubeadmControlPlaneTemplate"): ("spec", "template", "spec", "kubeadmConfigSpec"),
}
_VERSIONS: Final = ("v1beta1", "v1beta2")
_CLONED_FROM: Final = "cluster.x-k8s.io/cloned-from-groupkind"
"""On a clone of a template (cluster-api controllers/external/util.go)."""
LIMITS: Final = {
    "files": 200,
    "preKubeadmCommands": 1000,
    "postKubeadmCommands": 1000,
    "kubeletExtraArgs": 100,
    "ignorePreflightErrors": 50,
}
"""maxItems of the CRDs."""
NEEDS_PROVIDER_ID: Final = frozenset(name for name, row in BUILT_IN.items() if not row.knows_provider_id)
"""Providers whose attestor does not find the machine's provider ID; third parties' attestors may."""
FINDS_PROVIDER_ID: Final = BUILT_IN.keys() - NEEDS_PROVIDER_ID - {"composite"}
"""Providers whose attestor always finds it; a composite's does if one of its parts does."""


class ServingOptions(StrEnum):
    """Where kubelet's serving certificate comes from."""

    KUBELET = "kubelet"
    """kubelet asks the in-tree signer (``serverTLSBootstrap``), and the policy's ``serving.kubelet`` decides."""
    NONE = "none"
    """Left to the user: self-signed, or files."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RenderOptions:
    """What to render into a bootstrap configuration."""

    provider: ProviderName
    settings: Mapping[str, IntegerJsonValue] = field(default_factory=dict[str, IntegerJsonValue])
    """The provider's settings on the node (``--set``)."""
    provider_id: str | None = None
    """For kubelet and, by kubeadm's configuration, for the agent; may hold cloud-init's templates.

    With sources that the machine fills in, such as ``{dmi:product_uuid}``, for the agent only.
    """
    provider_id_file: str | None = None
    provider_id_command: str | None = None
    serving: ServingOptions = ServingOptions.KUBELET
    challenge_secret: str = ""
    """The Secret with the machine's secret for ``challenge``; empty: none."""

    @property
    def agent_provider_id(self) -> str | None:
        """The provider ID that the agent alone can read; kubelet would take the braces as they are."""
        return self.provider_id if self.provider_id is not None and has_sources(self.provider_id) else None

    @property
    def tells_agent(self) -> bool:
        """Whether the agent has another source than kubelet's argument."""
        return bool(self.agent_provider_id or self.provider_id_file or self.provider_id_command)

    @property
    def adopts(self) -> bool:
        """Whether the agent takes over the node of ``kubeadm init``; ``insecure`` cannot."""
        return self.provider != "insecure"


class RenderingRefused(Denied):
    """A configuration that contradicts the rendering, with every reason."""

    def __init__(self, refusals: Sequence[Denied]) -> None:
        super().__init__(
            Reason.BOOTSTRAP_CONFIG_REFUSED,
            expected="; ".join(each.expected for each in refusals),
            got="; ".join(each.got for each in refusals),
            remedy="; ".join(each.remedy for each in refusals),
        )
        self.refusals = tuple(refusals)


def refusal(expected: str, got: str, remedy: str) -> Denied:
    return Denied(Reason.BOOTSTRAP_CONFIG_REFUSED, expected=expected, got=got, remedy=remedy)


def is_rendered_kind(document: JsonObject) -> bool:
    """Return whether an object is of one of the four kinds, in any version."""
    return _group_kind(document) in _PATHS


def spec_path(document: JsonObject) -> tuple[str, ...]:
    """Return where the KubeadmConfigSpec is; raises ``RenderingRefused``."""
    path = _PATHS.get(_group_kind(document))
    if path is None or text(document, "apiVersion").rpartition("/")[2] not in _VERSIONS:
        kinds = ", ".join(kind for _, kind in _PATHS)
        got = f"{text(document, 'kind') or 'no kind'} of {text(document, 'apiVersion') or 'no apiVersion'}"
        remedy = "render the objects that hold a kubeadm configuration, in a version that Cluster API serves"
        raise RenderingRefused([refusal(f"{kinds} of {' or '.join(_VERSIONS)}", got, remedy)])
    return path


def is_control_plane(document: JsonObject, spec: JsonObject) -> bool:
    """Return whether ``kubeadm init`` may run with it, or with the control plane that it was made of.

    A joining KubeadmConfig keeps only the label of its control plane. It must be rendered as the control plane was, or
    Cluster API replaces the machine (controlplane/kubeadm/internal/filters.go). A template is a worker's, even with a
    clusterConfiguration, which Cluster API ignores there.
    """
    metadata = section(document, "metadata")
    group, kind = _group_kind(document)
    cloned_from = section(metadata, "annotations").get(_CLONED_FROM)
    is_template = kind == _TEMPLATE or cloned_from == f"{_TEMPLATE}.{_BOOTSTRAP}"
    return (
        group == _CONTROL_PLANE
        or CONTROL_PLANE_LABEL in section(metadata, "labels")
        or "initConfiguration" in spec
        or ("clusterConfiguration" in spec and not is_template)
        or "controlPlane" in section(spec, "joinConfiguration")
    )


def section(parent: JsonObject, name: str) -> JsonObject:
    """Return the object of that name; absent or null: an empty one. Raises ``RenderingRefused``."""
    value = parent.get(name)
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise _wrong_type(name, "an object", value)
    return value


def objects(parent: JsonObject, name: str) -> list[JsonObject]:
    """Return the list of objects of that name; raises ``RenderingRefused``."""
    found: list[JsonObject] = []
    for entry in _list(parent, name):
        if not isinstance(entry, dict):
            raise _wrong_type(name, "a list of objects", entry)
        found.append(entry)
    return found


def words(parent: JsonObject, name: str) -> list[str]:
    """Return the list of texts of that name; raises ``RenderingRefused``."""
    found: list[str] = []
    for entry in _list(parent, name):
        if not isinstance(entry, str):
            raise _wrong_type(name, "a list of texts", entry)
        found.append(entry)
    return found


def arguments(registration: JsonObject) -> Iterator[tuple[str, str]]:
    """Yield kubelet's arguments in either shape, without leading dashes; raises ``RenderingRefused``."""
    extra = registration.get("kubeletExtraArgs")
    if isinstance(extra, dict):
        pairs: list[tuple[JsonValue, JsonValue]] = list(extra.items())
    else:
        pairs = [(entry.get("name"), entry.get("value", "")) for entry in objects(registration, "kubeletExtraArgs")]
    for name, value in pairs:
        if not isinstance(name, str) or not isinstance(value, str):
            raise _wrong_type("kubeletExtraArgs", "names and values that are texts", value)
        yield name.lstrip("-"), value


def set_argument(registration: JsonObject, version: str, name: str, value: str) -> None:
    """Add an argument of kubelet, unless it is there."""
    if any(known == name for known, _ in arguments(registration)):
        return
    extra = registration.get("kubeletExtraArgs")
    if extra is None:
        extra = registration["kubeletExtraArgs"] = {} if version == "v1beta1" else []
    if isinstance(extra, dict):
        extra[name] = value
    elif isinstance(extra, list):
        extra.append({"name": name, "value": value})


def _list(parent: JsonObject, name: str) -> list[JsonValue]:
    value = parent.get(name)
    if value is None:
        return []
    if not isinstance(value, list):
        raise _wrong_type(name, "a list", value)
    return value


def _group_kind(document: JsonObject) -> tuple[str, str]:
    return text(document, "apiVersion").rpartition("/")[0], text(document, "kind")


def _wrong_type(name: str, expected: str, value: JsonValue) -> RenderingRefused:
    got = f"{type(value).__name__} there"
    return RenderingRefused([refusal(f"{name}: {expected}", got, "correct it; its CRD would refuse it, too")])


_AGENT: Final = "kubelet-authenticator"
KUBELET_CONF: Final = "/etc/kubernetes/kubelet.conf"
IGNORED_PREFLIGHT: Final = "FileAvailable--etc-kubernetes-kubelet.conf"
MARK: Final = "# nodeattest"
"""Ends a command of ours, so that another rendering replaces it; a comment to sh and bash."""
DROP_IN: Final = "/etc/systemd/system/kubelet.service.d/90-nodeattest.conf"
_ADOPT_SERVICE: Final = "nodeattest-adopt.service"
ADOPT_COMMAND: Final = f"systemctl enable --now --no-block {_ADOPT_SERVICE} {MARK}"
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
    """Return the normalized path of an entry of ``files``."""
    return posixpath.normpath("/" + text(file, "path").lstrip("/"))


def kubelet_arguments(plan: RenderOptions) -> dict[str, str]:
    arguments = {"bootstrap-kubeconfig": "", "rotate-certificates": "false"}
    if plan.serving is ServingOptions.KUBELET:
        arguments["rotate-server-certificates"] = "true"
    if plan.provider_id is not None and plan.agent_provider_id is None:
        arguments["provider-id"] = plan.provider_id
    return arguments


def join_files(plan: RenderOptions) -> list[JsonObject]:
    drop_in = _file(DROP_IN, _DROP_IN_TEXT)
    if not plan.challenge_secret:
        return [drop_in]
    secret: JsonObject = {"secret": {"name": plan.challenge_secret, "key": SECRET_KEY}}
    return [
        drop_in,
        {"path": SECRET_FILE, "owner": "root:root", "permissions": "0600", "contentFrom": secret},
    ]


def agent_join_command(plan: RenderOptions, *, file_format: str, may_init: bool) -> str:
    """Return the last command before kubeadm."""
    words = [_AGENT, "join", "--kubeadm-config", _JOIN_CONFIG[file_format], *_agent_words(plan)]
    guard = f"[ -e {_INIT_CONFIG} ] || " if may_init and file_format == "cloud-config" else ""
    return f"{guard}{shlex.join(words)} || exit 1 {MARK}"


def adopt_files(plan: RenderOptions) -> list[JsonObject]:
    """Return the further files of a node that ``kubeadm init`` may make.

    They depend on the plan alone, so that init and join of one control plane are rendered alike. The agent takes
    kubelet's provider ID from kubeadm's file of flags, where every template is filled in.
    """
    words = [_AGENT, "adopt", *_agent_words(plan)]
    asks_kubelet = plan.provider in NEEDS_PROVIDER_ID and not plan.tells_agent
    if asks_kubelet:
        words += ["--provider-id-command", f"/bin/sh {PROVIDER_ID_SCRIPT}"]
    # kubelet reads its kubeconfig when it starts, and only then.
    script = f"""\
# Written by nodeattest. Killed at any point, it is run again from the start.
set -e
{shlex.join(words)}
systemctl restart kubelet.service
systemctl disable {_ADOPT_SERVICE}
"""
    files = [_file(ADOPT_UNIT, _ADOPT_UNIT_TEXT), _file(ADOPT_SCRIPT, script)]
    return [*files, _file(PROVIDER_ID_SCRIPT, _PROVIDER_ID_TEXT)] if asks_kubelet else files


def _agent_words(plan: RenderOptions) -> list[str]:
    """Return the agent's options: provider, settings and provider ID."""
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
