"""One Secret of many writers: a compare-and-swap wins once, and what others keep in it stays."""

from __future__ import annotations

import asyncio

import pytest
from fake_api import FakeApi

from nodeattest_kube.errors import Conflict, Forbidden
from nodeattest_kube.secret_store import SecretContent, SecretStore, secret_bytes
from nodeattest_parsing.objects import dig
from nodeattest_parsing.values import JsonObject

PATH = "/api/v1/namespaces/system/secrets/keys"


def store(api: FakeApi) -> SecretStore:
    return SecretStore(api, namespace="system", name="keys")


def counted(secret: JsonObject | None) -> SecretContent | None:
    return SecretContent({"count": str(int(secret_bytes(secret, "count") or b"0") + 1).encode()})


async def test_a_secret_is_made_changed_and_left_alone() -> None:
    api = FakeApi()
    made = await store(api).update(counted)
    assert secret_bytes(made, "count") == b"1"
    assert secret_bytes(await store(api).update(counted), "count") == b"2"
    assert secret_bytes(await store(api).update(lambda _: None), "count") == b"2"
    assert api.count("PUT") == 1


async def test_of_many_writers_at_once_each_counts() -> None:
    api = FakeApi()
    await asyncio.gather(*(store(api).update(counted) for _ in range(4)))
    assert secret_bytes(await store(api).read(), "count") == b"4"


async def test_labels_annotations_and_type_of_others_stay() -> None:
    api = FakeApi()
    api.put(PATH, {"type": "kubernetes.io/tls", "metadata": {"labels": {"a": "b"}, "annotations": {"c": "d"}}})
    await store(api).update(lambda _: SecretContent({"k": b"v"}, {"e": "f"}))
    secret = api.objects[PATH]
    assert secret["type"] == "kubernetes.io/tls"
    assert dig(secret, "metadata", "labels") == {"a": "b"}
    assert dig(secret, "metadata", "annotations") == {"c": "d", "e": "f"}


async def test_who_loses_each_time_is_told_so_and_a_refusal_passes() -> None:
    api = FakeApi()
    await store(api).update(counted)

    async def faster(method: str, path: str) -> None:
        if method == "PUT":
            api.put(path, api.objects[path])

    api.on_call = faster
    with pytest.raises(Conflict, match="other writers were faster"):
        await store(api).update(counted)

    async def refused(method: str, path: str) -> None:
        raise Forbidden(403, "Forbidden", f"{method} {path}")

    api.on_call = refused
    with pytest.raises(Forbidden):
        await store(api).update(counted)


@pytest.mark.parametrize("value", ["", "!", "a", None, 7])
def test_a_value_that_is_no_base64_is_none(value: str | int | None) -> None:
    assert secret_bytes({"data": {"k": value}}, "k") is None
    assert secret_bytes(None, "k") is None
