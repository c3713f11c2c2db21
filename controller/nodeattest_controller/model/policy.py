"""NodeAttestationPolicy: which policy rules a cluster, and what it says. Pure.

Deny by default: no policy, an unreadable one, or two at once let nobody in. ``Cluster.spec.security`` of the proposal
can narrow a policy's attestors, never widen them.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Final, TypeVar, cast

from nodeattest_controller.model.infrastructure_kinds import HOST_KINDS, Expression, GroupKind, parse_expression
from nodeattest_parsing.objects import flag, items, mapping, strings, text
from nodeattest_parsing.times import parse_whole_seconds
from nodeattest_parsing.values import JsonObject, ParseError
from nodeattest_parsing.values import JsonValue as RawValue
from nodeattest_providers.errors import Denied, Reason, Unavailable
from nodeattest_providers.identifiers import ProviderName, printable
from nodeattest_providers.node_interface import JsonValue
from nodeattest_providers.registry import BUILT_IN, INSECURE

OWN_SECTIONS: Final = frozenset(BUILT_IN)
"""Names that a policy has as sections of its own; other providers' settings are in ``spec.providers``."""
REFUSED_CONFIGURATIONS: Final = "refusedConfigurations"
"""Member of the status: for whom bootstrap configuration is refused. The webhook adds entries, ``policy_status`` ends
those that are not repeated."""
_FIELDS: Final = OWN_SECTIONS | {
    "authorizedAttestors",
    "certificateLifetime",
    "clusterSelector",
    "enforcement",
    "infrastructure",
    "maxFailedShare",
    "onFailure",
    "providers",
    "serving",
    "tokenBinding",
}
_SERVING_CHOICES: Final = {"kubelet": ("Ignore", "Approve"), "attested": ("Sign", "Refuse")}
"""Fields of ``serving`` and what each may be; the first is the default (docs/decisions.md)."""
_LISTING: Final = frozenset({"In", "NotIn"})
"""The operators of a label selector that go with a list of values."""
Choice = TypeVar("Choice", bound=StrEnum)
_MAX_VALUES: Final = 60_000
"""Values of a policy's spec: ten thousand registered keys (manifests/crd), and some more."""
_LONGEST_FIELD: Final = 64
"""Characters of a field's name that a known one is looked for by."""
_WHOLE: Final = 100
"""Percent."""
MIN_LIFETIME: Final = 60
"""Seconds. Below an hour is for tests: an outage that long takes the nodes down. A shorter life weakens no check."""
MAX_LIFETIME: Final = 365 * 86400
"""Seconds; the in-tree signer's default (--cluster-signing-duration)."""


@dataclass(frozen=True, slots=True)
class ServingPolicy:
    """What happens to requests for serving certificates."""

    approves_kubelet: bool = False
    """Whether kubelet's own requests (``kubernetes.io/kubelet-serving``) are approved or refused; else left alone."""
    signs_attested: bool = True
    """Whether our serving signers sign at all."""


class TokenBinding(StrEnum):
    """Whether a bootstrap token must be the one in the bootstrap configuration of the machine that it asks for."""

    REQUIRED = "Required"
    """It must."""
    PREFERRED = "Preferred"
    """It must wherever the configuration names one."""
    OFF = "Off"


class FailureAction(StrEnum):
    """What happens to a node whose attestation is refused at renewal."""

    NONE = "None"
    TAINT = "Taint"
    CORDON = "Cordon"
    DELETE_NODE = "DeleteNode"


