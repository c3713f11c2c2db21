"""A Helm chart of the kustomizations: each object is written once for each text that it has in one of them.

``webhook.enabled`` chooses manifests/default or manifests/base, ``watchNamespace`` adds overlays/namespaced, one
replica takes the disruption budget of overlays/single, and ``metrics.secure`` adds manifests/metrics-auth.
``watchFilter`` is appended to the name of each object. No object is written here.
Source: https://helm.sh/docs/topics/charts/.
"""

from __future__ import annotations

import gzip
import re
import tempfile
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Final, cast

import yaml

from images.controller import plain_tar
from images.debian import TREE
from nodeattest_providers import __version__
from nodeattest_sandbox.apiserver.jsonvalue import JsonMap, items_at, map_at, text_at
from tools.release.manifests import build, key

NAME: Final = "nodeattest"
FILES: Final = Path(__file__).parent / "chart"
"""Chart.yaml, values.yaml and its schema, with ``@VERSION@``."""
_BESIDES: Final = {"Namespace", "CustomResourceDefinition"}
"""Kinds without a template: helm makes the namespace, and definitions are in ``crds``."""
_VARIANTS: Final = (
    "and .Values.webhook.enabled (not .Values.watchNamespace)",
    "not (or .Values.webhook.enabled .Values.watchNamespace)",
    "and .Values.webhook.enabled .Values.watchNamespace",
    "and (not .Values.webhook.enabled) .Values.watchNamespace",
)
_CERTIFICATE: Final = "nodeattest-webhook-tls"
"""The Secret that cert-manager writes: no object of ours, and of one release all the same."""
_SUFFIX: Final = "{{ with .Values.watchFilter }}-{{ . }}{{ end }}"
_REPOSITORY: Final = "{{ .Values.image.repository }}"
_TAG: Final = "{{ with .Values.image.digest }}@{{ . }}{{ else }}:{{ $.Values.image.tag }}{{ end }}"
_CLIENT_CA: Final = "{{- if and .Values.webhook.enabled .Values.webhook.clientCA }}"
_FIELDS: Final = (
    (rf"(command:\n *- [\w-]+){re.escape(_SUFFIX)}", r"\1"),
    (r"(?<=: |- )nodeattest-system$", "{{ .Release.Namespace | quote }}"),
    (r"nodeattest-system", "{{ .Release.Namespace }}"),
    (r"(?<=: |- )fleet$", "{{ .Values.watchNamespace | quote }}"),
    (r"(?<==)fleet$", "{{ .Values.watchNamespace }}"),
    (r"(?<=replicas: )\d+$", "{{ .Values.replicas }}"),
    (r"(?<= image: ).*$", f'"{_REPOSITORY}{_TAG}"'),
    (r"(?<=imagePullPolicy: ).*$", "{{ .Values.image.pullPolicy }}"),
    (r"RESOURCES", "{{ toJson .Values.resources }}"),
)
"""What values fill in, in this order."""
_ITEMS: Final = {
    "ARGS": """\
{{- with .Values.watchFilter }}
- --watch-filter={{ . }}
{{- end }}
{{- if and .Values.webhook.enabled .Values.webhook.allowedCIDRs }}
- --webhook-allowed-cidrs={{ join "," .Values.webhook.allowedCIDRs }}
{{- end }}
CLIENT_CA
- --webhook-client-ca-file=/etc/nodeattest-webhook-client-ca/ca.crt
{{- end }}
{{- if .Values.metrics.secure }}
- --metrics-secure=true
{{- end }}
{{- with .Values.logLevel }}
- --log-level={{ . }}
{{- end }}
""",
    "MOUNTS": """\
CLIENT_CA
- {name: webhook-client-ca, mountPath: /etc/nodeattest-webhook-client-ca, readOnly: true}
{{- end }}
""",
    "VOLUMES": """\
CLIENT_CA
- {name: webhook-client-ca, configMap: {name: {{ .Values.webhook.clientCA }}}}
{{- end }}
""",
}
"""What values add to lists of the Deployment."""


