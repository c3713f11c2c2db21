"""Cluster API's real managers, from the folder that ``CAPI_ASSETS`` names, beside a real kube-apiserver.

They run as processes: what their components say of Deployments becomes flags, Services become URLs on loopback, and the
API server's own serving certificate stands in for cert-manager's. Definitions, rights and webhooks are the components'.
Source: cluster-api main.go (flags), cmd/clusterctl/client/repository/components.go (variables, labels).
"""

from __future__ import annotations

import base64
import logging
import os
import re
import subprocess
import threading
from collections.abc import Callable, Generator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final, cast

import yaml
from cert_manager import copy_server_files
from kinds import CLUSTER, CLUSTER_LABEL, KINDS, Kind, Object, name_of
from polling import eventually

from nodeattest_sandbox.apiserver.jsonvalue import JsonMap, text_at
from nodeattest_sandbox.child_process import LOOPBACK, Process, free_ports, listens, wait
from nodeattest_sandbox.client import ApiRefusal, Client
from nodeattest_sandbox.control_plane import ControlPlane

COMPONENTS: Final[Mapping[str, str]] = {
    "capi-manager": "core-components.yaml",
    "capi-kubeadm-bootstrap-manager": "bootstrap-components.yaml",
    "capi-kubeadm-control-plane-manager": "control-plane-components.yaml",
}
"""The programs and their components, by the names of a release's files."""
_VARIABLE: Final = re.compile(r"\$\{(\w+)(?::?=([^}]*))?\}")
_VALUES: Final[Mapping[str, str]] = {"CLUSTER_TOPOLOGY": "true", "EXP_MACHINE_POOL": "true"}
_LEFT_OUT: Final = frozenset({"Deployment", "Service", "Certificate", "Issuer"})
_CLUSTERCTL: Final = "clusterctl.cluster.x-k8s.io"
_VERSION: Final = re.compile(r"Version: (v[\w.+-]+)")
_TOKEN: Final[JsonMap] = {"expirationSeconds": 6 * 3600}
"""A kubeconfig's token is not renewed, and a journey on a slow machine takes more than the usual hour."""
_REPLACED: Final = ("--leader-elect", "--diagnostics-address", "--insecure-diagnostics", "--namespace")


def deployment_of(documents: list[Object]) -> tuple[str, str, list[str]]:
    """Return namespace, service account and arguments of the manager, without what differs here."""
    (found,) = [each for each in documents if each["kind"] == "Deployment"]
    spec = found["spec"]["template"]["spec"]
    container = next(each for each in spec["containers"] if each["name"] == "manager")
    arguments = [each for each in container["args"] if not each.startswith(_REPLACED)]
    return found["metadata"]["namespace"], spec["serviceAccountName"], arguments


def _client_configs(document: Object) -> list[Object]:
    if document["kind"] in ("MutatingWebhookConfiguration", "ValidatingWebhookConfiguration"):
        return [each["clientConfig"] for each in document["webhooks"]]
    if document["kind"] == "CustomResourceDefinition":
        conversion = document["spec"].get("conversion", {})
        return [conversion["webhook"]["clientConfig"]] if conversion.get("strategy") == "Webhook" else []
    return []