@dataclass(frozen=True, slots=True)
class OnFailure:
    """What happens to such nodes, and to how many of them."""

    action: FailureAction = FailureAction.NONE
    max_share: int = 10
    """Percent of a cluster's machines that joined (``DELETE_NODE``: of all) that may be treated so at one time; at
    least one may."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InfrastructurePolicy:
    """What is taken from the objects of infrastructure providers, beside their provider IDs."""

    host_objects: frozenset[str] = frozenset()
    """Kinds of host objects that give node names and endorsement keys."""
    host_namespaces: frozenset[str] = frozenset()
    """Namespaces in which a host object counts, beside the Machine's own."""
    short_node_names: bool = False
    """Whether a node may have the first label of a fully qualified name."""
    provider_ids: Mapping[GroupKind, Expression] = field(default_factory=dict[GroupKind, Expression])
    """Expressions that replace or extend those of ``infrastructure_kinds.KINDS``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """What a cluster's operator decided."""

    name: str
    attestors: frozenset[ProviderName]
    lifetime: int | None
    """Seconds; None: the controller's default."""
    enforce: bool
    """False (``enforcement: Audit``): findings are reported, existing paths stay; signing is as strict as ever."""
    listed: tuple[ProviderName, ...] = ()
    """The attestors in the policy's own order, before the Cluster narrows them."""
    sections: Mapping[ProviderName, Mapping[str, JsonValue]] = field(
        default_factory=dict[ProviderName, Mapping[str, JsonValue]]
    )
    serving: ServingPolicy = ServingPolicy()
    infrastructure: InfrastructurePolicy = InfrastructurePolicy()
    token_binding: TokenBinding = TokenBinding.REQUIRED
    on_failure: OnFailure = OnFailure()

    def settings(self, provider: ProviderName) -> Mapping[str, JsonValue]:
        """Return the provider's own section; empty means the provider's defaults."""
        return self.sections.get(provider, {})


def policy_for(
    cluster: JsonObject,
    policies: Iterable[JsonObject],
    read: Callable[[JsonObject], Policy] | None = None,
    *,
    recorded: Callable[[str], int] | None = None,
) -> Policy:
    """Find the one policy of a cluster; raises Denied when it is unreadable or not one, Unavailable when none.

    ``read`` replaces ``parse_attestation_policy`` where parsed policies are kept. ``recorded`` counts the cluster's
    machines with a valid certificate by the policy that admitted it: of several policies ``ruling_policy`` goes on.
    """
    chosen = selecting(cluster, policies)
    if len(chosen) > 1 and recorded is not None:
        ruling = ruling_policy(chosen, recorded)
        chosen = [policy for policy in chosen if text(policy, "metadata", "name") == ruling] or chosen
    if not chosen:
        raise Unavailable(
            Reason.POLICY_MISSING,
            "no NodeAttestationPolicy selects this cluster",
            remedy="create a NodeAttestationPolicy beside the Cluster, with its authorizedAttestors",
            retry_after=30.0,
        )
    if len(chosen) > 1:
        raise _invalid(
            "one NodeAttestationPolicy for a cluster",
            ", ".join(sorted(text(policy, "metadata", "name") for policy in chosen)),
            "narrow their clusterSelectors so that one remains",
        )
    policy = (read or parse_attestation_policy)(chosen[0])
    security = mapping(cluster, "spec", "security")
    if "authorizedAttestors" not in security:
        return policy
    narrowed = policy.attestors & {ProviderName(name) for name in strings(security, "authorizedAttestors")}
    return replace(policy, attestors=narrowed if flag(security, "kubeletAuthentication") else frozenset())


def ruling_policy(policies: Iterable[JsonObject], recorded: Callable[[str], int]) -> str:
    """Name the policy that goes on ruling a cluster that several select: most of its machines joined under it.

    Empty where no machine did, or as many under two, or where it is an Audit and another is not: a conflict lowers no
    enforcement. Creation times would not do: ``clusterctl move`` creates every object again.
    """
    audits = {text(policy, "metadata", "name"): text(policy, "spec", "enforcement") == "Audit" for policy in policies}
    first, second, *_ = [*sorted(((recorded(name), name) for name in audits), reverse=True), (0, ""), (0, "")]
    if first[0] <= second[0] or (audits[first[1]] and not all(audits.values())):
        return ""
    return first[1]


