"""The room against control planes: the sandbox always, a real kube-apiserver where its binaries are."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterator

import pytest

from nodeattest_kube.client import ApiClient
from nodeattest_kube.errors import AlreadyExists, Conflict, NotFound
from nodeattest_kube.paths import core_path
from nodeattest_parsing.objects import text
from nodeattest_parsing.values import JsonObject
from nodeattest_sandbox.control_plane import ControlPlane, StartControlPlane

NAMESPACE = "default"


@pytest.fixture(scope="module")
def plane(start_control_plane: StartControlPlane) -> Iterator[ControlPlane]:
    """A control plane of our own: it is restarted and frozen."""
    with start_control_plane("kube-room") as plane:
        yield plane


@pytest.fixture
async def admin(plane: ControlPlane) -> AsyncGenerator[ApiClient]:
    async with ApiClient.from_kubeconfig_file(plane.admin_kubeconfig) as client:
        yield client


def config_map(name: str, **data: str) -> JsonObject:
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": name, "labels": {"room": "kube"}},
        "data": {**data},
    }


def maps(name: str | None = None) -> str:
    return core_path("configmaps", name, namespace=NAMESPACE)


async def test_an_objects_life_with_every_verb(admin: ApiClient) -> None:
    made = await admin.create(maps(), config_map("life", a="1"))
    with pytest.raises(AlreadyExists):
        await admin.create(maps(), config_map("life"))
    patched = await admin.merge_patch(maps("life"), {"data": {"b": "2"}})
    assert patched["data"] == {"a": "1", "b": "2"}
    with pytest.raises(Conflict):
        await admin.replace(maps("life"), {**made, "data": {"c": "3"}})
    replaced = await admin.replace(maps("life"), {**patched, "data": {"c": "3"}})
    assert (await admin.get(maps("life")))["data"] == {"c": "3"}
    with pytest.raises(Conflict):
        await admin.delete(maps("life"), uid="00000000-0000-0000-0000-000000000000")
    await admin.delete(maps("life"), uid=text(replaced, "metadata", "uid"))
    with pytest.raises(NotFound):
        await admin.get(maps("life"))
