"""Objects at rest: nothing is lost, and what they have in common takes room once."""

from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st

from nodeattest_kube.jsontypes import JsonObject, parse_json
from nodeattest_kube.object_packer import ObjectPacker
from nodeattest_kube.store import Store

LEAF = st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False) | st.text()
ANY = st.recursive(LEAF, lambda one: st.lists(one, max_size=4) | st.dictionaries(st.text(), one, max_size=4))


def machine(number: int, text: str = "") -> JsonObject:
    return {
        "metadata": {"name": f"md-{number}", "namespace": "fleet", "labels": {"cluster.x-k8s.io/cluster-name": "blue"}},
        "spec": {"clusterName": "blue", "providerID": f"metal://rack/{number}", "text": text},
        "status": {"conditions": [{"type": "Ready", "status": "True"}, {"type": "NodeAttested", "status": "True"}]},
    }


@given(st.lists(st.dictionaries(st.text(), ANY, max_size=4), min_size=1, max_size=40))
def test_what_is_unpacked_equals_what_was_packed(objects: list[JsonObject]) -> None:
    packer = ObjectPacker()
    packed = [packer.pack(obj) for obj in objects]
    found = [packer.unpack(one) if isinstance(one, bytes) else one for one in packed]
    assert list(map(json.dumps, found)) == list(map(json.dumps, objects))


def test_what_objects_have_in_common_takes_room_once() -> None:
    packer = ObjectPacker()
    packed = [packer.pack(machine(number)) for number in range(300)]
    assert all(isinstance(one, bytes) and len(one) <= 60 for one in packed[1:])
    assert len(json.dumps(machine(1))) > 250


def test_a_first_object_that_is_unlike_the_others_decides_little() -> None:
    packer = ObjectPacker()
    packer.pack({"metadata": {"name": "other"}})
    packed = [packer.pack(machine(number)) for number in range(50)]
    assert len(packed[40]) <= 60


def test_what_would_be_dear_to_read_is_kept_as_it_is() -> None:
    packer = ObjectPacker()
    long = machine(1, "x" * (17 << 10))
    wide = parse_json(b'{"many":[' + b"[]," * 300 + b"0]}")
    deep = parse_json(b'{"a":' * 300 + b"1" + b"}" * 300)
    assert [packer.pack(obj) for obj in (long, wide, deep)] == [long, wide, deep]


def test_a_store_gives_what_it_was_given_whatever_it_keeps() -> None:
    store = Store()
    store.index("name", lambda item: [str(item["spec"])])
    for number in range(3):
        store.put(f"md-{number}", ("u", "1"), machine(number))
        store.settle(f"md-{number}", machine(number), packed=True)
    assert all(isinstance(store.kept(f"md-{number}"), bytes) for number in range(3))
    assert store.values() == [machine(number) for number in range(3)]
    assert store.by_index("name", str(machine(1)["spec"])) == [machine(1)] == [store.get("md-1")]
    store.index("same", lambda _item: ["x"])
    found = store.each("same", "x")
    assert next(found) == machine(0)
    store.remove("md-1")
    assert list(found) == [machine(2)]


def test_a_version_that_is_unlike_kubernetes_is_kept_and_compared_all_the_same() -> None:
    store, other = Store(), ("u\n1", "")
    for number, version in enumerate([("u", "1"), ("u", "1\n2"), ("ü", "1")]):
        store.put(f"md-{number}", version, machine(number))
        store.settle(f"md-{number}", machine(number), packed=True)
        assert store.has(f"md-{number}", version)
        assert store.version(f"md-{number}") == version
        assert not store.has(f"md-{number}", other)
        assert not store.has(f"md-{number}", ("u", "11"))
        assert store.get(f"md-{number}") == machine(number)
