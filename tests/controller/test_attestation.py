"""The ledger's laws: what is written can be read, what is bound stays bound."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta

import pytest
from builders import CREATED, make_member, make_request, recorded
from cryptography.hazmat.primitives.asymmetric import ec

from nodeattest_controller.model.attestation import (
    KEEP_ISSUED,
    Attestation,
    attestation_name,
    new_attestation,
    parse_attestation,
    record_certificate,
    render_attestation,
)
from nodeattest_controller.model.certificate_authority import SignedCertificate
from nodeattest_controller.model.objects import items, mapping, rfc3339, text
from nodeattest_controller.model.retired_keys import MAX_LIVE, RetiredKey
from nodeattest_controller.runtime.indexes import Inventory, cluster_key
from nodeattest_kube.jsontypes import JsonObject
from nodeattest_providers.errors import Check, Denied, Reason
from nodeattest_providers.names import ProviderID, ProviderName, Purpose
from nodeattest_providers.node_interface import FirstRequestRef
from nodeattest_providers.verifier_interface import AttestedNode, BootState, NodeRequest

ISSUED = SignedCertificate(pem="pem", serial="ab", not_before=CREATED, not_after=CREATED + timedelta(days=14))
BOOT = BootState(
    clock=10, reset_count=2, restart_count=1, safe=True, pcr_digest="aa", bank="sha256", pcrs={0: "00", 14: "ff"}
)


def attested(first: str = "u-1", **fingerprints: str) -> AttestedNode:
    return AttestedNode(
        provider=ProviderName("tpm"),
        provider_id=ProviderID("sandbox://node-0"),
        fingerprints=fingerprints or {"ek": "sha256:e", "ak": "sha256:a"},
        boot=BOOT,
        first_request=FirstRequestRef(name="first", uid=first),
        checks=(Check("c", "s", "e", "g", passed=True),),
    )


def joined(request: NodeRequest, now: datetime = CREATED) -> Attestation:
    return recorded(new_attestation(make_member()), request, attested(), ISSUED, now)


def test_what_is_rendered_is_parsed_again() -> None:
    written = joined(make_request())
    for number in range(KEEP_ISSUED + 1):
        written = recorded(written, renewal(number), attested(f"f-{number}"), ISSUED, CREATED)
    assert written.retired
    assert parse_attestation(render_attestation(written, make_member(), "signer")) == written


def test_a_later_write_names_its_version_and_leaves_what_others_wrote_alone() -> None:
    body = render_attestation(replace(joined(make_request()), resource_version="9"), make_member(), "signer")
    meta = mapping(body, "metadata")
    assert meta["resourceVersion"] == "9"
    assert meta["labels"] == {"cluster.x-k8s.io/cluster-name": "c"}
    assert "ownerReferences" not in meta
    assert "annotations" not in meta
    assert not {"resets", "status"} & {*mapping(body, "spec"), *body}


def test_registers_are_there_for_policies_to_learn_from() -> None:
    boot = mapping(render_attestation(joined(make_request()), make_member(), "signer"), "spec", "boot")
    assert (boot["bank"], boot["pcrs"]) == ("sha256", {"0": "00", "14": "ff"})


def test_a_later_write_removes_the_registers_that_are_no_longer_quoted() -> None:
    written = replace(joined(make_request()), resource_version="9")
    registers = mapping(render_attestation(written, make_member(), "signer"), "spec", "boot", "pcrs")
    assert {name: value for name, value in registers.items() if value is not None} == {"0": "00", "14": "ff"}
    assert set(registers) == {str(pcr) for pcr in range(24)}


def test_an_entry_from_before_registers_were_kept_is_read_and_written_unchanged() -> None:
    body = render_attestation(joined(make_request()), make_member(), "signer")
    old = {name: value for name, value in mapping(body, "spec", "boot").items() if name not in {"bank", "pcrs"}}
    mapping(body, "spec")["boot"] = old
    found = parse_attestation(body)
    assert found.boot == replace(BOOT, bank="", pcrs={})
    assert mapping(render_attestation(found, make_member(), "signer"), "spec", "boot") == old


@pytest.mark.parametrize("name", ["24", "-1", "07", "x", "²", "", "1\n", "9" * 5000])
def test_what_is_no_register_is_left_out(name: str) -> None:
    found = parse_attestation({"spec": {"boot": {"clock": 1, "resetCount": 1, "pcrs": {name: "aa", "23": "bb"}}}})
    assert found.boot is not None
    assert found.boot.pcrs == {23: "bb"}


def test_the_ledger_is_owned_by_its_machine() -> None:
    body = render_attestation(joined(make_request()), make_member(), "signer")
    assert body["metadata"]["ownerReferences"] == [  # pyright: ignore[reportArgumentType, reportIndexIssue, reportOptionalSubscript, reportCallIssue] - plain JSON
        {"apiVersion": "cluster.x-k8s.io/v1beta1", "kind": "Machine", "name": "node-0", "uid": "m-0"}
    ]


def test_ledgers_of_similar_provider_ids_have_different_names() -> None:
    ids = ["aws:///a/i-1", "aws:///a/I-1", "aws:///a/i-1 ", "aws:///ai-1"]
    assert len({attestation_name("c", ProviderID(one)) for one in ids}) == len(ids)
    assert len(attestation_name("c" * 300, ProviderID("x"))) <= 253


def test_the_same_key_is_found_again() -> None:
    request = make_request()
    ledger = joined(request)
    entry = ledger.entry_for(request.csr.spki_sha256)
    assert entry is not None
    assert entry.certificate == "pem"
    assert ledger.answered(request)
    assert not ledger.answered(replace(request, uid="u-3"))
    assert ledger.entry_for("sha256:other") is None


def test_a_copy_that_was_handled_first_counts_as_the_request_itself() -> None:
    request = make_request()
    ledger = joined(replace(request, uid="copy"))
    assert not ledger.answered(request)
    assert ledger.answered(request, "u-1")
    assert not ledger.answered(request, "other-first")
    assert not ledger.answered(make_request(), "u-1")


def test_one_answered_challenge_certifies_one_key() -> None:
    ledger = joined(make_request())
    with pytest.raises(Denied) as refused:
        recorded(ledger, make_request(uid="u-9"), attested(), ISSUED, CREATED + timedelta(hours=1))
    assert refused.value.reason is Reason.REPLAYED


def test_a_lost_key_is_replaced_after_a_pause_and_not_before() -> None:
    ledger = joined(make_request())
    again = make_request(uid="u-9")
    with pytest.raises(Denied) as refused:
        recorded(ledger, again, attested("u-8"), ISSUED, CREATED + timedelta(minutes=9))
    assert refused.value.reason is Reason.MACHINE_ALREADY_BOUND
    replaced = recorded(ledger, again, attested("u-8"), ISSUED, CREATED + timedelta(minutes=10))
    assert len(replaced.issued) == 2


def test_renewal_needs_no_pause() -> None:
    assert len(recorded(joined(make_request()), renewal(9), attested("u-8"), ISSUED, CREATED).issued) == 2


def test_a_pinned_fingerprint_never_changes() -> None:
    with pytest.raises(Denied) as refused:
        recorded(joined(make_request()), renewal(9), attested("u-8", ek="sha256:other"), ISSUED, CREATED)
    assert refused.value.reason is Reason.MACHINE_ALREADY_BOUND


def renewal(number: int) -> NodeRequest:
    return make_request(uid=f"r-{number}", username="system:node:node-0")


def test_history_is_bounded_and_keeps_the_newest_and_every_key() -> None:
    request = make_request()
    ledger = joined(request)
    for number in range(2 * KEEP_ISSUED):
        ledger = recorded(ledger, renewal(number), attested(f"f-{number}"), ISSUED, CREATED)
    assert len(ledger.issued) == KEEP_ISSUED
    assert ledger.issued[-1].request_uid == f"r-{2 * KEEP_ISSUED - 1}"
    assert ledger.entry_for(request.csr.spki_sha256) is None
    assert ledger.has_retired(request.csr.spki_sha256)
    assert len(ledger.retired) == KEEP_ISSUED + 1
    with pytest.raises(Denied) as refused:
        recorded(ledger, renewal(99), attested("f-0"), ISSUED, CREATED)
    assert refused.value.reason is Reason.REPLAYED


def test_live_certificates_of_one_machine_are_bounded_and_ended_ones_do_not_count() -> None:
    keys = [
        RetiredKey(spki=f"sha256:{n}", serial="1", not_after=ISSUED.not_after) for n in range(MAX_LIVE[Purpose.CLIENT])
    ]
    full = replace(joined(make_request()), retired=tuple(keys))
    with pytest.raises(Denied) as refused:
        recorded(full, renewal(1), attested("f"), ISSUED, CREATED)
    assert refused.value.reason is Reason.MACHINE_ALREADY_BOUND
    recorded(full, renewal(1), attested("f"), ISSUED, ISSUED.not_after)


def test_the_owner_is_the_machine_whoever_else_owns_the_ledger() -> None:
    other: JsonObject = {"apiVersion": "v1", "kind": "ConfigMap", "uid": "other"}
    machine: JsonObject = {"apiVersion": "cluster.x-k8s.io/v1beta2", "kind": "Machine", "uid": "m-1"}
    namesake: JsonObject = {"apiVersion": "example.com/v1", "kind": "Machine", "uid": "namesake"}
    assert parse_attestation({"metadata": {"ownerReferences": [other, namesake, machine]}}).owner_uid == "m-1"
    assert not parse_attestation({"metadata": {"ownerReferences": [other, namesake]}}).owner_uid


def test_an_empty_or_odd_object_reads_as_an_empty_ledger() -> None:
    found = parse_attestation({"spec": {"issued": [{"spki": 7}, "x"], "boot": {"clock": "soon"}, "fingerprints": [1]}})
    assert (found.issued, found.boot, found.fingerprints) == ((), None, {})


# Purposes


def serving(uid: str, *, key: ec.EllipticCurvePrivateKey | None = None) -> NodeRequest:
    return make_request(uid=uid, username="system:node:node-0", dns_names=["node-0"], key=key)


def served(ledger: Attestation, uid: str = "s-1", *, key: ec.EllipticCurvePrivateKey | None = None) -> Attestation:
    later = replace(ISSUED, not_after=ISSUED.not_after + timedelta(days=1))
    return recorded(ledger, serving(uid, key=key), attested(f"f-{uid}"), later, CREATED + timedelta(hours=1))


def test_serving_entries_do_not_push_client_entries_out_and_the_other_way_round() -> None:
    ledger = joined(make_request())
    for number in range(2 * KEEP_ISSUED):
        ledger = served(ledger, f"s-{number}")
    assert [entry.request_uid for entry in ledger.of_purpose(Purpose.CLIENT)] == ["u-2"]
    assert len(ledger.of_purpose(Purpose.SERVING)) == KEEP_ISSUED
    for number in range(2 * KEEP_ISSUED):
        renewal = make_request(uid=f"r-{number}", username="system:node:node-0")
        ledger = recorded(ledger, renewal, attested(f"g-{number}"), ISSUED, CREATED)
    assert len(ledger.issued) == 2 * KEEP_ISSUED
    assert ledger.of_purpose(Purpose.SERVING)[-1].request_uid == f"s-{2 * KEEP_ISSUED - 1}"


def test_a_serving_certificate_is_not_the_machines_certificate() -> None:
    ledger = served(joined(make_request()))
    client = ledger.issued[0]
    assert ledger.live(CREATED) == client
    assert ledger.live(client.not_after) is None
    assert ledger.live(client.not_after, Purpose.SERVING) == ledger.issued[-1]
    spec = render_attestation(ledger, make_member(), "signer")["spec"]
    assert isinstance(spec, dict)
    assert spec["expires"] == rfc3339(client.not_after)


def test_serving_keys_out_of_use_bar_no_client_key() -> None:
    keys = [
        RetiredKey(spki=f"sha256:{n}", serial="1", not_after=ISSUED.not_after, purpose=Purpose.SERVING)
        for n in range(MAX_LIVE[Purpose.SERVING])
    ]
    full = replace(joined(make_request()), retired=tuple(keys))
    recorded(full, make_request(uid="r", username="system:node:node-0"), attested("f-r"), ISSUED, CREATED)
    with pytest.raises(Denied) as refused:
        served(full)
    assert refused.value.reason is Reason.MACHINE_ALREADY_BOUND


def test_a_serving_certificate_does_not_begin_the_pause_after_a_lost_key() -> None:
    ledger = served(joined(make_request()))
    recorded(ledger, make_request(uid="u-9"), attested("u-8"), ISSUED, CREATED + timedelta(minutes=61))


def test_a_key_is_found_for_its_own_purpose_only() -> None:
    key = ec.generate_private_key(ec.SECP256R1())
    ledger = served(joined(make_request()), key=key)
    spki = serving("s-2", key=key).csr.spki_sha256
    assert ledger.entry_for(spki) is None
    assert ledger.entry_for(spki, Purpose.SERVING) == ledger.issued[-1]
    assert ledger.serves_otherwise(spki, Purpose.CLIENT)
    assert not ledger.serves_otherwise(spki, Purpose.SERVING)
    assert spki not in ledger.facts(make_request()).bound_spkis


def test_a_purpose_is_written_and_an_entry_without_one_is_a_clients() -> None:
    ledger = served(joined(make_request()))
    body = render_attestation(ledger, make_member(), "signer")
    assert parse_attestation(body) == ledger
    assert "purpose" not in str(mapping(items(body, "spec", "issued")[0]))
    assert text(items(body, "spec", "issued")[1], "purpose") == "serving"


def composite(**pins: str) -> Attestation:
    return replace(joined(make_request()), fingerprints={f"tpm.{kind}": pin for kind, pin in pins.items()})


def test_what_a_machine_was_pinned_by_holds_for_every_provider_that_knows_the_kind() -> None:
    written = composite(ek="sha256:e", ak="sha256:a")
    kinds = {"ek": "sha256:e", "ak": "sha256:a"}
    assert written.pins_for("tpm") == written.pins_for("gcp") == kinds
    assert written.pins_for("composite") == {"tpm.ek": "sha256:e", "tpm.ak": "sha256:a"}
    request = make_request()
    facts = written.facts(replace(request, evidence=replace(request.evidence, provider=ProviderName("tpm"))))
    assert facts.fingerprints == kinds


def test_a_pin_of_an_earlier_version_holds_and_a_providers_own_comes_before_those_of_others() -> None:
    earlier = replace(joined(make_request()), fingerprints={"ek": "sha256:e"})
    assert earlier.pins_for("tpm")["ek"] == earlier.pins_for("gcp")["ek"] == "sha256:e"
    written = replace(earlier, fingerprints={"tpm.ek": "sha256:own", "ek": "sha256:old", "gcp.ek": "sha256:other"})
    assert written.pins_for("tpm")["ek"] == "sha256:own"


def test_a_machine_counts_for_the_policy_of_its_newest_client_certificate_while_that_is_valid() -> None:
    first = record_certificate(
        new_attestation(make_member()), make_request(), attested(), ISSUED, CREATED, policy="old"
    )
    request = replace(make_request(), uid="u-3", name="next")
    short = replace(ISSUED, not_after=CREATED + timedelta(days=7))
    renewed = record_certificate(first, request, attested(), short, CREATED, policy="new")
    serving = replace(request, purpose=Purpose.SERVING)
    written = record_certificate(renewed, serving, attested(), ISSUED, CREATED, policy="other")
    inventory = Inventory()
    inventory.put_attestation("fleet/x", render_attestation(written, make_member(), "signer"))
    cluster = cluster_key(written.namespace, written.cluster_name)

    def counted(now: datetime) -> list[int]:
        return [inventory.machines_under(cluster, name, now) for name in ("old", "new", "other")]

    assert counted(short.not_after - timedelta(seconds=1)) == [0, 1, 0]
    assert counted(short.not_after) == [0, 0, 0], "the certificate before it is valid, and decides nothing"


@pytest.mark.parametrize(("pinned", "shown"), [("tpm.ek", "ek"), ("ek", "ek"), ("gcp.ek", "ek")])
def test_hardware_is_found_again_whichever_way_it_was_pinned(pinned: str, shown: str) -> None:
    written = replace(joined(make_request()), fingerprints={pinned: "sha256:e"})
    inventory = Inventory()
    inventory.put_attestation("fleet/x", render_attestation(written, make_member(), "signer"))
    cluster = cluster_key(written.namespace, written.cluster_name)
    assert [found.provider_id for found in inventory.fingerprint_holders(cluster, shown, "sha256:e")] == [
        written.provider_id
    ]
    assert inventory.fingerprint_holders(cluster, "ak", "sha256:e") == []
