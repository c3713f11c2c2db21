"""What is kept of a KubeadmConfig: which tokens it names, and where it stands. Pure.

Promises: no secret and no file of it is kept: of a token its id, which is public, and of the one that the bootstrap
provider made a digest, to be compared with (a token has 82 random bits; kubeadm apis/bootstraptoken/v1).
``slim_config`` takes any object, for a cache; it leaves a few hundred bytes of it.
Leaves to others: the rule (``token_binding``), reading (``runtime.kubeadm_configs``).
"""

from __future__ import annotations

import hashlib
import hmac
from dataclasses import dataclass

from nodeattest_controller.model.machine_view import PAUSED_ANNOTATION
from nodeattest_controller.model.token_binding import NamedTokens, named_tokens, no_token
from nodeattest_discovery.token import is_token
from nodeattest_parsing.objects import flag, items, mapping, strings, text
from nodeattest_parsing.values import JsonObject
from nodeattest_providers.errors import Unavailable


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
            raise no_token(self.name)
        return NamedTokens(self.ids, self.settled, self.by_file)

    def provides(self, token: str) -> bool:
        """Return whether its discovery has this very token, secret included: an id could be another's by chance."""
        return bool(self.digest) and hmac.compare_digest(self.digest, _digest(token))


def slim_config(config: JsonObject) -> JsonObject:
    """Reduce a KubeadmConfig to what ``kept_config`` reads."""
    provided = text(config, "spec", "joinConfiguration", "discovery", "bootstrapToken", "token")
    meta = mapping(config, "metadata")
    kept: JsonObject = {
        "metadata": {name: meta[name] for name in ("name", "namespace", "resourceVersion", "uid") if name in meta},
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
