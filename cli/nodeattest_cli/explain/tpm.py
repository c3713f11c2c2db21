"""What TPM evidence says, in words: keys, attributes, the quote's state, and which registers the event log explains.

Fingerprints, Names, clocks and PCR digests are shown, never the proof or the challenge's content. Evidence that does
not parse gives no facts, since the verification says why.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from cryptography.hazmat.primitives.asymmetric import rsa

from nodeattest_providers.errors import Denied, Reason
from nodeattest_providers.keys import PublicKey
from nodeattest_providers.tpm.endorsement_key import parse_endorsement_key
from nodeattest_providers.tpm.event_log import EventLog, measure, parse_event_log
from nodeattest_providers.tpm.key_templates import EK_TEMPLATES, parse_quote
from nodeattest_providers.tpm.protocol import FirstEvidence, SecondEvidence, parse_evidence
from nodeattest_providers.tpm.structures import Alg, PcrSelection, PublicArea, digest_size, parse_public
from nodeattest_providers.verifier_interface import NodeRequest


def tpm_facts(request: NodeRequest) -> Iterator[tuple[str, str]]:
    """Tell what a request's TPM evidence says."""
    try:
        evidence = parse_evidence(request.evidence.data)
        match evidence:
            case FirstEvidence():
                yield from _key_facts(evidence)
            case SecondEvidence():
                yield from _quote_facts(evidence)
    except Denied:
        return


def _key_facts(evidence: FirstEvidence) -> Iterator[tuple[str, str]]:
    ek = parse_endorsement_key(evidence.ek_public)
    template = next(one.tcg_name for one in EK_TEMPLATES if evidence.ek_public.startswith(one.prefix))
    yield "endorsement key", f"{_kind(ek.key)}, TCG template {template}, {ek.fingerprint}"
    size = len(evidence.ek_certificate or b"")
    yield "endorsement certificate", f"{size} bytes, {len(evidence.ek_chain)} intermediates" if size else "none"
    ak = _attestation_key(evidence)
    yield "attestation key", f"{_kind(ak.key)}, attributes 0x{ak.attributes:08x}, Name {ak.name.hex()}"


def _quote_facts(evidence: SecondEvidence) -> Iterator[tuple[str, str]]:
    yield "answers", f"request {evidence.first.name}, UID {evidence.first.uid}"
    quote = parse_quote(evidence.quote)
    state = "safe" if quote.safe else "not safe (normal after a power loss)"
    yield "TPM clock", f"{quote.clock} ms, {quote.reset_count} resets, {quote.restart_count} restarts, {state}"
    for selection in quote.selections:
        yield "quoted PCRs", f"{selection.bank.name} {', '.join(map(str, selection.pcrs))}"
    yield "PCR digest", quote.pcr_digest.hex()
    if evidence.event_log is not None:
        yield "event log", _log_summary(parse_event_log(evidence.event_log), quote.selections, evidence.pcrs)


def _attestation_key(evidence: FirstEvidence) -> PublicArea:
    return parse_public(evidence.ak_public, what="attestation key", reason=Reason.ATTESTATION_KEY_NOT_ALLOWED)


def _kind(key: PublicKey) -> str:
    return f"RSA-{key.key_size}" if isinstance(key, rsa.RSAPublicKey) else f"ECC P-{key.key_size}"


def _log_summary(log: EventLog, selections: Sequence[PcrSelection], values: Sequence[bytes]) -> str:
    """Say which quoted registers the log explains, if it has the quoted bank and the values are of that bank's size."""
    said = f"{'crypto-agile' if log.crypto_agile else 'the SHA-1 form'}, {len(log.events)} events"
    if len(selections) != 1 or selections[0].bank is Alg.SHA1 or selections[0].bank not in log.sizes:
        return f"{said}; has not the quoted bank"
    bank = selections[0].bank
    if [len(value) for value in values] != [digest_size(bank)] * len(selections[0].pcrs):
        return f"{said}; the quoted values are of another bank"
    registers = list(measure(log, selections[0], values))
    wrong = [str(one.pcr) for one in registers if not one.agrees]
    right = [str(one.pcr) for one in registers if one.agrees]
    explained = f"{said}, {bank.name.lower()}; explains PCRs {', '.join(right) or 'none'}"
    return explained + (f", not {', '.join(wrong)}" if wrong else "")
