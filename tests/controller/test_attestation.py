"""The ledger's laws: what is written can be read, what is bound stays bound."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import datetime, timedelta

import pytest
from builders import ATTESTED, CREATED, decide, make_member, make_request, recorded
from cryptography.hazmat.primitives.asymmetric import ec
from hypothesis import example, given
from hypothesis import strategies as st

from nodeattest_controller.controllers.csr.checks import new_key, pinned_fingerprints
from nodeattest_controller.model.attestation import (
    KEEP_ISSUED,
    Attestation,
    RetiredKey,
    attestation_name,
    live_keys,
    new_attestation,
    record_certificate,
    retire,
)
from nodeattest_controller.model.attestation_object import parse_attestation, render_attestation, reset
from nodeattest_controller.model.certificate_authority import SignedCertificate
from nodeattest_controller.runtime.indexes import Inventory, cluster_key
from nodeattest_parsing.objects import items, mapping
from nodeattest_parsing.values import JsonObject, JsonValue
from nodeattest_providers.config_fields import COMPOSITE, pins_for
from nodeattest_providers.errors import Denied, Reason
from nodeattest_providers.identifiers import ProviderID, ProviderName, Purpose
from nodeattest_providers.node_interface import FirstRequestRef
from nodeattest_providers.verifier_interface import AttestedNode, BootState, NodeRequest

ISSUED = SignedCertificate(pem="pem", serial="ab", not_before=CREATED, not_after=CREATED + timedelta(days=14))
BOOT = BootState(
    clock=10, reset_count=2, restart_count=1, safe=True, pcr_digest="aa", bank="sha256", pcrs={0: "00", 14: "ff"}
)


def attested(first: str = "u-1", **fingerprints: str) -> AttestedNode:
    first_request = FirstRequestRef(name="first", uid=first)
    fingerprints = fingerprints or {"ek": "sha256:e", "ak": "sha256:a"}
    return replace(ATTESTED, fingerprints=fingerprints, boot=BOOT, first_request=first_request)


def joined(request: NodeRequest, now: datetime = CREATED) -> Attestation:
    return recorded(new_attestation(make_member()), request, attested(), ISSUED, now)


def test_what_is_rendered_is_parsed_again() -> None:
    written = joined(make_request())
    for number in range(KEEP_ISSUED + 1):
        written = recorded(written, renewal(number), attested(f"f-{number}"), ISSUED, CREATED)
    assert written.retired
    assert joined(make_request()).endorsement_key == "sha256:e"
    for each in (written, replace(written, boot=replace(BOOT, bank="", pcrs={}))):
        assert parse_attestation(render_attestation(each, make_member(), "signer")) == each


def test_a_later_write_names_its_version_and_keeps_what_others_wrote() -> None:
    first = render_attestation(joined(make_request()), make_member(), "signer")
    assert "resourceVersion" not in mapping(first, "metadata")
    body = render_attestation(replace(joined(make_request()), resource_version="9"), make_member(), "signer")
    assert mapping(body, "metadata")["resourceVersion"] == "9", "a compare-and-swap"
    assert not {"ownerReferences", "annotations"} & {*mapping(body, "metadata")}
    assert not {"resets", "onFailure", "status"} & {*mapping(body, "spec"), *body}
    pcrs = mapping(body, "spec", "boot", "pcrs")
    assert {pcr: value for pcr, value in pcrs.items() if value is not None} == {"0": "00", "14": "ff"}
    assert len(pcrs) == 24, "a merge patch keeps an earlier boot's values, unless they are null"


def test_ledgers_of_similar_provider_ids_have_different_names() -> None:
    ids = ["aws:///a/i-1", "aws:///a/I-1", "aws:///a/i-1 ", "aws:///ai-1"]
    assert len({attestation_name("c", ProviderID(one)) for one in ids}) == len(ids)
    assert len(attestation_name("c" * 300, ProviderID("x"))) <= 253


def test_a_retry_counts_as_the_request_itself_and_so_does_a_copy_that_was_handled_first() -> None:
    request = make_request()
    ledger, of_copy = joined(request), joined(replace(request, uid="copy"))
    assert ledger.answered(request)
    assert [of_copy.answered(request, first) for first in ("", "u-1", "other")] == [False, True, False]
    assert not ledger.answered(make_request(), "u-1"), "another key"


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


def test_the_owner_is_the_machine_whoever_else_owns_the_ledger() -> None:
    other: JsonObject = {"apiVersion": "v1", "kind": "ConfigMap", "uid": "other"}
    machine: JsonObject = {"apiVersion": "cluster.x-k8s.io/v1beta2", "kind": "Machine", "uid": "m-1"}
    namesake: JsonObject = {"apiVersion": "example.com/v1", "kind": "Machine", "uid": "namesake"}
    assert parse_attestation({"metadata": {"ownerReferences": [other, namesake, machine]}}).owner_uid == "m-1"
    assert not parse_attestation({"metadata": {"ownerReferences": [other, namesake]}}).owner_uid


def test_an_empty_or_odd_object_reads_as_an_empty_ledger() -> None:
    retired: list[JsonValue] = ["x", {"spki": "s"}, {"notAfter": "2026-01-01T00:00:00Z"}]
    spec: JsonObject = {"issued": [{"spki": 7}, "x"], "boot": {"clock": "soon"}, "fingerprints": [1]}
    found = parse_attestation({"spec": {**spec, "retiredKeys": retired}})
    assert (found.issued, found.retired, found.boot, found.fingerprints) == ((), (), None, {})


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


def test_a_key_is_found_for_its_own_purpose_only() -> None:
    key = ec.generate_private_key(ec.SECP256R1())
    ledger = served(joined(make_request()), key=key)
    spki = serving("s-2", key=key).csr.spki_sha256
    assert ledger.entry_for(spki) is None
    assert ledger.entry_for(spki, Purpose.SERVING) == ledger.issued[-1]
    assert ledger.serves_otherwise(spki, Purpose.CLIENT)
    assert not ledger.serves_otherwise(spki, Purpose.SERVING)
    with pytest.raises(Denied, match=Reason.KEY_REUSED):
        decide(new_key, make_request(key=key), machine=make_member(), attestation=ledger)
    assert spki not in ledger.facts(make_request()).bound_spkis


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


# A reset forgets what binds the machine, remembers every key, and leaves a trail


ALICE = "alice"
PINNED = {"ek": "sha256:e", "ak": "sha256:a"}
REQUEST = make_request()


def ledger() -> JsonObject:
    attested = replace(ATTESTED, fingerprints=PINNED, boot=BOOT)
    body = render_attestation(
        record_certificate(new_attestation(make_member()), REQUEST, attested, ISSUED, CREATED), make_member(), "signer"
    )
    mapping(body, "metadata").update({"resourceVersion": "7", "annotations": {"team": "metal"}})
    mapping(body, "spec")["later"] = {"versions": "field"}
    return body


def test_a_reset_opens_one_first_use_which_the_next_client_certificate_closes() -> None:
    opened = parse_attestation(reset(ledger(), by=ALICE, reason="r", now=CREATED))
    assert opened.was_reset
    attested = replace(ATTESTED, provider=ProviderName("aws"), fingerprints={"instance": "sha256:i"})
    closed = record_certificate(opened, REQUEST, attested, ISSUED, CREATED)
    assert not closed.was_reset
    body = render_attestation(closed, make_member(), "signer")
    mapping(body, "spec")["resets"] = [{"by": "alice"}]  # a merge patch leaves them
    assert not parse_attestation(body).was_reset
    assert parse_attestation(reset(body, by=ALICE, reason="again", now=CREATED)).was_reset


def test_a_reset_forgets_what_binds_and_remembers_keys_and_answered_challenges() -> None:
    answered = ledger()
    [entry] = items(answered, "spec", "issued")
    entry["firstRequestUID"] = "f-1"
    once = parse_attestation(reset(answered, by=ALICE, reason="new mainboard", now=CREATED))
    again = reset(render_attestation(once, make_member(), "signer"), by=ALICE, reason="again", now=CREATED)
    for found in (once, parse_attestation(again)):
        assert (found.fingerprints, found.boot, found.issued) == ({}, None, ())
        assert (found.node_name, found.was_reset) == ("node-0", True)
        assert found.has_retired(REQUEST.csr.spki_sha256)
        assert found.retired[0].not_after == CREATED + timedelta(days=14)
        assert found.keys_answering("f-1") == {REQUEST.csr.spki_sha256}
    [trail] = items(reset(ledger(), by="bob", reason="r", now=CREATED), "spec", "resets")
    assert (trail["by"], trail["fingerprints"]) == ("bob", {f"tpm.{kind}": value for kind, value in PINNED.items()})


# Retired keys: none is forgotten while it could still serve, and the list does not grow for ever


DAY = timedelta(days=1)


def keys(count: int, *, days: int, name: str = "k") -> list[RetiredKey]:
    return [RetiredKey(spki=f"{name}-{n}", serial="1", not_after=CREATED + days * DAY) for n in range(count)]


def test_keys_of_live_certificates_are_never_forgotten() -> None:
    live, ended = keys(200, days=1, name="live"), keys(200, days=-1, name="ended")
    kept = retire([*live, *ended], keys(1, days=1, name="new"), CREATED)
    assert [key for key in kept if key.not_after > CREATED] == [*live, *keys(1, days=1, name="new")]
    assert live_keys(kept, Purpose.CLIENT, CREATED) == 201


# A pin that was made once is never replaced but by a reset, whichever providers attest a machine, in any order

KINDS = {"tpm": ("ek", "ak"), "gcp": ("ek", "ak", "number"), "challenge": ("secret",), "acme": ("serial.cpu",)}
PARTS = st.lists(st.sampled_from(sorted(KINDS)), min_size=1, max_size=3, unique=True)
STEPS = st.none() | st.tuples(st.sampled_from("ab"), PARTS)
"""An operator's reset, or the machine a or b attests by these providers."""


