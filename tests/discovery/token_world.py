"""A cluster with tokens and cluster-info, and the controllers of them at work in this process."""

from __future__ import annotations

import asyncio
import base64
import time
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from http import HTTPStatus
from itertools import count
from pathlib import Path
from typing import Final, TypeVar

from polling import until

from nodeattest_discovery import clusterinfo, jws
from nodeattest_discovery.controllers.bootstrap_signer import ControllerDeps, TokenController
from nodeattest_discovery.controllers.token_controllers import TokenControllers
from nodeattest_discovery.secret import SECRET_TYPE, secret_name
from nodeattest_discovery.token import BootstrapToken
from nodeattest_kube.client import ApiClient
from nodeattest_kube.errors import ApiError
from nodeattest_kube.workqueue import WorkQueue
from nodeattest_sandbox.apiserver.jsonvalue import JsonMap, map_at
from nodeattest_sandbox.client import ApiRefusal, Client
from nodeattest_sandbox.control_plane import AuditEntry, ControlPlane

SECRETS: Final = "/api/v1/namespaces/kube-system/secrets"
CONFIG_MAPS: Final = "/api/v1/namespaces/kube-public/configmaps"
SECRET: Final = "0123456789abcdef"
KUBECONFIG: Final = "apiVersion: v1\nkind: Config\n# any text is signed as it is, here ünd there\n"
BOTH: Final = frozenset(TokenController)
SIGNER: Final = frozenset({TokenController.SIGNER})
CLEANER: Final = frozenset({TokenController.CLEANER})
_numbers: Final = count()
T = TypeVar("T")


class VirtualTime:
    """A wall clock, a monotonic one and timers that a test moves."""

    def __init__(self, now: datetime | None = None) -> None:
        self.wall = now or datetime(2026, 1, 1, tzinfo=UTC)
        self.seconds = 1000.0
        self._timers: list[_Timer] = []

    @property
    def deps(self) -> ControllerDeps:
        return ControllerDeps(now=lambda: self.wall, clock=lambda: self.seconds, timer=self._timer, random=lambda: 0.0)

    def advance(self, seconds: float) -> None:
        """Let time pass for all clocks."""
        end = self.seconds + seconds
        while due := [timer for timer in self._timers if timer.at <= end]:
            timer = min(due, key=lambda one: one.at)
            self._timers.remove(timer)
            self._move(max(timer.at, self.seconds))
            timer.callback()
        self._move(end)

    def jump(self, seconds: float) -> None:
        """Set the wall clock, as an administrator or NTP does."""
        self.wall += timedelta(seconds=seconds)

    def _move(self, to: float) -> None:
        self.wall += timedelta(seconds=to - self.seconds)
        self.seconds = to

    def _timer(self, delay: float, callback: Callable[[], None]) -> Callable[[], None]:
        timer = _Timer(self.seconds + delay, callback)
        self._timers.append(timer)

        def cancel() -> None:
            if timer in self._timers:
                self._timers.remove(timer)

        return cancel


@dataclass(eq=False)
class _Timer:
    at: float
    callback: Callable[[], None]


@dataclass
class Told:
    """What the controllers said (``Observer``)."""

    signings: list[int] = field(default_factory=list[int])
    names: list[str] = field(default_factory=list[str])
    failures: list[tuple[TokenController, ApiError]] = field(default_factory=list[tuple[TokenController, ApiError]])
    queues: list[WorkQueue[str]] = field(default_factory=list[WorkQueue[str]])
    """The controllers' own."""
    soon: float = 5.0
    """Seconds within which a due key counts as work; none where a test moves the clock."""

    async def worked_off(self) -> None:
        """Wait until the controllers have done all that they were told of."""
        for queue in self.queues:
            await until(lambda queue=queue: not queue.pending(self.soon), "an idle queue")

    def signed(self, tokens: int, seconds: float) -> None:
        assert 0 <= seconds < 600
        self.signings.append(tokens)

    def cleaned(self, name: str) -> None:
        self.names.append(name)

    def failed(self, controller: TokenController, error: ApiError, delay: float) -> None:
        assert delay > 0
        self.failures.append((controller, error))


@dataclass(frozen=True, slots=True, kw_only=True)
class Recorded(ControllerDeps):
    """Dependencies that remember the queues that they made."""

    told: Told

    @classmethod
    def of(cls, deps: ControllerDeps, told: Told) -> Recorded:
        told.soon = 5.0 if deps.clock is time.monotonic else 0.0
        return cls(now=deps.now, clock=deps.clock, timer=deps.timer, random=deps.random, told=told)

    def queue(self) -> WorkQueue[str]:
        self.told.queues.append(ControllerDeps.queue(self))
        return self.told.queues[-1]