def parse_attestation_policy(policy: JsonObject) -> Policy:
    """Read a policy object; raises Denied(PolicyInvalid)."""
    spec = mapping(policy, "spec")
    _check_fields(spec, _FIELDS, "spec")
    _check_values(spec)
    listed = tuple(ProviderName(name) for name in strings(spec, "authorizedAttestors"))
    attestors = frozenset(listed)
    if attestors & INSECURE and attestors - INSECURE:
        raise _invalid(
            "secure attestors alone, or insecure alone",
            ", ".join(sorted(attestors)),
            "take insecure out of authorizedAttestors: beside a secure provider it undoes its protection",
        )
    _check_selector(mapping(spec, "clusterSelector"))
    enforcement = text(spec, "enforcement") or "Enforce"
    if enforcement not in {"Enforce", "Audit"}:
        raise _invalid("enforcement Enforce or Audit", printable(enforcement), "correct the policy")
    sections = {ProviderName(name): _section(mapping(spec, name)) for name in OWN_SECTIONS if name in spec}
    third_parties = mapping(spec, "providers")
    ours = ", ".join(sorted(OWN_SECTIONS & third_parties.keys()))
    if ours:
        raise _invalid(
            "settings of others' providers in spec.providers", ours, "move them to their own sections of spec"
        )
    sections.update({ProviderName(name): _section(mapping(third_parties, name)) for name in third_parties})
    return Policy(
        name=text(policy, "metadata", "name"),
        attestors=attestors,
        lifetime=_lifetime(text(spec, "certificateLifetime")),
        enforce=enforcement == "Enforce",
        listed=listed,
        sections=sections,
        serving=_serving(spec.get("serving", {})),
        infrastructure=_infrastructure(spec.get("infrastructure", {})),
        token_binding=_choice(TokenBinding, spec, "tokenBinding", TokenBinding.REQUIRED),
        on_failure=OnFailure(_choice(FailureAction, spec, "onFailure", FailureAction.NONE), _max_share(spec)),
    )


def check_authorized(policy: Policy, provider: ProviderName) -> None:
    """Let the provider through only if the policy names it (identity rule 0); raises Denied."""
    if provider not in policy.attestors:
        named = ", ".join(sorted(policy.attestors)) or "none (an empty list means none)"
        raise Denied(
            Reason.ATTESTOR_NOT_AUTHORIZED,
            expected=f"one of the policy's authorizedAttestors: {named}",
            got=provider,
            remedy="use an attestor that the cluster's policy names",
        )


def _check_fields(section: JsonObject, known: Collection[str], path: str) -> None:
    """Refuse a field that nobody reads: a mistyped restriction must not be silently lost."""
    for name in section:
        if name not in known:
            near = difflib.get_close_matches(name[:_LONGEST_FIELD], sorted(known), n=1)
            hint = f"did you mean {near[0]}?" if near else f"known are {', '.join(sorted(known))}"
            raise _invalid(f"known fields in {path}", printable(name), hint)


def _check_selector(selector: JsonObject) -> None:
    """Refuse a selector that does not say what it seems to (apimachinery meta/v1/validation ValidateLabelSelector)."""
    _check_fields(selector, ("matchLabels", "matchExpressions"), "spec.clusterSelector")
    for term in items(selector, "matchExpressions"):
        _check_fields(term, ("key", "operator", "values"), "spec.clusterSelector.matchExpressions")
        operator, values = text(term, "operator"), strings(term, "values")
        if operator in _LISTING and not values:
            raise _invalid(f"values beside the operator {operator}", "none", "list values of the label in the policy")
        if operator not in _LISTING and values:
            raise _invalid(f"no values beside the operator {operator}", ", ".join(values)[:80], "take out the values")


def _serving(section: RawValue) -> ServingPolicy:
    if not isinstance(section, dict):
        raise _invalid("serving: an object", "something else", "correct the policy")
    _check_fields(section, _SERVING_CHOICES, "spec.serving")
    chosen: dict[str, str] = {}
    for name, choices in _SERVING_CHOICES.items():
        chosen[name] = text(section, name) if name in section else choices[0]
        if chosen[name] not in choices:
            raise _invalid(f"serving.{name} {' or '.join(choices)}", printable(str(chosen[name])), "correct the policy")
    return ServingPolicy(chosen["kubelet"] == "Approve", chosen["attested"] == "Sign")


def _infrastructure(section: RawValue) -> InfrastructurePolicy:
    if not isinstance(section, dict):
        raise _invalid("infrastructure: an object", "something else", "correct the policy")
    known = ("hostObjects", "hostNamespaces", "shortNodeNames", "providerIDs")
    _check_fields(section, known, "spec.infrastructure")
    hosts, short = strings(section, "hostObjects"), section.get("shortNodeNames", False)
    unknown = [kind for kind in hosts if kind not in HOST_KINDS]
    if unknown:
        expected = f"spec.infrastructure.hostObjects of {', '.join(sorted(HOST_KINDS))}"
        raise _invalid(expected, printable(unknown[0]), "correct the policy")
    if not isinstance(short, bool):
        raise _invalid("spec.infrastructure.shortNodeNames true or false", printable(str(short)), "correct the policy")
    return InfrastructurePolicy(
        host_objects=frozenset(hosts),
        host_namespaces=frozenset(strings(section, "hostNamespaces")),
        short_node_names=short,
        provider_ids=dict(map(_provider_id_expression, items(section, "providerIDs"))),
    )


