"""What a KubeadmConfig says of its machine: its bootstrap token, and the Secret of provider ``challenge``.

Of a token only the public ID is kept, and of the bootstrap provider's own a digest (it has 82 random bits).
The Secret has the name, type, owner and immutability that our ValidatingAdmissionPolicy admits. Its name follows
from the KubeadmConfig, so the webhook can refer to a Secret that does not exist yet: the bootstrap provider retries.
Source: cluster-api bootstrap/kubeadm/api (v1beta1, v1beta2), internal/controllers/kubeadmconfig_controller.go
(resolveFiles); k8s.io/cluster-bootstrap/token/api (BootstrapGroupPattern).
"""

from __future__ import annotations

import hashlib
import hmac
from dataclasses import dataclass
from typing import Final

from nodeattest_controller.model.machine_view import PAUSED_ANNOTATION, MachineView
from nodeattest_controller.model.policy import Policy
from nodeattest_discovery.token import is_token
from nodeattest_parsing.objects import flag, items, mapping, object_identity, strings, text
from nodeattest_parsing.strict_base64 import decode_base64
from nodeattest_parsing.values import JsonObject
from nodeattest_providers.challenge.protocol import PROVIDER
from nodeattest_providers.challenge.verifier import parse_policy
from nodeattest_providers.errors import Denied, Reason, Unavailable
from nodeattest_providers.identifiers import is_dns_name
from nodeattest_providers.node_interface import SecretBytes, length_prefix

KUBEADM_CONFIG: Final = ("bootstrap.cluster.x-k8s.io", "KubeadmConfig")
"""Group and kind of the one configuration that is read."""
LOST_TOKEN: Final = "has bootstrap data, but names no token"
"""The bootstrap provider writes the token before the status. If that update fails, it never repeats it."""
DELETE_UNNAMED: Final = "delete the Machine, so that its MachineSet or control plane makes another"
BOUND_GROUP_PREFIX: Final = "system:bootstrappers:nodeattest:"
_LABEL: Final = b"nodeattest/v1/token-machine"
SECRET_TYPE: Final = "attestation.cluster.x-k8s.io/challenge"
SECRET_KEY: Final = "secret"
SECRET_FILE: Final = "/etc/kubernetes/nodeattest-challenge-secret"
"""Where the bootstrap data puts it on the machine."""
_NEW_MACHINE: Final = "delete the Machine, so that its owner makes another one"


def bound_group(cluster: str, provider_id: str) -> str:
    """Name the group of the tokens that are good for one machine; ``cluster`` is ``namespace/name``."""
    digest = hashlib.sha256(length_prefix(_LABEL, cluster.encode(), provider_id.encode())).hexdigest()
    return BOUND_GROUP_PREFIX + digest[:32]  # 128 bits


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptConfig:
    """What is kept of one KubeadmConfig; ``slim_config`` writes it for the cache."""

    name: str = ""
    ids: frozenset[str] = frozenset()
    is_malformed: bool = False
    """Whether one of these is no token; then no id counts."""
    settled: bool = False
    """Whether the bootstrap data was made of it, so that no token will be named later."""
    by_file: bool = False
    """Whether its machines discover the cluster by a file, for which the bootstrap provider makes no token."""
    paused: bool = False
    provided: str = ""
    """Id of the token of its discovery, which the bootstrap provider made: empty where there is none, and words where
    what is there is no token."""
    digest: str = ""
    uid: str = ""
    machine_uid: str = ""

    def tokens(self) -> KeptConfig:
        """Return it if each token that it names is one; raises Unavailable."""
        if self.is_malformed:
            raise Unavailable(
                Reason.BOOTSTRAP_CONFIG_UNREADABLE,
                f"KubeadmConfig {self.name} names something that is no bootstrap token",
                remedy="correct the token in the KubeadmConfig",
            )
        return self

    @property
    def token_lost(self) -> bool:
        """Whether the bootstrap provider made a token that the configuration will never name."""
        return self.settled and not self.ids and not self.by_file

    def provides(self, token: str) -> bool:
        return bool(self.digest) and hmac.compare_digest(self.digest, _digest(token))


def is_kubeadm_config(member: MachineView) -> bool:
    return member.bootstrap is not None and (member.bootstrap.group, member.bootstrap.kind) == KUBEADM_CONFIG


def has_bootstrap_data(config: JsonObject) -> bool:
    status = mapping(config, "status")
    made = flag(status, "ready") or flag(status, "initialization", "dataSecretCreated")
    return made or bool(text(status, "dataSecretName"))


