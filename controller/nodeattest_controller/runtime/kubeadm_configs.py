"""Which tokens the bootstrap configuration of a machine names: read from the management cluster when somebody asks.

Promises: a configuration that cannot be read is ``Unavailable``, never a pass. Nobody is refused by what was true a
moment ago: only the answer "this token is the machine's" is remembered, for a minute, so that the two requests of a
challenge and the instances of a pool cost one read. Nothing of a configuration is kept but ids of tokens.
Leaves the rule to ``model.token_binding``. Source: cluster-api core/v1beta1 and v1beta2 (``bootstrap.configRef``).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from nodeattest_controller.model.machine_view import ContractReference, MachineView
from nodeattest_controller.model.objects import text
from nodeattest_controller.model.token_binding import NamedTokens, named_tokens
from nodeattest_kube import paths
from nodeattest_kube.client import ApiClient, ApiError, Forbidden, NotFound
from nodeattest_kube.jsontypes import JsonObject
from nodeattest_providers.errors import Reason, Unavailable

__all__ = ["KubeadmConfigReader"]

_RESOURCE: Final = "kubeadmconfigs"
REMEMBERED: Final = 60.0
"""Seconds for which a token that was found to be the machine's stays so. Deleting the token's Secret shuts it out at
once in any case, but for the ten seconds that an API server remembers it (TokenSuccessCacheTTL)."""
_MOST: Final = 4096
"""Answers that are remembered: more joins than a minute has seen."""


class KubeadmConfigReader:
    """Reads KubeadmConfigs."""

    def __init__(self, client: ApiClient, *, clock: Callable[[], float]) -> None:
        """``client`` is the management cluster's, ``clock`` gives seconds that never jump."""
        self._client = client
        self._clock = clock
        self._versions: dict[str, str] = {}
        self._known: dict[tuple[str, str, str], float] = {}
        """Until when a token (the last part) is known to be that of a machine (namespace/configuration, UID)."""

    async def tokens_of(self, member: MachineView, token_id: str) -> NamedTokens:
        """Read which tokens a machine's KubeadmConfig names; raises Unavailable.

        ``token_id`` is the one that asks: where it was the machine's a moment ago, that is the answer, without a read.
        """
        reference = member.bootstrap
        if reference is None:
            raise _unreadable("a machine without a bootstrap configuration", "name one in bootstrap.configRef")
        key = (f"{member.namespace}/{reference.name}", member.uid, token_id)
        if self._clock() < self._known.get(key, 0.0):
            return NamedTokens(frozenset({token_id}), settled=True)
        found = await self.named(reference, member.namespace)
        if token_id in found.ids:
            self._remember(key)
        return found

    async def named(self, reference: ContractReference, namespace: str) -> NamedTokens:
        """Read which tokens a KubeadmConfig names, now; raises Unavailable."""
        return named_tokens(await self.read(reference, namespace))

    async def read(self, reference: ContractReference, namespace: str) -> JsonObject:
        """Read a KubeadmConfig now; raises Unavailable. It holds the token itself: keep nothing of it."""
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
            return await self._client.get(path)
        except NotFound as error:
            self._versions.pop(reference.group, None)
            raise _unreadable(f"{what} is not there", "see that the bootstrap configuration exists") from error
        except Forbidden as error:
            raise _unreadable(f"{what} may not be read", "apply manifests/rbac in the management cluster") from error
        except ApiError as error:
            raise _unreadable(f"{what} cannot be read: {error.reason}", "see to the management cluster") from error

    async def _version(self, group: str) -> str:
        """Learn which version is served; a v1beta2 reference names none."""
        if group not in self._versions:
            self._versions[group] = text(await self._client.get(paths.api_group(group)), "preferredVersion", "version")
        return self._versions[group]

    def _remember(self, key: tuple[str, str, str]) -> None:
        now = self._clock()
        if len(self._known) >= _MOST:
            self._known = {known: until for known, until in self._known.items() if now < until}
        if len(self._known) < _MOST:
            self._known[key] = now + REMEMBERED


def _unreadable(detail: str, remedy: str) -> Unavailable:
    return Unavailable(Reason.BOOTSTRAP_CONFIG_UNREADABLE, detail, remedy=remedy)
