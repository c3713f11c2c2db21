"""A reset forgets what binds the machine, remembers every key, and leaves a trail."""

from __future__ import annotations

from datetime import timedelta

from builders import CREATED, make_member, make_request

from nodeattest_controller.model.attestation import (
    new_attestation,
    parse_attestation,
    record_certificate,
    render_attestation,
)
from nodeattest_controller.model.attestation_reset import KEEP_RESETS, reset
from nodeattest_controller.model.certificate_authority import SignedCertificate
from nodeattest_controller.model.objects import items, mapping, text, text_map
from nodeattest_kube.jsontypes import JsonObject
from nodeattest_providers.errors import Check
from nodeattest_providers.names import ProviderID, ProviderName
from nodeattest_providers.verifier_interface import AttestedNode, BootState

ALICE = "alice"
PINNED = {"ek": "sha256:e", "ak": "sha256:a"}
REQUEST = make_request()


def ledger() -> JsonObject:
    attested = AttestedNode(
        provider=ProviderName("tpm"),
        provider_id=ProviderID("sandbox://node-0"),
        fingerprints=PINNED,
        boot=BootState(clock=10, reset_count=2, restart_count=1, safe=True, pcr_digest="aa"),
        checks=(Check("c", "s", "e", "g", passed=True),),
    )
    issued = SignedCertificate(pem="pem", serial="ab", not_before=CREATED, not_after=CREATED + timedelta(days=14))
    body = render_attestation(
        record_certificate(new_attestation(make_member()), REQUEST, attested, issued, CREATED), make_member(), "signer"
    )
    mapping(body, "metadata").update({"resourceVersion": "7", "annotations": {"team": "metal"}})
    mapping(body, "spec")["later"] = {"versions": "field"}
    return body


def test_pins_boot_state_and_certificates_are_forgotten_and_the_name_stays() -> None:
    found = parse_attestation(reset(ledger(), by=ALICE, reason="new mainboard", now=CREATED))
    assert (found.fingerprints, found.boot, found.issued) == ({}, None, ())
    assert (found.node_name, found.owner_uid, found.was_reset) == ("node-0", "m-0", True)


def test_every_key_stays_known() -> None:
    found = parse_attestation(reset(ledger(), by=ALICE, reason="r", now=CREATED))
    assert found.has_retired(REQUEST.csr.spki_sha256)
    assert found.retired[0].not_after == CREATED + timedelta(days=14)
    again = parse_attestation(
        reset(render_attestation(found, make_member(), "signer"), by=ALICE, reason="r", now=CREATED)
    )
    assert again.retired == found.retired


def test_a_first_request_stays_answered_and_by_its_own_key() -> None:
    answered = ledger()
    [entry] = items(answered, "spec", "issued")
    entry["firstRequestUID"] = "f-1"
    found = parse_attestation(reset(answered, by=ALICE, reason="r", now=CREATED))
    assert found.answered_first("f-1")
    assert found.answered_otherwise("f-1", "sha256:another")
    assert not found.answered_otherwise("f-1", REQUEST.csr.spki_sha256)  # that key is refused for being retired
    again = parse_attestation(reset(render_attestation(found, make_member(), "s"), by=ALICE, reason="r", now=CREATED))
    assert again.answered_first("f-1")


def test_a_record_of_an_earlier_version_does_not_know_what_its_retired_keys_answered() -> None:
    found = parse_attestation(reset(ledger(), by=ALICE, reason="r", now=CREATED))
    assert not found.answered_first("")
    assert not found.answered_otherwise("", "sha256:another")


def test_the_trail_says_who_when_why_and_what_was_pinned() -> None:
    body = reset(ledger(), by="bob", reason="new mainboard", now=CREATED)
    [entry] = items(body, "spec", "resets")
    assert (entry["by"], entry["reason"]) == ("bob", "new mainboard")
    assert entry["time"] == "2026-01-02T03:04:05Z"
    assert text_map(entry, "fingerprints") == {f"tpm.{kind}": value for kind, value in PINNED.items()}
    assert text(body, "spec", "lastVerdict", "verdict") == "Reset"
    assert "expires" not in mapping(body, "spec")


def test_the_trail_is_bounded_and_keeps_the_newest() -> None:
    body = ledger()
    for number in range(KEEP_RESETS + 3):
        body = reset(body, by=ALICE, reason=f"r{number}", now=CREATED)
    reasons = [text(entry, "reason") for entry in items(body, "spec", "resets")]
    assert reasons == [f"r{number}" for number in range(3, KEEP_RESETS + 3)]


def test_what_it_does_not_know_it_keeps_and_the_version_that_was_read_too() -> None:
    before = ledger()
    body = reset(before, by=ALICE, reason="r", now=CREATED)
    assert body["metadata"] == before["metadata"]
    assert mapping(body, "spec", "later") == {"versions": "field"}
    assert mapping(before, "spec", "boot")  # the object given is not changed


def test_what_is_too_long_for_the_schema_is_cut() -> None:
    body = reset(ledger(), by="x" * 9999, reason="y" * 9999, now=CREATED)
    [entry] = items(body, "spec", "resets")
    assert (len(text(entry, "by")), len(text(entry, "reason"))) == (256, 512)


def test_an_odd_object_is_reset_too() -> None:
    body = reset({"spec": {"issued": "x", "resets": 7}}, by=ALICE, reason="r", now=CREATED)
    assert len(items(body, "spec", "resets")) == 1


def test_a_reset_opens_one_first_use_which_the_next_client_certificate_closes() -> None:
    opened = parse_attestation(reset(ledger(), by=ALICE, reason="r", now=CREATED))
    assert opened.was_reset
    attested = AttestedNode(
        provider=ProviderName("aws"),
        provider_id=ProviderID("sandbox://node-0"),
        fingerprints={"instance": "sha256:i"},
        checks=(Check("c", "s", "e", "g", passed=True),),
    )
    issued = SignedCertificate(pem="pem", serial="cd", not_before=CREATED, not_after=CREATED + timedelta(days=14))
    closed = record_certificate(opened, REQUEST, attested, issued, CREATED)
    assert not closed.was_reset
    body = render_attestation(closed, make_member(), "signer")
    mapping(body, "spec")["resets"] = [{"by": "alice"}]  # a merge patch leaves them
    assert not parse_attestation(body).was_reset
    assert parse_attestation(reset(body, by=ALICE, reason="again", now=CREATED)).was_reset
