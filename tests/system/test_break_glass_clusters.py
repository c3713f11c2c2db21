"""Break glass for whole clusters: a workload cluster's CA was replaced at once, or the management cluster is lost."""

from __future__ import annotations

import base64
import json
import shutil
import subprocess
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, cast

import pytest
import yaml
from cryptography import x509
from polling import eventually
from runbook import SPENT, Runbook, ended, joined, serials, serving, shorten_certificates
from world import BIN, CLUSTER, NAMESPACE, OWN, Agent, World, built_world

from nodeattest_sandbox import fleet
from nodeattest_sandbox.apiserver.jsonvalue import JsonMap, load, map_at, maps_at, text_at
from nodeattest_sandbox.client import ApiRefusal, Client
from nodeattest_sandbox.control_plane import StartControlPlane
from nodeattest_sandbox.definitions import install_cluster_api, install_definitions
from nodeattest_sandbox.pki import ClusterPki

pytestmark = pytest.mark.swtpm

FOLLOWER: Final = "blue-md-10"
GIVEN: Final = "blue-md-11"
MACHINES: Final = {"metal://rack-1/node-11": f"sandbox://{GIVEN}"}
CONTROL_PLANE: Final = "/etc/kubernetes/pki"


@pytest.fixture
def world(start_control_plane: StartControlPlane, tmp_path: Path) -> Iterator[World]:
    """A world of its own: its workload cluster's CA is replaced, or its management cluster is lost."""
    with built_world(start_control_plane, tmp_path) as built:
        yield built


def discovered(world: World) -> Agent:
    """Let a machine join that found its cluster by a discovery file, and so follows it."""
    published = ["cluster-info", "publish", "--kubeconfig", str(world.workload.admin_kubeconfig)]
    subprocess.run([BIN / "nodeattest", *published], check=True, capture_output=True, timeout=120)
    tpm = world.tpm(FOLLOWER)
    world.machine(FOLLOWER, tpm=tpm)
    agent = world.agent(FOLLOWER, "tpm", tcti=tpm.tcti)
    agent.directory.mkdir(parents=True)
    found = agent.directory / "discovery.conf"
    bundle = base64.b64encode(world.workload.ca_certificate.read_bytes()).decode()
    cluster: JsonMap = {"server": world.workload.server, "certificate-authority-data": bundle}
    found.write_text(json.dumps({"apiVersion": "v1", "kind": "Config", "clusters": [{"name": "", "cluster": cluster}]}))
    token = agent.directory / "token"
    token.write_text(world.token())
    token.chmod(0o600)
    done = agent.run(
        *("join", "--discovery-file", str(found), "--token-file", str(token), "--node-name", FOLLOWER),
        *("--provider", "tpm", "--provider-id", agent.provider_id, "--set", f"tcti={tpm.tcti}"),
        *("--kubeconfig", str(agent.kubeconfig), *agent.files()),
    )
    assert done.returncode == 0, done.stderr
    return agent


def replace_authority(world: World, book: Runbook) -> None:
    """Replace the CA at once, on the control plane and in the management cluster, and keep both folders aside."""
    pki = world.workload.pki.directory
    shutil.copytree(pki, book.folder / "pki-old")
    new = ClusterPki.make(book.folder / "pki-new", "kubernetes-2")
    for name in ("ca.crt", "ca.key", "apiserver.crt", "apiserver.key"):
        shutil.copy(new.directory / name, pki / name)
    restart(world)
    world.reset_authority()


def restart(world: World) -> None:
    """Restart kube-apiserver; the administrator's kubeconfig is written anew with what it trusts and signs now."""
    world.workload.restart()
    world.workload_admin = world.workload.client()


def takes(world: World, kubeconfig: Path) -> bool:
    """Return whether the API server takes an administrator's certificate; its own is not in question."""
    config = load(kubeconfig.read_bytes())
    cluster = map_at(next(maps_at(config, "clusters")), "cluster")
    cluster["certificate-authority-data"] = base64.b64encode(world.workload.ca_certificate.read_bytes()).decode()
    trusting = kubeconfig.with_suffix(".trusting")
    trusting.write_text(json.dumps(config))
    try:
        Client.from_kubeconfig(trusting).get("/api/v1/namespaces/default")
    except (ApiRefusal, OSError):  # the sandbox ends the handshake, kube-apiserver answers 401
        return False
    return True