class TokenCluster:
    """The tokens and the cluster-info of one control plane; what it makes, ``clean`` deletes."""

    def __init__(self, plane: ControlPlane, user: str = "", groups: Sequence[str] = ("system:masters",)) -> None:
        """Name the controllers' user; without one it is a fresh one who may do everything."""
        self.plane = plane
        self.admin: Client = plane.client()
        self._user = user or f"token-controllers-{next(_numbers)}"
        self._groups = groups

    def kubeconfig(self) -> Path:
        """Write a kubeconfig of the controllers' user."""
        return self.plane.client_kubeconfig(self._user, self._groups)

    def requests(self) -> list[AuditEntry]:
        """Return what the controllers' user has asked so far."""
        return [entry for entry in self.plane.requests() if entry.user == self._user]

    def writes(self) -> list[AuditEntry]:
        """Return what it wrote, or tried to."""
        return [entry for entry in self.requests() if entry.verb not in {"get", "list", "watch"}]

    def publish(self, data: Mapping[str, str] | None = None, **metadata: Mapping[str, str]) -> JsonMap:
        """Create cluster-info."""
        body: JsonMap = {
            "metadata": {"name": "cluster-info", **{key: {**value} for key, value in metadata.items()}},
            "data": {"kubeconfig": KUBECONFIG} if data is None else {**data},
        }
        return self.admin.create(CONFIG_MAPS, body)

    def edit(self, **data: str | None) -> JsonMap:
        """Change keys of cluster-info; None removes one."""
        return self.admin.patch(clusterinfo.PATH, {"data": {**data}})

    def info(self) -> JsonMap:
        """Return cluster-info's data."""
        return map_at(self.admin.get(clusterinfo.PATH), "data")

    def signed_ids(self) -> set[str]:
        """Return what follows the prefix in the keys of signatures."""
        prefix = clusterinfo.SIGNATURE_PREFIX
        return {key.removeprefix(prefix) for key in self.info() if key.startswith(prefix)}

    def add(self, token_id: str, *, kind: str = SECRET_TYPE, name: str = "", **data: str | None) -> BootstrapToken:
        """Create a token that signs; ``data`` changes what its Secret holds."""
        entries = {
            "token-id": token_id,
            "token-secret": SECRET,
            "usage-bootstrap-signing": "true",
            "usage-bootstrap-authentication": "true",
            **{key.replace("_", "-"): value for key, value in data.items()},
        }
        encoded: JsonMap = {
            key: base64.b64encode(text.encode()).decode() for key, text in entries.items() if text is not None
        }
        metadata: JsonMap = {"name": name or secret_name(token_id)}
        self.admin.create(SECRETS, {"metadata": metadata, "type": kind, "data": encoded})
        return BootstrapToken(token_id, entries["token-secret"] or "")

    def prolong(self, token_id: str, expiration: str) -> None:
        """Give a token another end."""
        data: JsonMap = {"expiration": base64.b64encode(expiration.encode()).decode()}
        self.admin.patch(f"{SECRETS}/{secret_name(token_id)}", {"data": data})

    def remove(self, token_id: str) -> None:
        """Delete a token."""
        self.admin.delete(f"{SECRETS}/{secret_name(token_id)}")

    def has(self, name: str) -> bool:
        """Tell whether a Secret exists."""
        return name in {str(map_at(secret, "metadata")["name"]) for secret in self.admin.list(SECRETS)}

    def clean(self) -> None:
        """Delete all tokens and cluster-info."""
        for secret in self.admin.list(SECRETS):
            name = str(map_at(secret, "metadata")["name"])
            if name.startswith(("bootstrap-token-", "other-")):
                self.admin.delete(f"{SECRETS}/{name}")
        with suppress(ApiRefusal):
            self.admin.send("DELETE", clusterinfo.PATH)


@asynccontextmanager
async def working(
    kubeconfig: Path,
    *,
    enabled: frozenset[TokenController] = BOTH,
    deps: ControllerDeps | None = None,
) -> AsyncGenerator[Told]:
    """Let the controllers work for the length of the block."""
    told = Told()
    async with ApiClient.from_kubeconfig_file(kubeconfig) as client:
        pair = TokenControllers(client, enabled, observer=told, deps=Recorded.of(deps or ControllerDeps(), told))
        running = asyncio.create_task(pair.run())
        try:
            await until(lambda: pair.synced, "the first lists", seconds=60)
            yield told
        finally:
            running.cancel()
            with suppress(asyncio.CancelledError):
                await running


async def applied_writes(cluster: TokenCluster, count: int) -> list[AuditEntry]:
    """Wait for so many writes that no other overtook (409), and return all of them.

    Others may see what a request changed before a real API server writes its line into the audit log.
    """

    def applied() -> list[AuditEntry]:
        return [entry for entry in cluster.writes() if entry.code != HTTPStatus.CONFLICT]

    await until(lambda: len(applied()) >= count, f"{count} writes in the audit log")
    return applied()


def signature(token: BootstrapToken, kubeconfig: str = KUBECONFIG) -> str:
    """Sign as the oracle does."""
    return jws.sign(kubeconfig.encode(), token)
