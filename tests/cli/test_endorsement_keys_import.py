"""``endorsement-keys import`` at an API server: hosts, records and policies get their keys once, or none changes."""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path

import pytest
from attested_fleet import NAMESPACE, POLICIES, AttestedFleet

from nodeattest_cli.key_file import HOST_KINDS
from nodeattest_cli.main import main
from nodeattest_providers.identifiers import ANNOTATION_TPM_ENDORSEMENT_KEY
from nodeattest_sandbox.apiserver.jsonvalue import JsonMap, map_at, maps_at, text_at
from nodeattest_sandbox.definitions import install_definitions, small_definition

ONE, TWO, THREE, FOUR, FIVE = (f"sha256:{digit * 64}" for digit in "12345")
CUSTOM = [kind for kind in HOST_KINDS if kind != "MachineRecord"]


class Scene:
    """A management cluster with hosts, a record and a policy, and the file of the test."""

    def __init__(self, fleet: AttestedFleet, file: Path) -> None:
        self.client, self.access, self.file = fleet.client, fleet.access, file

    def path(self, kind: str, name: str = "") -> str:
        row = HOST_KINDS[kind]
        return f"/apis/{row.group}/{row.version}/namespaces/{NAMESPACE}/{row.resource}" + (f"/{name}" if name else "")

    def host(self, kind: str, name: str, spec: JsonMap | None = None) -> str:
        """Create a host, and return how a row names it."""
        meta: JsonMap = {"name": name, "annotations": {"example.com/kept": "yes"}}
        self.client.create(self.path(kind), {"kind": kind, "metadata": meta, "spec": spec or {}})
        return f"{kind}/{NAMESPACE}/{name}"

    def annotations(self, kind: str, name: str) -> JsonMap:
        return map_at(self.client.get(self.path(kind, name)), "metadata", "annotations")

    def policy(self, *entries: JsonMap) -> None:
        """Make the policy anew."""
        self.clear(POLICIES)
        tpm: JsonMap = {"eventLog": "Require", "endorsementKeys": [*entries]}
        spec: JsonMap = {"authorizedAttestors": ["tpm"], "tpm": tpm}
        self.client.create(POLICIES, {"metadata": {"name": "metal"}, "spec": spec})

    def entries(self) -> list[JsonMap]:
        return list(maps_at(self.client.get(f"{POLICIES}/metal"), "spec", "tpm", "endorsementKeys"))

    def keys(self, *rows: tuple[str, str, str], columns: str = "host,providerID,endorsementKey") -> None:
        self.file.write_text("\n".join([columns, *(",".join(row) for row in rows)]) + "\n")

    def run(self, *words: str) -> int:
        return main(["endorsement-keys", "import", str(self.file), *words, *self.access])

    def versions(self) -> list[str]:
        paths = [*map(self.path, HOST_KINDS), POLICIES]
        return [text_at(one, "metadata", "resourceVersion") for path in paths for one in self.client.list(path)]

    def clear(self, *paths: str) -> None:
        for path in paths:
            for one in self.client.list(path):
                self.client.delete(f"{path}/{text_at(one, 'metadata', 'name')}")


@pytest.fixture
def scene(fleet: AttestedFleet, tmp_path: Path) -> Iterator[Scene]:
    kinds = [(HOST_KINDS[kind], kind) for kind in CUSTOM]
    definitions = [small_definition(row.group, row.resource, kind, [row.version]) for row, kind in kinds]
    install_definitions(fleet.client, definitions)
    made = Scene(fleet, tmp_path / "keys.csv")
    made.policy()
    yield made
    made.clear(*map(made.path, HOST_KINDS))


@pytest.mark.parametrize("kind", CUSTOM)
def test_a_host_gets_the_annotation_and_keeps_all_else(
    scene: Scene, kind: str, capsys: pytest.CaptureFixture[str]
) -> None:
    scene.keys((scene.host(kind, "node-7", {"online": True}), "", ONE))
    assert scene.run("--yes") == 0
    assert f"{kind} {NAMESPACE}/node-7" in capsys.readouterr().out
    assert scene.annotations(kind, "node-7") == {"example.com/kept": "yes", ANNOTATION_TPM_ENDORSEMENT_KEY: ONE}
    assert map_at(scene.client.get(scene.path(kind, "node-7")), "spec") == {"online": True}


def test_a_machine_record_gets_its_own_field(scene: Scene) -> None:
    spec: JsonMap = {"clusterName": "cellar", "providerID": "metal://7", "nodeName": "node-7"}
    scene.keys((scene.host("MachineRecord", "node-7", spec), "", ONE))
    assert scene.run("--yes") == 0
    found = scene.client.get(scene.path("MachineRecord", "node-7"))
    assert map_at(found, "spec") == {**spec, "endorsementKeyHash": ONE}