def works(world: World, agent: Agent) -> bool:
    """Return whether the API server takes what kubelet gets from the agent."""
    assert world.management.kubectl is not None
    command = [world.management.kubectl, "--kubeconfig", agent.kubeconfig, "auth", "can-i", "create", "nodes"]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False).stdout.strip() == "yes"


def issuers(world: World) -> dict[str, str]:
    """Return the name of the CA of each machine's newest certificate on record."""
    found: dict[str, str] = {}
    for name in serials(world):
        newest = list(maps_at(world.ledger(name), "spec", "issued"))[-1]
        certificate = x509.load_pem_x509_certificate(text_at(newest, "certificate").encode())
        found[name] = certificate.issuer.rfc4514_string()
    return found


def make_opaque(world: World, name: str) -> None:
    """Make a Secret anew with the type that kubectl gives."""
    path = f"/api/v1/namespaces/{NAMESPACE}/secrets"
    found = world.admin.get(f"{path}/{name}")
    labels = map_at(found, "metadata")["labels"]
    world.admin.delete(f"{path}/{name}")
    body: JsonMap = {"apiVersion": "v1", "kind": "Secret", "data": found["data"]}
    world.admin.create(path, {**body, "metadata": {"name": name, "labels": labels}})


def trusted(world: World) -> list[x509.Certificate]:
    """Return the CAs of the API server that the controller is given."""
    secret = world.admin.get(f"/api/v1/namespaces/{NAMESPACE}/secrets/{CLUSTER}-kubeconfig")
    config = cast("JsonMap", yaml.safe_load(base64.b64decode(text_at(secret, "data", "value"))))
    cluster = map_at(next(maps_at(config, "clusters")), "cluster")
    return x509.load_pem_x509_certificates(base64.b64decode(text_at(cluster, "certificate-authority-data")))


def test_the_nodes_of_a_cluster_whose_ca_was_replaced_renew_under_the_new_one(world: World) -> None:
    pki = world.workload.pki.directory
    book = Runbook(
        world, "runbooks", "A workload cluster's CA was replaced", names={**MACHINES, CONTROL_PLANE: str(pki)}
    )
    with serving(world, "rotated.log"):
        follower, given = discovered(world), joined(world, GIVEN)
        assert works(world, follower)
        assert works(world, given)
        stolen = world.workload.client_kubeconfig("thief", ("system:masters",))
        replace_authority(world, book)
        assert not works(world, follower)
        assert not works(world, given)

        assert FOLLOWER in book.run()
        book.run()
        restart(world)
        assert works(world, follower)
        assert works(world, given)
        assert takes(world, stolen)
        shutil.copy(world.workload.admin_kubeconfig, book.folder / "admin.conf")
        make_opaque(world, f"{CLUSTER}-ca")
        book.run()
        assert len(trusted(world)) == 2
        book.run()
        book.run()
        assert "trusts the CA" in book.run(node=follower)
        book.run(node=given)
        assert "kubernetes-2" in issuers(world)[GIVEN]
        book.run()
        restart(world)
        book.run()
        assert "no longer trusts the CA" in book.run(node=follower)
        book.run(node=given)
        assert works(world, follower)  # with its certificate of the old CA; this call begins the renewal
        eventually(lambda: "kubernetes-2" in issuers(world)[FOLLOWER], what="the follower's renewal")
        assert book.run() == ""
        book.run()
        restart(world)
        book.run()
        assert book.finished()
        assert not takes(world, stolen)
        assert [one.subject.rfc4514_string() for one in trusted(world)] == ["CN=kubernetes-2-ca"]
        eventually(lambda: works(world, follower), what="a node of the new CA alone")
        for agent in (follower, given):
            again = agent.join(SPENT, "--renew")
            assert again.returncode == 0, again.stderr
        assert works(world, given)
    assert all("kubernetes-2" in issuer for issuer in issuers(world).values())


# The management cluster is lost: another is built from objects, and the nodes renew

SECONDS: Final = 20
"""That the second node's first certificate lasts."""
SECRETS: Final = f"/api/v1/namespaces/{NAMESPACE}/secrets"
LOST_MACHINES: Final = {"metal://rack-1/node-8": "sandbox://blue-md-8", "metal://rack-1/node-9": "sandbox://blue-md-9"}


