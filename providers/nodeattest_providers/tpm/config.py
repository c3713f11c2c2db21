"""``spec.tpm`` of a policy. The defaults are the strictest: each setting names a source of trust or an allowed value.

Source: manifests/crd/nodeattestationpolicies.yaml; docs/wire-format.md §3 (steps 4, 12).
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from types import MappingProxyType
from typing import Final

from cryptography import x509

from nodeattest_providers.certificate_chain import parse_authorities
from nodeattest_providers.config_fields import Section, invalid, string_set
from nodeattest_providers.errors import Denied
from nodeattest_providers.identifiers import NodeName, ProviderID, is_dns_name
from nodeattest_providers.keys import ENDORSEMENT_FINGERPRINT, FINGERPRINT_FORM
from nodeattest_providers.node_interface import JsonValue
from nodeattest_providers.tpm.structures import BANK_ALGORITHMS, MAX_PCR, Alg, PcrSelection, digest_size

PROTOCOL_SETTINGS: Final = ("pcrs", "eventLog")
"""What every provider that speaks the TPM protocol has in its section."""
_SETTINGS: Final = ("endorsementKeys", "endorsementKeysFrom", "endorsementCAs", "trustOnFirstUse", *PROTOCOL_SETTINGS)
_IGNORE: Final = "Ignore"
_REQUIRE: Final = "Require"
_ACCOUNT: Final = re.compile(r"[0-9]{12}")
_MAX_ACCOUNTS: Final = 16
"""Each may cost a call, to find out whose an instance is."""
_EC2: Final = "aws:///"
_DEFAULT_SELECTION: Final = PcrSelection(Alg.SHA256, (0, 7))
"""Firmware code and secure-boot policy: recorded in the ledger even where no value is demanded."""
_CACHED_POLICIES: Final = 16
"""Policies in use at a time; one with 10 000 keys has 4 MiB. The one that was not asked for longest goes first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProtocolPolicy:
    """What is quoted, and which boot states are admitted."""

    selection: PcrSelection
    allowed_pcrs: Mapping[int, frozenset[bytes]] = field(repr=False)
    event_log_required: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class TpmPolicy(ProtocolPolicy):
    """What a cluster's operator decided about TPMs."""

    registered: Mapping[ProviderID, frozenset[str]] = field(repr=False)
    """Allow-list: the endorsement key fingerprints of each machine."""
    node_names: Mapping[ProviderID, NodeName] = field(repr=False)
    """The node name that a machine of the allow-list proves by its registered key, where its entry gives one."""
    listed: frozenset[str] = field(repr=False)
    """Every fingerprint of the allow-list, whosever it is."""
    ec2_accounts: frozenset[str] | None
    """AWS accounts whose instances' keys EC2 tells; None: EC2 is not asked."""
    anchors: Sequence[x509.Certificate] | None = field(repr=False)
    """Every certificate of the bundle is a trust anchor, roots and intermediates alike."""
    trust_on_first_use: bool

    def asks_ec2(self, machine: ProviderID) -> bool:
        return self.ec2_accounts is not None and machine.startswith(_EC2)


class PolicyCache:
    """Remembers parsed policies, and refusals, by the identity of their settings, which nobody changes.

    Parsing 10,000 keys takes 0.2 s. An entry holds its settings, so that no others get their identity.
    """

    def __init__(self) -> None:
        self._parsed: dict[int, tuple[Mapping[str, JsonValue], TpmPolicy | Denied]] = {}
        self._defaults = parse_policy({})

    def get(self, settings: Mapping[str, JsonValue]) -> TpmPolicy:
        if not settings:  # recreated for each request of a cluster without settings: they must not crowd out others
            return self._defaults
        key = id(settings)
        held = self._parsed.pop(key, None)
        if held is None or held[0] is not settings:
            held = (settings, _parsed_or_denied(settings))
        self._parsed[key] = held  # at the end: asked for last
        if len(self._parsed) > _CACHED_POLICIES:
            del self._parsed[next(iter(self._parsed))]
        if isinstance(held[1], Denied):
            raise held[1].with_traceback(None)
        return held[1]


def _parsed_or_denied(settings: Mapping[str, JsonValue]) -> TpmPolicy | Denied:
    try:
        return parse_policy(settings)
    except Denied as denied:
        return denied


def parse_policy(settings: Mapping[str, JsonValue]) -> TpmPolicy:
    section = Section(settings, "spec.tpm", _SETTINGS)
    registered, node_names = _endorsement_keys(section)
    protocol = parse_protocol_policy(section)
    return TpmPolicy(
        registered=registered,
        node_names=node_names,
        listed=frozenset[str]().union(*registered.values()),
        ec2_accounts=_ec2_accounts(section.section("endorsementKeysFrom", ("ec2",))),
        anchors=_anchors(section.text("endorsementCAs")) if "endorsementCAs" in section else None,
        trust_on_first_use=section.boolean("trustOnFirstUse"),
        selection=protocol.selection,
        allowed_pcrs=protocol.allowed_pcrs,
        event_log_required=protocol.event_log_required,
    )


