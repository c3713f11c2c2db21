"""Where things are in the four kinds that hold a KubeadmConfigSpec, in both API versions; and what to write there.

Promises: reads anything; what has another type than its CRD says is refused by its path, never passed over.
Source: the CRDs of Cluster API (bootstrap.cluster.x-k8s.io, controlplane.cluster.x-k8s.io; v1beta1, v1beta2).
kubeletExtraArgs is a map in v1beta1, a list of name and value in v1beta2.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from nodeattest_parsing.objects import text
from nodeattest_parsing.values import IntegerJsonValue, JsonObject, JsonValue
from nodeattest_providers.errors import Denied, Reason
from nodeattest_providers.identifiers import ProviderName
from nodeattest_providers.provider_id_template import has_sources
from nodeattest_providers.registry import BUILT_IN

_BOOTSTRAP: Final = "bootstrap.cluster.x-k8s.io"
_TEMPLATE: Final = "KubeadmConfigTemplate"
_CONTROL_PLANE: Final = "controlplane.cluster.x-k8s.io"
_PATHS: Final[Mapping[tuple[str, str], tuple[str, ...]]] = {
    (_BOOTSTRAP, "KubeadmConfig"): ("spec",),
    (_BOOTSTRAP, _TEMPLATE): ("spec", "template", "spec"),
    (_CONTROL_PLANE, "KubeadmControlPlane"): ("spec", "kubeadmConfigSpec"),
    (_CONTROL_PLANE, "KubeadmControlPlaneTemplate"): ("spec", "template", "spec", "kubeadmConfigSpec"),
}
_VERSIONS: Final = ("v1beta1", "v1beta2")
_CONTROL_PLANE_LABEL: Final = "cluster.x-k8s.io/control-plane"
"""On every KubeadmConfig that a KubeadmControlPlane makes (cluster-api api/core ``MachineControlPlaneLabel``)."""
_CLONED_FROM: Final = "cluster.x-k8s.io/cloned-from-groupkind"
"""On a clone of a template (cluster-api controllers/external/util.go)."""
LIMITS: Final = {
    "files": 200,
    "preKubeadmCommands": 1000,
    "postKubeadmCommands": 1000,
    "kubeletExtraArgs": 100,
    "ignorePreflightErrors": 50,
}
"""maxItems of the CRDs."""


def is_rendered_kind(document: JsonObject) -> bool:
    """Return whether an object is one of the four, in whichever version."""
    return _key(document) in _PATHS


def spec_path(document: JsonObject) -> tuple[str, ...]:
    """Say where the KubeadmConfigSpec stands; raises ``RenderingRefused``."""
    path = _PATHS.get(_key(document))
    version = text(document, "apiVersion").rpartition("/")[2]
    if path is None or version not in _VERSIONS:
        kinds = ", ".join(kind for _, kind in _PATHS)
        got = f"{text(document, 'kind') or 'no kind'} of {text(document, 'apiVersion') or 'no apiVersion'}"
        remedy = "render the objects that hold a kubeadm configuration, in a version that Cluster API serves"
        raise RenderingRefused((refusal(f"{kinds} of {' or '.join(_VERSIONS)}", got, remedy),))
    return path


def is_control_plane(document: JsonObject, spec: JsonObject) -> bool:
    """Return whether ``kubeadm init`` may run with it, or whether it was made of one with which it may.

    A KubeadmConfig that joins keeps nothing of its control plane but the label: it must be rendered as its control
    plane was, or Cluster API sees a difference and replaces the machine (controlplane/kubeadm/internal/filters.go).
    A template is a worker's, and may have a clusterConfiguration nevertheless, which Cluster API ignores there.
    """
    metadata = section(document, "metadata")
    labels, annotations = section(metadata, "labels"), section(metadata, "annotations")
    is_template = _key(document)[1] == _TEMPLATE or annotations.get(_CLONED_FROM) == f"{_TEMPLATE}.{_BOOTSTRAP}"
    join = section(spec, "joinConfiguration")
    return (
        _key(document)[0] == _CONTROL_PLANE
        or _CONTROL_PLANE_LABEL in labels
        or "initConfiguration" in spec
        or ("clusterConfiguration" in spec and not is_template)
        or "controlPlane" in join
    )


def section(parent: JsonObject, name: str) -> JsonObject:
    """Return the object of that name; absent or null: an empty one. Raises ``RenderingRefused``."""
    value = parent.get(name)
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise _shape(name, "an object", value)
    return value


def objects(parent: JsonObject, name: str) -> list[JsonObject]:
    """Return the list of objects of that name; raises ``RenderingRefused``."""
    found: list[JsonObject] = []
    for entry in _list(parent, name):
        if not isinstance(entry, dict):
            raise _shape(name, "a list of objects", entry)
        found.append(entry)
    return found


def words(parent: JsonObject, name: str) -> list[str]:
    """Return the list of texts of that name; raises ``RenderingRefused``."""
    found: list[str] = []
    for entry in _list(parent, name):
        if not isinstance(entry, str):
            raise _shape(name, "a list of texts", entry)
        found.append(entry)
    return found


def arguments(registration: JsonObject) -> Iterator[tuple[str, str]]:
    """Yield kubelet's arguments in either shape, leading dashes aside; raises ``RenderingRefused``."""
    given = registration.get("kubeletExtraArgs")
    if isinstance(given, dict):
        pairs: list[tuple[JsonValue, JsonValue]] = list(given.items())
    else:
        pairs = [(entry.get("name"), entry.get("value", "")) for entry in objects(registration, "kubeletExtraArgs")]
    for name, value in pairs:
        if not isinstance(name, str) or not isinstance(value, str):
            raise _shape("kubeletExtraArgs", "names and values that are texts", value)
        yield name.lstrip("-"), value


