"""Whether the token that asked is one that the machine's bootstrap configuration names: identity rule 4, replayed.

The configuration is judged as it was given. A bootstrap provider that rotates a pool's token writes a later one into
it, so an old request of a pool is best replayed with the KubeadmConfig of its day.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from nodeattest_cli.explain.model import Step
from nodeattest_cli.explain.steps import attempt, not_checked, passed
from nodeattest_cli.explain.surroundings import Given
from nodeattest_controller.model.machine_view import MachineView
from nodeattest_controller.model.policy import TokenBinding, parse_attestation_policy
from nodeattest_controller.model.token_binding import asking_token, check_token_named, is_kubeadm_config, named_tokens
from nodeattest_providers.errors import Denied
from nodeattest_providers.verifier_interface import NodeRequest

__all__ = ["token_steps"]

_NAME: Final = "a token that the machine's bootstrap configuration names"
_RULE: Final = "identity rule 4"


def token_steps(request: NodeRequest, given: Given, member: MachineView) -> Iterator[Step]:
    """Hold the token to the machine's bootstrap configuration, as far as policy and configuration are at hand."""
    token_id = asking_token(request, member)
    if token_id is None:
        return
    binding, config = _binding(given), given.config
    if binding is None:
        yield not_checked(_NAME, _RULE, "a sound NodeAttestationPolicy")
    elif binding is TokenBinding.OFF:
        yield passed(_NAME, _RULE, "nothing: the policy says tokenBinding: Off")
    elif not is_kubeadm_config(member):
        yield attempt(_NAME, _RULE, lambda: check_token_named(token_id, member, None, binding))
    elif config is None:
        yield not_checked(_NAME, _RULE, f"KubeadmConfig {member.bootstrap.name if member.bootstrap else ''}")
    else:
        yield attempt(_NAME, _RULE, lambda: check_token_named(token_id, member, named_tokens(config), binding))


def _binding(given: Given) -> TokenBinding | None:
    """Read what the policy says; an invalid one is refused by a step of its own."""
    try:
        return parse_attestation_policy(given.policy).token_binding if given.policy is not None else None
    except Denied:
        return None
