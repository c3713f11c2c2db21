"""How soon cluster-info is signed: after a token was made, and after cluster-info changed.

From the API server's answer to the change until a watch shows the signature that it asks for; one change at a time, on
an otherwise idle cluster. Where KUBEBUILDER_ASSETS has kube-controller-manager, it is measured in the same run.
"""

from __future__ import annotations

import asyncio
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Generator
from contextlib import AbstractContextManager, aclosing, contextmanager
from dataclasses import dataclass
from pathlib import Path

from bench.figures import Figure
from nodeattest_discovery import clusterinfo, jws, token
from nodeattest_discovery.secret import NAMESPACE, SECRET_TYPE, TokenSecret, encode, secret_name
from nodeattest_kube import paths
from nodeattest_kube.client import ApiClient
from nodeattest_kube.jsontypes import JsonObject, dig_text
from nodeattest_sandbox.child_process import Process
from nodeattest_sandbox.control_plane import ControlPlane, start_real, start_sandbox
from nodeattest_sandbox.kubernetes_binaries import controller_manager

ROUNDS = 40
WARM_UP = 3
"""Rounds that open connections, and are not counted."""
PATIENCE = 30.0
"""Seconds until a signature must have come."""
PAUSE = 0.05
SECRETS = paths.core_path("secrets", namespace=NAMESPACE)
CONFIG_MAPS = paths.core_path("configmaps", namespace=clusterinfo.NAMESPACE)
KUBECONFIG = "apiVersion: v1\nkind: Config\n" + "# as long as an ordinary one\n" * 60


@dataclass(frozen=True)
class Latencies:
    """Milliseconds."""

    token: list[float]
    change: list[float]


def measure() -> list[Figure]:
    found = os.environ.get("KUBEBUILDER_ASSETS", "")
    assets = Path(found) if found and (Path(found) / "kube-apiserver").exists() else None
    with tempfile.TemporaryDirectory(prefix="nodeattest-bench-") as name:
        directory = Path(name)
        with _plane(directory, assets) as plane:
            ours = _latencies(plane, _our_controllers(plane))
            beside = assets is not None and (assets / "kube-controller-manager").exists()
            theirs = (
                _latencies(plane, controller_manager(plane, assets, ["bootstrapsigner", "tokencleaner"]))
                if beside and assets is not None
                else None
            )
    server = "a real kube-apiserver" if assets is not None else "the sandbox's API server"
    return [
        *_figures("a token was made", ours.token, theirs.token if theirs else None, server),
        *_figures("cluster-info changed", ours.change, theirs.change if theirs else None, server),
    ]


def _figures(what: str, ours: list[float], theirs: list[float] | None, server: str) -> list[Figure]:
    median, worst = statistics.median(ours), statistics.quantiles(ours, n=20)[-1]
    figures = [
        Figure(f"signed after {what}, median", median, "ms", "<= 50", server),
        Figure(f"signed after {what}, 95th percentile", worst, "ms", "<= 50", f"{len(ours)} changes, one at a time"),
    ]
    if theirs is not None:
        middle, high = statistics.median(theirs), statistics.quantiles(theirs, n=20)[-1]
        note = f"its median {middle:.3g} ms, 95th percentile {high:.3g} ms"
        figures.append(Figure(f"… in kube-controller-manager's time, {what}", median / middle, "x", "", note))
    return figures


@contextmanager
def _plane(directory: Path, assets: Path | None) -> Generator[ControlPlane]:
    start = directory / "plane"
    with start_real(start, assets, name="bench") if assets else start_sandbox(start, name="bench") as plane:
        yield plane


@contextmanager
def _our_controllers(plane: ControlPlane) -> Generator[Process]:
    directory = plane.directory / "token-controllers"
    directory.mkdir()
    kubeconfig = plane.client_kubeconfig("token-controllers", ("system:masters",))
    script = Path(__file__).with_name("token_controllers.py")
    process = Process("token-controllers", [sys.executable, str(script), str(kubeconfig)], directory)
    try:
        yield process
    finally:
        process.stop()


def _latencies(plane: ControlPlane, signer: AbstractContextManager[object]) -> Latencies:
    with signer:
        return asyncio.run(_measured(plane.admin_kubeconfig))


async def _measured(kubeconfig: Path) -> Latencies:
    async with ApiClient.from_kubeconfig_file(kubeconfig) as client:
        body: JsonObject = {"metadata": {"name": clusterinfo.NAME}, "data": {clusterinfo.KUBECONFIG_KEY: KUBECONFIG}}
        created = await client.create(CONFIG_MAPS, body)
        seen = _Seen()
        watching = asyncio.create_task(seen.follow(client, dig_text(created, "metadata", "resourceVersion")))
        made: list[token.BootstrapToken] = []
        try:
            return Latencies(
                token=[await _after_token(client, seen, made) for _ in range(WARM_UP + ROUNDS)][WARM_UP:],
                change=[await _after_change(client, seen, made[0], number) for number in range(ROUNDS)],
            )
        finally:
            watching.cancel()
            for each in made:
                await client.delete(f"{SECRETS}/{secret_name(each.id)}")
            await client.delete(clusterinfo.PATH)


async def _after_token(client: ApiClient, seen: _Seen, made: list[token.BootstrapToken]) -> float:
    each = token.generate()
    made.append(each)
    body: JsonObject = {
        "metadata": {"name": secret_name(each.id)},
        "type": SECRET_TYPE,
        "data": {**encode(TokenSecret(token=each))},
    }
    return await _timed(client.create(SECRETS, body), seen, each, KUBECONFIG)


async def _after_change(client: ApiClient, seen: _Seen, each: token.BootstrapToken, number: int) -> float:
    text = f"{KUBECONFIG}# change {number}\n"
    patch: JsonObject = {"data": {clusterinfo.KUBECONFIG_KEY: text}}
    return await _timed(client.merge_patch(clusterinfo.PATH, patch), seen, each, text)


async def _timed(change: Awaitable[JsonObject], seen: _Seen, each: token.BootstrapToken, text: str) -> float:
    await asyncio.sleep(PAUSE)
    wanted = jws.sign(text.encode(), each)
    await change
    start = time.perf_counter()
    when = await seen.until(lambda info: dig_text(info, "data", clusterinfo.SIGNATURE_PREFIX + each.id) == wanted)
    return 1000 * max(when - start, 0.0)


class _Seen:
    """Cluster-info as a watch shows it, and since when."""

    def __init__(self) -> None:
        self._info: JsonObject = {}
        self._when = 0.0
        self._changed = asyncio.Event()

    async def follow(self, client: ApiClient, version: str) -> None:
        query = {"fieldSelector": f"metadata.name={clusterinfo.NAME}", "resourceVersion": version}
        async with aclosing(client.watch(CONFIG_MAPS, query)) as events:
            async for event in events:
                self._info, self._when = event.object, time.perf_counter()
                self._changed.set()

    async def until(self, holds: Callable[[JsonObject], bool]) -> float:
        async with asyncio.timeout(PATIENCE):
            while not holds(self._info):
                self._changed.clear()
                await self._changed.wait()
        return self._when
