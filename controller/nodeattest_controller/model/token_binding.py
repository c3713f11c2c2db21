"""Which tokens a machine's KubeadmConfig names, and identity rule 4: a token asks for the machine that names it. Pure.

A stolen token is worth the one machine, or the one pool, that it was made for, whatever the provider proves. Of a token
only the public id is kept, and of the one that the bootstrap provider made a digest (a token has 82 random bits).
Source: cluster-api bootstrap/kubeadm/api (KubeadmConfig, v1beta1 and v1beta2), which names the token of a machine in
``spec.joinConfiguration.discovery`` before the bootstrap data is ready.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final

from nodeattest_controller.model.issuance_rules import bound_group
from nodeattest_controller.model.machine_view import PAUSED_ANNOTATION, MachineView
from nodeattest_controller.model.policy import TokenBinding
from nodeattest_discovery.token import USER_PREFIX, is_token
from nodeattest_parsing.objects import flag, items, mapping, object_identity, strings, text
from nodeattest_parsing.values import JsonObject
from nodeattest_providers.errors import Denied, Reason, Unavailable
from nodeattest_providers.verifier_interface import NodeRequest

KUBEADM_CONFIG: Final = ("bootstrap.cluster.x-k8s.io", "KubeadmConfig")
"""Group and kind of the one configuration that is read."""
_CLUSTER_API_KINDS: Final = frozenset({"Machine", "MachinePool"})
_REMEDY: Final = (
    "let the node use its own machine's token: that in the Machine's bootstrap data, or in its MachineRecord"
)
LOST_TOKEN: Final = "has bootstrap data, but names no token"
"""The bootstrap provider writes the token and the status apart. If the first update fails, it never repeats it."""
DELETE_UNNAMED: Final = "delete the Machine, so that its MachineSet or control plane makes another"


@dataclass(frozen=True, slots=True)
class NamedTokens:
    """Which tokens a bootstrap configuration names."""

    ids: frozenset[str]
    settled: bool
    """Whether the bootstrap data was made of it, so that no token will be named later."""
    by_file: bool = False
    """Whether its machines discover the cluster by a file, for which the bootstrap provider makes no token."""

    @property
    def token_lost(self) -> bool:
        """Return whether the bootstrap provider made a token that the configuration will never name."""
        return self.settled and not self.ids and not self.by_file


def asking_token(request: NodeRequest, member: MachineView) -> str | None:
    """Name the token that the machine's configuration has to name; None where the rule has nothing to ask.

    A node that renews is itself. A token of our own group (``nodeattest machines rejoin``) is bound to the machine
    already. What is no machine of Cluster API's has no bootstrap configuration: a record names its token itself, and
    where it names none the group alone binds one.
    """
    bound = bound_group(f"{member.namespace}/{member.cluster_name}", member.provider_id)
    names_one = member.kind in _CLUSTER_API_KINDS or bool(member.bootstrap_token_id)
    if request.is_renewal or bound in request.groups or not names_one:
        return None
    return request.username.removeprefix(USER_PREFIX)


def is_kubeadm_config(member: MachineView) -> bool:
    """Return whether a machine's bootstrap configuration is one that can be read."""
    return member.bootstrap is not None and (member.bootstrap.group, member.bootstrap.kind) == KUBEADM_CONFIG


def named_tokens(config: JsonObject) -> NamedTokens:
    """Read which tokens a KubeadmConfig names; raises Unavailable for one that is no token.

    kubeadm asks with ``tlsBootstrapToken`` where that differs from the discovery's own; a first control-plane machine
    has the tokens that ``kubeadm init`` makes (kubeadm apis/kubeadm/v1beta4 JoinConfiguration, InitConfiguration).
    """
    discovery = mapping(config, "spec", "joinConfiguration", "discovery")
    made = items(config, "spec", "initConfiguration", "bootstrapTokens")
    named = [text(discovery, "bootstrapToken", "token"), text(discovery, "tlsBootstrapToken")]
    named += [text(one, "token") for one in made]
    tokens = [token for token in named if token]
    if not all(is_token(token) for token in tokens):
        raise _no_token(text(config, "metadata", "name"))
    return NamedTokens(
        ids=frozenset(token.partition(".")[0] for token in tokens),
        settled=has_bootstrap_data(config),
        by_file=bool(mapping(discovery, "file")),
    )


def has_bootstrap_data(config: JsonObject) -> bool:
    """Return whether the bootstrap data was made of a KubeadmConfig, by the contract of v1beta1 or v1beta2."""
    status = mapping(config, "status")
    made = flag(status, "ready") or flag(status, "initialization", "dataSecretCreated")
    return made or bool(text(status, "dataSecretName"))


def _no_token(name: str) -> Unavailable:
    return Unavailable(
        Reason.BOOTSTRAP_CONFIG_UNREADABLE,
        f"KubeadmConfig {name} names something that is no bootstrap token",
        remedy="correct the token in the KubeadmConfig",
    )


