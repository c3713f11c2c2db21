"""``nodeattest cluster-info``: published as kubeadm does and never over another cluster's, shown, and verified."""

from __future__ import annotations

import asyncio
import base64
import re
from pathlib import Path
from typing import cast

import pytest
import yaml
from attested_fleet import RBAC, ROLE, Tool
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from fake_api import FakeApi
from kubernetes_assets import cluster_configuration

from nodeattest_cli.cluster_info import publish_kubeconfig
from nodeattest_discovery import clusterinfo, jws
from nodeattest_discovery.pins import pin_of
from nodeattest_discovery.token import BootstrapToken, generate
from nodeattest_kube.errors import AlreadyExists, Conflict
from nodeattest_parsing.values import JsonObject
from nodeattest_sandbox.apiserver.jsonvalue import JsonMap, map_at, text_at
from nodeattest_sandbox.client import ApiRefusal
from nodeattest_sandbox.control_plane import kubeadm

GOLDEN = Path(__file__).parent / "kubeadm"


def published(tool: Tool) -> JsonMap:
    return map_at(tool.client.get(clusterinfo.PATH), "data")


def kubeconfig(tool: Tool) -> str:
    return text_at(published(tool), "kubeconfig")


def anonymous(tool: Tool) -> JsonMap:
    return tool.plane.client(tool.plane.token_kubeconfig()).get(clusterinfo.PATH)


def sign(tool: Tool, token: BootstrapToken, text: str) -> None:
    """Sign a text, as a bootstrap signer does."""
    key = f"jws-kubeconfig-{token.id}"
    tool.client.patch(clusterinfo.PATH, {"data": {key: jws.sign(text.encode(), token)}})


def with_token(tool: Tool) -> BootstrapToken:
    """Publish, and make a token."""
    made = generate()
    tool("cluster-info", "publish")
    tool("token", "create", made.reveal())
    return made


def test_everybody_can_read_it_and_it_says_kubeadms_bytes(tool: Tool) -> None:
    with pytest.raises(ApiRefusal):
        anonymous(tool)
    tool("cluster-info", "publish")
    text = text_at(anonymous(tool), "data", "kubeconfig")
    golden = cast("JsonMap", yaml.safe_load((GOLDEN / "cluster-info.yaml").read_text()))
    data = base64.b64encode(tool.plane.ca_certificate.read_bytes()).decode()
    wanted = re.sub("(authority-data: ).*", rf"\g<1>{data}", text_at(golden, "data", "kubeconfig"))
    assert text == wanted.replace("https://127.0.0.1:26443", tool.plane.server)
    listed = cast("JsonMap", yaml.safe_load((GOLDEN / "kubepublic-rbac.yaml").read_text()))
    for theirs in cast("list[JsonMap]", listed["items"]):
        if text_at(theirs, "metadata", "name") == ROLE:
            ours = tool.client.get(f"{RBAC}/{text_at(theirs, 'kind').lower()}s/{ROLE}")
            assert [ours.get(field) == theirs.get(field) for field in ("rules", "roleRef", "subjects")] == [True] * 3


@pytest.mark.conformance
def test_cluster_info_is_kubeadms_but_for_what_older_ones_write_besides(
    real_tool: Tool, tmp_path: Path, assets: Path
) -> None:
    config = tmp_path / "init.yaml"
    config.write_text(cluster_configuration(assets), encoding="ascii")
    access = ["--kubeconfig", str(real_tool.plane.admin_kubeconfig), "--config", str(config)]
    done = kubeadm(assets, "init", "phase", "bootstrap-token", *access)
    assert done.returncode == 0, done.stderr
    theirs = kubeconfig(real_tool)
    assert "says this already" in real_tool("cluster-info", "publish")
    assert kubeconfig(real_tool) == theirs
    real_tool.client.delete(clusterinfo.PATH)
    real_tool("cluster-info", "publish")
    assert kubeconfig(real_tool) == theirs.replace("preferences: {}\n", "")


def test_another_writing_of_the_same_stays_with_its_signatures(tool: Tool) -> None:
    tool("cluster-info", "publish")
    older = kubeconfig(tool).replace("users: null", "preferences: {}\nusers: null")
    tool.client.patch(clusterinfo.PATH, {"data": {"kubeconfig": older, "jws-kubeconfig-abcdef": "x..y"}})
    tool("cluster-info", "publish")
    assert published(tool) == {"kubeconfig": older, "jws-kubeconfig-abcdef": "x..y"}


