"""``nodeattest policy check``: check a NodeAttestationPolicy without a cluster, by the rules of the controller.

All errors are reported, not only the first: of the shipped CRD's schema, unknown fields with the nearest known one, of
the controller's own parser, and of every installed provider's section.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Sequence
from collections.abc import Set as AbstractSet
from functools import cache
from typing import Final

import click

from nodeattest_cli.documents import read_objects
from nodeattest_cli.fleet import CLUSTER_API, OWN, POLICY, of_kind
from nodeattest_cli.options import files_option, installed_option
from nodeattest_cli.output import ExitCode, UserError, print_lines
from nodeattest_controller import manifests
from nodeattest_controller.controllers.bootstrap_config.kubeadmconfig import (
    RenderingRefused,
    is_rendered_kind,
)
from nodeattest_controller.controllers.bootstrap_config.render import is_rendered
from nodeattest_controller.model.policy import OWN_SECTIONS, parse_attestation_policy, policy_for, selecting
from nodeattest_controller.model.webhook_configuration import is_decided, label_command, needs_webhook
from nodeattest_controller.verification.verifiers import offline_signer, section_flaws
from nodeattest_parsing import structural_schema
from nodeattest_parsing.objects import items, key_of, mapping, strings, text
from nodeattest_parsing.values import JsonObject, JsonValue
from nodeattest_providers import registry
from nodeattest_providers.composite.protocol import parse_policy as parse_composite
from nodeattest_providers.errors import Denied
from nodeattest_providers.identifiers import ProviderName

_API_VERSION: Final = "/".join(OWN)
_SEVERAL: Final = (
    "{} select it: the one goes on that most of its machines joined under, and without any no node joins; narrow their "
    "clusterSelectors"
)
_NO_POLICY: Final = "no policy of this file selects it; without one no node joins"
_SECURITY: Final = (
    "spec.security is of the proposal: Cluster API's own definitions drop it on arrival, and the policy alone counts"
)
_UNRENDERED: Final = (
    "not rendered, so machines made of it cannot join a cluster with enforcement Enforce, unless the webhook "
    "renders it when it is applied (nodeattest render)"
)
_RUNTIME: Final = {10: "IMA", 11: "systemd-pcrphase", 15: "systemd-cryptsetup"}
"""PCRs that running systems extend, which no event log of a firmware explains."""


@click.command()
@files_option()
@installed_option
def check(*, paths: tuple[str, ...], installed: tuple[str, ...]) -> int:
    """Check every NodeAttestationPolicy of the files, and Clusters and bootstrap configurations beside them.

    Exit code 1 when one is invalid or names a provider that does not exist, or when two select one Cluster (then no
    node of a new Cluster joins).
    """
    documents = [document for path in paths for document in read_objects(path)]
    policies = of_kind(documents, POLICY)
    if not policies:
        raise UserError(f"{', '.join(paths)}: expected a {POLICY}, got other objects only")
    wrong: list[str] = []
    for policy in policies:
        name = text(policy, "metadata", "name") or "(no name)"
        said = [f"{name}: {problem}" for problem in problems(policy, installed)]
        wrong += said
        if not said:
            remarks = (*notes(policy), *_namespace_notes(policy, documents))
            said = [f"{name}: valid; {_summary(policy)}", *(f"{name}: note: {note}" for note in remarks)]
        print_lines(*said)
    for cluster in of_kind(documents, "Cluster"):
        if text(cluster, "apiVersion").startswith(f"{CLUSTER_API}/"):
            refused, said = _rule(cluster, policies)
            print_lines(*said)
            wrong += said if refused else []
    print_lines(*_unrendered(documents, policies))
    return ExitCode.REFUSED if wrong else ExitCode.DONE


def _namespace_notes(document: JsonObject, documents: Sequence[JsonObject]) -> Iterator[str]:
    """Yield what the policy's namespace needs, unless the file has it and it says what the webhook does there."""
    namespace = text(document, "metadata", "namespace")
    beside = [one for one in documents if text(one, "kind") == "Namespace" and text(one, "apiVersion") == "v1"]
    if needs_webhook(document) and not any(
        is_decided(one) for one in beside if text(one, "metadata", "name") == namespace
    ):
        yield f"where the webhook is to render, its namespace needs a label: {label_command(namespace)}"


