"""Renders the agent into a bootstrap configuration, so that the machines made of it join attested. Pure.

Rendering twice is rendering once. The user's own settings stay, and every contradiction is named. What is rendered
depends on the object, its policy and its Cluster only, so every replica renders alike.
"""

from __future__ import annotations

import copy
from typing import Final

from nodeattest_controller.controllers.bootstrap_config import conflicts, kubeadmconfig
from nodeattest_controller.controllers.bootstrap_config.decide import Subject
from nodeattest_controller.model.kubeadm_config import SECRET_FILE, challenge_secret_name, creates_secrets
from nodeattest_controller.model.policy import Policy
from nodeattest_parsing.objects import mapping, text
from nodeattest_parsing.values import JsonObject, JsonValue
from nodeattest_providers.challenge.protocol import PROVIDER as CHALLENGE
from nodeattest_providers.composite.protocol import PROVIDER as COMPOSITE
from nodeattest_providers.composite.protocol import parse_policy as parse_composite
from nodeattest_providers.errors import Denied, Reason
from nodeattest_providers.identifiers import ANNOTATION_PROVIDER_ID, ProviderName

_JOIN: Final = "joinConfiguration"
_INIT: Final = "initConfiguration"
_FORMATS: Final = ("cloud-config", "ignition")


def render(document: JsonObject, plan: kubeadmconfig.RenderOptions) -> JsonObject:
    """Return the object with the agent in it; raises ``RenderingRefused``."""
    rendered = copy.deepcopy(document)
    spec = rendered
    for step in kubeadmconfig.spec_path(rendered):
        spec = _make_section(spec, step)
    control_plane = kubeadmconfig.is_control_plane(rendered, spec) or any(
        kubeadmconfig.file_path(file) == kubeadmconfig.ADOPT_UNIT for file in kubeadmconfig.objects(spec, "files")
    )
    adopts = control_plane and plan.adopts
    roles = _roles(rendered, spec, control_plane=control_plane, adopts=adopts)
    contradictions = list(conflicts.find(spec, plan, roles))
    file_format = text(spec, "format") or _FORMATS[0]
    if file_format not in _FORMATS:
        contradictions.append(kubeadmconfig.refusal("format cloud-config or ignition", repr(file_format), "correct it"))
    if contradictions:
        raise kubeadmconfig.RenderingRefused(contradictions)
    version = text(rendered, "apiVersion").rpartition("/")[2]
    for role in roles:
        registration = _make_section(_make_section(spec, role), "nodeRegistration")
        for name, value in kubeadmconfig.kubelet_arguments(plan).items():
            kubeadmconfig.set_argument(registration, version, name, value)
        if role == _JOIN:
            _accept_kubeconfig(registration)
    for file in (*kubeadmconfig.join_files(plan), *(kubeadmconfig.adopt_files(plan) if adopts else ())):
        _put_file(spec, file)
    join = kubeadmconfig.agent_join_command(plan, file_format=file_format, may_init=control_plane)
    _put_command(spec, "preKubeadmCommands", join)
    if adopts:
        _put_command(spec, "postKubeadmCommands", kubeadmconfig.ADOPT_COMMAND)
    _check_room(spec, roles)
    return rendered


def is_rendered(document: JsonObject) -> bool:
    """Return whether an object runs the agent before kubeadm; raises ``RenderingRefused``."""
    spec = document
    for step in kubeadmconfig.spec_path(document):
        spec = kubeadmconfig.section(spec, step)
    return any(command.endswith(kubeadmconfig.MARK) for command in kubeadmconfig.words(spec, "preKubeadmCommands"))


def has_agent(document: JsonObject) -> bool:
    """Return whether an object runs the agent before kubeadm; False if it cannot be read."""
    try:
        return is_rendered(document)
    except kubeadmconfig.RenderingRefused:
        return False


def _roles(document: JsonObject, spec: JsonObject, *, control_plane: bool, adopts: bool) -> tuple[str, ...]:
    """Return the configurations to render.

    Cluster API makes the KubeadmConfig of an init machine without joinConfiguration, and that of a joining machine
    without initConfiguration. Adding the other would make it differ from its control plane. If nobody takes over the
    node of ``kubeadm init``, it stays as kubeadm made it.
    """
    wanted = (_INIT, _JOIN) if adopts else (_JOIN,)
    if not control_plane or text(document, "kind") != "KubeadmConfig":
        return wanted
    present = tuple(role for role in (_INIT, _JOIN) if role in spec)
    return tuple(role for role in wanted if role in present) if present or not adopts else wanted


def _accept_kubeconfig(registration: JsonObject) -> None:
    ignored = kubeadmconfig.words(registration, "ignorePreflightErrors")
    if not {"all", kubeadmconfig.IGNORED_PREFLIGHT.lower()} & {word.lower() for word in ignored}:
        registration["ignorePreflightErrors"] = [*ignored, kubeadmconfig.IGNORED_PREFLIGHT]


def _put_file(spec: JsonObject, file: JsonObject) -> None:
    entries = kubeadmconfig.objects(spec, "files")
    places = [index for index, entry in enumerate(entries) if kubeadmconfig.file_path(entry) == file["path"]]
    kept = [entry for entry in entries if kubeadmconfig.file_path(entry) != file["path"]]
    kept.insert(places[0] if places else len(kept), file)
    spec["files"] = list[JsonValue](kept)


def _put_command(spec: JsonObject, name: str, command: str) -> None:
    """Put our command behind all others, which may still write kubeadm's configuration."""
    spec[name] = [*(word for word in kubeadmconfig.words(spec, name) if not word.endswith(kubeadmconfig.MARK)), command]