@dataclass(slots=True)
class Managers:
    """The managers of one folder, and the ports of their webhooks."""

    folder: Path
    assets: Path
    _ports: dict[tuple[str, str], int] = field(default_factory=dict[tuple[str, str], int])
    """Where a program's webhooks are called, by management cluster and program."""
    _versions: dict[str, str] = field(default_factory=dict[str, str])

    def missing(self) -> list[str]:
        """Return the files that the folder lacks."""
        wanted = [*COMPONENTS, *COMPONENTS.values(), "clusterctl"]
        return [name for name in wanted if not (self.folder / name).exists()]

    def versions(self) -> dict[str, str]:
        """Ask clusterctl; the managers tell theirs when they run."""
        return {"clusterctl": self._clusterctl("version", "-o", "short").strip(), **self._versions}

    def install(self, plane: ControlPlane) -> None:
        for program in COMPONENTS:
            (self._ports[plane.name, program],) = free_ports(1)
            documents = [one for one in self._documents(plane, program) if one["kind"] not in _LEFT_OUT]
            # Webhooks last: nobody answers them yet, and definitions do not wait for them.
            documents.sort(key=lambda one: one["kind"].endswith("WebhookConfiguration"))
            applied = plane.directory / f"{program}.yaml"
            applied.write_text(yaml.safe_dump_all(documents))
            command = [str(self.assets / "kubectl"), f"--kubeconfig={plane.admin_kubeconfig}", "apply"]
            done = subprocess.run(
                [*command, "--server-side", "-f", str(applied)],
                capture_output=True,
                text=True,
                timeout=120,
                check=False,
            )
            assert done.returncode == 0, done.stderr

    @contextmanager
    def running(self, plane: ControlPlane) -> Generator[None]:
        """Run them for all namespaces: for one namespace, Cluster API before 1.14.3 reconciles no control plane."""
        with ExitStack() as stack:
            for program in COMPONENTS:
                process = self._start(plane, program)
                stack.callback(process.stop)
                wait(process, lambda program=program: listens(self._ports[plane.name, program]))
                self._versions[program] = eventually(lambda process=process: _said_version(process), what="a version")
            yield

    def move(self, source: ControlPlane, target: ControlPlane, namespace: str) -> None:
        words = ["move", "--kubeconfig", source.admin_kubeconfig, "--to-kubeconfig", target.admin_kubeconfig]
        self._clusterctl(*map(str, words), "--namespace", namespace)

    def _clusterctl(self, *words: str) -> str:
        """Run clusterctl, without its version check and without the configuration of a user."""
        with TemporaryDirectory() as home:
            own = {"CLUSTERCTL_DISABLE_VERSIONCHECK": "true", "HOME": home, "XDG_CONFIG_HOME": home}
            done = subprocess.run(
                [self.folder / "clusterctl", *words],
                env={**os.environ, **own}, capture_output=True, text=True, timeout=300, check=False,
            )  # fmt: skip
        assert done.returncode == 0, done.stderr
        return done.stdout

    def _documents(self, plane: ControlPlane, program: str) -> list[Object]:
        """Return what is to be applied: webhooks are called on loopback, and their CA is the server's own."""
        server = f"https://{LOOPBACK}:{self._ports[plane.name, program]}"
        components = (self.folder / COMPONENTS[program]).read_text()
        text = _VARIABLE.sub(lambda found: _VALUES.get(found[1], found[2] or ""), components)
        documents = cast("list[Object]", [each for each in yaml.load_all(text, yaml.CSafeLoader) if each])
        bundle = base64.b64encode(plane.ca_certificate.read_bytes()).decode()
        for document in documents:
            for config in _client_configs(document):
                service = config.pop("service", {})
                config |= {"url": f"{server}{service.get('path', '/')}", "caBundle": bundle}
            if document["kind"] == "CustomResourceDefinition":
                document["metadata"].setdefault("labels", {})[_CLUSTERCTL] = ""
        return documents

    def _start(self, plane: ControlPlane, program: str) -> Process:
        of, account, arguments = deployment_of(self._documents(plane, program))
        asked: JsonMap = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": _TOKEN}
        path = f"/api/v1/namespaces/{of}/serviceaccounts/{account}/token"
        token = text_at(plane.client().create(path, asked), "status", "token")
        kubeconfig = plane.pki.token_kubeconfig(plane.directory / f"{program}.kubeconfig", plane.server, token)
        directory = copy_server_files(plane.pki, plane.directory / program)
        health, diagnostics = free_ports(2)
        flags = [
            f"--kubeconfig={kubeconfig}",
            f"--webhook-port={self._ports[plane.name, program]}",
            f"--webhook-cert-dir={directory}",
            f"--health-addr={LOOPBACK}:{health}",
            f"--diagnostics-address={LOOPBACK}:{diagnostics}",
            "--insecure-diagnostics=true",
        ]
        command = [str(self.folder / program), *arguments, *flags]
        variables = {"POD_NAMESPACE": of, "POD_NAME": program, "POD_UID": program}
        return Process.of_program(program, command, directory, environment=variables)


def found_managers(assets: Path) -> Managers | str:
    """Return the managers of ``CAPI_ASSETS``, or what is missing."""
    folder = os.environ.get("CAPI_ASSETS", "")
    if not folder:
        return "CAPI_ASSETS names no folder with Cluster API's managers"
    managers = Managers(Path(folder), assets)
    missing = managers.missing()
    return f"CAPI_ASSETS lacks {', '.join(missing)}" if missing else managers


def _said_version(process: Process) -> str:
    found = _VERSION.search(process.log.read_text(encoding="utf-8", errors="replace"))
    return found[1] if found else ""


_PAUSE: Final = 0.3  # seconds
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Access:
    """One namespace of an API server."""

    api: Client
    namespace: str

    def get(self, kind: Kind, name: str) -> Object | None:
        return cast("Object | None", self.api.find(kind.path(self.namespace, name)))

    def create(self, value: Object) -> None:
        """Create an object; one of this name that exists stays as it is."""
        self.api.ensure(KINDS[value["kind"]].path(self.namespace), cast("Any", value))

    def patch(self, value: Object, subresource: str = "", /, **patch: Any) -> Object:
        """Merge these fields into an object, where they differ."""
        if _holds(value, patch):
            return value
        path = KINDS[value["kind"]].path(self.namespace, name_of(value), subresource)
        return cast("Object", self.api.patch(path, cast("Any", patch)))

    def status(self, value: Object, **status: Any) -> Object:
        """Merge these fields into an object's status."""
        return self.patch(value, "status", status=status)

    def is_paused(self, value: Object) -> bool:
        """Tell whether an object's Cluster is paused, or has none yet."""
        cluster = self.get(CLUSTER, value["metadata"].get("labels", {}).get(CLUSTER_LABEL, "-"))
        return cluster is None or bool(cluster["spec"].get("paused"))


Reconcile = Callable[[Access, Object], None]
"""Brings one object as near to its desired state as it can be now."""


@contextmanager
def running(access: Access, reconcilers: Mapping[Kind, Reconcile]) -> Generator[None]:
    """Reconcile until the end of the block."""
    over = threading.Event()

    def run() -> None:
        while not over.wait(_PAUSE):
            for kind, reconcile in reconcilers.items():
                _round(access, kind, reconcile)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join(60)


def _round(access: Access, kind: Kind, reconcile: Reconcile) -> None:
    try:
        found = access.api.list(kind.path(access.namespace))
    except (ApiRefusal, OSError) as error:
        _log.warning("%s: %s", kind.plural, error)
        return
    for value in cast("list[Object]", found):
        full = {"apiVersion": kind.api_version, "kind": kind.kind, **value}
        try:
            if not access.is_paused(full):
                reconcile(access, full)
        except (ApiRefusal, OSError) as error:
            _log.warning("%s %s: %s", kind.kind, name_of(value), error)


def _holds(value: Any, patch: Any) -> bool:
    if isinstance(patch, dict) and isinstance(value, dict):
        wanted, found = cast("Object", patch), cast("Object", value)
        return all(_holds(found.get(key), item) for key, item in wanted.items())
    return value == patch