def _unrendered(documents: Sequence[JsonObject], policies: Sequence[JsonObject]) -> Iterator[str]:
    """Yield whose machines cannot join where a policy says ``Enforce``, control planes included."""
    if all(text(one, "spec", "enforcement") == "Audit" for one in policies):
        return
    for document in documents:
        if is_rendered_kind(document):
            name = f"{text(document, 'kind')} {key_of(document)}"
            try:
                if not is_rendered(document):
                    yield f"{name}: note: {_UNRENDERED}"
            except RenderingRefused as refused:
                yield f"{name}: note: {refused}"


def _rule(cluster: JsonObject, policies: Sequence[JsonObject]) -> tuple[bool, list[str]]:
    """Return whether several policies of the file select a Cluster, and lines about which one rules and admits whom."""
    name = f"Cluster {text(cluster, 'metadata', 'name') or '(no name)'}"
    chosen = selecting(cluster, [one for one in policies if _is_beside(one, cluster)])
    names = ", ".join(sorted(text(one, "metadata", "name") for one in chosen))
    if len(chosen) != 1:
        return bool(chosen), [f"{name}: {_SEVERAL.format(names) if chosen else _NO_POLICY}"]
    try:
        admitted = ", ".join(sorted(policy_for(cluster, chosen).attestors)) or "nobody"
    except Denied:
        return False, []  # reported for the policy
    lines = [f"{name}: ruled by {names}, admits {admitted}"]
    security = mapping(cluster, "spec", "security")
    if security:
        lines.append(f"{name}: note: {_SECURITY}")
        listed = set(strings(chosen[0], "spec", "authorizedAttestors"))
        ignored = sorted(set(strings(security, "authorizedAttestors")) - listed)
        if ignored:
            narrows = "it narrows the policy, never widens it"
            lines.append(f"{name}: note: spec.security cannot add {', '.join(ignored)}: {narrows}")
    return False, lines


def _is_beside(policy: JsonObject, other: JsonObject) -> bool:
    """Return whether both are in one namespace; a document that names none is applied to whichever is chosen."""
    return len({text(policy, "metadata", "namespace"), text(other, "metadata", "namespace")} - {""}) <= 1


def problems(document: JsonObject, installed: Sequence[str] = ()) -> Iterator[str]:
    """Yield what is wrong with a policy, one line each; ``installed``: providers to be found elsewhere."""
    if text(document, "apiVersion") != _API_VERSION:
        yield f"apiVersion: expected {_API_VERSION}, got {text(document, 'apiVersion') or 'none'}"
    if not text(document, "metadata", "name"):
        yield "metadata.name: expected a name, got none"
    shape = _schema()
    refused = [f"{one.field}: {one.message}" for one in structural_schema.violations(document, shape)]
    yield from refused
    unknown = list(_unknown(mapping(document, "spec"), mapping(shape, "properties", "spec"), "spec"))
    yield from unknown
    if not refused and not unknown:
        yield from _parsed(document)
        yield from _absent_providers(document, installed)


def _parsed(document: JsonObject) -> Iterator[str]:
    """Yield the errors of the controller's parsers; those of the schema have been reported already."""
    try:
        parsed = parse_attestation_policy(document)
    except Denied as denied:
        yield f"expected {denied.expected}, got {denied.got}; {denied.remedy}"
        return
    for flaw in section_flaws(parsed, own_only=False):
        yield f"expected {flaw.expected}, got {flaw.got}"


def _absent_providers(document: JsonObject, installed: Sequence[str]) -> Iterator[str]:
    """Yield providers that do not exist: they let nobody in."""
    attestors = strings(document, "spec", "authorizedAttestors")
    for name in dict.fromkeys((*attestors, *(_parts(document) if "composite" in attestors else ()))):
        if name not in installed and offline_signer(ProviderName(name)) is None:
            near = difflib.get_close_matches(name, sorted(registry.BUILT_IN), n=1, cutoff=0.0)
            yield (
                f"spec.authorizedAttestors: expected a provider that exists, got {name!a}; the nearest one is "
                f"{near[0]}; if the controller has it from another package, set --installed {name}"
            )


