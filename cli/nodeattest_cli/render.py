"""``nodeattest render``: bootstrap configuration as the webhook would make it, without a cluster.

Promises: YAML in, YAML out; documents of other kinds pass through byte for byte, changed ones keep order and quotes. A
contradiction writes nothing at all and lists every reason.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Final, cast

import click

from nodeattest_cli.documents import read_objects, read_text
from nodeattest_cli.errors import ExitCode, UserError
from nodeattest_cli.options import files_option
from nodeattest_cli.output import print_exactly, print_lines
from nodeattest_cli.yaml_edit import edit
from nodeattest_controller.controllers.bootstrap_config.kubeadmconfig.fields import (
    RenderingRefused,
    RenderOptions,
    ServingOptions,
    is_rendered_kind,
)
from nodeattest_controller.controllers.bootstrap_config.kubeadmconfig.render import render as rendered
from nodeattest_controller.controllers.bootstrap_config.renderer import ATTESTOR_ANNOTATION, annotated
from nodeattest_controller.model.challenge_secret import creates_secrets
from nodeattest_controller.model.policy import Policy, parse_attestation_policy
from nodeattest_parsing.objects import key_of, text
from nodeattest_parsing.values import JsonObject
from nodeattest_providers.config_fields import parse_setting
from nodeattest_providers.errors import Denied
from nodeattest_providers.identifiers import ANNOTATION_PROVIDER_ID, ProviderName
from nodeattest_providers.node_interface import JsonValue

_BETWEEN: Final = re.compile(r"(?m)^---(?=[ \t\r\n]|\Z)")
"""Where a document begins; YAML 1.2 §9.1.2 lets no text of a document begin a line so."""


@dataclass(frozen=True, slots=True)
class _Part:
    """A document as it stood, and as it is now."""

    before: str
    after: str
    said: tuple[str, ...] = ()
    refusals: tuple[str, ...] = ()


@click.command()
@files_option()
@click.option(
    "--policy", "policies", multiple=True, metavar="FILE", help="A NodeAttestationPolicy, which names the provider."
)
@click.option("--provider", metavar="NAME", help="How machines attest, where the policy names several or is not given.")
@click.option("--set", "words", multiple=True, metavar="KEY=VALUE", help="A provider setting on the node.")
@click.option(
    "--provider-id",
    metavar="ID",
    help="For kubelet and agent; may be a template of cloud-init. With {dmi:product_uuid} or the like: for the agent.",
)
@click.option("--provider-id-file", metavar="FILE", help="A file on the node that holds it.")
@click.option("--provider-id-command", metavar="COMMAND", help="A command on the node that prints it.")
@click.option(
    "--serving",
    type=click.Choice([str(choice) for choice in ServingOptions]),
    help="Who gets kubelet's serving certificate: kubelet from the cluster, or none of ours  [by policy; kubelet]",
)
@click.option("-o", "--output", metavar="FILE", help="Where the YAML goes  [standard output]")
@click.option("--diff", is_flag=True, help="Show on standard error what was changed, line by line.")
@click.option("--check", is_flag=True, help="Write nothing; exit code 1 when something would be changed.")
def render(
    *, paths: tuple[str, ...], policies: tuple[str, ...], output: str | None, diff: bool, check: bool, **flags: object
) -> int:
    """Render bootstrap configuration, so that its machines join attested.

    Changes KubeadmConfig, KubeadmConfigTemplate, KubeadmControlPlane and KubeadmControlPlaneTemplate; all other
    documents pass. Exit code 1: something in the files contradicts, and nothing was written.
    """
    sources = _read(paths)
    if len(policies) > 1:
        raise UserError(f"expected one --policy, got {len(policies)}")
    policy = _policy(policies[0]) if policies else None

    def plan(document: JsonObject) -> RenderOptions:
        return _plan(flags, policy, document)

    parts = [_rendered(part, path, plan) for path, source in sources for part in _documents(source)]
    refusals = [line for part in parts for line in part.refusals]
    if refusals:
        print_lines(*refusals, err=True)
        return ExitCode.REFUSED
    for line in (line for part in parts for line in part.said):
        print_lines(line, err=True)
    after = "".join(part.after for part in parts)
    if diff:
        before, name = "".join(source for _, source in sources), ", ".join(paths)
        lines = difflib.unified_diff(before.splitlines(), after.splitlines(), name, f"{name} (rendered)", lineterm="")
        print_lines(*lines, err=True)
    if check:
        return ExitCode.REFUSED if any(part.after != part.before for part in parts) else 0
    if output is None:
        print_exactly(after)
    else:
        Path(output).write_text(after, encoding="utf-8")
    return 0


def _read(paths: Sequence[str]) -> list[tuple[str, str]]:
    """Read the files, so that one after the other they are one stream."""
    sources: list[tuple[str, str]] = []
    for path in paths:
        source = read_text(path)
        if sources:
            source = source.removeprefix("\ufeff")  # a byte order mark begins a stream only (YAML 1.2, 5.2)
        if sources and not sources[-1][1].endswith("\n"):
            source = f"\n---\n{source}"
        elif sources and not source.startswith("---"):
            source = f"---\n{source}"
        sources.append((path, source))
    return sources


def _documents(source: str) -> Iterator[str]:
    """Take a stream apart; together the parts are the stream again."""
    starts = [found.start() for found in _BETWEEN.finditer(source)]
    edges = [0, *(start for start in starts if start > 0), len(source)]
    for begin, end in pairwise(edges):
        yield source[begin:end]


def _rendered(part: str, path: str, plan: Callable[[JsonObject], RenderOptions]) -> _Part:
    """Render one document, or the objects of one list."""
    head, body = _head(part)
    if not any(line.strip() and not line.lstrip().startswith("#") for line in body.splitlines()):
        return _Part(part, part)
    found = read_objects(path, body)
    if not any(is_rendered_kind(document) for document in found):
        return _Part(part, part)
    said: list[str] = []
    written: list[str] = []
    refusals: list[str] = []
    for document in found:
        name = f"{text(document, 'kind')} {key_of(document)}"
        if not is_rendered_kind(document):
            written.append(edit(json.dumps(document), document, document))
            continue
        try:
            made = rendered(document, plan(document))
        except RenderingRefused as refused:
            refusals += [f"expected in {name}: {one.expected}, got {one.got}; {one.remedy}" for one in refused.refusals]
            continue
        if not made.changes:
            said.append(f"{name}: rendered already")
        said += [f"{name}: {change}" for change in made.changes]
        alone = len(found) == 1 and not text(document, "kind").endswith("List")
        written.append(edit(body if alone else json.dumps(document), document, made.document))
        if alone and not made.changes:
            return _Part(part, part, tuple(said))
    return _Part(part, (head or "") + "---\n".join(written), tuple(said), tuple(refusals))


def _head(part: str) -> tuple[str, str]:
    """Part a document from the line that begins it."""
    if not part.startswith("---"):
        return "", part
    line, _, body = part.partition("\n")
    return (f"{line}\n", body) if not line[3:].split("#")[0].strip() else ("---\n", f"{line[3:].lstrip()}\n{body}")


def _policy(path: str) -> Policy:
    found = [each for each in read_objects(path) if text(each, "kind") == "NodeAttestationPolicy"]
    if len(found) != 1:
        raise UserError(f"{path}: expected one NodeAttestationPolicy, got {len(found)}")
    try:
        return parse_attestation_policy(found[0])
    except Denied as denied:
        raise UserError(f"{path}: expected {denied.expected}, got {denied.got}; {denied.remedy}") from None


def _plan(flags: dict[str, object], policy: Policy | None, document: JsonObject) -> RenderOptions:
    provider = cast("str | None", flags["provider"]) or annotated(document, ATTESTOR_ANNOTATION) or None
    attestors = sorted(policy.attestors) if policy else []
    if policy and provider and provider not in attestors:
        raise UserError(f"provider {provider}: the policy authorizes {', '.join(attestors) or 'none'}")
    if provider is None:
        if len(attestors) != 1:
            what = f"the policy authorizes {', '.join(attestors) or 'none'}" if policy else "there is no --policy"
            name = f"{text(document, 'kind')} {key_of(document)}"
            raise UserError(f"{name}: which provider? Give --provider, or annotation {ATTESTOR_ANNOTATION}: {what}")
        provider = attestors[0]
    if policy and provider in {"challenge", "composite"} and creates_secrets(policy):
        raise UserError("the policy has challenge.createSecrets, which the webhook alone can render")
    serving = cast("str | None", flags["serving"])
    if serving is None:
        serving = "none" if policy and not policy.serving.approves_kubelet else "kubelet"
    given = {name: cast("str | None", flags[name]) for name in _SOURCES}
    if sum(value is not None for value in given.values()) > 1:
        raise UserError("give one of --provider-id, --provider-id-file and --provider-id-command")
    if not any(given.values()):
        given["provider_id"] = annotated(document, ANNOTATION_PROVIDER_ID) or None
    return RenderOptions(
        provider=ProviderName(provider),
        settings=_settings(cast("tuple[str, ...]", flags["words"])),
        serving=ServingOptions(serving),
        provider_id=given["provider_id"],
        provider_id_file=given["provider_id_file"],
        provider_id_command=given["provider_id_command"],
    )


_SOURCES: Final = ("provider_id", "provider_id_file", "provider_id_command")


def _settings(words: tuple[str, ...]) -> dict[str, JsonValue]:
    made: dict[str, JsonValue] = {}
    for word in words:
        setting = parse_setting(word)
        if setting is None:
            raise UserError("--set needs KEY=VALUE")
        made[setting[0]] = setting[1]
    return made
