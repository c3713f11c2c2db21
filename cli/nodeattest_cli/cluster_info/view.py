"""Cluster-info as people read it: the server, each CA with its pin, and what each signature is worth.

Promises: whatever is in the ConfigMap is shown, sound or not; a signature counts as valid only if it was computed
anew from its token. Leaves to others: where ConfigMap and tokens come from.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Final

from cryptography import x509

from nodeattest_controller.model.objects import mapping, text
from nodeattest_discovery import jws
from nodeattest_discovery.clusterinfo import KUBECONFIG_KEY, SIGNATURE_PREFIX, ClusterInfo, parse
from nodeattest_discovery.pins import pin_of
from nodeattest_discovery.token import BootstrapToken
from nodeattest_kube.jsontypes import JsonObject
from nodeattest_parsing.times import format_rfc3339
from nodeattest_providers.errors import Denied

__all__ = ["SignatureState", "View", "view_of"]

_COLUMN: Final = 13
_SHOWN: Final = 64
"""Characters of a key or a subject that somebody else wrote."""


class SignatureState(StrEnum):
    """What a signature is worth."""

    VALID = "valid"
    INVALID = "invalid: not this token's over this text"
    NO_TOKEN = "no token signs by this id"
    UNCHECKED = "not checked: the tokens cannot be read"
    MISSING = "missing: no signer has been there; nodeattest cluster-info sign"


_CAMEL: Final = {state: state.name.title().replace("_", "") for state in SignatureState}
"""States as scripts read them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """What there is to see."""

    info: ClusterInfo | None
    problem: str
    """Why the kubeconfig cannot be used; empty if it can."""
    signatures: tuple[tuple[str, SignatureState], ...]
    """Token ids with their states."""

    @property
    def is_sound(self) -> bool:
        """Whether machines can use it: the kubeconfig is sound, and no signature is wrong or missing."""
        return self.info is not None and all(
            state in {SignatureState.VALID, SignatureState.UNCHECKED} for _, state in self.signatures
        )

    def to_json(self) -> JsonObject:
        """Return the object that ``-o json`` prints."""
        authorities = self.info.ca_certificates if self.info else ()
        return {
            "server": self.info.server if self.info else None,
            "tlsServerName": self.info.tls_server_name if self.info else None,
            "certificateAuthorities": [
                {
                    "subject": subject_of(one),
                    "notAfter": format_rfc3339(one.not_valid_after_utc),
                    "pin": str(pin_of(one)),
                }
                for one in authorities
            ],
            "signatures": [{"token": token, "state": _CAMEL[state]} for token, state in self.signatures],
            "problem": self.problem or None,
        }

    def lines(self, now: datetime) -> Iterator[str]:
        """Yield a few lines."""
        if self.info is None:
            yield _line("unusable", self.problem)
        else:
            yield _line("server", self.info.server)
            if self.info.tls_server_name:
                yield _line("name", self.info.tls_server_name)
            for one in self.info.ca_certificates:
                ended = " (over)" if one.not_valid_after_utc <= now else ""
                yield _line("CA", subject_of(one))
                yield _line("  until", format_rfc3339(one.not_valid_after_utc) + ended)
                yield _line("  pin", str(pin_of(one)))
        if not self.signatures:
            yield _line("signatures", "none")
        for number, (token, state) in enumerate(self.signatures):
            yield _line("" if number else "signatures", f"{token}  {state}")


def view_of(config_map: JsonObject, tokens: Sequence[BootstrapToken] | None) -> View:
    """Evaluate a ConfigMap; ``tokens`` are those that sign now, None where nobody may read them."""
    kubeconfig = text(config_map, "data", KUBECONFIG_KEY)
    info, problem = None, ""
    try:
        info = parse(kubeconfig)
    except Denied as denied:
        problem = f"expected {denied.expected}, got {denied.got}"
    return View(info=info, problem=problem, signatures=tuple(_signatures(config_map, kubeconfig, tokens)))


def subject_of(certificate: x509.Certificate) -> str:
    """Name a certificate, in printable characters."""
    try:
        name = certificate.subject.rfc4514_string()
    except ValueError:
        return "(unreadable)"
    return ascii(name[:_SHOWN])[1:-1] or "(no name)"


def _signatures(
    config_map: JsonObject, kubeconfig: str, tokens: Sequence[BootstrapToken] | None
) -> Iterator[tuple[str, SignatureState]]:
    data = mapping(config_map, "data")
    found = {key.removeprefix(SIGNATURE_PREFIX): text(data, key) for key in data if key.startswith(SIGNATURE_PREFIX)}
    known = {token.id: token for token in tokens or ()}
    for token_id in sorted(found.keys() | known.keys()):
        state = _state(found.get(token_id), known.get(token_id), kubeconfig, is_blind=tokens is None)
        yield ascii(token_id[:_SHOWN])[1:-1], state


def _state(signature: str | None, token: BootstrapToken | None, kubeconfig: str, *, is_blind: bool) -> SignatureState:
    if signature is None:
        return SignatureState.MISSING
    if token is None:
        return SignatureState.UNCHECKED if is_blind else SignatureState.NO_TOKEN
    return SignatureState.VALID if jws.is_valid(signature, kubeconfig.encode(), token) else SignatureState.INVALID


def _line(name: str, value: str) -> str:
    return f"{name + ':' if name else '':{_COLUMN}}{value}"
