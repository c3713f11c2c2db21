"""A Helm chart of the kustomizations: what differs between two of them becomes a condition of a value.

``webhook.enabled`` is what manifests/default has beside manifests/base; ``metrics.secure`` adds manifests/metrics-auth;
``watchNamespace`` is what overlays/namespaced adds and removes; one replica takes the disruption budget of
overlays/single. ``watchFilter`` is appended to the name of each object. No object is written here.
Source: https://helm.sh/docs/topics/charts/.
"""

from __future__ import annotations

import json
import re
import tempfile
from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final, cast

import yaml

from images.debian import TREE
from nodeattest_providers import __version__
from nodeattest_sandbox.apiserver.jsonvalue import JsonMap, JsonValue, items_at, text_at
from tools.release.manifests import build, key, packed

NAME: Final = "nodeattest"
FILES: Final = Path(__file__).parent / "chart"
"""Chart.yaml, values.yaml and its schema, with ``@NAME@`` for what the kustomizations say."""
_NAMESPACE: Final = "nodeattest-system"
_WATCHED: Final = "fleet"
"""The namespace of the reader's in overlays/namespaced."""
_WEBHOOK: Final = ".Values.webhook.enabled"
_WATCH: Final = ".Values.watchNamespace"
_FILTER: Final = ".Values.watchFilter"
_SECURE: Final = ".Values.metrics.secure"
_ALLOWED: Final = "and .Values.webhook.enabled .Values.webhook.allowedCIDRs"
_CLIENT_CA: Final = "and .Values.webhook.enabled .Values.webhook.clientCA"
_CLIENT_CA_NAME: Final = "webhook-client-ca"
_CLIENT_CA_FOLDER: Final = "/etc/nodeattest-webhook-client-ca"
_IMAGE: Final = (
    '"{{ .Values.image.repository }}'
    '{{ with .Values.image.digest }}@{{ . }}{{ else }}:{{ $.Values.image.tag }}{{ end }}"'
)
_CERTIFICATE: Final = "nodeattest-webhook-tls"
"""The Secret that cert-manager writes: no object of ours, and of one release all the same."""
_TOKEN: Final = re.compile(r"HELM\d{4}END")
_ITEM: Final = re.compile(r"^( *)- (HELM\d{4}END)\n", re.MULTILINE)


class _Texts:
    """Templates' text behind tokens, which YAML's writer leaves as they are."""

    def __init__(self, names: Iterable[str]) -> None:
        any_name = "|".join(map(re.escape, sorted(names, key=len, reverse=True)))
        self._names = re.compile(rf"(?<![\w:-])({any_name})(?![\w:-])")
        self._values: dict[str, str] = {}
        self._blocks: dict[str, tuple[str, JsonValue]] = {}

    def value(self, text: str) -> str:
        """Return a token for an expression."""
        token = f"HELM{len(self._values) + len(self._blocks):04}END"
        self._values[token] = text
        return token

    def named(self, text: str) -> str:
        """Return the text in which names of the release's objects end with the watch filter."""
        return self._names.sub(
            lambda found: f"{found[0]}{self.value(f'{{{{ with {_FILTER} }}}}-{{{{ . }}}}{{{{ end }}}}')}", text
        )

    def item(self, condition: str, item: JsonValue) -> str:
        """Return a token for an item of a list that is there under a condition."""
        token = f"HELM{len(self._values) + len(self._blocks):04}END"
        self._blocks[token] = condition, item
        return token

    def written(self, document: JsonValue) -> str:
        """Return the YAML of an object."""
        text = yaml.safe_dump(document, sort_keys=False, width=1000)
        if "{{" in text:
            raise SystemExit("expected no {{ in an object, got one")
        return _TOKEN.sub(lambda found: self._values[found[0]], self._opened(text))

    def _opened(self, text: str) -> str:
        return _ITEM.sub(lambda found: self._block(found[1], found[2]) or found[0], text)

    def _block(self, indent: str, token: str) -> str:
        if token not in self._blocks:
            return ""
        condition, item = self._blocks[token]
        lines = yaml.safe_dump([item], sort_keys=False, width=1000).splitlines()
        held = "".join(f"{indent}{line}\n" for line in lines)
        return f"{indent}{{{{- if {condition} }}}}\n{held}{indent}{{{{- end }}}}\n"