def attested_by(machine: str, parts: Sequence[str]) -> AttestedNode:
    provider = ProviderName(parts[0] if len(parts) == 1 else COMPOSITE)
    prefix = "" if len(parts) == 1 else "{part}."
    pins = {prefix.format(part=part) + kind: f"{kind} of {machine}" for part in parts for kind in KINDS[part]}
    return replace(ATTESTED, provider=provider, fingerprints=pins)


def pinned(ledger: Attestation) -> dict[str, str]:
    """Return the pins by kind, as the providers see them alone and as parts: it must be the same."""
    for provider in KINDS:
        assert pins_for(ledger.pins_for(COMPOSITE), provider) == ledger.pins_for(provider)
    return {kind: value for provider in KINDS for kind, value in ledger.pins_for(provider).items()}


@given(st.lists(STEPS, max_size=12))
@example([("a", ["acme"]), ("b", ["acme"])])
def test_a_pin_is_never_replaced_but_by_a_reset(steps: Sequence[tuple[str, list[str]] | None]) -> None:
    ledger = replace(new_attestation(make_member()), provider=ProviderName("tpm"), boot=BOOT)
    for step in steps:
        body, before, boot = render_attestation(ledger, make_member(), "signer"), pinned(ledger), ledger.boot
        if step is None:
            ledger = parse_attestation(reset(body, by=ALICE, reason="r", now=CREATED))
            assert pinned(ledger) == {}
            continue
        attested = attested_by(*step)
        with suppress(Denied):
            decide(pinned_fingerprints, attestation=ledger, attested=attested)
            written = record_certificate(ledger, make_request(), attested, ISSUED, CREATED)
            ledger = parse_attestation(render_attestation(written, make_member(), "signer"))
            assert {f"{kind} of {step[0]}" for part in step[1] for kind in KINDS[part]} <= {*pinned(ledger).values()}
        assert before.items() <= pinned(ledger).items()
        assert ledger.boot == boot, "other providers than tpm tell no clock"
