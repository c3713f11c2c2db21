"""``nodeattest render``: bootstrap configuration as the webhook would make it, without a cluster.

YAML in, YAML out: objects of other kinds pass, and keys keep their order. A contradiction writes nothing at all and
lists every reason.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final, cast

import click
import yaml

from nodeattest_cli.documents import read_objects
from nodeattest_cli.options import files_option
from nodeattest_cli.output import ExitCode, UserError, print_exactly, print_lines, user_errors
from nodeattest_controller.controllers.bootstrap_config.admission_review import paths as paths_changed
from nodeattest_controller.controllers.bootstrap_config.kubeadmconfig import (
    RenderingRefused,
    RenderOptions,
    ServingOptions,
    is_rendered_kind,
)
from nodeattest_controller.controllers.bootstrap_config.render import ATTESTOR_ANNOTATION, annotated
from nodeattest_controller.controllers.bootstrap_config.render import render as rendered
from nodeattest_controller.model.kubeadm_config import creates_secrets
from nodeattest_controller.model.policy import Policy, parse_attestation_policy
from nodeattest_parsing.objects import key_of, text
from nodeattest_parsing.values import JsonObject
from nodeattest_providers.config_fields import parse_setting
from nodeattest_providers.identifiers import ANNOTATION_PROVIDER_ID, ProviderName
from nodeattest_providers.node_interface import JsonValue


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
@click.option("--check", is_flag=True, help="Write nothing; exit code 1 when something would be changed.")
def render(
    *, paths: tuple[str, ...], policies: tuple[str, ...], output: str | None, check: bool, **flags: object
) -> int:
    """Render bootstrap configuration, so that its machines join attested.

    Changes KubeadmConfig, KubeadmConfigTemplate, KubeadmControlPlane and KubeadmControlPlaneTemplate; all other
    objects pass. Comments are lost. Exit code 1: something in the files contradicts, and nothing was written.
    """
    documents = [document for path in paths for document in read_objects(path)]
    if len(policies) > 1:
        raise UserError(f"expected one --policy, got {len(policies)}")
    policy = _policy(policies[0]) if policies else None
    changes: list[str] = []
    refusals: list[str] = []
    made: list[JsonObject] = []
    for document in documents:
        name = f"{text(document, 'kind')} {key_of(document)}"
        if not is_rendered_kind(document):
            made.append(document)
            continue
        try:
            result = rendered(document, _plan(flags, policy, document))
        except RenderingRefused as refused:
            refusals += [f"expected in {name}: {one.expected}, got {one.got}; {one.remedy}" for one in refused.refusals]
            continue
        made.append(result)
        changes += [f"{name}: {'.'.join(path)}" for path in sorted(paths_changed(document, result))]
    if refusals:
        print_lines(*refusals, err=True)
        return ExitCode.REFUSED
    print_lines(*(changes or ["everything is rendered already"]), err=True)
    if check:
        return ExitCode.REFUSED if changes else ExitCode.DONE
    written = yaml.dump_all(made, Dumper=_Dumper, sort_keys=False, width=_WIDTH, allow_unicode=True)
    if output is None:
        print_exactly(written)
    else:
        Path(output).write_text(written, encoding="utf-8")
    return ExitCode.DONE


class _Dumper(yaml.SafeDumper):
    """Writes texts of several lines as people do."""


def _text(dumper: yaml.SafeDumper, value: str) -> yaml.ScalarNode:
    del dumper
    return yaml.ScalarNode("tag:yaml.org,2002:str", value, style="|" if "\n" in value else None)


_Dumper.add_representer(str, _text)


def _policy(path: str) -> Policy:
    found = [each for each in read_objects(path) if text(each, "kind") == "NodeAttestationPolicy"]
    if len(found) != 1:
        raise UserError(f"{path}: expected one NodeAttestationPolicy, got {len(found)}")
    with user_errors(path):
        return parse_attestation_policy(found[0])


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
        serving = "none" if policy and not policy.approves_kubelet else "kubelet"
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


_WIDTH: Final = 1 << 16
"""Columns: long commands stay on one line."""
_SOURCES: Final = ("provider_id", "provider_id_file", "provider_id_command")


def _settings(words: tuple[str, ...]) -> dict[str, JsonValue]:
    made: dict[str, JsonValue] = {}
    for word in words:
        setting = parse_setting(word)
        if setting is None:
            raise UserError("--set needs KEY=VALUE")
        made[setting[0]] = setting[1]
    return made
