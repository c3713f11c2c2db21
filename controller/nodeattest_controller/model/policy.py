"""NodeAttestationPolicy: which policy rules a cluster, and what it says. Pure.

Deny by default: no policy, an unreadable one, or two at once let nobody in. ``Cluster.spec.security`` of the proposal
can narrow a policy's attestors, never widen them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Final

from nodeattest_controller.model.infrastructure_kinds import HOST_KINDS, Expression, GroupKind, parse_expression
from nodeattest_parsing.objects import flag, items, mapping, strings, text
from nodeattest_parsing.times import parse_whole_seconds
from nodeattest_parsing.values import JsonObject, JsonValue, ParseError
from nodeattest_providers.config_fields import nearest
from nodeattest_providers.errors import Denied, Reason, Unavailable
from nodeattest_providers.identifiers import ProviderName, printable
from nodeattest_providers.registry import BUILT_IN, INSECURE

OWN_SECTIONS: Final = frozenset(BUILT_IN)
"""Names that a policy has as sections of its own; other providers' settings are in ``spec.providers``."""
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
_LISTING: Final = frozenset({"In", "NotIn"})
"""The operators of a label selector that go with a list of values."""
_MAX_VALUES: Final = 60_000
"""Values of a policy's spec: ten thousand registered keys (manifests/crd), and some more."""
MIN_LIFETIME: Final = 60
"""Seconds. Below an hour is for tests: an outage that long takes the nodes down. A shorter life weakens no check."""
MAX_LIFETIME: Final = 365 * 86400
"""Seconds; the in-tree signer's default (--cluster-signing-duration)."""


class TokenBinding(StrEnum):
    """Whether a bootstrap token must be that of the machine's bootstrap configuration; preferred: if it names one."""

    REQUIRED = "Required"
    PREFERRED = "Preferred"
    OFF = "Off"


class FailureAction(StrEnum):
    """What happens to a node whose attestation is refused at renewal."""

    NONE = "None"
    TAINT = "Taint"
    CORDON = "Cordon"
    DELETE_NODE = "DeleteNode"