@contextmanager
def rebuilt(world: World, start_control_plane: StartControlPlane) -> Generator[None]:
    """End the management cluster with everything that it kept, and use another one with definitions alone."""
    world.management.stop()
    with start_control_plane("rebuilt") as plane:
        world.management, world.admin = plane, plane.client()
        install_cluster_api(world.admin)
        install_definitions(world.admin, world.definitions())
        fleet.create_namespace(world.admin, "nodeattest-system")
        yield


def restore_cluster_api(world: World) -> None:
    """Do what a tool for Cluster API's objects does: the same names and specs, new UIDs; the Secrets are the page's."""
    world.cluster = world.create_cluster()
    for name in ("blue-md-8", "blue-md-9"):
        world.machine(name)
    for name in secrets(world):
        world.admin.delete(f"{SECRETS}/{name}")


def secrets(world: World) -> dict[str, JsonMap]:
    """Return the Secrets of clusters by their names."""
    found = world.admin.list(SECRETS)
    clusters = [one for one in found if "cluster.x-k8s.io/cluster-name" in map_at(one, "metadata", "labels")]
    return {text_at(one, "metadata", "name"): one for one in clusters}


def own_twice(world: World) -> None:
    """Give a Secret two owners, as Cluster API does where one of its controllers takes it over from another."""
    path = f"{SECRETS}/{CLUSTER}-ca"
    [owner] = maps_at(world.admin.get(path), "metadata", "ownerReferences")
    other = {"name": "another", "uid": "00000000-0000-0000-0000-000000000000", "controller": False}
    second: JsonMap = {**owner, **other}
    world.admin.patch(path, {"metadata": {"ownerReferences": [owner, second]}})


def owners(world: World) -> dict[str, str]:
    """Return the UID of the owner of each record, by the machine's name."""
    found = world.admin.list(f"{OWN}/machineattestations")
    return {
        text_at(one, "spec", "machineName"): text_at(next(maps_at(one, "metadata", "ownerReferences")), "uid")
        for one in found
    }


def uids(world: World) -> dict[str, str]:
    path = f"/apis/cluster.x-k8s.io/v1beta1/namespaces/{NAMESPACE}/machines"
    return {text_at(one, "metadata", "name"): text_at(one, "metadata", "uid") for one in world.admin.list(path)}


def test_the_nodes_of_a_management_cluster_that_is_built_anew_renew(
    world: World, start_control_plane: StartControlPlane
) -> None:
    book = Runbook(world, "runbooks", "The management cluster is lost", names=LOST_MACHINES)
    first_use = {"trustOnFirstUse": True, "endorsementCAs": world.tpm("blue-md-8").authority_pem}
    policy: JsonMap = {"authorizedAttestors": ["tpm"], "tpm": {**first_use}}  # only the record names a machine's TPM
    old_token = world.token()
    with serving(world, "lost.log", policy):
        first = joined(world, "blue-md-8", registered=False)
        shorten_certificates(world, SECONDS)
        second = joined(world, "blue-md-9", registered=False)
        world.reset_authority()
    own_twice(world)
    saved = secrets(world)
    book.run()
    before, old_owners = serials(world), owners(world)
    with rebuilt(world, start_control_plane):
        ended(second)
        assert "valid" in book.run(node=first)
        book.run()
        restore_cluster_api(world)
        book.run()
        book.run()
        restored = secrets(world)
        assert {name: one["data"] for name, one in restored.items()} == {n: one["data"] for n, one in saved.items()}
        assert not any("ownerReferences" in map_at(one, "metadata") for one in restored.values())
        assert serials(world) == before
        assert owners(world) == uids(world) != old_owners
        with world.controller("--leader-elect", "false", log="rebuilt.log") as controller:
            world.await_service(controller)
            thief = world.agent("blue-md-8", "tpm", directory="thief", tcti=world.tpm("thief").tcti)
            refused = thief.join(old_token)
            assert "EndorsementKeyChanged" in refused.stderr
            book.run(node=first)
            book.bring(book.run())
            book.run(node=second)
            shown = book.run()
            assert "ended" not in shown
            assert book.finished()
            again = second.join(SPENT, "--renew")
            assert again.returncode == 0, again.stderr
        after = serials(world)
    assert {name: found[: len(before[name])] for name, found in after.items()} == before
    assert {name: len(found) for name, found in after.items()} == {"blue-md-8": 2, "blue-md-9": 3}
