"""Render a bootstrap configuration, so that the machines made of it join attested. Pure.

``render`` twice is ``render`` once; the user's own settings stay, in their order; every contradiction is named. A
KubeadmConfig that Cluster API makes of a rendered KubeadmControlPlane is rendered already: rendering it changes
nothing, so its control plane never takes its machines for outdated.
"""

from __future__ import annotations

import copy
from typing import Final

from nodeattest_controller.controllers.bootstrap_config.kubeadmconfig import conflicts, payload
from nodeattest_controller.controllers.bootstrap_config.kubeadmconfig.fields import (
    LIMITS,
    RenderingRefused,
    RenderOptions,
    arguments,
    is_control_plane,
    objects,
    refusal,
    section,
    set_argument,
    spec_path,
    words,
)
from nodeattest_controller.controllers.bootstrap_config.kubeadmconfig.payload import (
    ADOPT_UNIT,
    IGNORED_PREFLIGHT,
    MARK,
    file_path,
)
from nodeattest_parsing.objects import text
from nodeattest_parsing.values import JsonObject, JsonValue

_JOIN: Final = "joinConfiguration"
_INIT: Final = "initConfiguration"
_FORMATS: Final = ("cloud-config", "ignition")


def render(document: JsonObject, plan: RenderOptions) -> JsonObject:
    """Return the object as its machines need it; raises ``RenderingRefused``."""
    rendered = copy.deepcopy(document)
    spec = rendered
    for step in spec_path(rendered):
        spec = _make_section(spec, step)
    control_plane = is_control_plane(rendered, spec) or any(
        file_path(file) == ADOPT_UNIT for file in objects(spec, "files")
    )
    adopts = control_plane and plan.adopts
    roles = _roles(rendered, spec, control_plane=control_plane, adopts=adopts)
    contradictions = list(conflicts.find(spec, plan, roles))
    file_format = text(spec, "format") or _FORMATS[0]
    if file_format not in _FORMATS:
        contradictions.append(refusal("format cloud-config or ignition", repr(file_format), "correct it"))
    if contradictions:
        raise RenderingRefused(contradictions)
    version = text(rendered, "apiVersion").rpartition("/")[2]
    for role in roles:
        registration = _make_section(_make_section(spec, role), "nodeRegistration")
        for name, value in payload.kubelet_arguments(plan).items():
            set_argument(registration, version, name, value)
        if role == _JOIN:
            _accept_kubeconfig(registration)
    for file in (*payload.join_files(plan), *(payload.adopt_files(plan) if adopts else ())):
        _put_file(spec, file)
    join = payload.agent_join_command(plan, file_format=file_format, may_init=control_plane)
    _put_command(spec, "preKubeadmCommands", join)
    if adopts:
        _put_command(spec, "postKubeadmCommands", payload.adopt_command())
    _check_room(spec, roles)
    return rendered


def is_rendered(document: JsonObject) -> bool:
    """Return whether the machines made of an object of these kinds run the agent before kubeadm."""
    spec = document
    for step in spec_path(document):
        spec = section(spec, step)
    return any(command.endswith(MARK) for command in words(spec, "preKubeadmCommands"))


def has_agent(document: JsonObject) -> bool:
    """Return the same, and no for one that cannot be read."""
    try:
        return is_rendered(document)
    except RenderingRefused:
        return False


def _roles(document: JsonObject, spec: JsonObject, *, control_plane: bool, adopts: bool) -> tuple[str, ...]:
    """Name the configurations to render.

    Cluster API makes an init machine's KubeadmConfig without joinConfiguration and a joining one's without
    initConfiguration: adding the other would make them differ from their control plane. Where nobody takes over the
    node of ``kubeadm init``, its kubelet continues as kubeadm made it.
    """
    wanted = (_INIT, _JOIN) if adopts else (_JOIN,)
    if not control_plane or text(document, "kind") != "KubeadmConfig":
        return wanted
    present = tuple(role for role in (_INIT, _JOIN) if role in spec)
    return tuple(role for role in wanted if role in present) if present or not adopts else wanted


def _accept_kubeconfig(registration: JsonObject) -> None:
    """Have kubeadm's preflight accept that kubelet's kubeconfig exists; no phase is skipped."""
    ignored = words(registration, "ignorePreflightErrors")
    if not {"all", IGNORED_PREFLIGHT.lower()} & {word.lower() for word in ignored}:
        registration["ignorePreflightErrors"] = [*ignored, IGNORED_PREFLIGHT]


def _put_file(spec: JsonObject, file: JsonObject) -> None:
    """Replace the file of this path, however often it is there, or append it."""
    entries = objects(spec, "files")
    places = [index for index, entry in enumerate(entries) if file_path(entry) == file["path"]]
    kept = [entry for entry in entries if file_path(entry) != file["path"]]
    kept.insert(places[0] if places else len(kept), file)
    spec["files"] = list[JsonValue](kept)


def _put_command(spec: JsonObject, name: str, command: str) -> None:
    """Put our one command behind all others: what comes before may still write kubeadm's configuration."""
    spec[name] = [*(word for word in words(spec, name) if not word.endswith(MARK)), command]


def _make_section(parent: JsonObject, name: str) -> JsonObject:
    made = parent[name] = section(parent, name)
    return made


def _check_room(spec: JsonObject, roles: tuple[str, ...]) -> None:
    sizes = [("files", len(objects(spec, "files")))]
    sizes += [(name, len(words(spec, name))) for name in ("preKubeadmCommands", "postKubeadmCommands")]
    for role in roles:
        registration = section(section(spec, role), "nodeRegistration")
        sizes.append(("kubeletExtraArgs", len(list(arguments(registration)))))
        sizes.append(("ignorePreflightErrors", len(words(registration, "ignorePreflightErrors"))))
    full = [
        refusal(f"{name} with room for ours within {LIMITS[name]}", f"{size}", "shorten the list")
        for name, size in sizes
        if size > LIMITS[name]
    ]
    if full:
        raise RenderingRefused(full)
