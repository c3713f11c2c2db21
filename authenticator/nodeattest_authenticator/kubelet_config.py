"""Writes the cluster's ``KubeletConfiguration`` with the fields changed that attestation needs.

Out of scope: what kubeadm adjusts to the machine, such as ``resolvConf`` if systemd-resolved runs.
Source: kubeadm phases/kubelet (ConfigMap ``kube-system/kubelet-config``, key ``kubelet``); k8s.io/kubelet
config/v1beta1.
"""

from __future__ import annotations

import json
from typing import Final, cast

from nodeattest_authenticator.api_client import ApiServerClient, ForbiddenError, UnreachableError
from nodeattest_authenticator.errors import AgentError, AgentReason, FailureKind
from nodeattest_discovery.node.clock import Deadline
from nodeattest_parsing import strict_yaml
from nodeattest_parsing.strict_yaml import Scalars
from nodeattest_parsing.values import ParseError
from nodeattest_providers.node_interface import JsonObject

_PATH: Final = "/api/v1/namespaces/kube-system/configmaps/kubelet-config"
_KEY: Final = "kubelet"
_API_VERSION: Final = "kubelet.config.k8s.io/v1beta1"
_KIND: Final = "KubeletConfiguration"
_MAX_DEPTH: Final = 16
"""Levels of YAML; a KubeletConfiguration has five."""
_MAX_VALUES: Final = 4096
"""Values and keys of YAML; a KubeletConfiguration has some hundred."""
_RETRY: Final = 1.0
"""Seconds between two attempts if the server gives no Retry-After."""


def fetch(api: ApiServerClient, deadline: Deadline) -> JsonObject:
    """Read the configuration from the cluster, with retries. Raises ``AgentError``."""
    while True:
        try:
            return parse(_config_map(api))
        except UnreachableError as error:
            deadline.waits_for("kubelet's configuration", f"kubelet's configuration: {error}")
            if not deadline.pause(error.retry_after if error.retry_after is not None else _RETRY):
                said = f"kubelet's configuration cannot be read: {error}"
                remedy = "run join again when the API server answers"
                raise AgentError(AgentReason.API_UNAVAILABLE, said, remedy=remedy, kind=FailureKind.TEMPORARY) from None


def _config_map(api: ApiServerClient) -> JsonObject:
    refusal: AgentError | None = None
    try:
        found = api.read(_PATH)
        if found is not None:
            return found
    except ForbiddenError as forbidden:
        refusal = forbidden
    raise AgentError(
        AgentReason.KUBELET_CONFIGURATION_REFUSED,
        f"cannot read ConfigMap kube-system/kubelet-config: {refusal.message if refusal else 'it does not exist'}",
        remedy="kubeadm creates it and lets system:nodes read it; without kubeadm, omit --kubelet-config and write "
        "kubelet's configuration yourself",
    )


def parse(config_map: JsonObject) -> JsonObject:
    """Parse the configuration in the ConfigMap. Raises ``AgentError``."""
    data = config_map.get("data")
    text = data.get(_KEY) if isinstance(data, dict) else None
    if not isinstance(text, str):
        raise _refused(f"key {_KEY} with text in it", "none")
    try:
        document = strict_yaml.parse_object(
            text, scalars=Scalars.KUBERNETES, max_depth=_MAX_DEPTH, max_values=_MAX_VALUES
        )
    except ParseError as error:
        raise _refused("one YAML mapping", error.found) from None
    kind, version = document.get("kind"), document.get("apiVersion")
    if kind != _KIND or version != _API_VERSION:
        got = f"{ascii(str(kind)[:60])[1:-1]} of {ascii(str(version)[:60])[1:-1]}"
        raise _refused(f"{_KIND} of {_API_VERSION}", got)
    return document


def render(document: JsonObject, *, ca_file: str, serving_file: str | None = None) -> bytes:
    """Set the fields that attestation needs, and serialize as JSON, which every YAML parser reads alike.

    ``serving_file``: kubelet's serving certificate if the agent keeps it; else ``serverTLSBootstrap`` is on.
    ``rotateCertificates`` is off because the agent renews.
    """
    x509 = {**_section(_section(document, "authentication"), "x509"), "clientCAFile": ca_file}
    adjusted = document | {
        "authentication": {**_section(document, "authentication"), "x509": x509},
        "rotateCertificates": False,
        "serverTLSBootstrap": serving_file is None,
    }
    if serving_file is not None:
        adjusted |= {"tlsCertFile": serving_file, "tlsPrivateKeyFile": serving_file}
    return json.dumps(adjusted, indent=2).encode() + b"\n"


def _section(document: JsonObject, name: str) -> JsonObject:
    section = document.get(name)
    if section is not None and not isinstance(section, dict):
        raise _refused(f"{name} to be a mapping", "something else")
    return cast("JsonObject", section or {})


def _refused(expected: str, got: str) -> AgentError:
    return AgentError(
        AgentReason.KUBELET_CONFIGURATION_REFUSED,
        f"the cluster's kubelet configuration: expected {expected}, got {got}",
        remedy="check the ConfigMap kube-system/kubelet-config",
    )
