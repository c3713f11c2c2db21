"""The sections of docs/configuration.md, from the settings' types: a field's meaning is the docstring below it."""

from __future__ import annotations

import ast
import inspect
import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import MISSING, fields
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Final

from nodeattest_authenticator.formats.client_go import Cluster
from nodeattest_authenticator.settings import API_VERSION as AGENT_VERSION
from nodeattest_authenticator.settings import KIND as AGENT_KIND
from nodeattest_authenticator.settings import Discovery, ProviderIdSource, ServingSettings
from nodeattest_authenticator.settings import Settings as AgentSettings
from nodeattest_controller import configfile, main
from nodeattest_controller.settings import OFF_BY_DEFAULT, Settings, camel
from nodeattest_parsing.times import format_seconds
from tools.markdown_tables import cell, code, table

AGENT: Final[tuple[tuple[str, type, str], ...]] = (
    ("server", Cluster, "endpoint"),
    ("tlsServerName", Cluster, "tls_server_name"),
    ("certificateAuthority", Cluster, "ca_pem"),
    ("nodeName", AgentSettings, "node_name"),
    ("provider.name", AgentSettings, "provider"),
    ("provider.settings", AgentSettings, "provider_settings"),
    ("providerID.value", ProviderIdSource, "value"),
    ("providerID.file", ProviderIdSource, "file"),
    ("providerID.command", ProviderIdSource, "command"),
    ("bootstrapTokenFile", AgentSettings, "token_file"),
    ("timeoutSeconds", AgentSettings, "timeout_seconds"),
    ("expirationSeconds", AgentSettings, "expiration_seconds"),
    ("serving.dnsNames", ServingSettings, "dns_names"),
    ("serving.ipAddresses", ServingSettings, "ip_addresses"),
    ("discovery.servers", Discovery, "servers"),
    ("discovery.kubeconfig", Discovery, "kubeconfig"),
    ("discovery.caFile", Discovery, "ca_file"),
    ("discovery.keepsServer", Discovery, "pin_server"),
    ("discovery.former[].server", Cluster, "endpoint"),
    ("discovery.former[].tlsServerName", Cluster, "tls_server_name"),
    ("discovery.former[].certificateAuthority", Cluster, "ca_pem"),
)
"""Every field of the agent's file, and the attribute that holds it."""
ENVIRONMENT: Final[dict[str, tuple[str, str]]] = {
    "AZURE_STORAGE_KEY": ("`nodeattest issuer publish`", "an account's key, in place of azure-identity's credentials"),
    "HTTPS_PROXY": ("`nodeattest`", "the proxy to API servers, where the kubeconfig names none; `https_proxy`, too"),
    "KUBEBUILDER_ASSETS": ("`nodeattest demo`", "a folder with `etcd` and `kube-apiserver`"),
    "KUBECONFIG": (
        "`nodeattest`",
        "the kubeconfig, or several with `:` between them, merged; `--kubeconfig` wins; else `~/.kube/config`",
    ),
    "KUBERNETES_EXEC_INFO": ("agent", "what client-go asks of an exec plugin; kubelet sets it"),
    "KUBERNETES_SERVICE_HOST": ("servers in a pod", "the API server's address; the kubelet sets it for each container"),
    "KUBERNETES_SERVICE_PORT": ("servers in a pod", "the API server's port; the kubelet sets it for each container"),
    "NO_PROXY": ("`nodeattest`", "hosts, domains and networks without a proxy; `no_proxy`, too"),
}
"""Variables that our code reads, who reads them, and what they say."""
_KINDS: Final = {
    "str": "string",
    "str | None": "string",
    "bool": "true or false",
    "int": "whole number",
    "int | None": "whole number",
    "float": "duration",
    "bytes": "certificates in PEM",
    "Path | None": "path of a file",
    "tuple[str, ...]": "list of strings",
    "tuple[str, ...] | None": "list of strings",
    "Endpoint": "URL",
    "tuple[Endpoint, ...]": "list of URLs",
    "NodeName": "string",
    "ProviderName": "string",
    "Mapping[str, JsonValue]": "mapping",
    "Mapping[str, Mapping[str, JsonValue]]": "mapping of mappings",
}
"""By the annotation: a field of a new type needs its words here."""
_DEFAULTS: Final = {"nodeName": "the host name"}
"""Defaults that no type has."""


Row = tuple[str, str, str, str]
"""Name, type, default and meaning of one setting."""


def agent_rows() -> Iterator[Row]:
    """Yield the settings of the agent's configuration file."""
    for path, owner, attribute in AGENT:
        yield _row(path, owner, attribute)


def sections() -> Iterator[str]:
    """Yield the sections of the page."""
    options = {option for param in main.run.params for option in param.opts}
    yield "## Controller"
    yield f"`apiVersion: {configfile.API_VERSION}`, `kind: {configfile.KIND}`,\nin YAML; `--config` names the file."
    rows = [_row(camel(field.name), Settings, field.name) for field in fields(Settings) if field.name != "identity"]
    flags = [flag if (flag := _flag(name)) in options else "" for name, *_ in rows]
    controller = [
        (code(name), code(flag) if flag else "", *more) for (name, *more), flag in zip(rows, flags, strict=True)
    ]
    yield table(("field", "flag", "type", "default", "meaning"), controller)
    yield "## Agent"
    yield f"`apiVersion: {AGENT_VERSION}`, `kind: {AGENT_KIND}`, in JSON."
    yield table(("field", "type", "default", "meaning"), [(code(name), *more) for name, *more in agent_rows()])
    yield "## Environment"
    variables = [(code(name), who, meaning) for name, (who, meaning) in ENVIRONMENT.items()]
    yield table(("variable", "read by", "meaning"), variables)


def _row(name: str, owner: type, attribute: str) -> Row:
    (field,) = (each for each in fields(owner) if each.name == attribute)
    annotation = str(field.type)
    meaning = _docstrings(owner).get(attribute)
    if meaning is None:
        raise KeyError(f"{owner.__module__}.{owner.__name__}.{attribute} has no docstring")
    meaning = re.sub(r"(; |^|\. )None(:| means)", r"\1absent\2", meaning.replace("``", "`"))
    meaning = meaning.replace(". absent", ". Absent")
    meaning = meaning.replace("those of `OFF_BY_DEFAULT`", ", ".join(f"`{name}`" for name in OFF_BY_DEFAULT))
    default: object = field.default
    if name in _DEFAULTS:
        shown = _DEFAULTS[name]
    elif field.default_factory is not MISSING or default is None or default == ():
        shown = ""
    elif default is MISSING:
        shown = "required"
    else:
        shown = code(_value(annotation, default))
    return name, _KINDS[annotation], shown, cell(meaning)


def _value(annotation: str, value: object) -> str:
    match value:
        case float() if annotation == "float":
            return format_seconds(value)
        case bool() | tuple():
            return json.dumps(value)
        case _:
            return str(value)


def _flag(name: str) -> str:
    return "--" + re.sub(r"(?<=[a-z])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z]{2})", "-", name).lower()


@cache
def _docstrings(owner: type) -> dict[str, str]:
    """Return the docstrings below a class's attributes."""
    source = Path(inspect.getfile(owner)).read_text(encoding="utf-8")
    body: Sequence[ast.stmt] = next(
        node.body for node in ast.parse(source).body if isinstance(node, ast.ClassDef) and node.name == owner.__name__
    )
    found: dict[str, str] = {}
    for statement, after in pairwise(body):
        match statement, after:
            case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(text))):
                found[name] = inspect.cleandoc(text)
            case _:
                pass
    return found