@dataclass(frozen=True, slots=True, kw_only=True)
class InfrastructurePolicy:
    """What is taken from the objects of infrastructure providers."""

    host_objects: frozenset[str] = frozenset()
    """Kinds of host objects that give node names and endorsement keys."""
    host_namespaces: frozenset[str] = frozenset()
    """Namespaces in which a host object counts, beside the Machine's own."""
    short_node_names: bool = False
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
    approves_kubelet: bool = False
    """Whether kubelet's own requests (``kubernetes.io/kubelet-serving``) are approved or refused; else left alone."""
    signs_serving: bool = True
    """Whether the serving signers sign attested requests at all."""
    infrastructure: InfrastructurePolicy = InfrastructurePolicy()
    token_binding: TokenBinding = TokenBinding.REQUIRED
    on_failure: FailureAction = FailureAction.NONE
    max_failed_share: int = 10
    """Percent of a cluster's machines that joined (``DELETE_NODE``: of all) that may be treated so at one time; at
    least one may."""

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
    """Find the one policy of a cluster; raises Denied or Unavailable.

    ``read`` replaces ``parse_attestation_policy`` where parsed policies are kept. ``recorded`` counts the cluster's
    machines with a valid certificate by the policy that admitted it, for ``ruling_policy``.
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
        names = ", ".join(sorted(text(policy, "metadata", "name") for policy in chosen))
        remedy = "narrow their clusterSelectors so that one remains"
        raise _invalid("one NodeAttestationPolicy for a cluster", names, remedy)
    policy = (read or parse_attestation_policy)(chosen[0])
    security = mapping(cluster, "spec", "security")
    if "authorizedAttestors" not in security:
        return policy
    narrowed = policy.attestors & {ProviderName(name) for name in strings(security, "authorizedAttestors")}
    return replace(policy, attestors=narrowed if flag(security, "kubeletAuthentication") else frozenset())


def ruling_policy(policies: Iterable[JsonObject], recorded: Callable[[str], int]) -> str:
    """Name the policy of several that goes on ruling a cluster: the one under which most of its machines joined.

    Empty if no machine did, or as many under two, or if it audits and another enforces: a conflict lowers no
    enforcement.
    """
    audits = {text(policy, "metadata", "name"): text(policy, "spec", "enforcement") == "Audit" for policy in policies}
    first, second, *_ = [*sorted(((recorded(name), name) for name in audits), reverse=True), (0, ""), (0, "")]
    if first[0] <= second[0] or (audits[first[1]] and not all(audits.values())):
        return ""
    return first[1]


def parse_attestation_policy(policy: JsonObject) -> Policy:
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
    others = mapping(spec, "providers")
    ours = ", ".join(sorted(OWN_SECTIONS & others.keys()))
    if ours:
        raise _invalid("settings of others' providers in spec.providers", ours, "move them to their own sections")
    sections = {name: mapping(spec, name) for name in OWN_SECTIONS if name in spec}
    sections |= {name: mapping(others, name) for name in others}
    share = spec.get("maxFailedShare", 10)
    if not isinstance(share, int) or isinstance(share, bool) or not 1 <= share <= 100:  # noqa: PLR2004 - percent
        raise _invalid("maxFailedShare from 1 to 100, in percent", printable(str(share)))
    serving = _section(spec, "serving", ("kubelet", "attested"))
    return Policy(
        name=text(policy, "metadata", "name"),
        attestors=attestors,
        lifetime=_lifetime(text(spec, "certificateLifetime")),
        enforce=_choice(spec, "enforcement", ("Enforce", "Audit")) == "Enforce",
        listed=listed,
        sections={ProviderName(name): section for name, section in sections.items()},
        approves_kubelet=_choice(serving, "kubelet", ("Ignore", "Approve")) == "Approve",
        signs_serving=_choice(serving, "attested", ("Sign", "Refuse")) == "Sign",
        infrastructure=_infrastructure(
            _section(spec, "infrastructure", ("hostObjects", "hostNamespaces", "shortNodeNames", "providerIDs"))
        ),
        token_binding=TokenBinding(_choice(spec, "tokenBinding", [*TokenBinding])),
        on_failure=FailureAction(_choice(spec, "onFailure", [*FailureAction])),
        max_failed_share=share,
    )


def _check_fields(section: JsonObject, known: Collection[str], path: str) -> None:
    """Refuse a field that nobody reads: a mistyped restriction must not be silently lost."""
    for name in section:
        if name not in known:
            raise _invalid(f"known fields in {path}", printable(name), nearest(name, known))


def _section(spec: JsonObject, name: str, known: Collection[str]) -> JsonObject:
    section = spec.get(name, {})
    if not isinstance(section, dict):
        raise _invalid(f"{name}: an object", "something else")
    _check_fields(section, known, f"spec.{name}")
    return section


def _choice(section: JsonObject, name: str, choices: Sequence[str]) -> str:
    """Read one of some words; the first is the default (docs/decisions.md)."""
    given = section.get(name, choices[0])
    if given not in choices:
        raise _invalid(f"{name} {' or '.join(choices)}", printable(str(given)))
    return str(given)


def _check_selector(selector: JsonObject) -> None:
    """Refuse an invalid selector (apimachinery meta/v1/validation ValidateLabelSelector)."""
    _check_fields(selector, ("matchLabels", "matchExpressions"), "spec.clusterSelector")
    for term in items(selector, "matchExpressions"):
        _check_fields(term, ("key", "operator", "values"), "spec.clusterSelector.matchExpressions")
        operator, values = text(term, "operator"), strings(term, "values")
        if operator in _LISTING and not values:
            raise _invalid(f"values beside the operator {operator}", "none", "list values of the label in the policy")
        if operator not in _LISTING and values:
            raise _invalid(f"no values beside the operator {operator}", ", ".join(values)[:80], "take out the values")


def _infrastructure(section: JsonObject) -> InfrastructurePolicy:
    hosts, short = strings(section, "hostObjects"), section.get("shortNodeNames", False)
    unknown = [kind for kind in hosts if kind not in HOST_KINDS]
    if unknown:
        known = ", ".join(sorted(HOST_KINDS))
        raise _invalid(f"spec.infrastructure.hostObjects of {known}", printable(unknown[0]))
    if not isinstance(short, bool):
        raise _invalid("spec.infrastructure.shortNodeNames true or false", printable(str(short)))
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


def _check_values(spec: JsonObject) -> None:
    """Refuse a policy of too many values, or with a fraction, which no setting has; a level at a time."""
    level: list[JsonValue] = [spec]
    count = 0
    while level:
        count += len(level)
        if count > _MAX_VALUES:
            raise _invalid(f"at most {_MAX_VALUES} values", "more", "split the policy: one for each cluster")
        if float in set(map(type, level)):
            raise _invalid("whole numbers", "a fraction")
        inner = [each.values() if isinstance(each, dict) else each for each in level if isinstance(each, dict | list)]
        level = [value for values in inner for value in values]


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
    return [policy for policy in policies if selects(policy, cluster)]


def selects(policy: JsonObject, cluster: JsonObject) -> bool:
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
    holds = {"In": value in values, "NotIn": value not in values}
    holds |= {"Exists": value is not None, "DoesNotExist": value is None}
    return holds.get(text(term, "operator"), False)


def _invalid(expected: str, got: str, remedy: str = "correct the policy") -> Denied:
    return Denied(Reason.POLICY_INVALID, expected=expected, got=got, remedy=remedy)