def check_token_named(token_id: str, member: MachineView, named: NamedTokens | None, binding: TokenBinding) -> None:
    """Identity rule 4: the token is one that the machine's configuration names; raises Denied or Unavailable.

    ``named`` is None where there is no configuration that could be read, now or ever.
    """
    if binding is TokenBinding.OFF or (named is not None and token_id in named.ids):
        return
    what = f"{member.kind} {member.name}"
    if named is not None and named.ids:
        raise Denied(
            Reason.TOKEN_NOT_THIS_MACHINES,
            expected=f"the bootstrap token of {what}: {', '.join(sorted(named.ids))}",
            got=f"the token {token_id}",
            remedy=_REMEDY,
        )
    if binding is TokenBinding.PREFERRED:
        return
    if named is not None and not named.settled:
        raise Unavailable(
            Reason.BOOTSTRAP_CONFIG_UNREADABLE,
            f"the KubeadmConfig of {what} names no token yet",
            remedy="wait for the bootstrap provider, which writes the token there",
        )
    if named is not None:
        got = f"one that {LOST_TOKEN}" if named.token_lost else "one without a token"
    elif member.bootstrap is None:
        got = "no reference to a bootstrap configuration"
    else:
        got = f"a {member.bootstrap.kind} of {member.bootstrap.group}"
    if named is None or not named.token_lost:
        remedy = (
            "name the machine's token in its KubeadmConfig, or let the policy say tokenBinding: Preferred, which "
            "leaves machines without a named token to what their provider proves"
        )
    elif member.kind == "MachinePool":
        remedy = "give the MachinePool a new KubeadmConfig (bootstrap.configRef)"
    else:
        remedy = DELETE_UNNAMED
    expected = f"a KubeadmConfig of {what} that names its bootstrap token"
    raise Denied(Reason.TOKEN_NOT_NAMED, expected=expected, got=got, remedy=remedy)


async def check_token_binding(
    request: NodeRequest,
    member: MachineView,
    binding: TokenBinding,
    read: Callable[[MachineView, str], Awaitable[NamedTokens]],
) -> None:
    """Identity rule 4 for a request with a bootstrap token; raises Denied or Unavailable.

    ``member`` is the one with the configuration: for a Machine of a pool, the pool. ``read`` gives the tokens that
    its KubeadmConfig names, and is asked only where the rule depends on them.
    """
    token_id = asking_token(request, member)
    if token_id is None or binding is TokenBinding.OFF:
        return
    if is_kubeadm_config(member):
        check_token_named(token_id, member, await read(member, token_id), binding)
        return
    if member.of_pool and member.bootstrap is None:
        raise Unavailable(
            Reason.BOOTSTRAP_CONFIG_UNREADABLE,
            f"{member.kind} {member.name} is of a MachinePool, and no one pool lists its provider ID yet",
            remedy="let the infrastructure provider list it in the pool's providerIDList",
        )
    own = member.bootstrap_token_id  # of a MachineRecord
    check_token_named(token_id, member, NamedTokens(frozenset({own}), settled=True) if own else None, binding)


@dataclass(frozen=True, slots=True)
class KeptConfig:
    """One KubeadmConfig, without what nobody needs of it."""

    name: str
    ids: frozenset[str] | None
    """Ids of all tokens that it names; None where one of these is no token."""
    settled: bool
    by_file: bool
    paused: bool
    provided: str
    """Id of the token of its discovery, which the bootstrap provider made: empty where there is none, and words where
    what is there is no token."""
    digest: str
    uid: str = ""
    machine_uid: str = ""
    """UID of the one Machine that owns it; empty where none does, or several."""

    def tokens(self) -> NamedTokens:
        """Return which tokens it names; raises Unavailable where one of them is no token."""
        if self.ids is None:
            raise _no_token(self.name)
        return NamedTokens(self.ids, self.settled, self.by_file)

    def provides(self, token: str) -> bool:
        """Return whether its discovery has this very token, secret included: an id could be another's by chance."""
        return bool(self.digest) and hmac.compare_digest(self.digest, _digest(token))


def slim_config(config: JsonObject) -> JsonObject:
    """Reduce a KubeadmConfig to what ``kept_config`` reads."""
    provided = text(config, "spec", "joinConfiguration", "discovery", "bootstrapToken", "token")
    meta = mapping(config, "metadata")
    kept: JsonObject = {
        "metadata": object_identity(meta),
        "provided": _id(provided),
        "digest": _digest(provided) if is_token(provided) else "",
        "paused": PAUSED_ANNOTATION in mapping(meta, "annotations"),
        "machine": machine_uid(config),
    }
    try:
        named = named_tokens(config)
    except Unavailable:
        return kept
    return {**kept, "ids": [*sorted(named.ids)], "settled": named.settled, "by_file": named.by_file}


def kept_config(slim: JsonObject) -> KeptConfig:
    """Read what ``slim_config`` made."""
    return KeptConfig(
        name=text(slim, "metadata", "name"),
        ids=frozenset(strings(slim, "ids")) if "ids" in slim else None,
        settled=flag(slim, "settled"),
        by_file=flag(slim, "by_file"),
        paused=flag(slim, "paused"),
        provided=text(slim, "provided"),
        digest=text(slim, "digest"),
        uid=text(slim, "metadata", "uid"),
        machine_uid=text(slim, "machine"),
    )


def machine_uid(config: JsonObject) -> str:
    """Return the UID of the one Machine that owns a KubeadmConfig; empty where none does, or several."""
    owners = [one for one in items(config, "metadata", "ownerReferences") if text(one, "kind") == "Machine"]
    groups = {text(one, "apiVersion").partition("/")[0] for one in owners}
    return text(owners[0], "uid") if len(owners) == 1 and groups == {"cluster.x-k8s.io"} else ""


def _id(token: str) -> str:
    """Return the part that is public."""
    return token.partition(".")[0] if not token or is_token(token) else "(no token)"


def _digest(token: str) -> str:
    return hashlib.sha256(token.encode("utf-8", "surrogateescape")).hexdigest()
