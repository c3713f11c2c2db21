"""Renders the agent into a bootstrap configuration (``kubeadmconfig.render``), with a policy's options. Pure.

What is rendered depends on the object, its policy and its Cluster only, so that every replica renders alike.
"""

from __future__ import annotations

from typing import Final

from nodeattest_controller.controllers.bootstrap_config.kubeadmconfig.fields import (
    RenderOptions,
    ServingOptions,
    refusal,
)
from nodeattest_controller.controllers.bootstrap_config.kubeadmconfig.render import render
from nodeattest_controller.controllers.bootstrap_config.subject import Subject
from nodeattest_controller.model.challenge_secret import SECRET_FILE, challenge_secret_name, creates_secrets
from nodeattest_controller.model.policy import Policy
from nodeattest_parsing.objects import mapping, text
from nodeattest_parsing.values import JsonObject
from nodeattest_providers.challenge.protocol import PROVIDER as CHALLENGE
from nodeattest_providers.composite.config import parse_policy as parse_composite
from nodeattest_providers.composite.protocol import PROVIDER as COMPOSITE
from nodeattest_providers.errors import Denied, Reason
from nodeattest_providers.identifiers import ANNOTATION_PROVIDER_ID, ProviderName
from nodeattest_providers.node_interface import JsonValue
from nodeattest_providers.platform import OFFLINE, make_signer, provable_names
from nodeattest_providers.verifier_interface import ClusterAPISigner

ATTESTOR_ANNOTATION: Final = "attestation.cluster.x-k8s.io/attestor"
"""On the object, or on its Cluster: which of several attestors of the policy is rendered. Verification ignores it."""

_LONGEST_NAME: Final = 253 - len(challenge_secret_name(""))
"""Characters (apimachinery pkg/util/validation, DNS-1123 subdomain)."""


class PolicyRenderer:
    """Renders by what a policy says."""

    def __init__(self) -> None:
        self._signers: dict[ProviderName, ClusterAPISigner] = {}

    def proves_names(self, subject: Subject, policy: Policy, cluster: JsonObject) -> bool:
        """Return whether these machines could prove a node name; raises ``Denied``."""
        provider = _options(subject, policy, cluster).provider
        if provider not in self._signers:
            self._signers[provider] = make_signer(provider, OFFLINE)
        names = provable_names(self._signers[provider], policy.sections)
        return names is None or bool(names)

    def render(self, subject: Subject, policy: Policy, cluster: JsonObject) -> JsonObject:
        """Return the bootstrap configuration with the agent in it; raises ``Denied``."""
        return mapping(render(subject.whole, _options(subject, policy, cluster)), *subject.place)


def annotated(whole: JsonObject, name: str) -> str:
    """Return an annotation of an object, of a template that of what is made of it; empty where it has none."""
    place = ("spec", "template", "metadata") if text(whole, "kind").endswith("Template") else ("metadata",)
    return text(whole, *place, "annotations", name)


def _options(subject: Subject, policy: Policy, cluster: JsonObject) -> RenderOptions:
    """Return what to render for an object of a cluster; raises ``Denied``."""
    provider = _provider(subject, policy, cluster)
    parts = _parts(provider, policy)
    settings: dict[str, JsonValue] = {}
    secret = ""
    if CHALLENGE in parts and creates_secrets(policy):
        own: dict[str, JsonValue] = {"secretFile": SECRET_FILE}
        secret = _challenge_secret(subject)
        settings = own if provider == CHALLENGE else {str(part): own if part == CHALLENGE else {} for part in parts}
    return RenderOptions(
        provider=provider,
        settings=settings,
        provider_id=annotated(subject.whole, ANNOTATION_PROVIDER_ID) or None,
        challenge_secret=secret,
        serving=ServingOptions.KUBELET if policy.serving.approves_kubelet else ServingOptions.NONE,
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
    """Return the providers that these machines attest by: of a composite with one alternative, its parts."""
    if provider != COMPOSITE:
        return [provider]
    alternatives = parse_composite(policy.settings(COMPOSITE)).alternatives
    return sorted(alternatives[0]) if len(alternatives) == 1 else []


def _challenge_secret(subject: Subject) -> str:
    """Name the Secret that the controller creates for one machine's KubeadmConfig; raises ``Denied`` for any other."""
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
    raise refusal(
        expected="a named KubeadmConfig of one worker Machine, for which the controller creates a secret",
        got=got,
        remedy=f"choose another attestor of the policy by annotation {ATTESTOR_ANNOTATION} on it, make the machines by "
        "a MachineDeployment, or take challenge.createSecrets out of the policy",
    )
