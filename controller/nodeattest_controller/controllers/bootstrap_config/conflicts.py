"""Finds what contradicts attestation in a user's own bootstrap configuration; nothing is overwritten. Pure.

Our own files are known by their path and replaced. No content, annotation or mark saves a setting from its check.
Out of scope: what commands do when they run.
"""

from __future__ import annotations

import base64
import binascii
import posixpath
import re
from collections.abc import Iterator
from typing import Final

from nodeattest_controller.controllers.bootstrap_config import kubeadmconfig as kubeadm
from nodeattest_controller.model.kubeadm_config import SECRET_FILE
from nodeattest_parsing.objects import text
from nodeattest_parsing.values import JsonObject
from nodeattest_providers.errors import Denied
from nodeattest_providers.identifiers import ANNOTATION_PROVIDER_ID
from nodeattest_providers.provider_id_template import check_template, has_sources, unquote

_OWN: Final = frozenset(
    {kubeadm.DROP_IN, kubeadm.ADOPT_UNIT, kubeadm.ADOPT_SCRIPT, kubeadm.PROVIDER_ID_SCRIPT, SECRET_FILE}
)
_CREDENTIALS: Final = frozenset({kubeadm.KUBELET_CONF, "/etc/kubernetes/bootstrap-kubelet.conf"})
_UNIT_FOLDERS: Final = ("/etc/systemd/system", "/run/systemd/system", "/usr/lib/systemd/system", "/lib/systemd/system")
_UNITS: Final = frozenset(f"{folder}/kubelet.service" for folder in _UNIT_FOLDERS)
_DROP_IN_FOLDERS: Final = frozenset(f"{unit}.d" for unit in _UNITS)
_ENVIRONMENT_FILES: Final = frozenset({"/etc/default/kubelet", "/etc/sysconfig/kubelet"})
"""``KUBELET_EXTRA_ARGS`` of kubeadm's packages, which is last on kubelet's command line."""
_BOOTSTRAPS: Final = re.compile(r"bootstrap-kubeconfig|rotate-certificates(?!=false\b)")
_VARIABLE: Final = "KUBELET_KUBECONFIG_ARGS"
_ROTATION_SET: Final = re.compile(r"""["']?rotateCertificates["']?\s*:\s*["']?true""", re.IGNORECASE)
_SERVING_UNSET: Final = re.compile(r"""["']?serverTLSBootstrap["']?\s*:\s*["']?false""", re.IGNORECASE)
_PHASE: Final = "kubelet-start"
_TEMPLATE: Final = re.compile(r"\{[{%#]|\$\{")
_EXPRESSION: Final = re.compile(r"\{\{[^{}]*\}\}")
"""What cloud-init fills in."""


def find(spec: JsonObject, plan: kubeadm.RenderOptions, roles: tuple[str, ...]) -> Iterator[Denied]:
    """Yield every contradiction; ``roles`` are the configurations to check: join, and init if it may run."""
    for name, value in plan.settings.items():
        if _TEMPLATE.search(f"{name}{value}"):
            yield kubeadm.refusal(
                f"{name} without braces that cloud-init or clusterctl would fill in",
                "a template",
                "give the value itself; only the provider ID may be a template",
            )
    yield from _provider_id(plan)
    for role in roles:
        configuration = kubeadm.section(spec, role)
        kubelet = list(kubeadm.arguments(kubeadm.section(configuration, "nodeRegistration")))
        yield from _provider_id_argument(dict(kubelet).get("provider-id"), plan, role)
        yield from _arguments(kubelet, plan, role)
        if any(
            phase == _PHASE or phase.startswith(f"{_PHASE}/") for phase in kubeadm.words(configuration, "skipPhases")
        ):
            yield kubeadm.refusal(
                f"{role} that runs kubeadm's phase {_PHASE}",
                "skipPhases names it",
                "take it out: it writes kubelet's arguments, and finds its kubeconfig in place",
            )
    for file in kubeadm.objects(spec, "files"):
        yield from _file(file, plan)
    for command in kubeadm.words(spec, "preKubeadmCommands"):
        if "kubelet-authenticator join" in command and not command.endswith(kubeadm.MARK):
            yield kubeadm.refusal(
                "one kubelet-authenticator join, the rendered one",
                "preKubeadmCommands run another",
                "remove it: what is rendered reads kubeadm's configuration by itself",
            )


def _provider_id(plan: kubeadm.RenderOptions) -> Iterator[Denied]:
    """Refuse a provider ID that no machine could use, or for a provider that finds it."""
    if plan.provider in kubeadm.FINDS_PROVIDER_ID and (plan.provider_id or plan.tells_agent):
        yield kubeadm.refusal(
            f"no provider ID for the agent with {plan.provider}, whose metadata service has it",
            "one",
            f"remove the annotation {ANNOTATION_PROVIDER_ID} or the flag; kubelet's own goes into kubeletExtraArgs",
        )
    if plan.provider_id is None:
        return
    filled = _EXPRESSION.sub("x", plan.provider_id)
    try:
        check_template(unquote(filled))
    except Denied as denied:
        yield kubeadm.refusal(f"a provider ID: {denied.expected}", denied.got, denied.remedy)
        return
    if not plan.provider_id.isprintable() or " " in filled:
        yield kubeadm.refusal(
            "a provider ID without white space", ascii(plan.provider_id), "take the white space out of it"
        )
    if filled != plan.provider_id and has_sources(filled):
        yield kubeadm.refusal(
            "a provider ID that either cloud-init or the agent fills in",
            plan.provider_id,
            "write {cloud-init:KEY} in place of {{ KEY }}",
        )