def slim_config(config: JsonObject) -> JsonObject:
    """Reduce a KubeadmConfig to what is kept of it.

    kubeadm asks with ``tlsBootstrapToken`` where that differs from the discovery's own; a first control-plane machine
    has the tokens that ``kubeadm init`` makes (kubeadm apis/kubeadm/v1beta4 JoinConfiguration, InitConfiguration).
    """
    discovery, meta = mapping(config, "spec", "joinConfiguration", "discovery"), mapping(config, "metadata")
    provided = text(discovery, "bootstrapToken", "token")
    made = items(config, "spec", "initConfiguration", "bootstrapTokens")
    named = {provided, text(discovery, "tlsBootstrapToken"), *(text(one, "token") for one in made)} - {""}
    is_malformed = not all(map(is_token, named))
    return {
        "metadata": object_identity(meta),
        "ids": [] if is_malformed else [*sorted(map(_id, named))],
        "malformed": is_malformed,
        "settled": has_bootstrap_data(config),
        "by_file": bool(mapping(discovery, "file")),
        "paused": PAUSED_ANNOTATION in mapping(meta, "annotations"),
        "provided": _id(provided),
        "digest": _digest(provided) if is_token(provided) else "",
        "machine": machine_uid(config),
    }


def kept_config(slim: JsonObject) -> KeptConfig:
    return KeptConfig(
        name=text(slim, "metadata", "name"),
        ids=frozenset(strings(slim, "ids")),
        is_malformed=flag(slim, "malformed"),
        settled=flag(slim, "settled"),
        by_file=flag(slim, "by_file"),
        paused=flag(slim, "paused"),
        provided=text(slim, "provided"),
        digest=text(slim, "digest"),
        uid=text(slim, "metadata", "uid"),
        machine_uid=text(slim, "machine"),
    )


def read_config(config: JsonObject) -> KeptConfig:
    return kept_config(slim_config(config))


def machine_uid(config: JsonObject) -> str:
    """Return the UID of the one Machine that owns a KubeadmConfig; empty where none does, or several."""
    owners = [one for one in items(config, "metadata", "ownerReferences") if text(one, "kind") == "Machine"]
    groups = {text(one, "apiVersion").partition("/")[0] for one in owners}
    return text(owners[0], "uid") if len(owners) == 1 and groups == {"cluster.x-k8s.io"} else ""


def _id(token: str) -> str:
    return token.partition(".")[0] if not token or is_token(token) else "(no token)"


def _digest(token: str) -> str:
    return hashlib.sha256(token.encode("utf-8", "surrogateescape")).hexdigest()


def creates_secrets(policy: Policy) -> bool:
    return parse_policy(policy.settings(PROVIDER)).create_secrets


def secret_value(secret: JsonObject | None) -> SecretBytes | None:
    """Return the value of either Secret; None where it has none."""
    try:
        value = decode_base64(text(mapping(secret or {}, "data"), SECRET_KEY))
    except ValueError:
        return None
    return SecretBytes(value) if value else None


def challenge_secret_name(config: str) -> str:
    return f"{config}-attestation-challenge"


def has_own_config(machine: MachineView) -> bool:
    named = machine.bootstrap is not None and is_dns_name(machine.bootstrap.name)
    return named and machine.kind == "Machine" and not machine.is_control_plane and is_kubeadm_config(machine)


def no_own_config(machine: MachineView) -> Denied:
    return Denied(
        Reason.SECRET_MISSING,
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


def read_secret(secret: JsonObject | None, config: KeptConfig, machine_uid: str) -> SecretBytes | Denied:
    """Read the Secret of a Machine's KubeadmConfig.

    1. The Machine owns the KubeadmConfig. 2. The Secret exists. 3. Its type is ours. 4. It is immutable. 5. The
    KubeadmConfig owns it alone. 6. It has a value.
    """
    name = challenge_secret_name(config.name)
    if not machine_uid or config.machine_uid != machine_uid:  # 1
        return _untrusted(f"KubeadmConfig {config.name} that belongs to this Machine alone", "another owner")
    if secret is None:  # 2
        return Denied(Reason.SECRET_MISSING, expected=f"Secret {name}", got="none", remedy=_NEW_MACHINE)
    if text(secret, "type") != SECRET_TYPE:  # 3
        return _untrusted(f"Secret {name} of type {SECRET_TYPE}", text(secret, "type") or "no type")
    if not flag(secret, "immutable"):  # 4
        return _untrusted(f"Secret {name} that is immutable", "one that can be changed")
    if not config.uid or owner_uid(secret) != config.uid:  # 5
        return _untrusted(f"Secret {name} that KubeadmConfig {config.name} owns", "another owner")
    return secret_value(secret) or _untrusted(f"Secret {name} with key {SECRET_KEY}", "none")  # 6


def _untrusted(expected: str, got: str) -> Denied:
    remedy = f"find out who made it, delete it, and {_NEW_MACHINE}"
    return Denied(Reason.SECRET_UNTRUSTED, expected=expected, got=got, remedy=remedy)