def _make_section(parent: JsonObject, name: str) -> JsonObject:
    made = parent[name] = kubeadmconfig.section(parent, name)
    return made


def _check_room(spec: JsonObject, roles: tuple[str, ...]) -> None:
    sizes = [("files", len(kubeadmconfig.objects(spec, "files")))]
    sizes += [(name, len(kubeadmconfig.words(spec, name))) for name in ("preKubeadmCommands", "postKubeadmCommands")]
    for role in roles:
        registration = kubeadmconfig.section(kubeadmconfig.section(spec, role), "nodeRegistration")
        sizes.append(("kubeletExtraArgs", len(list(kubeadmconfig.arguments(registration)))))
        sizes.append(("ignorePreflightErrors", len(kubeadmconfig.words(registration, "ignorePreflightErrors"))))
    full = [
        kubeadmconfig.refusal(
            f"{name} with room for ours within {kubeadmconfig.LIMITS[name]}", f"{size}", "shorten the list"
        )
        for name, size in sizes
        if size > kubeadmconfig.LIMITS[name]
    ]
    if full:
        raise kubeadmconfig.RenderingRefused(full)


ATTESTOR_ANNOTATION: Final = "attestation.cluster.x-k8s.io/attestor"
"""Of the object or its Cluster: which attestor of the policy is rendered. Verification ignores it."""

_LONGEST_NAME: Final = 253 - len(challenge_secret_name(""))
"""Characters (apimachinery pkg/util/validation, DNS-1123 subdomain)."""


def render_for_policy(subject: Subject, policy: Policy, cluster: JsonObject) -> JsonObject:
    """Return the subject's bootstrap configuration with the agent in it; raises ``Denied``."""
    return mapping(render(subject.whole, _options(subject, policy, cluster)), *subject.place)


def annotated(whole: JsonObject, name: str) -> str:
    """Return an annotation of an object, or of a template's objects; empty if there is none."""
    place = ("spec", "template", "metadata") if text(whole, "kind").endswith("Template") else ("metadata",)
    return text(whole, *place, "annotations", name)


def _options(subject: Subject, policy: Policy, cluster: JsonObject) -> kubeadmconfig.RenderOptions:
    """Return the options for an object of a cluster; raises ``Denied``."""
    provider = _provider(subject, policy, cluster)
    parts = _parts(provider, policy)
    settings: dict[str, JsonValue] = {}
    secret = ""
    if CHALLENGE in parts and creates_secrets(policy):
        own: dict[str, JsonValue] = {"secretFile": SECRET_FILE}
        secret = _challenge_secret(subject)
        settings = own if provider == CHALLENGE else {str(part): own if part == CHALLENGE else {} for part in parts}
    return kubeadmconfig.RenderOptions(
        provider=provider,
        settings=settings,
        provider_id=annotated(subject.whole, ANNOTATION_PROVIDER_ID) or None,
        challenge_secret=secret,
        serving=kubeadmconfig.ServingOptions.KUBELET if policy.approves_kubelet else kubeadmconfig.ServingOptions.NONE,
    )


def _provider(subject: Subject, policy: Policy, cluster: JsonObject) -> ProviderName:
    chosen = annotated(subject.whole, ATTESTOR_ANNOTATION) or annotated(cluster, ATTESTOR_ANNOTATION)
    if chosen and chosen not in policy.attestors:
        raise Denied(
            Reason.ATTESTOR_NOT_AUTHORIZED,
            expected=f"{ATTESTOR_ANNOTATION}: one of {', '.join(sorted(policy.attestors)) or 'none'}",
            got=chosen,
            remedy=f"correct the annotation, or name the attestor in policy {policy.name}",
        )
    if not chosen and len(policy.attestors) != 1:
        raise Denied(
            Reason.POLICY_INVALID,
            expected="one attestor to render for",
            got=", ".join(sorted(policy.attestors)) or "none (an empty authorizedAttestors means none)",
            remedy=f"name one in policy {policy.name}, or choose it by annotation {ATTESTOR_ANNOTATION} on the Cluster",
        )
    return ProviderName(chosen) if chosen else next(iter(policy.attestors))


def _parts(provider: ProviderName, policy: Policy) -> list[ProviderName]:
    """Return the providers of a machine's evidence: of a composite with one alternative, its parts."""
    if provider != COMPOSITE:
        return [provider]
    alternatives = parse_composite(policy.settings(COMPOSITE)).alternatives
    return sorted(alternatives[0]) if len(alternatives) == 1 else []


def _challenge_secret(subject: Subject) -> str:
    """Return the name of the Secret for one machine's KubeadmConfig; raises ``Denied`` for any other object."""
    name = text(subject.whole, "metadata", "name")
    if subject.is_control_plane or subject.made_by_control_plane:
        got = f"{subject.kind} {subject.name}, whose configuration all control-plane machines must have in common"
    elif subject.pool:
        got = f"{subject.kind} {subject.name} of MachinePool {subject.pool}, whose instances share it"
    elif not name:
        got = "a KubeadmConfig without metadata.name (generateName)"
    elif len(name) > _LONGEST_NAME:
        got = f"a name of {len(name)} characters; at most {_LONGEST_NAME} leave room for the Secret's"
    else:
        return challenge_secret_name(name)
    raise kubeadmconfig.refusal(
        expected="a named KubeadmConfig of one worker Machine, for which the controller creates a secret",
        got=got,
        remedy=f"choose another attestor of the policy by annotation {ATTESTOR_ANNOTATION} on it, make the machines by "
        "a MachineDeployment, or take challenge.createSecrets out of the policy",
    )
