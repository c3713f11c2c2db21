"""``endorsement-keys import`` at an API server: hosts, records and policies get their keys once, or none changes."""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
from attested_fleet import NAMESPACE, AttestedFleet

from nodeattest_cli.endorsement_keys.key_file import HOST_KINDS
from nodeattest_cli.main import main
from nodeattest_providers.identifiers import ANNOTATION_TPM_ENDORSEMENT_KEY
from nodeattest_sandbox.apiserver.jsonvalue import JsonMap, map_at, maps_at, text_at
from nodeattest_sandbox.control_plane import start_sandbox
from nodeattest_sandbox.definitions import install_definitions

ONE, TWO, THREE, FOUR = (f"sha256:{digit * 64}" for digit in "1234")
POLICIES = f"/apis/attestation.cluster.x-k8s.io/v1alpha1/namespaces/{NAMESPACE}/nodeattestationpolicies"


def definition(kind: str) -> JsonMap:
    row = HOST_KINDS[kind]
    schema: JsonMap = {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}}
    version: JsonMap = {"name": row.version, "served": True, "storage": True, "schema": schema}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{row.resource}.{row.group}"},
        "spec": {
            "group": row.group,
            "scope": "Namespaced",
            "names": {"kind": kind, "plural": row.resource, "singular": kind.lower(), "listKind": f"{kind}List"},
            "versions": [version],
        },
    }


@dataclass(frozen=True, slots=True)
class Scene:
    """A management cluster with hosts, a record and a policy, and the file of the test."""

    fleet: AttestedFleet
    file: Path

    def path(self, kind: str, name: str = "") -> str:
        row = HOST_KINDS[kind]
        return f"/apis/{row.group}/{row.version}/namespaces/{NAMESPACE}/{row.resource}" + (f"/{name}" if name else "")

    def host(self, kind: str, name: str, spec: JsonMap | None = None) -> str:
        """Create a host anew, and return how a row names it."""
        if any(text_at(one, "metadata", "name") == name for one in self.fleet.client.list(self.path(kind))):
            self.fleet.client.delete(self.path(kind, name))
        body: JsonMap = {
            "apiVersion": HOST_KINDS[kind].api_version,
            "kind": kind,
            "metadata": {"name": name, "annotations": {"example.com/kept": "yes"}},
            "spec": spec or {},
        }
        self.fleet.client.create(self.path(kind), body)
        return f"{kind}/{NAMESPACE}/{name}"

    def annotations(self, kind: str, name: str) -> JsonMap:
        return map_at(self.fleet.client.get(self.path(kind, name)), "metadata", "annotations")

    def policy(self, entries: Sequence[JsonMap] = ()) -> None:
        """Make the policy anew."""
        for one in self.fleet.client.list(POLICIES):
            self.fleet.client.delete(f"{POLICIES}/{text_at(one, 'metadata', 'name')}")
        body: JsonMap = {
            "apiVersion": "attestation.cluster.x-k8s.io/v1alpha1",
            "kind": "NodeAttestationPolicy",
            "metadata": {"name": "metal"},
            "spec": {"authorizedAttestors": ["tpm"], "tpm": {"eventLog": "Require", "endorsementKeys": [*entries]}},
        }
        self.fleet.client.create(POLICIES, body)

    def entries(self) -> list[JsonMap]:
        return list(maps_at(map_at(self.fleet.client.get(f"{POLICIES}/metal"), "spec", "tpm"), "endorsementKeys"))

    def keys(self, *rows: tuple[str, str, str], columns: str = "host,providerID,endorsementKey") -> None:
        self.file.write_text("\n".join([columns, *(",".join(row) for row in rows)]) + "\n")

    def run(self, *words: str) -> int:
        return main(["endorsement-keys", "import", str(self.file), *words, *self.fleet.access])

    def versions(self) -> list[str]:
        paths = [*(self.path(kind) for kind in HOST_KINDS), POLICIES]
        objects = [one for path in paths for one in self.fleet.client.list(path)]
        return [text_at(one, "metadata", "resourceVersion") for one in objects]


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AttestedFleet]:
    with start_sandbox(tmp_path_factory.mktemp("keys"), name="management") as plane:
        made = AttestedFleet.build(plane, "blue")
        install_definitions(made.client, [definition(kind) for kind in HOST_KINDS if kind != "MachineRecord"])
        yield made


@pytest.fixture
def scene(fleet: AttestedFleet, tmp_path: Path) -> Scene:
    made = Scene(fleet, tmp_path / "keys.csv")
    for kind in HOST_KINDS:
        for one in fleet.client.list(made.path(kind)):
            fleet.client.delete(made.path(kind, text_at(one, "metadata", "name")))
    made.policy()
    return made


@pytest.mark.parametrize("kind", [kind for kind in HOST_KINDS if kind != "MachineRecord"])
def test_a_host_gets_the_annotation_and_keeps_all_else(
    scene: Scene, kind: str, capsys: pytest.CaptureFixture[str]
) -> None:
    scene.keys((scene.host(kind, "node-7", {"online": True}), "", ONE))
    assert scene.run("--yes") == 0
    assert f"{kind} {NAMESPACE}/node-7" in capsys.readouterr().out
    assert scene.annotations(kind, "node-7") == {"example.com/kept": "yes", ANNOTATION_TPM_ENDORSEMENT_KEY: ONE}
    assert map_at(scene.fleet.client.get(scene.path(kind, "node-7")), "spec") == {"online": True}


def test_a_machine_record_gets_its_own_field(scene: Scene) -> None:
    spec: JsonMap = {"clusterName": "cellar", "providerID": "metal://7", "nodeName": "node-7"}
    scene.keys((scene.host("MachineRecord", "node-7", spec), "", ONE))
    assert scene.run("--yes") == 0
    found = scene.fleet.client.get(scene.path("MachineRecord", "node-7"))
    assert map_at(found, "spec") == {**spec, "endorsementKeyHash": ONE}