def write_chart(folder: Path, manifests: Path = TREE / "manifests") -> Path:
    """Write the packed chart of this version; returns the file."""
    default = build(manifests / "default")
    with tempfile.TemporaryDirectory() as work:
        chart = Path(work) / NAME
        (chart / "crds").mkdir(parents=True)
        (chart / "templates").mkdir()
        for document in default:
            if document["kind"] == "CustomResourceDefinition":
                text = yaml.safe_dump(document, sort_keys=False, width=1000)
                (chart / "crds" / f"{text_at(document, 'spec', 'names', 'plural')}.yaml").write_text(text)
        for kind, text in _templates(default, manifests).items():
            (chart / "templates" / f"{kind.lower()}.yaml").write_text(text, encoding="utf-8")
        for name, text in _described(default).items():
            (chart / name).write_text(text, encoding="utf-8")
        file = folder / f"{NAME}-{__version__}.tgz"
        folder.mkdir(parents=True, exist_ok=True)
        file.write_bytes(packed(chart, NAME, compress=True))
        return file


def _templates(default: list[JsonMap], manifests: Path) -> dict[str, str]:
    """Return the templates' text by kind."""
    base = {key(one): one for one in build(manifests / "base")}
    network = {key(one) for one in build(manifests / "network-policy")}
    namespaced = {key(one): one for one in build(manifests / "overlays/namespaced") if key(one) not in network}
    single = {key(one): one for one in build(manifests / "overlays/single")}
    whole = {key(one): one for one in default}
    kept = {"Namespace", "CustomResourceDefinition"}
    names = {name for one in (base, namespaced, whole) for kind, _, name in one if kind not in kept}
    texts = _Texts({*names, *(name for _, _, name in map(key, build(manifests / "metrics-auth"))), _CERTIFICATE})
    made: defaultdict[str, list[str]] = defaultdict(list)
    roles = {(kind, name) for kind, _, name in whole.keys() - base.keys()}
    for one in [*whole, *(other for other in namespaced if other not in whole)]:
        if one[0] in {"Namespace", "CustomResourceDefinition"}:
            continue
        versions = [held[one] for held in (base, whole, namespaced) if one in held]
        conditions = [_WEBHOOK, _WATCH][-len(versions) + 1 :] if one in namespaced else [_WEBHOOK]
        text = texts.written(_filled(texts, _grown(texts, versions, conditions)))
        if one[0] == "PodDisruptionBudget":
            other = texts.written(_filled(texts, single[one]))
            text = f"{{{{- if gt (int .Values.replicas) 1 }}}}\n{text}{{{{- else }}}}\n{other}{{{{- end }}}}\n"
        role = items_at({"roles": [versions[0].get("roleRef")]}, "roles")[0]
        needs = [_WEBHOOK] if one not in base and (one in whole or _named(role) in roles) else []
        needs += [f"(not {_WATCH})"] if one not in namespaced else []
        needs += [_WATCH] if one not in whole else []
        made[one[0]].append(_under(needs, text))
    for one in build(manifests / "metrics-auth"):
        made[key(one)[0]].append(_under([_SECURE], texts.written(_filled(texts, one))))
    return {kind: "---\n".join(held) for kind, held in made.items()}


def _named(role: JsonValue) -> tuple[str, str]:
    return text_at(role, "kind"), text_at(role, "name")


def _under(conditions: list[str], text: str) -> str:
    if not conditions:
        return text
    held = conditions[0] if len(conditions) == 1 else f"and {' '.join(conditions)}"
    return f"{{{{- if {held.strip('()') if len(conditions) == 1 else held} }}}}\n{text}{{{{- end }}}}\n"