def set_argument(registration: JsonObject, version: str, name: str, value: str) -> bool:
    """Give kubelet an argument, unless it has it; returns whether it was missing."""
    if any(there == name for there, _ in arguments(registration)):
        return False
    given = registration.get("kubeletExtraArgs")
    if given is None:
        given = registration["kubeletExtraArgs"] = {} if version == "v1beta1" else []
    if isinstance(given, dict):
        given[name] = value
    elif isinstance(given, list):
        given.append({"name": name, "value": value})
    return True


def _list(parent: JsonObject, name: str) -> list[JsonValue]:
    value = parent.get(name)
    if value is None:
        return []
    if not isinstance(value, list):
        raise _shape(name, "a list", value)
    return value


def _key(document: JsonObject) -> tuple[str, str]:
    return text(document, "apiVersion").rpartition("/")[0], text(document, "kind")


def _shape(name: str, expected: str, value: JsonValue) -> RenderingRefused:
    got = f"{type(value).__name__} there"
    return RenderingRefused((refusal(f"{name}: {expected}", got, "correct it; its CRD would refuse it, too"),))


NEEDS_PROVIDER_ID: Final = frozenset(name for name, row in BUILT_IN.items() if not row.knows_provider_id)
"""Providers whose attestor does not find the machine's provider ID; third parties' attestors may."""
FINDS_PROVIDER_ID: Final = BUILT_IN.keys() - NEEDS_PROVIDER_ID - {"composite"}
"""Providers whose attestor always finds it; a composite's does if one of its parts does."""


class ServingOptions(StrEnum):
    """Where kubelet's serving certificate comes from."""

    KUBELET = "kubelet"
    """kubelet asks the in-tree signer (``serverTLSBootstrap``), and the policy's ``serving.kubelet`` decides."""
    NONE = "none"
    """Left to the user: self-signed, or files of their own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RenderOptions:
    """What to render into a bootstrap configuration."""

    provider: ProviderName
    settings: Mapping[str, IntegerJsonValue] = field(default_factory=dict[str, IntegerJsonValue])
    """The provider's settings on the node (``--set``)."""
    provider_id: str | None = None
    """Given to kubelet and, by way of kubeadm's configuration, to the agent; may hold cloud-init's templates.

    With sources that the machine fills in, as ``{dmi:product_uuid}``, it is given to the agent only.
    """
    provider_id_file: str | None = None
    provider_id_command: str | None = None
    serving: ServingOptions = ServingOptions.KUBELET
    challenge_secret: str = ""
    """The Secret from which the bootstrap provider takes the machine's secret for ``challenge``; empty: from none."""
    program: str = "kubelet-authenticator"
    """The agent, on the node's PATH or by an absolute path."""

    @property
    def agent_provider_id(self) -> str | None:
        """The provider ID that the agent alone can read; kubelet would take the braces as they are."""
        return self.provider_id if self.provider_id is not None and has_sources(self.provider_id) else None

    @property
    def tells_agent(self) -> bool:
        """Whether the agent has a source of its own, besides kubelet's argument."""
        return bool(self.agent_provider_id or self.provider_id_file or self.provider_id_command)

    @property
    def adopts(self) -> bool:
        """Whether the node of ``kubeadm init`` is taken over: a provider that proves nothing renews nothing."""
        return self.provider != "insecure"


@dataclass(frozen=True, slots=True)
class Rendered:
    """A rendered object and what was changed, one line each; no lines: it was so already."""

    document: JsonObject
    changes: tuple[str, ...]


class RenderingRefused(Exception):
    """A configuration that cannot be rendered without breaking what its author wrote; every reason, not the first."""

    def __init__(self, refusals: tuple[Denied, ...]) -> None:
        super().__init__("; ".join(str(refusal) for refusal in refusals))
        self.refusals = refusals


def refusal(expected: str, got: str, remedy: str) -> Denied:
    """Say why a configuration is not rendered."""
    return Denied(Reason.BOOTSTRAP_CONFIG_REFUSED, expected=expected, got=got, remedy=remedy)