def parse_protocol_policy(section: Section) -> ProtocolPolicy:
    """Read ``PROTOCOL_SETTINGS`` of a section; the others are its provider's."""
    selection, allowed = _pcrs(section.section("pcrs", ("selection", "bank", "values")))
    event_log = section.choice("eventLog", (_IGNORE, _REQUIRE), _IGNORE)
    return ProtocolPolicy(selection=selection, allowed_pcrs=allowed, event_log_required=event_log == _REQUIRE)


def _endorsement_keys(section: Section) -> tuple[Mapping[ProviderID, frozenset[str]], Mapping[ProviderID, NodeName]]:
    """Read the allow-list: keys by machine, and node names by machine, where one has one and no other has it."""
    registered: defaultdict[ProviderID, set[str]] = defaultdict(set)
    names: dict[ProviderID, NodeName] = {}
    known, required = ("providerID", "sha256", "nodeName", "description"), ("providerID", "sha256")
    for entry in section.sections("endorsementKeys", known, required):
        entry.text("description", may_be_empty=True)
        machine, fingerprint = ProviderID(entry.text("providerID")), entry.text("sha256")
        if not ENDORSEMENT_FINGERPRINT.fullmatch(fingerprint):
            is_example = not fingerprint.removeprefix("sha256:").strip("0")
            raise invalid(
                entry.at("sha256"),
                f"{FINGERPRINT_FORM}, as kubelet-authenticator evidence prints them",
                "an example's zeros" if is_example else "another spelling",
            )
        registered[machine].add(fingerprint)
        if "nodeName" in entry:
            name = NodeName(entry.text("nodeName"))
            if not is_dns_name(name):
                expected = "a node's name: an RFC 1123 subdomain in lower case"
                raise invalid(entry.at("nodeName"), expected, "another spelling")
            if names.setdefault(machine, name) != name:
                raise invalid(entry.at("nodeName"), "one name for all keys of a machine", "two names")
    if len(set(names.values())) != len(names):
        raise invalid(section.at("endorsementKeys"), "a nodeName of one machine only", "one of two machines")
    keys = MappingProxyType({machine: frozenset(found) for machine, found in registered.items()})
    return keys, MappingProxyType(names)


def _ec2_accounts(sources: Section) -> frozenset[str] | None:
    if "ec2" not in sources:
        return None
    ec2 = sources.section("ec2", ("accounts",), ("accounts",))
    accounts = ec2.strings("accounts", _ACCOUNT, "account IDs of 12 digits")
    if not 1 <= len(accounts) <= _MAX_ACCOUNTS:
        raise invalid(ec2.at("accounts"), f"1 to {_MAX_ACCOUNTS} accounts", str(len(accounts)))
    return accounts


@lru_cache(maxsize=64)
def _anchors(bundle: str) -> Sequence[x509.Certificate]:
    return parse_authorities(bundle, "spec.tpm.endorsementCAs")


def _pcrs(section: Section) -> tuple[PcrSelection, Mapping[int, frozenset[bytes]]]:
    bank = BANK_ALGORITHMS[section.choice("bank", BANK_ALGORITHMS, "sha256")]
    selection = _selection(section) if "selection" in section else _DEFAULT_SELECTION.pcrs
    allowed: dict[int, frozenset[bytes]] = {}
    for key, values in section.mapping("values").items():
        if not key.isascii() or not key.isdigit() or str(int(key[:3])) != key or int(key) not in selection:
            raise invalid(section.at("values"), f"PCRs of the selection {list(selection)}", repr(key))
        allowed[int(key)] = _values(values, section.at(f"values[{key}]"), digest_size(bank))
    return PcrSelection(bank, selection), MappingProxyType(allowed)


def _selection(section: Section) -> tuple[int, ...]:
    pcrs: set[int] = set()
    for pcr in section.items("selection"):
        if isinstance(pcr, bool) or not isinstance(pcr, int) or not 0 <= pcr <= MAX_PCR:
            raise invalid(section.at("selection"), f"PCR numbers from 0 to {MAX_PCR}", repr(pcr))
        pcrs.add(pcr)
    if not pcrs:  # a quote over no PCR would say nothing of the boot, and look as if it did
        raise invalid(section.at("selection"), "at least one PCR", "none")
    return tuple(sorted(pcrs))


def _values(value: JsonValue, where: str, size: int) -> frozenset[bytes]:
    spelling = re.compile(f"[0-9a-f]{{{2 * size}}}")
    values = string_set(value, where, spelling, f"{2 * size} lower-case hex digits")
    if not values:
        raise invalid(where, "at least one allowed value", "none")
    return frozenset(map(bytes.fromhex, values))
