"""``machines reset``: shown and agreed to, on record, by compare-and-swap, and told where operators look."""

from __future__ import annotations

import io
from collections.abc import Iterator

import pytest
from attested_fleet import LEDGERS, PINS, SPKI, AttestedFleet

from nodeattest_cli.main import main
from nodeattest_controller import manifests
from nodeattest_parsing.objects import items
from nodeattest_sandbox.apiserver.jsonvalue import JsonMap, map_at, maps_at, text_at
from nodeattest_sandbox.control_plane import start_sandbox


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AttestedFleet]:
    with start_sandbox(tmp_path_factory.mktemp("reset"), name="management") as plane:
        yield AttestedFleet.build(plane, "blue", "green")


def reset(fleet: AttestedFleet, *words: str, reason: str = "new mainboard") -> int:
    return main(["machines", "reset", *words, "--reason", reason, *fleet.access])


def test_a_reset_forgets_the_pins_keeps_the_keys_and_goes_on_record(
    fleet: AttestedFleet, capsys: pytest.CaptureFixture[str]
) -> None:
    ledger = fleet.machine("plain")
    assert reset(fleet, "plain", "--yes") == 0
    said = capsys.readouterr().out
    spec = fleet.spec(ledger)
    assert not {"fingerprints", "boot", "issued", "expires"} & set(spec)
    assert [text_at(key, "spki") for key in maps_at(spec, "retiredKeys")] == [SPKI]
    [entry] = maps_at(spec, "resets")
    assert (text_at(entry, "reason"), entry["fingerprints"]) == ("new mainboard", PINS)
    assert text_at(entry, "by") in said
    assert "as the kubeconfig says" not in said
    assert text_at(fleet.ledger(ledger), "metadata", "labels", "team") == "metal"


def test_the_event_stands_on_the_machine_and_names_who_and_why(fleet: AttestedFleet) -> None:
    ledger = fleet.machine("told")
    reset(fleet, "told", "--yes", reason="ticket 4711")
    [event] = [one for one in fleet.events("AttestationReset") if text_at(one, "involvedObject", "name") == "told"]
    [owner] = maps_at(ledger, "metadata", "ownerReferences")
    assert text_at(event, "involvedObject", "uid") == text_at(owner, "uid")
    assert text_at(event, "involvedObject", "kind") == "Machine"
    by = text_at(next(maps_at(fleet.spec(ledger), "resets")), "by")
    assert text_at(event, "message") == f"reset by {by}: ticket 4711"


@pytest.mark.parametrize("name", ["found", "metal://blue/found", "the ledger"])
def test_a_machine_is_found_by_its_name_its_ledgers_and_its_provider_id(fleet: AttestedFleet, name: str) -> None:
    found = [one for one in fleet.client.list(LEDGERS) if text_at(one, "spec", "machineName") == "found"]
    ledger = found[0] if found else fleet.machine("found")
    before = len(list(maps_at(fleet.spec(ledger), "resets")))
    assert reset(fleet, text_at(ledger, "metadata", "name") if name == "the ledger" else name, "--yes") == 0
    assert len(list(maps_at(fleet.spec(ledger), "resets"))) == before + 1


def test_what_is_cleared_is_shown_and_a_no_changes_nothing(
    fleet: AttestedFleet, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    ledger = fleet.machine("asked")
    monkeypatch.setattr("sys.stdin", io.StringIO("n\n"))
    assert reset(fleet, "asked") == 1
    said = capsys.readouterr().out
    for word in ("asked of fleet/blue (metal://blue/asked)", *PINS, "reset 3, 77 ms", "1f", "not revoked"):
        assert word in said
    assert "nothing was changed" in said
    assert fleet.ledger(ledger) == ledger
    monkeypatch.setattr("sys.stdin", io.StringIO("y\n"))
    assert reset(fleet, "asked") == 0
    assert "fingerprints" not in fleet.spec(ledger)


def test_a_name_of_two_machines_lists_both_and_resets_neither(
    fleet: AttestedFleet, capsys: pytest.CaptureFixture[str]
) -> None:
    first = fleet.machine("twin")
    # Cluster API has one Machine of a name in a namespace; a pool gives its instances one.
    body: JsonMap = {
        **first,
        "metadata": {"name": "another"},
        "spec": {**map_at(first, "spec"), "providerID": "metal://blue/twin-2"},
    }
    second = fleet.client.create(LEDGERS, body)
    assert reset(fleet, "twin", "--yes") == 2
    said = capsys.readouterr().err
    assert "metal://blue/twin)" in said
    assert "metal://blue/twin-2)" in said
    assert (fleet.ledger(first), fleet.ledger(second)) == (first, second)
    assert reset(fleet, "twin", "--yes", "--cluster", "green") == 1
    assert reset(fleet, "another", "--yes") == 0


class Meddler:
    """Changes the ledger between what the operator saw and what is written: stands for the terminal."""

    def __init__(self, fleet: AttestedFleet, ledger: JsonMap, spec: JsonMap) -> None:
        self._change = lambda: fleet.client.patch(f"{LEDGERS}/{text_at(ledger, 'metadata', 'name')}", {"spec": spec})

    def readline(self, _size: int = -1) -> str:
        self._change()
        return "y\n"


def test_a_ledger_that_was_written_meanwhile_is_reset_as_it_is_then(
    fleet: AttestedFleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger = fleet.machine("busy")
    monkeypatch.setattr("sys.stdin", Meddler(fleet, ledger, {"boot": {"clock": 78}, "signerName": "written meanwhile"}))
    assert reset(fleet, "busy") == 0
    spec = fleet.spec(ledger)
    assert "boot" not in spec
    assert spec["signerName"] == "written meanwhile"
    assert len(items(spec, "resets")) == 1


def test_the_shipped_operator_role_is_enough(fleet: AttestedFleet, capsys: pytest.CaptureFixture[str]) -> None:
    [role] = [one for one in manifests.objects("rbac") if text_at(one, "metadata", "name") == "nodeattest:operator"]  # pyright: ignore[reportArgumentType] - plain JSON
    kubeconfig = fleet.grant("olga", *items(role, "rules"))  # pyright: ignore[reportArgumentType] - the same
    ledger = fleet.machine("role")
    assert (
        main(["machines", "reset", "role", "--reason", "r", "--yes", "--kubeconfig", str(kubeconfig), "-n", "fleet"])
        == 0
    )
    assert capsys.readouterr().err == ""
    assert text_at(next(maps_at(fleet.spec(ledger), "resets")), "by") == "olga"