def test_provider_ids_become_entries_of_the_policy_behind_those_that_are_there(scene: Scene) -> None:
    known: JsonMap = {"providerID": "metal://1", "sha256": THREE, "description": "first"}
    scene.policy([known])
    scene.keys(("metal://7", ONE, "node-7"), ("metal://8", TWO, ""), columns="providerID,endorsementKey,nodeName")
    assert scene.run("--yes", "--policy", "metal") == 0
    assert scene.entries() == [
        known,
        {"providerID": "metal://7", "sha256": ONE, "nodeName": "node-7"},
        {"providerID": "metal://8", "sha256": TWO},
    ]
    assert text_at(scene.fleet.client.get(f"{POLICIES}/metal"), "spec", "tpm", "eventLog") == "Require"


def test_a_second_import_changes_nothing_and_says_so(scene: Scene, capsys: pytest.CaptureFixture[str]) -> None:
    scene.keys((scene.host("BareMetalHost", "node-7"), "", ONE), ("", "metal://8", TWO))
    assert scene.run("--yes", "--policy", "metal") == 0
    before = scene.versions()
    capsys.readouterr()
    assert scene.run("--policy", "metal") == 0
    assert "nothing to change: all 2 keys are registered" in capsys.readouterr().out
    assert scene.versions() == before


def test_a_dry_run_and_a_no_change_nothing(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    scene.keys((scene.host("BareMetalHost", "node-7"), "", ONE))
    before = scene.versions()
    assert scene.run("--dry-run") == 0
    assert ONE in capsys.readouterr().out
    for answer, code in (("n\n", 1), ("", 2)):
        monkeypatch.setattr("sys.stdin", io.StringIO(answer))
        assert scene.run() == code
    assert scene.versions() == before


def test_another_key_is_replaced_only_where_that_is_asked_for(scene: Scene, capsys: pytest.CaptureFixture[str]) -> None:
    scene.policy([{"providerID": "metal://8", "sha256": THREE, "nodeName": "node-8"}])
    scene.keys((scene.host("BareMetalHost", "node-7"), "", FOUR))
    assert scene.run("--yes") == 0
    for row, words, old in (
        ((f"BareMetalHost/{NAMESPACE}/node-7", "", ONE), (), FOUR),
        (("", "metal://8", TWO), ("--policy", "metal"), THREE),
    ):
        scene.keys(row)
        before = scene.versions()
        capsys.readouterr()
        assert scene.run("--yes", *words) == 1
        said = capsys.readouterr().err
        assert "line 2: expected" in said
        assert old in said
        assert "--overwrite" in said
        assert scene.versions() == before
        assert scene.run("--yes", "--overwrite", *words) == 0
    assert scene.annotations("BareMetalHost", "node-7")[ANNOTATION_TPM_ENDORSEMENT_KEY] == ONE
    assert scene.entries() == [{"providerID": "metal://8", "sha256": TWO, "nodeName": "node-8"}]


@pytest.mark.parametrize("overwrite", [(), ("--overwrite",)], ids=["plain", "overwrite"])
def test_a_key_of_another_machine_is_never_given_to_a_second_one(
    scene: Scene, overwrite: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    scene.policy([{"providerID": "metal://1", "sha256": ONE}])
    scene.keys((scene.host("BareMetalHost", "node-7"), "", TWO))
    assert scene.run("--yes") == 0
    other, hardware = scene.host("BareMetalHost", "node-8"), scene.host("Hardware", "node-8")
    before = scene.versions()
    for row, words, holder in (
        ((other, "", TWO), (), "BareMetalHost"),
        ((other, "", ONE), (), f"metal://1 in NodeAttestationPolicy {NAMESPACE}/metal"),
        ((hardware, "", TWO), (), "BareMetalHost"),
        (("", "metal://8", ONE), ("--policy", "metal"), "metal://1"),
        (("", "metal://8", TWO), ("--policy", "metal"), "BareMetalHost"),
    ):
        scene.keys(row)
        capsys.readouterr()
        assert scene.run("--yes", *words, *overwrite) == 1
        assert holder in capsys.readouterr().err
    assert scene.versions() == before


@dataclass(frozen=True, slots=True)
class Wrong:
    """An import that cannot be, and how it ends."""

    row: tuple[str, str, str]
    words: tuple[str, ...]
    code: int
    says: str


WRONG = {
    "a host that is not there": Wrong((f"BareMetalHost/{NAMESPACE}/absent", "", ONE), (), 1, "got no such object"),
    "a policy that is not there": Wrong(("", "metal://7", ONE), ("--policy", "absent"), 1, "--policy: expected"),
    "no policy": Wrong(("", "metal://7", ONE), (), 2, "--policy: line 2 has a providerID"),
    "a policy for no row": Wrong((f"BareMetalHost/{NAMESPACE}/a", "", ONE), ("--policy", "metal"), 2, "no row has"),
    "a malformed row": Wrong(("BareMetalHost/a", "", ONE), (), 2, "keys.csv: line 2: expected Kind/namespace/name"),
}


@pytest.mark.parametrize("wrong", WRONG.values(), ids=WRONG.keys())
def test_what_cannot_be_is_one_line_and_changes_nothing(
    scene: Scene, wrong: Wrong, capsys: pytest.CaptureFixture[str]
) -> None:
    scene.keys(wrong.row)
    before = scene.versions()
    assert scene.run("--yes", *wrong.words) == wrong.code
    said = capsys.readouterr().err
    assert wrong.says in said
    assert len(said.splitlines()) == 1
    assert scene.versions() == before
