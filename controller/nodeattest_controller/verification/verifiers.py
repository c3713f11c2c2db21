"""The providers' verifiers: one instance each, how a verification runs, and what they say of a policy's sections."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Hashable, Iterator, Mapping
from functools import partial
from typing import Final, TypeVar

from nodeattest_controller.metrics import Metrics
from nodeattest_controller.model.policy import OWN_SECTIONS, Policy, parse_attestation_policy
from nodeattest_parsing.values import JsonObject
from nodeattest_providers.errors import Denied, Reason, Unavailable
from nodeattest_providers.identifiers import ProviderName
from nodeattest_providers.node_interface import JsonValue
from nodeattest_providers.platform import OFFLINE, Platform, make_signer
from nodeattest_providers.registry import SIGNERS, installed
from nodeattest_providers.verifier_interface import ClusterAPISigner

_T = TypeVar("_T")
_MAX_WAIT: Final = 1.0
"""Seconds for which a request holds a worker while another of its key is verified: usually that takes 5 ms."""
_RETRY: Final = 10.0
"""Seconds."""


class VerifierRegistry:
    """Looks up verifiers by the provider's name."""

    def __init__(
        self,
        platforms: Mapping[str, Mapping[str, JsonValue]],
        metrics: Metrics,
        given: Mapping[ProviderName, ClusterAPISigner],
    ) -> None:
        """``given`` are those that the embedding program made and will close (``library``)."""
        self._given = given
        self._installed = installed(SIGNERS)
        self._platforms = platforms
        self._metrics = metrics
        self._made: dict[ProviderName, ClusterAPISigner] = {}

    def has(self, provider: ProviderName) -> bool:
        """Return whether this is the name of a provider, and so its signers are ours: no prefix makes them so."""
        return provider in self._given or provider in self._installed

    def __call__(self, provider: ProviderName) -> ClusterAPISigner:
        """Return the provider's verifier; raises Denied for an unknown provider or wrong settings of its platform."""
        if provider in self._given:
            return self._given[provider]
        if provider not in self._made:
            platform = Platform(
                settings=self._platforms.get(provider, {}),
                observe=partial(self._metrics.platform_call, provider),
                find_signer=self,
            )
            self._made[provider] = make_signer(provider, platform)
        return self._made[provider]

    async def aclose(self) -> None:
        for signer in self._made.values():
            await signer.aclose()
        self._made.clear()


class VerificationRunner:
    """The verifications that are under way: one at a time for a machine and requester, each with a time limit.

    A verification that takes longer is ``Unavailable``, its worker is free, and no other of the same key begins until
    it has ended, even if it ignores its cancellation: a platform that fails for one machine delays no other. The key
    has the requester, so nobody who floods with another's machine keeps that one from its turn.
    """

    def __init__(self, time_limit: float) -> None:
        self._time_limit = time_limit
        self._under_way: dict[Hashable, asyncio.Task[object]] = {}

    async def run(self, key: Hashable, verify: Callable[[], Awaitable[_T]]) -> _T:
        """Verify, or ask a provider for anything else of a machine; raises what ``verify`` raises, or Unavailable."""
        await self._wait_for_earlier(key)
        task = asyncio.ensure_future(verify())
        self._under_way[key] = task
        task.add_done_callback(lambda ended: self._ended(key, ended))
        try:
            await asyncio.wait({task}, timeout=self._time_limit)
        finally:
            task.cancel()  # does nothing to one that has ended
        if not task.done() or task.cancelled():
            raise _unavailable(f"the provider gave no verdict within {self._time_limit:g} s")
        return task.result()

    async def _wait_for_earlier(self, key: Hashable) -> None:
        try:
            async with asyncio.timeout(_MAX_WAIT):
                while (earlier := self._under_way.get(key)) is not None and not earlier.done():
                    await asyncio.wait({earlier})
        except TimeoutError:
            raise _unavailable("an earlier verification of this machine has not ended") from None

    def _ended(self, key: Hashable, task: asyncio.Task[_T]) -> None:
        if self._under_way.get(key) is task:
            del self._under_way[key]
        if not task.cancelled():
            task.exception()  # looked at, so that asyncio does not complain of one that nobody waited for

    def __len__(self) -> int:
        return len(self._under_way)


def _unavailable(detail: str) -> Unavailable:
    return Unavailable(
        Reason.PLATFORM_UNAVAILABLE,
        detail,
        remedy="see to the platform that the provider asks; other machines are not delayed",
        retry_after=_RETRY,
    )


def offline_signer(provider: ProviderName) -> ClusterAPISigner | None:
    """Make a provider's verifier that asks nobody; None where it is not installed."""
    try:
        return make_signer(provider, OFFLINE)
    except Denied:
        return None


def section_flaws(policy: Policy, *, own_only: bool) -> Iterator[Denied]:
    """Yield what providers refuse of their sections, of those that are named and those that have one."""
    for provider in sorted(policy.attestors | set(policy.sections)):
        signer = offline_signer(provider) if provider in OWN_SECTIONS or not own_only else None
        if signer is None:
            continue
        try:
            signer.check_settings(policy.settings(provider))
        except Denied as denied:
            yield denied


def first_flaw(policy: Policy) -> Denied | None:
    return next(section_flaws(policy, own_only=True), None)


def flaw_of(policy: JsonObject, *, sections: bool) -> Denied | None:
    """Return what is wrong with a policy object; ``sections``: ask the providers, too."""
    try:
        parsed = parse_attestation_policy(policy)
    except Denied as denied:
        return denied
    return first_flaw(parsed) if sections else None
