"""What is known of each kind of infrastructure machine: its provider ID, its host object, and its node's names. Data.

An ``Expression`` is literal text with operands in braces: ``metal3://{host.metadata.namespace}/{infra.metadata.name}``.
An operand is a path of field names below ``machine``, ``infra`` or ``host``; an annotation or label is
``{infra.metadata.annotations[metal3.io/BareMetalHost]}``, an element of a list ``{host.spec.interfaces[0].dhcp}``.
A final ``*`` in a provider ID stands for a suffix that the first request chooses. Sources: docs/infrastructure.md.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final, cast

from nodeattest_controller.model.machine_view import ContractReference
from nodeattest_parsing.values import JsonObject, JsonValue
from nodeattest_providers.identifiers import is_dns_name

GroupKind = tuple[str, str]
"""API group and kind."""
Objects = Mapping[str, JsonObject]
"""Objects by the root under which an expression finds them: ``machine``, ``infra``, ``host``."""

_ROOTS: Final = ("machine", "infra", "host")
_INDEXES: Final = ("0", "1", "2", "3")
_NAME: Final = ("metadata", "name")
MAX_LENGTH: Final = 512
_OPERAND: Final = re.compile(rf"\{{({'|'.join(_ROOTS)})((?:\.[A-Za-z][A-Za-z0-9]*|\[[A-Za-z0-9./_-]+\])+)\}}", re.ASCII)
_STEP: Final = re.compile(r"\.([A-Za-z][A-Za-z0-9]*)|\[([A-Za-z0-9./_-]+)\]", re.ASCII)
_SCHEME: Final = re.compile(r"[a-z][a-z0-9-]*://", re.ASCII)
_SEPARATOR: Final = re.compile(r"[/:]", re.ASCII)
_LITERAL: Final = re.compile(r"[A-Za-z0-9:/._-]*", re.ASCII)


@dataclass(frozen=True, slots=True)
class _Operand:
    root: str
    path: tuple[str, ...]

    def value(self, objects: Objects) -> str:
        """Return the text or whole number at the path; empty where there is none."""
        found: JsonValue = objects.get(self.root)
        for step in self.path:
            if isinstance(found, list):
                found = found[int(step)] if step in _INDEXES[: len(found)] else None
            else:
                found = found.get(step) if isinstance(found, dict) else None
        if isinstance(found, int) and not isinstance(found, bool):
            return str(found)
        return found if isinstance(found, str) else ""


@dataclass(frozen=True, slots=True)
class Expression:
    """A text made of literal text and operands."""

    source: str
    parts: tuple[str | _Operand, ...]
    has_free_suffix: bool = False
    """Whether it ends in ``*``."""

    @property
    def reads_host(self) -> bool:
        return not self.paths("host") <= {("metadata", "namespace"), _NAME}

    def paths(self, root: str) -> set[tuple[str, ...]]:
        return {part.path for part in self.parts if isinstance(part, _Operand) and part.root == root}

    def has_name_of(self, root: str) -> bool:
        return _NAME in self.paths(root)

    def value(self, objects: Objects) -> str:
        """Return the text, with any operand as it is; empty where an operand is absent or empty."""
        values = [part if isinstance(part, str) else part.value(objects) for part in self.parts]
        return "".join(values) if all(values) else ""

    def identifier(self, objects: Objects) -> str:
        """Return the same if each operand is a DNS name or a number, so that no two lists of them give one text."""
        operands = [part.value(objects) for part in self.parts if isinstance(part, _Operand)]
        return self.value(objects) if operands and all(map(is_dns_name, operands)) else ""


def parse_expression(source: str, *, is_provider_id: bool = False) -> Expression | None:
    """Read an expression; None where it is invalid. One of a provider ID is unambiguous, and may end in ``*``."""
    has_free_suffix = is_provider_id and source.endswith("*")
    rest = source.removesuffix("*") if has_free_suffix else source
    parts: list[str | _Operand] = []
    end = 0
    for match in _OPERAND.finditer(rest[: MAX_LENGTH + 1]):
        path = tuple(field or key for field, key in _STEP.findall(match[2]))
        parts += [rest[end : match.start()], _Operand(match[1], path)]
        end = match.end()
    parts.append(rest[end:])
    literals = [part for part in parts if isinstance(part, str)]
    if len(source) > MAX_LENGTH or not all(map(_LITERAL.fullmatch, literals)):
        return None
    if is_provider_id and not _is_unambiguous(literals, has_free_suffix=has_free_suffix):
        return None
    return Expression(source, tuple(part for part in parts if part), has_free_suffix)


def _is_unambiguous(literals: list[str], *, has_free_suffix: bool) -> bool:
    """Return whether it has a scheme, and ``/`` or ``:`` between two operands, which no DNS name has."""
    between = literals[1:] if has_free_suffix else literals[1:-1]
    return _SCHEME.match(literals[0]) is not None and all(_SEPARATOR.search(literal) for literal in between)


def _expression(source: str) -> Expression:
    return cast("Expression", parse_expression(source, is_provider_id="://" in source))  # of the tables below


def _all(*sources: str) -> tuple[Expression, ...]:
    return tuple(map(_expression, sources))


@dataclass(frozen=True, slots=True)
class ObjectKey:
    """Which object a reference names."""

    group: str
    kind: str
    namespace: str
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class HostReference:
    """How an infrastructure machine and its host object name each other."""

    group: str
    kind: str
    name: Expression | None = None
    """Of the host, from ``infra``; where it has a slash, ``namespace/name``. None: only the host names the other."""
    namespace: Expression | None = None
    """Of the host, from ``infra``; None: that of the infrastructure machine, and no other counts."""
    back_reference: tuple[tuple[Expression, Expression], ...]
    """Pairs of a path in the host and what it must be, where the host names the infrastructure machine."""
    node_names: tuple[Expression, ...]
    """Names that the host gives its node."""

    def key(self, objects: Objects, namespace: str) -> ObjectKey | None:
        """Return which host object an infrastructure machine names; ``namespace`` is the Machine's. None: none."""
        first, slash, second = self.name.value(objects).partition("/") if self.name is not None else ("", "", "")
        name = second if slash else first
        stated = first if slash else namespace
        expected = self.namespace.value(objects) if self.namespace is not None else namespace
        if not (is_dns_name(name) and is_dns_name(expected)) or (self.namespace is None and stated != namespace):
            return None
        return ObjectKey(self.group, self.kind, expected, name)

    def names(self, objects: Objects) -> str:
        """Return how a host object names its infrastructure machine; empty if it does not."""
        return _joined([path.value(objects) for path, _expected in self.back_reference])

    def expects(self, objects: Objects) -> str:
        """Return what ``names`` gives for the host of this infrastructure machine."""
        return _joined([expected.value(objects) for _path, expected in self.back_reference])

    def is_mutual(self, objects: Objects) -> bool:
        return self.names(objects) == self.expects(objects) != ""


