"""The Secret that the controller creates for a Machine's KubeadmConfig, for provider ``challenge``. Pure.

Its name, type, owner and immutability are what the shipped ValidatingAdmissionPolicy admits. The name follows from the
KubeadmConfig, so the webhook can refer to a Secret that does not exist yet: the bootstrap provider retries until it
does. Source: cluster-api bootstrap/kubeadm/internal/controllers/kubeadmconfig_controller.go (resolveFiles).
"""

from __future__ import annotations

from typing import Final

from nodeattest_controller.model.machine_view import CLUSTER_LABEL, MachineView
from nodeattest_controller.model.policy import Policy
from nodeattest_controller.model.token_binding import KUBEADM_CONFIG, KeptConfig, is_kubeadm_config
from nodeattest_parsing.objects import flag, items, mapping, text
from nodeattest_parsing.strict_base64 import decode_base64, encode_base64
from nodeattest_parsing.values import JsonObject
from nodeattest_providers.challenge.protocol import PROVIDER
from nodeattest_providers.challenge.verifier import parse_policy
from nodeattest_providers.errors import Reason
from nodeattest_providers.identifiers import is_dns_name
from nodeattest_providers.node_interface import SecretBytes
from nodeattest_providers.verifier_interface import UnusableSecret

SECRET_TYPE: Final = "attestation.cluster.x-k8s.io/challenge"
SECRET_KEY: Final = "secret"
SECRET_FILE: Final = "/etc/kubernetes/nodeattest-challenge-secret"
"""Where the bootstrap data puts it on the machine."""
_SUFFIX: Final = "-attestation-challenge"
_NEW_MACHINE: Final = "delete the Machine, so that its owner makes another one"


def creates_secrets(policy: Policy) -> bool:
    """Return whether a policy has the controller create the secrets; raises Denied for an invalid section."""
    return parse_policy(policy.settings(PROVIDER)).create_secrets


def operators_secret_name(machine: str) -> str:
    """Name the Secret that an operator writes for a machine where the controller creates none."""
    return f"{machine}-attestation"


def secret_value(secret: JsonObject | None) -> SecretBytes | None:
    """Return the value of either Secret; None where it has none."""
    try:
        value = decode_base64(text(mapping(secret or {}, "data"), SECRET_KEY))
    except ValueError:
        return None
    return SecretBytes(value) if value else None


def challenge_secret_name(config: str) -> str:
    """Name the Secret of a KubeadmConfig."""
    return config + _SUFFIX


def new_secret(config: JsonObject, *, cluster: str, value: str) -> JsonObject:
    """Make the Secret; ``value`` is random text, because user data carries text only."""
    meta = mapping(config, "metadata")
    name = text(meta, "name")
    owner: JsonObject = {
        "apiVersion": text(config, "apiVersion"),
        "kind": KUBEADM_CONFIG[1],
        "name": name,
        "uid": text(meta, "uid"),
    }
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {
            "name": challenge_secret_name(name),
            "namespace": text(meta, "namespace"),
            "labels": {CLUSTER_LABEL: cluster},
            "ownerReferences": [owner],
        },
        "type": SECRET_TYPE,
        "immutable": True,
        "data": {SECRET_KEY: encode_base64(value.encode())},
    }


def refers_to_secret(config: JsonObject) -> bool:
    """Return whether the bootstrap data of a KubeadmConfig is to have the Secret's value."""
    wanted = challenge_secret_name(text(config, "metadata", "name"))
    named = (text(file, "contentFrom", "secret", "name") for file in items(config, "spec", "files"))
    return wanted in named


def has_own_config(machine: MachineView) -> bool:
    """Return whether a machine has a KubeadmConfig that is for no other machine, and no control plane's."""
    named = machine.bootstrap is not None and is_dns_name(machine.bootstrap.name)
    return named and machine.kind == "Machine" and not machine.is_control_plane and is_kubeadm_config(machine)


def no_own_config(machine: MachineView) -> UnusableSecret:
    """Say that no secret is created for this machine."""
    return UnusableSecret(
        reason=Reason.SECRET_MISSING,
        expected="a worker Machine with a KubeadmConfig of its own, for which the controller creates the secret",
        got=f"{'control-plane ' if machine.is_control_plane else ''}{machine.kind} {machine.name}",
        remedy="let control planes, MachinePools and recorded machines attest by another provider, or take "
        "challenge.createSecrets out of their policy",
    )


def owner_uid(secret: JsonObject) -> str:
    """Return the UID of the KubeadmConfig that owns a Secret; empty where one does not own it alone."""
    owners = items(secret, "metadata", "ownerReferences")
    if len(owners) != 1:
        return ""
    group = text(owners[0], "apiVersion").partition("/")[0]
    return text(owners[0], "uid") if (group, text(owners[0], "kind")) == KUBEADM_CONFIG else ""


def read_secret(secret: JsonObject | None, config: KeptConfig, machine_uid: str) -> SecretBytes | UnusableSecret:
    """Read the Secret of a Machine's KubeadmConfig.

    1. The KubeadmConfig is the Machine's, by its owner reference. 2. The Secret exists. 3. Its type is ours. 4. It is
    immutable. 5. The KubeadmConfig owns it alone. 6. It has a value.
    """
    name = challenge_secret_name(config.name)
    if not machine_uid or config.machine_uid != machine_uid:  # 1
        return _untrusted(f"KubeadmConfig {config.name} that belongs to this Machine alone", "another owner")
    if secret is None:  # 2
        return UnusableSecret(reason=Reason.SECRET_MISSING, expected=f"Secret {name}", got="none", remedy=_NEW_MACHINE)
    if text(secret, "type") != SECRET_TYPE:  # 3
        return _untrusted(f"Secret {name} of type {SECRET_TYPE}", text(secret, "type") or "no type")
    if not flag(secret, "immutable"):  # 4
        return _untrusted(f"Secret {name} that is immutable", "one that can be changed")
    if not config.uid or owner_uid(secret) != config.uid:  # 5
        return _untrusted(f"Secret {name} that KubeadmConfig {config.name} owns", "another owner")
    return secret_value(secret) or _untrusted(f"Secret {name} with key {SECRET_KEY}", "none")  # 6


def _untrusted(expected: str, got: str) -> UnusableSecret:
    return UnusableSecret(
        reason=Reason.SECRET_UNTRUSTED,
        expected=expected,
        got=got,
        remedy=f"find out who made it, delete it, and {_NEW_MACHINE}",
    )