def test_provider_ids_become_entries_of_the_policy_behind_those_that_are_there(scene: Scene) -> None:
    known: JsonMap = {"providerID": "metal://1", "sha256": THREE, "description": "first"}
    scene.policy(known)
    scene.keys(("metal://7", ONE, "node-7"), ("metal://8", TWO, ""), columns="providerID,endorsementKey,nodeName")
    assert scene.run("--yes", "--policy", "metal") == 0
    assert scene.entries() == [
        known,
        {"providerID": "metal://7", "sha256": ONE, "nodeName": "node-7"},
        {"providerID": "metal://8", "sha256": TWO},
    ]
    assert text_at(scene.client.get(f"{POLICIES}/metal"), "spec", "tpm", "eventLog") == "Require"


def test_a_second_import_changes_nothing_and_says_so(scene: Scene, capsys: pytest.CaptureFixture[str]) -> None:
    scene.keys((scene.host("BareMetalHost", "node-7"), "", ONE), ("", "metal://8", TWO))
    assert scene.run("--yes", "--policy", "metal") == 0
    before = scene.versions()
    capsys.readouterr()
    assert scene.run("--policy", "metal") == 0
    assert "nothing to change: all 2 keys are registered" in capsys.readouterr().out
    assert scene.versions() == before


class Meddler:
    """Writes the host between what the operator saw and what is written: stands for the terminal."""

    def __init__(self, scene: Scene) -> None:
        patch: JsonMap = {"metadata": {"annotations": {ANNOTATION_TPM_ENDORSEMENT_KEY: FOUR}}}
        self._change = lambda: scene.client.patch(scene.path("BareMetalHost", "node-7"), patch)

    def readline(self, _size: int = -1) -> str:
        self._change()
        return "y\n"


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
    monkeypatch.setattr("sys.stdin", Meddler(scene))
    assert scene.run() == 1
    assert "written meanwhile; import again" in capsys.readouterr().err
    assert scene.annotations("BareMetalHost", "node-7")[ANNOTATION_TPM_ENDORSEMENT_KEY] == FOUR


def test_another_key_is_replaced_only_where_that_is_asked_for(scene: Scene, capsys: pytest.CaptureFixture[str]) -> None:
    scene.policy(
        {"providerID": "metal://8", "sha256": THREE, "nodeName": "node-8"}, {"providerID": "metal://8", "sha256": FIVE}
    )
    host = scene.host("BareMetalHost", "node-7")
    scene.keys((host, "", FOUR))
    assert scene.run("--yes") == 0
    for row, words, old in ((("", "metal://8", TWO), ("--policy", "metal"), THREE), ((host, "", ONE), (), FOUR)):
        scene.keys(row)
        before = scene.versions()
        capsys.readouterr()
        assert scene.run("--yes", *words) == 1
        said = capsys.readouterr().err
        assert all(part in said for part in ("line 2: expected", old, "--overwrite"))
        assert scene.versions() == before
        assert scene.run("--yes", "--overwrite", *words) == 0
    assert scene.annotations("BareMetalHost", "node-7")[ANNOTATION_TPM_ENDORSEMENT_KEY] == ONE
    assert scene.entries() == [{"providerID": "metal://8", "sha256": TWO, "nodeName": "node-8"}]


BMH = f"BareMetalHost/{NAMESPACE}"
POLICY = ("--policy", "metal")


@pytest.mark.parametrize(
    ("row", "words", "code", "says"),
    [
        ((f"{BMH}/node-8", "", TWO), ("--overwrite",), 1, "BareMetalHost fleet/node-7"),
        ((f"{BMH}/node-8", "", ONE), (), 1, f"metal://1 in NodeAttestationPolicy {NAMESPACE}/metal"),
        ((f"Hardware/{NAMESPACE}/node-8", "", TWO), (), 1, "BareMetalHost fleet/node-7"),
        (("", "metal://8", ONE), (*POLICY, "--overwrite"), 1, "metal://1"),
        (("", "metal://8", TWO), POLICY, 1, "BareMetalHost fleet/node-7"),
        ((f"{BMH}/absent", "", THREE), (), 1, "got no such object"),
        (("", "metal://7", THREE), ("--policy", "absent"), 1, "--policy: expected"),
        (("", "metal://7", THREE), (), 2, "--policy: line 2 has a providerID"),
        ((f"{BMH}/a", "", THREE), POLICY, 2, "no row has"),
        (("BareMetalHost/a", "", THREE), (), 2, "keys.csv: line 2: expected Kind/namespace/name"),
    ],
)
def test_a_key_of_another_machine_and_what_cannot_be_is_one_line_and_changes_nothing(
    scene: Scene, row: tuple[str, str, str], words: tuple[str, ...], code: int, says: str
) -> None:
    scene.policy({"providerID": "metal://1", "sha256": ONE})
    scene.keys((scene.host("BareMetalHost", "node-7"), "", TWO))
    assert scene.run("--yes") == 0
    for kind in ("BareMetalHost", "Hardware"):
        scene.host(kind, "node-8")
    scene.keys(row)
    before = scene.versions()
    error = io.StringIO()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sys.stderr", error)
        assert scene.run("--yes", *words) == code
    assert says in error.getvalue()
    assert len(error.getvalue().splitlines()) == 1
    assert scene.versions() == before