def _provider_id_expression(entry: JsonObject) -> tuple[GroupKind, Expression]:
    _check_fields(entry, ("group", "kind", "expression"), "spec.infrastructure.providerIDs")
    source = text(entry, "expression")
    expression = parse_expression(source, is_provider_id=True)
    if expression is None or not text(entry, "group") or not text(entry, "kind"):
        raise _invalid(
            "spec.infrastructure.providerIDs with group, kind and an expression, such as "
            "acme://{infra.metadata.namespace}/{infra.metadata.name}",
            printable(source),
            "use literal text and paths below machine, infra and host, with / or : between two of them",
        )
    return (text(entry, "group"), text(entry, "kind")), expression


def _choice(choices: type[Choice], spec: JsonObject, name: str, default: Choice) -> Choice:
    given = spec.get(name, str(default))
    try:
        return choices(given)
    except ValueError:
        raise _invalid(f"{name} {' or '.join(choices)}", printable(str(given)), "correct the policy") from None


def _max_share(spec: JsonObject) -> int:
    given = spec.get("maxFailedShare", OnFailure().max_share)
    if not isinstance(given, int) or isinstance(given, bool) or not 1 <= given <= _WHOLE:
        raise _invalid("maxFailedShare from 1 to 100, in percent", printable(str(given)), "correct the policy")
    return given


def _check_values(spec: JsonObject) -> None:
    """Refuse a policy of more values than an event loop should read, or with a fraction, which no setting has.

    A registered machine takes three. A level at a time: no value costs a call.
    """
    level: list[RawValue] = [spec]
    count = 0
    while level:
        count += len(level)
        if count > _MAX_VALUES:
            raise _invalid(f"at most {_MAX_VALUES} values", "more", "split the policy: one for each cluster")
        if float in set(map(type, level)):
            raise _invalid("whole numbers", "a fraction", "correct the policy")
        inner = [each.values() if isinstance(each, dict) else each for each in level if isinstance(each, dict | list)]
        level = [value for values in inner for value in values]


def _section(raw: JsonObject) -> Mapping[str, JsonValue]:
    """Hand a provider its settings, of which ``_check_values`` has seen that they have no fraction."""
    return cast("Mapping[str, JsonValue]", raw)


def _lifetime(duration: str) -> int | None:
    if not duration:
        return None
    try:
        total = parse_whole_seconds(duration)
    except ParseError:
        total = 0
    if not MIN_LIFETIME <= total <= MAX_LIFETIME:
        hint = "write days as hours: 14 days are 336h" if "d" in duration else "correct the policy"
        raise _invalid("certificateLifetime from 1m to 8760h, such as 336h", printable(duration), hint)
    return total


def selecting(cluster: JsonObject, policies: Iterable[JsonObject]) -> list[JsonObject]:
    """Return the policies that select a Cluster; there should be one."""
    return [policy for policy in policies if selects(policy, cluster)]


def selects(policy: JsonObject, cluster: JsonObject) -> bool:
    """Return whether a policy's LabelSelector (apimachinery meta/v1) holds for a Cluster; an empty one always does."""
    return selector_holds(mapping(policy, "spec", "clusterSelector"), mapping(cluster, "metadata", "labels"))


def selector_holds(selector: JsonObject, labels: JsonObject) -> bool:
    """Return whether a LabelSelector (apimachinery meta/v1) holds for labels; an empty one always does."""
    exact = mapping(selector, "matchLabels")
    if any(isinstance(value, str) and labels.get(key) != value for key, value in exact.items()):
        return False
    return all(_term_holds(term, labels) for term in items(selector, "matchExpressions"))


def _term_holds(term: JsonObject, labels: JsonObject) -> bool:
    found, values = labels.get(text(term, "key")), strings(term, "values")
    value = found if isinstance(found, str) else None
    match text(term, "operator"):
        case "In":
            return value in values
        case "NotIn":
            return value not in values
        case "Exists":
            return value is not None
        case "DoesNotExist":
            return value is None
        case _:
            return False


def _invalid(expected: str, got: str, remedy: str) -> Denied:
    return Denied(Reason.POLICY_INVALID, expected=expected, got=got, remedy=remedy)
