"""``cluster-info publish``: the ConfigMap, who may read it, a token; repeatable, and never over another cluster's."""

from __future__ import annotations

import asyncio
import base64
import re
from collections.abc import Callable
from pathlib import Path
from typing import cast

import pytest
import yaml
from cluster_info_tool import RBAC, ROLE, ClusterInfoTool
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from nodeattest_cli.cluster_info import publish_kubeconfig
from nodeattest_cli.errors import UserError
from nodeattest_discovery import clusterinfo
from nodeattest_kube.client import ApiClient
from nodeattest_kube.kubeconfig import read_kubeconfig
from nodeattest_parsing.values import JsonObject
from nodeattest_sandbox.apiserver.jsonvalue import JsonMap, map_at, text_at
from nodeattest_sandbox.client import ApiRefusal

GOLDEN = Path(__file__).parent / "kubeadm"


def anonymous(tool: ClusterInfoTool) -> JsonMap:
    return tool.plane.client(tool.plane.token_kubeconfig()).get(clusterinfo.PATH)


def test_everybody_can_read_it_and_it_says_kubeadms_bytes(tool: ClusterInfoTool) -> None:
    with pytest.raises(ApiRefusal):
        anonymous(tool)
    tool("publish")
    text = text_at(anonymous(tool), "data", "kubeconfig")
    golden = cast("JsonMap", yaml.safe_load((GOLDEN / "cluster-info.yaml").read_text()))
    theirs = text_at(golden, "data", "kubeconfig")
    data = base64.b64encode(tool.plane.ca_certificate.read_bytes()).decode()
    wanted = re.sub("(authority-data: ).*", rf"\g<1>{data}", theirs)
    assert text == wanted.replace("https://127.0.0.1:26443", tool.plane.server)
    assert clusterinfo.parse(text).server == tool.plane.server


def test_the_rights_are_kubeadms(tool: ClusterInfoTool) -> None:
    tool("publish")
    listed = cast("JsonMap", yaml.safe_load((GOLDEN / "kubepublic-rbac.yaml").read_text()))
    for theirs in cast("list[JsonMap]", listed["items"]):
        if text_at(theirs, "metadata", "name") != ROLE:
            continue
        ours = tool.client.get(f"{RBAC}/{text_at(theirs, 'kind').lower()}s/{ROLE}")
        for field in ("rules", "roleRef", "subjects"):
            assert ours.get(field) == theirs.get(field)


def refused(tool: ClusterInfoTool, *words: str, code: int = 2) -> str:
    before = tool.tokens()
    assert tool("publish", *words, code=code) == ""
    assert tool.tokens() == before
    assert tool.err.count("\n") == 1
    return tool.err


def test_another_writing_of_the_same_stays_with_its_signatures(tool: ClusterInfoTool) -> None:
    tool("publish")
    older = text_at(tool.object(), "data", "kubeconfig").replace("users: null", "preferences: {}\nusers: null")
    tool.client.patch(clusterinfo.PATH, {"data": {"kubeconfig": older, "jws-kubeconfig-abcdef": "x..y"}})
    tool("publish")
    assert map_at(tool.object(), "data") == {"kubeconfig": older, "jws-kubeconfig-abcdef": "x..y"}


@pytest.mark.parametrize("found", ["", "users: [", "server"])
def test_another_clusters_is_replaced_only_if_that_is_said(tool: ClusterInfoTool, found: str) -> None:
    tool("publish")
    ours = text_at(tool.object(), "data", "kubeconfig")
    other = ours.replace("https://127.0.0.1", "https://10.9.8.7") if found == "server" else found
    patch: JsonMap = {"kubeconfig": other, "jws-kubeconfig-abcdef": "x..y", "mine": "kept"}
    tool.client.patch(clusterinfo.PATH, {"data": patch})
    assert "--replace" in refused(tool, code=1)
    assert text_at(tool.object(), "data", "kubeconfig") == other
    assert 'Replacing the "cluster-info" ConfigMap' in tool("publish", "--replace")
    assert map_at(tool.object(), "data") == {"kubeconfig": ours, "mine": "kept"}


