"""Render a bootstrap configuration, so that the machines made of it join attested. Pure.

Promises: ``render`` twice is ``render`` once; the user's own settings stay, in their order; what contradicts is refused
with everything that does. A KubeadmConfig that Cluster API makes of a rendered KubeadmControlPlane is as rendered as
can be: rendering it changes nothing, so its control plane never takes its machines for outdated.
"""

from __future__ import annotations

import copy
import posixpath
from typing import Final

from nodeattest_controller.controllers.bootstrap_config.kubeadmconfig import conflicts, payload
from nodeattest_controller.controllers.bootstrap_config.kubeadmconfig.fields import (
    LIMITS,
    Rendered,
    RenderingRefused,
    RenderOptions,
    arguments,
    is_control_plane,
    is_rendered_kind,
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
    File,
)
from nodeattest_parsing.objects import text
from nodeattest_parsing.values import JsonObject, JsonValue

__all__ = ["has_agent", "is_rendered_kind", "render"]

_JOIN: Final = "joinConfiguration"
_INIT: Final = "initConfiguration"
_FORMATS: Final = ("cloud-config", "ignition")


def render(document: JsonObject, plan: RenderOptions) -> Rendered:
    """Return the object as its machines need it; raises ``RenderingRefused``."""
    made = copy.deepcopy(document)
    path, version = spec_path(made), text(made, "apiVersion").rpartition("/")[2]
    spec = made
    for step in path:
        spec = _made(spec, step)
    control_plane = is_control_plane(made, spec) or any(_path(file) == ADOPT_UNIT for file in objects(spec, "files"))
    adopts = control_plane and plan.adopts
    roles = _roles(made, spec, control_plane=control_plane, adopts=adopts)
    found = tuple(conflicts.find(spec, plan, roles))
    if found:
        raise RenderingRefused(found)
    file_format = text(spec, "format") or _FORMATS[0]
    if file_format not in _FORMATS:
        raise RenderingRefused((refusal("format cloud-config or ignition", repr(file_format), "correct it"),))
    changes: list[str] = []
    for role in roles:
        _registration(_made(_made(spec, role), "nodeRegistration"), plan, version, role, changes)
    files = (*payload.join_files(plan), *(payload.adopt_files(plan) if adopts else ()))
    _files(spec, files, changes)
    command = payload.agent_join_command(plan, file_format=file_format, may_init=control_plane)
    _command(spec, "preKubeadmCommands", command, changes)
    if adopts:
        _command(spec, "postKubeadmCommands", payload.adopt_command(), changes)
    _check_room(spec, roles)
    return Rendered(made, tuple(changes))


def is_rendered(document: JsonObject) -> bool:
    """Return whether the machines made of an object of these kinds run the agent before kubeadm."""
    spec = document
    for step in spec_path(document):
        spec = section(spec, step)
    commands = words(spec, "preKubeadmCommands")
    return any(command.endswith(MARK) for command in commands)


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
    there = tuple(role for role in (_INIT, _JOIN) if role in spec)
    return tuple(role for role in wanted if role in there) if there or not adopts else wanted


def _registration(registration: JsonObject, plan: RenderOptions, version: str, role: str, changes: list[str]) -> None:
    for name, value in payload.kubelet_arguments(plan).items():
        if set_argument(registration, version, name, value):
            changes.append(f"{role}: kubelet gets --{name}={value}")
    if role == _JOIN:
        ignored = words(registration, "ignorePreflightErrors")
        if not {"all", IGNORED_PREFLIGHT.lower()} & {word.lower() for word in ignored}:
            registration["ignorePreflightErrors"] = [*ignored, IGNORED_PREFLIGHT]
            changes.append(
                f"{role}: kubeadm's preflight accepts that {payload.KUBELET_CONF} is there; no phase is skipped"
            )


def _files(spec: JsonObject, files: tuple[File, ...], changes: list[str]) -> None:
    entries = objects(spec, "files")
    for file in files:
        wanted = file.entry()
        places = [index for index, entry in enumerate(entries) if _path(entry) == file.path]
        if [entries[index] for index in places] == [wanted]:
            continue
        kept = [entry for entry in entries if _path(entry) != file.path]
        kept.insert(places[0] if places else len(kept), wanted)
        entries = kept
        changes.append(f"files: {file.path}")
    spec["files"] = list[JsonValue](entries)


def _path(file: JsonObject) -> str:
    return posixpath.normpath("/" + text(file, "path").lstrip("/"))


def _command(spec: JsonObject, name: str, command: str, changes: list[str]) -> None:
    """Put our one command behind all others: what comes before may still write kubeadm's configuration."""
    given = words(spec, name)
    wanted = [*(word for word in given if not word.endswith(MARK)), command]
    if wanted != given:
        spec[name] = list[JsonValue](wanted)
        changes.append(f"{name}: {command.removesuffix(MARK).rstrip()}")


def _made(parent: JsonObject, name: str) -> JsonObject:
    found = section(parent, name)
    parent[name] = found
    return found


def _check_room(spec: JsonObject, roles: tuple[str, ...]) -> None:
    sizes = [(name, len(objects(spec, name) if name == "files" else words(spec, name))) for name in _SPEC_LISTS]
    for role in roles:
        registration = section(section(spec, role), "nodeRegistration")
        sizes.append(("kubeletExtraArgs", len(list(arguments(registration)))))
        sizes.append(("ignorePreflightErrors", len(words(registration, "ignorePreflightErrors"))))
    full = tuple(
        refusal(f"{name} with room for ours within {LIMITS[name]}", f"{size}", "shorten the list")
        for name, size in sizes
        if size > LIMITS[name]
    )
    if full:
        raise RenderingRefused(full)


_SPEC_LISTS: Final = ("files", "preKubeadmCommands", "postKubeadmCommands")
