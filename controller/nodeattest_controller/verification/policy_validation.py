"""What is wrong with a policy: the controller's own parser, then each provider's reading of its section, offline.

Only providers of this project are asked, so that every replica gives the same answer.
"""

from __future__ import annotations

from collections.abc import Iterator

from nodeattest_controller.model.policy import OWN_SECTIONS, Policy, parse_attestation_policy
from nodeattest_parsing.values import JsonObject
from nodeattest_providers.errors import Denied
from nodeattest_providers.identifiers import ProviderName
from nodeattest_providers.platform import OFFLINE, make_signer
from nodeattest_providers.verifier_interface import ClusterAPISigner


def installed(provider: ProviderName) -> ClusterAPISigner | None:
    """Make a provider's verifier that asks nobody; None where it is not installed."""
    try:
        return make_signer(provider, OFFLINE)
    except Denied:
        return None


def section_flaws(policy: Policy, *, own_only: bool) -> Iterator[Denied]:
    """Yield what providers refuse of their sections, of those that are named and those that have one."""
    for provider in sorted(policy.attestors | set(policy.sections)):
        signer = installed(provider) if provider in OWN_SECTIONS or not own_only else None
        if signer is None:
            continue
        try:
            signer.check_settings(policy.settings(provider))
        except Denied as denied:
            yield denied


def first_flaw(policy: Policy) -> Denied | None:
    """Return the first of them, of this project's providers."""
    return next(section_flaws(policy, own_only=True), None)


def flaw_of(policy: JsonObject, *, sections: bool) -> Denied | None:
    """Return what is wrong with a policy object; None where nothing is. ``sections``: ask the providers, too."""
    try:
        parsed = parse_attestation_policy(policy)
    except Denied as denied:
        return denied
    return first_flaw(parsed) if sections else None