def _joined(values: list[str]) -> str:
    return "\n".join(values) if all(values) else ""


@dataclass(frozen=True, slots=True, kw_only=True)
class InfrastructureKind:
    """One kind of infrastructure machine."""

    provider_ids: tuple[Expression, ...] = ()
    """The provider ID that its controller will set, by the first that gives one; none: it cannot be told beforehand."""
    node_names: tuple[Expression, ...] = ()
    """Names of the node besides the object's own, from ``metadata`` of ``infra`` alone."""
    host: HostReference | None = None


_UNKNOWN: Final = InfrastructureKind()
_INFRASTRUCTURE: Final = "infrastructure.cluster.x-k8s.io"


def _pairs(*pairs: tuple[str, str]) -> tuple[tuple[Expression, Expression], ...]:
    return tuple((_expression(path), _expression(expected)) for path, expected in pairs)


def _consumer(kind: str) -> tuple[tuple[Expression, Expression], ...]:
    reference, infra = "{host.spec.consumerRef.", "{infra.metadata."
    names = ((f"{reference}{name}}}", f"{infra}{name}}}") for name in ("namespace", "name"))
    return _pairs((f"{reference}kind}}", kind), *names)


_MACHINE_REF: Final = (  # as PooledRemoteMachine and ByoHost have it
    ("{host.status.machineRef.namespace}", "{infra.metadata.namespace}"),
    ("{host.status.machineRef.name}", "{infra.metadata.name}"),
)
_BYO_LABEL: Final = "byoh.infrastructure.cluster.x-k8s.io/byomachine-name"
_HARDWARE_OWNER: Final = "host.metadata.labels[v1alpha1.tinkerbell.org"