def write_chart(folder: Path, manifests: Path = TREE / "manifests") -> Path:
    """Write the packed chart of this version; returns the file."""
    with tempfile.TemporaryDirectory() as work:
        chart = Path(work) / NAME
        (chart / "crds").mkdir(parents=True)
        (chart / "templates").mkdir()
        for document in build(manifests / "crd"):
            text = yaml.safe_dump(document, sort_keys=False, width=1000)
            (chart / "crds" / f"{text_at(document, 'spec', 'names', 'plural')}.yaml").write_text(text)
        for kind, text in _templates(manifests).items():
            (chart / "templates" / f"{kind.lower()}.yaml").write_text(text, encoding="utf-8")
        for file in sorted(FILES.iterdir()):
            (chart / file.name).write_text(file.read_text(encoding="utf-8").replace("@VERSION@", __version__))
        packed_file = folder / f"{NAME}-{__version__}.tgz"
        folder.mkdir(parents=True, exist_ok=True)
        packed_file.write_bytes(gzip.compress(plain_tar(chart, prefix=f"{NAME}/"), mtime=0))
        return packed_file


def _templates(manifests: Path) -> dict[str, str]:
    """Return the templates' text by kind."""
    default, base = build(manifests / "default"), build(manifests / "base")
    watched = [build(manifests / "overlays/namespaced", instead=each) for each in (default, base)]
    single = build(manifests / "overlays/single")
    secure = build(manifests / "metrics-auth")
    variants = [{key(one): one for one in each if one["kind"] not in _BESIDES} for each in (default, base, *watched)]
    names = {name for held in variants for _, _, name in held} | {text_at(one, "metadata", "name") for one in secure}
    any_name = "|".join(map(re.escape, sorted({*names, _CERTIFICATE}, key=len, reverse=True)))
    pattern = re.compile(rf"(?<![\w:-])({any_name})(?![\w:-])")
    made: defaultdict[str, list[str]] = defaultdict(list)
    for name in dict.fromkeys(name for held in variants for name in held):
        conditions: defaultdict[str, list[str]] = defaultdict(list)
        for condition, held in zip(_VARIANTS, variants, strict=True):
            if name in held:
                conditions[_text(held[name], pattern)].append(condition)
        made[name[0]] += [_under(needs, text) for text, needs in conditions.items()]
    [budget] = made["PodDisruptionBudget"]
    [one] = [_text(each, pattern) for each in single if each["kind"] == "PodDisruptionBudget"]
    several = "{{- if gt (int .Values.replicas) 1 }}"
    made["PodDisruptionBudget"] = [f"{several}\n{budget}{{{{- else }}}}\n{one}{{{{- end }}}}\n"]
    for document in secure:
        made[key(document)[0]].append(_under([".Values.metrics.secure"], _text(document, pattern)))
    return {kind: "---\n".join(held) for kind, held in made.items()}


def _under(conditions: Sequence[str], text: str) -> str:
    if len(conditions) == len(_VARIANTS):
        return text
    needed = conditions[0] if len(conditions) == 1 else f"or {' '.join(f'({each})' for each in conditions)}"
    return f"{{{{- if {needed} }}}}\n{text}{{{{- end }}}}\n"


def _text(document: JsonMap, names: re.Pattern[str]) -> str:
    """Write an object as a template."""
    if document["kind"] == "Deployment":
        document = cast("JsonMap", yaml.safe_load(yaml.safe_dump(document)))
        pod = map_at(document, "spec", "template", "spec")
        [container] = items_at(pod, "containers")
        map_at(container)["resources"] = "RESOURCES"
        for owner, field, marker in (
            (container, "args", "ARGS"),
            (container, "volumeMounts", "MOUNTS"),
            (pod, "volumes", "VOLUMES"),
        ):
            map_at(owner)[field] = [*items_at(owner, field), marker]
    text = yaml.safe_dump(document, sort_keys=False, width=1000)
    if "{{" in text:
        raise SystemExit("expected no {{ in an object, got one")
    text = names.sub(lambda found: found[0] + _SUFFIX, text)
    for old, new in _FIELDS:
        text = re.sub(old, new, text, flags=re.MULTILINE)
    return re.sub(r"^( *)- (ARGS|MOUNTS|VOLUMES)\n", lambda found: _items(found[1], found[2]), text, flags=re.MULTILINE)


def _items(indent: str, marker: str) -> str:
    lines = _ITEMS[marker].replace("CLIENT_CA", _CLIENT_CA).splitlines()
    return "".join(f"{indent}{line}\n" for line in lines)
