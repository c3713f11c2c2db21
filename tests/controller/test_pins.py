"""A pin that was made once is never replaced but by a reset, whichever providers attest a machine, in any order."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import timedelta

from builders import CREATED, make_member, make_request
from hypothesis import example, given
from hypothesis import strategies as st

from nodeattest_controller.model.attestation import (
    Attestation,
    new_attestation,
    parse_attestation,
    record_certificate,
    render_attestation,
)
from nodeattest_controller.model.attestation_reset import reset
from nodeattest_controller.model.certificate_authority import SignedCertificate
from nodeattest_controller.model.issuance_rules import check_pinned_fingerprints
from nodeattest_controller.runtime.indexes import Inventory, cluster_key
from nodeattest_providers.errors import Check, Denied
from nodeattest_providers.names import ProviderID, ProviderName
from nodeattest_providers.pins import COMPOSITE, pins_for
from nodeattest_providers.verifier_interface import AttestedNode

KINDS: Mapping[str, Sequence[str]] = {
    "tpm": ("ek", "ak"),
    "gcp": ("ek", "ak", "number"),
    "challenge": ("secret",),
    "acme": ("serial.cpu",),
}
EARLIER_PINS: Mapping[str, str] = {
    **{kind: kind for kind in ("ek", "ak", "secret", "serial.cpu")},
    "tpm.ek": "ek",
    "challenge.secret": "secret",
}
"""Pins of records of any version, and their kinds."""
ISSUED = SignedCertificate(pem="pem", serial="ab", not_before=CREATED, not_after=CREATED + timedelta(days=14))


@dataclass(frozen=True)
class Machine:
    """Whatever attests under the machine's provider ID: the genuine one, or another."""

    name: str

    def shown_by(self, provider: str) -> dict[str, str]:
        return {kind: f"{kind} of {self.name}" for kind in KINDS[provider]}

    def attests(self, parts: Sequence[str]) -> AttestedNode:
        [*others, provider] = parts
        shown = self.shown_by(provider)
        if others:
            provider = COMPOSITE
            shown = {f"{part}.{kind}": value for part in parts for kind, value in self.shown_by(part).items()}
        return AttestedNode(
            provider=ProviderName(provider),
            provider_id=ProviderID("sandbox://node-0"),
            fingerprints=shown,
            checks=(Check("c", "s", "e", "g", passed=True),),
        )


@dataclass(frozen=True)
class Reset:
    """An operator resets the record."""


Step = tuple[Machine, list[str]] | Reset
PARTS = st.lists(st.sampled_from(sorted(KINDS)), min_size=1, max_size=3, unique=True)
STEPS = st.one_of(st.tuples(st.sampled_from([Machine("a"), Machine("b")]), PARTS), st.just(Reset()))
EARLIER = st.dictionaries(st.sampled_from(sorted(EARLIER_PINS)), st.just("a"))


def stored(ledger: Attestation) -> Attestation:
    return parse_attestation(render_attestation(ledger, make_member(), "signer"))


def seen_by(ledger: Attestation, provider: str) -> Mapping[str, str]:
    """Return the pins that a provider compares with, alone and as a part: they must be the same."""
    alone = ledger.pins_for(provider)
    assert pins_for(ledger.pins_for(COMPOSITE), provider) == alone
    return alone


@given(EARLIER, st.lists(STEPS, max_size=12))
@example({"serial.cpu": "a"}, [(Machine("b"), ["acme"])])
def test_a_pin_is_never_replaced_but_by_a_reset(earlier: Mapping[str, str], steps: Sequence[Step]) -> None:
    written = {pin: f"{EARLIER_PINS[pin]} of {machine}" for pin, machine in earlier.items()}
    ledger = replace(new_attestation(make_member()), provider=ProviderName("tpm"), fingerprints=written)
    pinned = {EARLIER_PINS[pin]: value for pin, value in written.items()}
    for step in steps:
        if isinstance(step, Reset):
            body = render_attestation(ledger, make_member(), "signer")
            ledger = parse_attestation(reset(body, by="alice", reason="r", now=CREATED))
            pinned = {}
        else:
            machine, parts = step
            attested = machine.attests(parts)
            shown = {kind: value for part in parts for kind, value in machine.shown_by(part).items()}
            before = dict(ledger.fingerprints)
            with suppress(Denied):
                check_pinned_fingerprints(ledger, attested)
                ledger = stored(record_certificate(ledger, make_request(), attested, ISSUED, CREATED))
                assert {**shown, **pinned} == {**pinned, **shown}
                pinned = {**shown, **pinned}
            assert before.items() <= ledger.fingerprints.items()
            assert all("." in pin for pin in ledger.fingerprints.keys() - before.keys())
        for provider in KINDS:
            seen = {**ledger.fingerprints, **seen_by(ledger, provider)}
            assert {kind: seen[kind] for kinds in KINDS.values() for kind in kinds if kind in seen} == pinned


def test_the_holder_of_an_earlier_pin_whose_kind_has_a_dot_is_found() -> None:
    ledger = replace(new_attestation(make_member()), fingerprints={"serial.cpu": "a"})
    inventory = Inventory()
    inventory.put_attestation("fleet/a", render_attestation(ledger, make_member(), "signer"))
    assert len(inventory.fingerprint_holders(cluster_key("fleet", "c"), "serial.cpu", "a")) == 1


def test_another_tpm_is_refused_as_a_part_after_another_provider_attested() -> None:
    a, b = Machine("a"), Machine("b")
    ledger = new_attestation(make_member())
    for parts in (["tpm"], ["challenge"]):
        ledger = stored(record_certificate(ledger, make_request(), a.attests(parts), ISSUED, CREATED))
    assert ledger.fingerprints.keys() == {"tpm.ek", "tpm.ak", "challenge.secret"}
    assert seen_by(ledger, "tpm")["ek"] == "ek of a"
    for parts in (["challenge", "tpm"], ["gcp"], ["tpm"]):
        try:
            check_pinned_fingerprints(ledger, b.attests(parts))
        except Denied:
            continue
        raise AssertionError(f"another TPM passes by {parts}")
