"""Which tokens the bootstrap configuration of a machine names: read from the management cluster when somebody asks.

Promises: a configuration that cannot be read is ``Unavailable``, never a pass. Nobody is refused by what was true a
moment ago: only the answer "this token is the machine's" is remembered, for a minute, so that the two requests of a
challenge and the instances of a pool cost one read. Nothing of a configuration is kept but ids of tokens.
Leaves the rule to ``core.token_binding``. Source: cluster-api core/v1beta1 and v1beta2 (``bootstrap.configRef``).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from nodeattest_controller.model.machine_view import ContractReference, MachineView
from nodeattest_controller.model.objects import text
from nodeattest_controller.model.policy import TokenBinding
from nodeattest_controller.model.token_binding import (
    NamedTokens,
    asking_token,
    check_token_named,
    is_kubeadm_config,
    named_tokens,
    recorded_token,
)
from nodeattest_kube import paths
from nodeattest_kube.client import ApiClient, ApiError, Forbidden, NotFound
from nodeattest_kube.jsontypes import JsonObject
from nodeattest_providers.errors import Reason, Unavailable
from nodeattest_providers.verifier_interface import NodeRequest

__all__ = ["KubeadmConfigReader"]

_RESOURCE: Final = "kubeadmconfigs"
REMEMBERED: Final = 60.0
"""Seconds for which a token that was found to be the machine's stays so. Deleting the token's Secret shuts it out at
once in any case, but for the ten seconds that an API server remembers it (TokenSuccessCacheTTL)."""
_MOST: Final = 4096
"""Answers that are remembered: more joins than a minute has seen."""


class KubeadmConfigReader:
    """Reads KubeadmConfigs, and holds requests to them."""

    def __init__(self, client: ApiClient, *, clock: Callable[[], float]) -> None:
        """``client`` is the management cluster's, ``clock`` gives seconds that never jump."""
        self._client = client
        self._clock = clock
        self._versions: dict[str, str] = {}
        self._known: dict[tuple[str, str, str], float] = {}
        """Until when a token (the last part) is known to be that of a machine (namespace/configuration, UID)."""

    async def check(self, request: NodeRequest, member: MachineView, binding: TokenBinding) -> None:
        """Identity rule 4 for whoever asks with a bootstrap token; raises Denied or Unavailable.

        ``member`` is whoever has the configuration: for a Machine of a pool, the pool (``Inventory.configured_by``).
        """
        token_id = asking_token(request, member)
        if token_id is None or binding is TokenBinding.OFF:
            return
        reference = member.bootstrap if is_kubeadm_config(member) else None
        if reference is None:
            if member.of_pool and member.bootstrap is None:
                raise _unreadable(
                    f"{member.kind} {member.name} is of a MachinePool, and no one pool lists its provider ID yet",
                    "let the infrastructure provider list it in the pool's providerIDList",
                )
            check_token_named(token_id, member, recorded_token(member), binding)
            return
        key = (f"{member.namespace}/{reference.name}", member.uid, token_id)
        if self._clock() < self._known.get(key, 0.0):
            return
        found = await self.named(reference, member.namespace)
        check_token_named(token_id, member, found, binding)
        if token_id in found.ids:  # a pass that Preferred gave to a machine without a token says nothing of the next
            self._remember(key)

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