class CrossedClient:
    """A client whose first write another writer crosses."""

    def __init__(self, client: ApiClient, crossing: Callable[[], object]) -> None:
        self._client = client
        self._crossings = [crossing]

    async def get(self, path: str) -> JsonObject:
        return await self._client.get(path)

    async def create(self, path: str, body: JsonObject) -> JsonObject:
        self._cross()
        return await self._client.create(path, body)

    async def merge_patch(self, path: str, body: JsonObject) -> JsonObject:
        self._cross()
        return await self._client.merge_patch(path, body)

    def _cross(self) -> None:
        while self._crossings:
            self._crossings.pop()()


def published(tool: ClusterInfoTool, kubeconfig: str, crossing: Callable[[], object], *, replace: bool) -> None:
    async def work() -> None:
        async with ApiClient(read_kubeconfig(tool.plane.admin_kubeconfig)) as client:
            crossed = cast("ApiClient", CrossedClient(client, crossing))
            await publish_kubeconfig(crossed, kubeconfig, replace=replace)

    asyncio.run(work())


def test_another_clusters_that_came_meanwhile_is_not_replaced(tool: ClusterInfoTool) -> None:
    tool("publish")
    ours = tool.kubeconfig()
    other: JsonMap = {
        "metadata": {"name": "cluster-info", "namespace": "kube-public"},
        "data": {"kubeconfig": ours.replace("https://127.0.0.1", "https://10.9.8.7")},
    }
    tool.client.delete(clusterinfo.PATH)
    with pytest.raises(UserError, match="--replace"):
        published(tool, ours, lambda: tool.client.create(clusterinfo.PATH.rpartition("/")[0], other), replace=False)
    assert tool.data() == other["data"]


def test_without_anonymous_readers_nobody_gets_a_right(tool: ClusterInfoTool) -> None:
    tool("publish", "--no-anonymous")
    with pytest.raises(ApiRefusal):
        anonymous(tool)
    with pytest.raises(ApiRefusal):
        tool.client.get(f"{RBAC}/roles/{ROLE}")
    assert tool.err == ""


def test_a_private_key_is_never_published(tool: ClusterInfoTool, tmp_path: Path) -> None:
    key = ec.generate_private_key(ec.SECP256R1()).private_bytes(
        Encoding.PEM, PrivateFormat.TraditionalOpenSSL, NoEncryption()
    )
    both = tmp_path / "both.pem"
    both.write_bytes(tool.plane.ca_certificate.read_bytes() + key)
    assert "EC PRIVATE KEY" in refused(tool, "--ca-file", str(both))


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--server", "http://10.0.0.1:6443"], "https://host:port"),
        (["--server", "https://a?b"], "https://host:port"),
        (["--ca-file", "/nonexistent/ca"], "No such file"),
        (["--ca-file", __file__], "certificates in PEM"),
    ],
)
def test_what_no_machine_could_use_is_not_published(tool: ClusterInfoTool, words: list[str], says: str) -> None:
    assert says in refused(tool, *words)
    with pytest.raises(ApiRefusal):
        tool.object()


def test_rights_that_somebody_widened_are_put_right(tool: ClusterInfoTool) -> None:
    tool("publish")
    wide: JsonMap = {"rules": [{"apiGroups": [""], "resources": ["configmaps"], "verbs": ["get", "list"]}]}
    tool.client.patch(f"{RBAC}/roles/{ROLE}", wide)
    tool("publish")
    (rule,) = cast("list[JsonMap]", tool.client.get(f"{RBAC}/roles/{ROLE}")["rules"])
    assert (rule["verbs"], rule["resourceNames"]) == (["get"], ["cluster-info"])