def _grown(texts: _Texts, versions: Sequence[JsonValue], conditions: Sequence[str]) -> JsonValue:
    """Return the last version, in which the items that a version adds to lists are under its condition."""
    last = versions[-1]
    if all(one == last for one in versions):
        return last
    if isinstance(last, dict):
        maps = [cast("JsonMap", one) for one in versions]
        if any(one.keys() != last.keys() for one in maps):
            raise SystemExit(f"expected kustomizations that add to lists only, got {sorted(last)}")
        return {field: _grown(texts, [one[field] for one in maps], conditions) for field in last}
    if not isinstance(last, list):
        raise SystemExit(f"expected kustomizations that add to lists only, got {last!r}")
    lists = [cast("list[JsonValue]", one) for one in versions]
    if all(len(one) == len(last) for one in lists):
        return [_grown(texts, list(each), conditions) for each in zip(*lists, strict=True)]
    made = list(lists[0])
    for condition, before, after in zip(conditions, lists, lists[1:], strict=False):
        if after[: len(before)] != before:
            raise SystemExit(f"expected items at the end of a list, got {after}")
        made += [texts.item(condition, _filled(texts, item)) for item in after[len(before) :]]
    return made


def _filled(texts: _Texts, value: JsonValue) -> JsonValue:
    """Put values in place of the namespaces, and of the fields of the Deployment that a value chooses."""
    match value:
        case dict():
            held = {field: _filled(texts, each) for field, each in value.items()}
            if value.get("kind") == "Deployment":
                cast("JsonMap", held["spec"])["replicas"] = texts.value("{{ .Values.replicas }}")
            if value.get("name") == "manager":
                held["image"] = texts.value(_IMAGE)
                held["imagePullPolicy"] = texts.value("{{ .Values.image.pullPolicy }}")
                held["resources"] = texts.value("{{ toJson .Values.resources }}")
                held["command"] = value["command"]
                watch = texts.item(_FILTER, f"--watch-filter={texts.value(f'{{{{ {_FILTER} }}}}')}")
                level = texts.item(".Values.logLevel", f"--log-level={texts.value('{{ .Values.logLevel }}')}")
                secure = texts.item(_SECURE, "--metrics-secure=true")
                cidrs = texts.value('{{ join "," .Values.webhook.allowedCIDRs }}')
                allowed = texts.item(_ALLOWED, f"--webhook-allowed-cidrs={cidrs}")
                clients = texts.item(_CLIENT_CA, f"--webhook-client-ca-file={_CLIENT_CA_FOLDER}/ca.crt")
                held["args"] = [*items_at(held, "args"), watch, allowed, clients, secure, level]
                mount: JsonMap = {"name": _CLIENT_CA_NAME, "mountPath": _CLIENT_CA_FOLDER, "readOnly": True}
                held["volumeMounts"] = [*items_at(held, "volumeMounts"), texts.item(_CLIENT_CA, mount)]
            if "volumes" in held:
                source: JsonMap = {"name": texts.value("{{ .Values.webhook.clientCA }}")}
                volume: JsonMap = {"name": _CLIENT_CA_NAME, "configMap": source}
                held["volumes"] = [*items_at(held, "volumes"), texts.item(_CLIENT_CA, volume)]
            return held
        case list():
            return [_filled(texts, each) for each in value]
        case str():
            return _filled_text(texts, value)
        case _:
            return value


def _filled_text(texts: _Texts, value: str) -> str:
    if value == _NAMESPACE:
        return texts.value("{{ .Release.Namespace | quote }}")
    if value == _WATCHED:
        return texts.value(f"{{{{ {_WATCH} | quote }}}}")
    if value.endswith(f"={_WATCHED}"):
        return f"{value.removesuffix(_WATCHED)}{texts.value(f'{{{{ {_WATCH} }}}}')}"
    if _NAMESPACE in value:
        value = value.replace(_NAMESPACE, texts.value("{{ .Release.Namespace }}"))
    return texts.named(value)


def _described(default: list[JsonMap]) -> dict[str, str]:
    """Return Chart.yaml, values and schema: defaults are the kustomization's."""
    [deployment] = [one for one in default if one["kind"] == "Deployment"]
    [container] = items_at(deployment, "spec", "template", "spec", "containers")
    repository, _, tag = text_at(container, "image").rpartition(":")
    said = {
        "VERSION": __version__,
        "REPOSITORY": repository,
        "TAG": tag,
        "PULL": text_at(container, "imagePullPolicy"),
        "REPLICAS": json.dumps(cast("JsonMap", deployment["spec"])["replicas"]),
        "RESOURCES": json.dumps(cast("JsonMap", container)["resources"]),
    }
    return {
        file.name: re.sub(r"@([A-Z]+)@", lambda found: said[found[1]], file.read_text(encoding="utf-8"))
        for file in sorted(FILES.iterdir())
    }