def _provider_id_argument(named: str | None, plan: kubeadm.RenderOptions, role: str) -> Iterator[Denied]:
    if named and has_sources(named):
        yield kubeadm.refusal(
            f"{role} kubeletExtraArgs provider-id without parts that only the agent fills in",
            named,
            f"write it into the annotation {ANNOTATION_PROVIDER_ID} instead",
        )
    if named and plan.tells_agent:
        yield kubeadm.refusal(
            "one source of the provider ID",
            f"{role} kubeletExtraArgs provider-id, and a source for the agent alone",
            "remove one of both: the agent takes kubelet's value",
        )
    # The controller tells the provider ID to a node that joins by a token, not to one that kubeadm init made.
    is_adopted = role == "initConfiguration" and plan.adopts and plan.provider in kubeadm.NEEDS_PROVIDER_ID
    if is_adopted and not (plan.tells_agent or plan.provider_id or named):
        yield kubeadm.refusal(
            f"a provider ID, which {plan.provider} cannot find by itself, for the node that kubeadm init makes",
            f"{role} gives kubelet no provider-id",
            "set kubeletExtraArgs provider-id (a template, where the machines differ), or the annotation "
            f"{ANNOTATION_PROVIDER_ID}",
        )


def _arguments(kubelet: list[tuple[str, str]], plan: kubeadm.RenderOptions, role: str) -> Iterator[Denied]:
    wanted = kubeadm.kubelet_arguments(plan) | {"kubeconfig": kubeadm.KUBELET_CONF}
    serves = plan.serving is kubeadm.ServingOptions.KUBELET
    for name, value in kubelet:
        if name in wanted and not _is_same(name, value, wanted[name]):
            expected, got = repr(wanted[name]), repr(value)
        elif serves and name in {"tls-cert-file", "tls-private-key-file"}:
            expected, got = "none, with serving certificates from the cluster", "one"
        elif serves and "RotateKubeletServerCertificate=false" in value:
            expected, got = "without RotateKubeletServerCertificate=false", "it"
        else:
            continue
        both = name == "provider-id"
        remedy = "remove one of both, so that kubelet and agent get the same" if both else "remove it"
        yield kubeadm.refusal(f"{role} kubeletExtraArgs {name}: {expected}", got, remedy)


def _is_same(name: str, value: str, wanted: str) -> bool:
    """Compare as kubelet does: Go's strconv.ParseBool for truth values."""
    if name.startswith("rotate"):
        return value.lower() in ({"false", "f", "0"} if wanted == "false" else {"true", "t", "1"})
    return value == wanted


def _file(file: JsonObject, plan: kubeadm.RenderOptions) -> Iterator[Denied]:
    path = kubeadm.file_path(file)
    folder, name = posixpath.split(path)
    if path in _OWN:
        return
    if path in _CREDENTIALS:
        yield kubeadm.refusal(
            f"no {path} in files: kubelet-authenticator or kubeadm writes it", "one", "remove it from files"
        )
        return
    content = _content(file)
    if name.startswith("kubeletconfiguration"):  # a patch: flags win over it, but its author meant something else
        if _ROTATION_SET.search(content or ""):
            yield kubeadm.refusal(
                f"{path} without rotateCertificates: true", "it", "remove it: the agent renews the certificate"
            )
        if plan.serving is kubeadm.ServingOptions.KUBELET and _SERVING_UNSET.search(content or ""):
            yield kubeadm.refusal(
                f"{path} without serverTLSBootstrap: false", "it", "remove it, or render with --serving none"
            )
    if not (path in _ENVIRONMENT_FILES or path in _UNITS or folder in _DROP_IN_FOLDERS):
        return
    if content is None:
        yield kubeadm.refusal(
            f"{path} with its content in plain sight, since it decides how kubelet starts",
            "content of a Secret, or compressed",
            "put it into content, or into the machine's image",
        )
    elif any(_undoes(line, path) for line in content.splitlines() if not line.lstrip().startswith(("#", ";"))):
        yield kubeadm.refusal(
            f"{path} that starts kubelet without --bootstrap-kubeconfig and rotation of its own",
            "a line that says otherwise",
            f"take bootstrap-kubeconfig, rotate-certificates and {_VARIABLE} out of it; {kubeadm.DROP_IN} sets them",
        )


def _undoes(line: str, path: str) -> bool:
    """Return whether a line of a file that decides how kubelet starts would undo ours."""
    if path in _ENVIRONMENT_FILES:
        return _VARIABLE in line or _BOOTSTRAPS.search(line) is not None
    folder, name = posixpath.split(path)
    sets_variable = f"{_VARIABLE}=" in line
    if folder in _DROP_IN_FOLDERS and name >= posixpath.basename(kubeadm.DROP_IN) and sets_variable:
        return True
    # In a unit, and in a drop-in before ours, which sets the variable anew, an assignment does nothing.
    is_overridden = line.lstrip().startswith("Environment=") and sets_variable
    return not is_overridden and _BOOTSTRAPS.search(line) is not None


def _content(file: JsonObject) -> str | None:
    """Return a file's text; None where it is not in plain sight."""
    content, encoding = text(file, "content"), text(file, "encoding")
    if "contentFrom" in file or encoding.startswith("gzip"):
        return None
    if encoding != "base64":
        return content
    try:
        return base64.b64decode(content, validate=False).decode("utf-8", "replace")
    except (binascii.Error, ValueError):
        return None