def _unknown(value: JsonValue, shape: JsonObject, path: str) -> Iterator[str]:
    """Yield fields that the schema does not name, each with the nearest that it does."""
    if isinstance(value, list):
        for number, item in enumerate(value):
            yield from _unknown(item, mapping(shape, "items"), f"{path}[{number}]")
    if not isinstance(value, dict) or "additionalProperties" in shape:
        return
    known = mapping(shape, "properties")
    for name, entry in value.items():
        if name in known:
            yield from _unknown(entry, mapping(known, name), f"{path}.{name}")
            continue
        near = difflib.get_close_matches(name, known, n=1, cutoff=0.0)
        yield f"{path}.{name}: unknown field; " + (
            f"the nearest known one is {near[0]}" if near else "none is known here"
        )


@cache
def _schema() -> JsonObject:
    definition = next(one for one in manifests.crds() if text(one, "spec", "names", "kind") == POLICY)
    version = next(one for one in items(definition, "spec", "versions") if text(one, "name") == OWN[1])
    return mapping(version, "schema", "openAPIV3Schema")


def _summary(document: JsonObject) -> str:
    attestors = ", ".join(strings(document, "spec", "authorizedAttestors"))
    lifetime = text(document, "spec", "certificateLifetime") or "the controller's default time"
    return f"admits {attestors or 'nobody'}, certificates last {lifetime}"


def notes(document: JsonObject) -> Iterator[str]:
    """Yield what is allowed and may yet surprise."""
    spec = mapping(document, "spec")
    attestors = strings(spec, "authorizedAttestors")
    if not attestors:
        yield "authorizedAttestors is empty, so no node can join"
    parts = _parts(document) if "composite" in attestors else ()
    admitted = {*attestors, *parts}
    if "insecure" in attestors:
        yield "insecure proves nothing: the holder of a bootstrap token can join as a machine that has not joined yet"
    if len(attestors) > 1:
        yield (
            f"{', '.join(attestors)} are alternatives: each alone lets a machine in and renews its certificate, so the "
            "weakest decides; where all must hold, take composite with allOf"
        )
    if "tpm" in admitted:
        yield from _tpm_notes(mapping(spec, "tpm"))
    if text(spec, "serving", "kubelet") != "Approve":
        yield "serving.kubelet is not Approve: kubelets' own serving requests wait for another approver"
    yield from _empty_notes(spec, admitted)
    yield from _section_notes(spec, attestors, parts)


def _empty_notes(spec: JsonObject, admitted: AbstractSet[str]) -> Iterator[str]:
    for name in sorted(admitted & registry.BUILT_IN.keys()):
        for field in registry.BUILT_IN[name].required_lists:
            if not strings(spec, name, field):
                yield f"spec.{name}.{field} lists nothing, so no machine can join by {name}"


def _section_notes(spec: JsonObject, attestors: Sequence[str], parts: Sequence[str]) -> Iterator[str]:
    for section in sorted(OWN_SECTIONS & set(spec) - {*attestors, *parts}):
        yield f"the section {section} is without effect: authorizedAttestors does not name it"
    for name in sorted(set(parts) & set(attestors)):
        yield f"{name} is authorized alone, too: a machine with that proof needs no other"


def _parts(document: JsonObject) -> tuple[str, ...]:
    """List the parts of composite proofs; none where the section is invalid, which is reported as a problem."""
    try:
        return parse_composite(parse_attestation_policy(document).settings(ProviderName("composite"))).parts
    except Denied:
        return ()


def _tpm_notes(tpm: JsonObject) -> Iterator[str]:
    if tpm.get("trustOnFirstUse") is True:
        yield "trustOnFirstUse: of a Machine without a registered TPM, the first TPM that claims it is believed"
    elif not {"endorsementKeys", "endorsementKeysFrom", "endorsementCAs"} & set(tpm):
        yield (
            "only TPMs that infrastructure machines, host objects or MachineRecords name are trusted: no "
            "endorsementKeys, no endorsementCAs"
        )
    if tpm.get("eventLog") != "Require":
        return
    yield "eventLog Require: every bootstrap token can read the nodes' event logs, kernel command lines among them"
    selection, values = mapping(tpm, "pcrs").get("selection"), mapping(tpm, "pcrs", "values")
    for pcr, who in _RUNTIME.items():
        if isinstance(selection, list) and pcr in selection and str(pcr) not in values:
            yield f"eventLog Require refuses machines whose PCR {pcr} is extended by {who}: do not select it"