@pytest.mark.parametrize("found", ["", "users: [", "server"])
def test_another_clusters_is_replaced_only_if_that_is_said(tool: Tool, found: str) -> None:
    tool("cluster-info", "publish")
    ours = kubeconfig(tool)
    other = ours.replace("https://127.0.0.1", "https://10.9.8.7") if found == "server" else found
    patch: JsonMap = {"kubeconfig": other, "jws-kubeconfig-abcdef": "x..y", "mine": "kept"}
    tool.client.patch(clusterinfo.PATH, {"data": patch})
    assert "--replace" in tool.refuse("cluster-info", "publish", code=1)
    assert kubeconfig(tool) == other
    assert 'Replaced the "cluster-info" ConfigMap' in tool("cluster-info", "publish", "--replace")
    assert published(tool) == {"kubeconfig": ours, "mine": "kept"}


@pytest.mark.parametrize(("before", "refusal"), [(None, AlreadyExists), ("users: [", Conflict)])
def test_another_clusters_that_came_meanwhile_is_not_replaced(before: str | None, refusal: type[Exception]) -> None:
    api, ours = FakeApi(), "kubeconfig"
    theirs: JsonObject = {"data": {"kubeconfig": "another"}}
    if before is not None:
        api.put(clusterinfo.PATH, {"data": {"kubeconfig": before}})

    async def cross(method: str, _path: str) -> None:
        if method != "GET":
            api.put(clusterinfo.PATH, theirs)

    api.on_call = cross
    with pytest.raises(refusal):
        asyncio.run(publish_kubeconfig(api, ours, replace=True))
    assert api.objects[clusterinfo.PATH]["data"] == theirs["data"]


def test_rights_are_given_to_nobody_if_that_is_said_and_put_right_where_somebody_widened_them(tool: Tool) -> None:
    tool("cluster-info", "publish", "--no-anonymous")
    with pytest.raises(ApiRefusal):
        anonymous(tool)
    tool("cluster-info", "publish")
    wide: JsonMap = {"rules": [{"apiGroups": [""], "resources": ["configmaps"], "verbs": ["get", "list"]}]}
    tool.client.patch(f"{RBAC}/roles/{ROLE}", wide)
    tool("cluster-info", "publish")
    (rule,) = cast("list[JsonMap]", tool.client.get(f"{RBAC}/roles/{ROLE}")["rules"])
    assert (rule["verbs"], rule["resourceNames"]) == (["get"], ["cluster-info"])


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--ca-file", "both.pem"], "EC PRIVATE KEY"),
        (["--server", "http://10.0.0.1:6443"], "https://host:port"),
        (["--server", "https://a?b"], "https://host:port"),
        (["--ca-file", "/nonexistent/ca"], "No such file"),
        (["--ca-file", __file__], "certificates in PEM"),
    ],
)
def test_a_private_key_and_what_no_machine_could_use_are_not_published(
    tool: Tool, words: list[str], says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    key = ec.generate_private_key(ec.SECP256R1())
    pem = key.private_bytes(Encoding.PEM, PrivateFormat.TraditionalOpenSSL, NoEncryption())
    (tmp_path / "both.pem").write_bytes(tool.plane.ca_certificate.read_bytes() + pem)
    assert says in tool.refuse("cluster-info", "publish", *words)
    with pytest.raises(ApiRefusal):
        published(tool)


def pin(tool: Tool) -> str:
    (authority,) = clusterinfo.parse(kubeconfig(tool)).ca_certificates
    return str(pin_of(authority))


def test_what_is_shown_is_what_machines_will_believe(tool: Tool) -> None:
    token, stranger = with_token(tool), generate()
    assert f"signature:  {token.id}  missing" in tool("cluster-info", "show", code=1)
    sign(tool, token, kubeconfig(tool))
    said = tool("cluster-info", "show")
    assert said.startswith(f"server:     {tool.plane.server}\n")
    assert f"pin:      {pin(tool)}\n" in said
    assert said.endswith(f"signature:  {token.id}  valid\n")
    assert tool("cluster-info", "show", "-o", "kubeconfig") == kubeconfig(tool)
    sign(tool, token, kubeconfig(tool) + "\n")
    sign(tool, stranger, kubeconfig(tool))
    said = tool("cluster-info", "show", code=1)
    assert f"{token.id}  invalid" in said
    assert f"{stranger.id}  no token signs by this id" in said
    tool.client.patch(clusterinfo.PATH, {"data": {"kubeconfig": "users: ["}})
    assert tool("cluster-info", "show", code=1).startswith("unusable:   expected ")
