"""Explain serving requests: the rules for names, for attested requests and for kubelet's own.

Judged by the Machine's addresses as they were given, which need not be those of the request's day. What only live reads
can tell (the Node) and what other requests did is left out, as for client requests.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from nodeattest_cli.explain.model import Explanation, Step
from nodeattest_cli.explain.steps import attempt, needs_platform, not_checked, passed, refusal
from nodeattest_cli.explain.surroundings import Given, pick_for_node
from nodeattest_controller.controllers.kubelet_serving.evaluator import one_machine
from nodeattest_controller.model.certificate_authority import SubjectAltNames
from nodeattest_controller.model.identity_rules import allowed_node_names
from nodeattest_controller.model.kubelet_csr import KubeletServingRequest, parse_kubelet_request
from nodeattest_controller.model.machine_view import MachineView
from nodeattest_controller.model.policy import parse_attestation_policy
from nodeattest_controller.model.serving_names import (
    addresses_final,
    check_client_certificate,
    check_sans,
    check_sans_unclaimed,
    check_serving_allowed,
    network_of,
    san_candidates,
)
from nodeattest_kube.jsontypes import JsonObject
from nodeattest_providers.errors import Denied, Reason
from nodeattest_providers.names import ProviderName
from nodeattest_providers.platform import OFFLINE, make_signer
from nodeattest_providers.verifier_interface import NodeRequest, PlatformAddresses

__all__ = ["attested_steps", "explain_kubelets"]

_RULES = "serving certificates"


def explain_kubelets(csr: JsonObject, documents: Sequence[JsonObject], facts: Sequence[tuple[str, str]]) -> Explanation:
    """Judge kubelet's own request; who signs it is the cluster's kube-controller-manager."""
    try:
        request = parse_kubelet_request(csr)
    except Denied as denied:
        return Explanation(facts=facts, steps=[refusal("well-formed request of kubelet", _RULES, denied)])
    names = ", ".join((*request.names.dns_names, *request.names.ip_addresses))
    steps = [passed("well-formed request of kubelet", _RULES, "one PKCS#10 block, by the node for itself")]
    steps += _kubelets_steps(request, pick_for_node(documents, request.node_name))
    return Explanation(facts=[*facts, ("node", request.node_name), ("names", names)], steps=steps)


def attested_steps(request: NodeRequest, given: Given) -> Iterator[Step]:
    """Judge what an attested serving request must fulfil besides its evidence."""
    secure = make_signer(request.evidence.provider, OFFLINE).secure
    policy, ledger = given.policy, given.ledger
    name = "attested serving request"
    if policy is None:
        yield not_checked(name, _RULES, "the NodeAttestationPolicy")
    else:
        yield attempt(
            name, _RULES, lambda: check_serving_allowed(request, parse_attestation_policy(policy), secure=secure)
        )
    if ledger is None:
        yield not_checked("a joined machine", _RULES, "its MachineAttestation")
    else:
        yield attempt("a joined machine", _RULES, lambda: check_client_certificate(request, ledger, request.created))
    wanted = SubjectAltNames(request.csr.dns_names, request.csr.ip_addresses)
    asked = KubeletServingRequest(
        name=request.name, node_name=request.csr.node_name, names=wanted, created=request.created
    )
    yield from _names_steps(asked, given, request.evidence.provider)


def _kubelets_steps(request: KubeletServingRequest, given: Given) -> Iterator[Step]:
    policy = given.policy
    if policy is None:
        yield not_checked("policy approves", _RULES, "the NodeAttestationPolicy")
    else:
        yield attempt("policy approves", _RULES, lambda: _check_approves(policy))
    if not given.claimants:
        yield not_checked("one Machine", "identity rule 1", f"a Machine of node {request.node_name}")
        return
    yield attempt(
        "one Machine, alive and ready", "identity rule 1", lambda: one_machine(request.node_name, given.members)
    )
    yield from _names_steps(request, given, given.ledger.provider if given.ledger else None)


def _check_approves(policy: JsonObject) -> None:
    if not parse_attestation_policy(policy).serving.approves_kubelet:
        raise Denied(
            Reason.SERVING_NOT_ALLOWED,
            expected="serving.kubelet: Approve",
            got="Ignore: the request is left to whoever else approves it",
            remedy="set it in the policy, or approve by other means",
        )


def _names_steps(request: KubeletServingRequest, given: Given, provider: ProviderName | None) -> Iterator[Step]:
    name, listed = "names of one machine alone", "names and addresses of the Machine"
    if not given.members or given.cluster is None:
        yield not_checked(listed, _RULES, "the Cluster and the Machine")
        return
    network, member = network_of(given.cluster), given.members[0]

    def rivals(place: str) -> list[MachineView]:
        others = [one for one in given.claimants if one.provider_id != member.provider_id]
        return [one for one in others if place in san_candidates(one) or place in allowed_node_names(one)]

    if _tells_addresses(provider):
        yield attempt(name, _RULES, lambda: check_sans_unclaimed(request.names, network=network, rivals=rivals))
        yield needs_platform(listed, _RULES, f"the platform of {provider} says where the machine can be reached")
        return
    yield attempt(
        listed,
        _RULES,
        lambda: check_sans(
            request.names,
            node_name=request.node_name,
            listed=member.addresses,
            network=network,
            rivals=rivals,
            settled=addresses_final(member, request.created),
        ),
    )


def _tells_addresses(provider: ProviderName | None) -> bool:
    try:
        return provider is not None and isinstance(make_signer(provider, OFFLINE), PlatformAddresses)
    except Denied:  # not installed here
        return False