KINDS: Final[Mapping[GroupKind, InfrastructureKind]] = MappingProxyType(
    {
        (_INFRASTRUCTURE, "Metal3Machine"): InfrastructureKind(
            provider_ids=_all("metal3://{host.metadata.namespace}/{host.metadata.name}/{infra.metadata.name}"),
            host=HostReference(
                group="metal3.io",
                kind="BareMetalHost",
                name=_expression("{infra.metadata.annotations[metal3.io/BareMetalHost]}"),
                back_reference=_consumer("Metal3Machine"),
                node_names=_all("{host.metadata.name}"),
            ),
        ),
        (_INFRASTRUCTURE, "TinkerbellMachine"): InfrastructureKind(
            host=HostReference(
                group="tinkerbell.org",
                kind="Hardware",
                name=_expression("{infra.spec.hardwareName}"),
                namespace=_expression("{infra.status.targetNamespace}"),
                back_reference=_pairs(
                    (f"{{{_HARDWARE_OWNER}/ownerNamespace]}}", "{infra.metadata.namespace}"),
                    (f"{{{_HARDWARE_OWNER}/ownerName]}}", "{infra.metadata.name}"),
                ),
                node_names=_all("{host.spec.metadata.instance.hostname}", "{host.spec.interfaces[0].dhcp.hostname}"),
            ),
        ),
        (_INFRASTRUCTURE, "HetznerBareMetalMachine"): InfrastructureKind(
            provider_ids=_all("hcloud://bm-{host.spec.serverID}"),
            node_names=_all("bm-{infra.metadata.name}"),
            host=HostReference(
                group=_INFRASTRUCTURE,
                kind="HetznerBareMetalHost",
                name=_expression(f"{{infra.metadata.annotations[{_INFRASTRUCTURE}/HetznerBareMetalHost]}}"),
                back_reference=_consumer("HetznerBareMetalMachine"),
                node_names=_all("bm-{machine.spec.clusterName}-{host.spec.serverID}"),
            ),
        ),
        (_INFRASTRUCTURE, "RemoteMachine"): InfrastructureKind(
            provider_ids=_all(
                "remote-machine://{infra.spec.address}:{infra.spec.port}",
                "remote-machine://{host.spec.machine.address}:{host.spec.machine.port}",
            ),
            host=HostReference(
                group=_INFRASTRUCTURE,
                kind="PooledRemoteMachine",
                back_reference=_pairs(*_MACHINE_REF, ("{host.spec.pool}", "{infra.spec.pool}")),
                node_names=_all("{host.metadata.name}", "{host.spec.machine.address}"),
            ),
        ),
        (_INFRASTRUCTURE, "ByoMachine"): InfrastructureKind(
            provider_ids=_all("byoh://{host.metadata.name}/*"),
            host=HostReference(
                group=_INFRASTRUCTURE,
                kind="ByoHost",
                back_reference=_pairs(
                    *_MACHINE_REF,
                    ("{host.status.machineRef.uid}", "{infra.metadata.uid}"),
                    (f"{{host.metadata.labels[{_BYO_LABEL}]}}", "{infra.metadata.namespace}.{infra.metadata.name}"),
                ),
                node_names=_all("{host.metadata.name}"),
            ),
        ),
        (_INFRASTRUCTURE, "KubevirtMachine"): InfrastructureKind(provider_ids=_all("kubevirt://{infra.metadata.name}")),
        (_INFRASTRUCTURE, "LXCMachine"): InfrastructureKind(provider_ids=_all("lxc:///{infra.metadata.name}")),
    }
)
"""By group and kind of the infrastructure machine. Any other has no expression and no host object."""


def known_kind(reference: ContractReference | None) -> InfrastructureKind:
    return KINDS.get((reference.group, reference.kind), _UNKNOWN) if reference is not None else _UNKNOWN


HOSTS: Final[Mapping[GroupKind, HostReference]] = MappingProxyType(
    {(kind.host.group, kind.host.kind): kind.host for kind in KINDS.values() if kind.host is not None}
)
"""By group and kind of the host object."""
HOST_KINDS: Final = frozenset(kind for _group, kind in HOSTS)
