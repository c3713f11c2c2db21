"""Which tokens the bootstrap configuration of a machine names: one watch of all KubeadmConfigs, and reads beside it.

A configuration that cannot be read is ``Unavailable``, never a pass. Nobody is refused, and nothing is deleted, by what
was true a moment ago: only an answer that the caller wishes for is taken from the watch, any other follows a read.
Source: cluster-api core/v1beta1 and v1beta2 (``bootstrap.configRef``).
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Final

from nodeattest_controller.model.machine_view import ContractReference, MachineView
from nodeattest_controller.model.token_binding import KUBEADM_CONFIG, KeptConfig, NamedTokens, kept_config, slim_config
from nodeattest_controller.runtime.informers import InformerSet
from nodeattest_kube import paths
from nodeattest_kube.client import ApiClient
from nodeattest_kube.errors import ApiError, Forbidden, NotFound
from nodeattest_kube.reflector import Reflector
from nodeattest_parsing.objects import text
from nodeattest_parsing.values import JsonObject
from nodeattest_providers.errors import Reason, Unavailable

_RESOURCE: Final = "kubeadmconfigs"
CURRENT: Final = 60.0
"""Seconds since the watch's last sign of life within which what it shows is believed. It lags by milliseconds; only a
server that stopped sending without a word lags longer, or one that grants watches and learns of no change itself.
Deleting the token's Secret shuts it out at once in any case, but for the ten seconds that an API server remembers it
(TokenSuccessCacheTTL)."""
_WATCH_SECONDS: Final = (40, 50)
"""So short, with time to open the next one, that a server on which nothing happens is believed all the time."""


class KubeadmConfigs:
    """The KubeadmConfigs of the management cluster."""

    def __init__(self, client: ApiClient, caches: InformerSet) -> None:
        """``client`` is the management cluster's; the watch starts when the first configuration is asked for."""
        self._client = client
        self._caches = caches
        self._watched: Reflector | None = None
        self._versions: dict[str, str] = {}

    async def tokens_of(self, member: MachineView, token_id: str) -> NamedTokens:
        """Tell which tokens a machine's KubeadmConfig names; raises Unavailable. ``token_id`` is the one that asks."""
        if member.bootstrap is None:
            raise _unreadable("a machine without a bootstrap configuration", "name one in bootstrap.configRef")
        found = await self.find(
            member.bootstrap, member.namespace, lambda kept: kept.ids is not None and token_id in kept.ids
        )
        return found.tokens()

    def naming(self, namespace: str, token_id: str) -> list[KeptConfig]:
        """Return the KubeadmConfigs of a namespace that name a token, as far as the watch shows them."""
        watched = self._watched
        if watched is None or not watched.is_current(CURRENT):
            return []
        return [kept_config(slim) for slim in watched.by_index("token", f"{namespace}/{token_id}")]

    async def names_now(self, member: MachineView, token_id: str) -> bool:
        """Return whether a machine's KubeadmConfig names a token, by a read; raises Unavailable."""
        if member.bootstrap is None:
            return False
        kept = kept_config(slim_config(await self.read(member.bootstrap, member.namespace)))
        return kept.ids is not None and token_id in kept.ids

    async def follow(self) -> None:
        """Start the watch, where KubeadmConfigs are served; else the first configuration that is read starts it."""
        if self._watched is None:
            with suppress(ApiError):
                version = await self._version(KUBEADM_CONFIG[0])
                if paths.is_segment(version) and self._watched is None:
                    self._watch(version)

    async def find(
        self, reference: ContractReference, namespace: str, is_wished: Callable[[KeptConfig], bool]
    ) -> KeptConfig:
        """Return a KubeadmConfig as the watch has it, where it is as wished, and else read it; raises Unavailable."""
        watched = self._watched
        if watched is not None and reference.group == KUBEADM_CONFIG[0] and watched.is_current(CURRENT):
            found = watched.get(f"{namespace}/{reference.name}")
            kept = kept_config(found) if found is not None else None
            if kept is not None and is_wished(kept):
                return kept
        return kept_config(slim_config(await self.read(reference, namespace)))

    async def read(self, reference: ContractReference, namespace: str) -> JsonObject:
        """Read a whole KubeadmConfig now; raises Unavailable."""
        what = f"KubeadmConfig {reference.name}"
        if not (paths.is_segment(reference.name) and paths.is_segment(reference.group)):
            raise _unreadable(
                "a configuration's name or group that is none", "correct the Machine's bootstrap.configRef"
            )
        try:
            version = reference.version or await self._version(reference.group)
            if not paths.is_segment(version):
                raise _unreadable(f"{what}: its API version is none", "correct the Machine's bootstrap.configRef")
            path = paths.object_path(reference.group, version, _RESOURCE, reference.name, namespace=namespace)
            found = await self._client.get(path)
        except NotFound as error:
            self._versions.pop(reference.group, None)
            raise _unreadable(f"{what} is not there", "see that the bootstrap configuration exists") from error
        except Forbidden as error:
            raise _unreadable(f"{what} may not be read", "apply manifests/rbac in the management cluster") from error
        except ApiError as error:
            raise _unreadable(f"{what} cannot be read: {error.reason}", "see to the management cluster") from error
        if self._watched is None and reference.group == KUBEADM_CONFIG[0]:  # in a version that is served, as just seen
            self._watch(version)
        return found

    def _watch(self, version: str) -> None:
        group = KUBEADM_CONFIG[0]
        watched = self._caches.follow(group, version, _RESOURCE, slim_config, _WATCH_SECONDS)
        watched.index("token", _token_keys)
        self._watched = watched

    async def _version(self, group: str) -> str:
        """Learn which version is served; a v1beta2 reference names none."""
        if group not in self._versions:
            self._versions[group] = text(await self._client.get(paths.api_group(group)), "preferredVersion", "version")
        return self._versions[group]


def _token_keys(slim: JsonObject) -> list[str]:
    namespace = text(slim, "metadata", "namespace")
    return [f"{namespace}/{token_id}" for token_id in kept_config(slim).ids or ()]


def _unreadable(detail: str, remedy: str) -> Unavailable:
    return Unavailable(Reason.BOOTSTRAP_CONFIG_UNREADABLE, detail, remedy=remedy)
