"""Laws that the parsers of several providers keep alike."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from fuzz.target import Law, require
from nodeattest_kube.jsontypes import parse_json
from nodeattest_providers.errors import Denied, Reason
from nodeattest_providers.node_interface import JsonValue


def refused(denied: Denied, *allowed: Reason) -> bool:
    """Hold a refusal to the parser's own reasons."""
    require(denied.reason in allowed, f"{' or '.join(allowed)} and no other reason")
    return False


def settings_law(
    parse: Callable[[Mapping[str, JsonValue]], object], *, passed_over: frozenset[str] = frozenset()
) -> Law:
    """Make the law of a provider's settings: a value, or ``PolicyInvalid``; keys ``passed_over`` are not tried."""

    def law(data: bytes) -> bool:
        try:
            settings = parse_json(data)
        except ValueError:
            return False
        if passed_over & settings.keys():
            return False
        try:
            parse(settings)  # pyright: ignore[reportArgumentType] - with fractions too: what the type forbids must do no harm
        except Denied as denied:
            return refused(denied, Reason.POLICY_INVALID)
        return True

    return law
