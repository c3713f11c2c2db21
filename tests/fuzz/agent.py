"""Targets of the node agent: its files, client-go's words, API servers' answers, discovery and kubelet."""

from __future__ import annotations

import atexit
import json
import shutil
import tempfile
from contextlib import suppress
from functools import cache
from typing import Any, Final

import yaml

from fuzz.target import NODE_KEY, NOW, authority, key_pem, kubelets_certificate, pem_of, require, target, text_of
from nodeattest_authenticator import certificate, kubelet_config, settings
from nodeattest_authenticator.api_client import parse_csr_object
from nodeattest_authenticator.commands import kubeadm_config
from nodeattest_authenticator.commands.flags import ByToken
from nodeattest_authenticator.context import AgentContext, ignore_message
from nodeattest_authenticator.errors import AgentError, FailureKind
from nodeattest_authenticator.exec_plugin import fast_path
from nodeattest_authenticator.formats import client_go
from nodeattest_authenticator.formats.strict_json import ConfigFields, FieldsError, parse_config_object
from nodeattest_authenticator.settings import Discovery, parse_discovery
from nodeattest_authenticator.state import cache_files, credential_cache
from nodeattest_authenticator.state.records import PENDING_REQUEST_FILE, PendingRequestFile, parse_token
from nodeattest_authenticator.state.storage import Storage
from nodeattest_discovery.node.clock import Clock
from nodeattest_providers.identifiers import NodeName

_IDENTITY: Final = b"1.2.3.4"
_AGENT: Final = (AgentError,)
_FIELDS: Final = (FieldsError,)


@cache
def _storage() -> Storage:
    """Open a cache directory, which goes with the process."""
    place = tempfile.mkdtemp(prefix="nodeattest-fuzz-")
    atexit.register(shutil.rmtree, place, ignore_errors=True)
    return Storage(f"{place}/cache")


@target("agent-settings", lambda data: settings.parse(data, hostname="node-0"), refusals=_FIELDS)
def _settings(read: settings.Settings, _data: bytes) -> None:
    again = settings.parse(settings.settings_to_json(read), hostname="another")
    require(again == read, "what is written is read again")
    client_go.render_kubeconfig(read.cluster, command="/c", config="/f", cache_dir="/d")


@cache
def _configuration() -> settings.Settings:
    """Return the configuration that exec infos are compared with."""
    document = b'{"apiVersion":"%b","kind":"%b","server":"https://10.0.0.1:6443","certificateAuthority":"%b",'
    document += b'"provider":{"name":"tpm"}}'
    ca = pem_of(authority()).replace(b"\n", b"\\n")
    return settings.parse(document % (settings.API_VERSION.encode(), settings.KIND.encode(), ca), hostname="node-0")


def _exec_info(data: bytes) -> client_go.ExecInfo:
    info = client_go.parse_exec_info(data)
    client_go.check_cluster(info, _configuration().cluster, ())
    return info


target("agent-exec-info", _exec_info, refusals=_AGENT)(
    lambda info, _: require(not info.skips_verification, "a server is verified")
)


@target("agent-credential", lambda data: data)
def _credential(data: bytes, _data: bytes) -> bool:
    storage = _storage()
    storage.write(cache_files.CREDENTIAL_FILE, data, durable=False)
    found = fast_path.lookup(storage.path, "/dev/null", b"info", NOW.timestamp())
    require(found is None or found[0] == 0, "a credential or nothing")
    cached = None
    with suppress(ValueError):
        cached = credential_cache.load(storage)
    if cached is not None:
        credential_cache.save(storage, cached)
        require(credential_cache.load(storage) == cached, "what is written is read again")
    return cached is not None


@target("agent-draft", lambda data: data, max_len=8192)
def _draft(data: bytes, _data: bytes) -> bool:
    storage = _storage()
    storage.write(PENDING_REQUEST_FILE, data, durable=False)
    drafts = PendingRequestFile(storage)
    draft = drafts.load()
    if draft is not None:
        drafts.save(draft)
        require(drafts.load() == draft, "what is written is read again")
    return draft is not None


@target("agent-failure", lambda data: data, max_len=512)
def _failure(data: bytes, _data: bytes) -> bool:
    storage = _storage()
    storage.remove(cache_files.CREDENTIAL_FILE)
    storage.write(cache_files.FAILURE_FILE, data, durable=False)
    fast_path.lookup(storage.path, "/dev/null", b"info", NOW.timestamp())
    context = AgentContext(
        settings=_configuration(),
        config="/dev/null",
        config_fingerprint=_IDENTITY,
        storage=storage,
        clock=Clock(now=NOW.timestamp),
        random=lambda: 0.5,
        log=ignore_message,
    )
    read = context.last_failure()
    failure = AgentError("APIUnavailable", "no answer", remedy="wait", kind=FailureKind.TEMPORARY)
    context.remember_failure(failure, None)
    after = context.last_failure()
    require(after is not None and after.until > NOW.timestamp(), "the next attempt lies ahead")
    return read is not None


target("agent-csr-object", lambda data: parse_csr_object(parse_config_object(data)), refusals=_FIELDS, max_len=8192)(
    lambda _csr, _data: True
)
target("agent-bootstrap-token", parse_token, refusals=_AGENT, max_len=64)(lambda token, _: bool(token))
target("agent-kubeconfig", client_go.is_ours)(lambda is_ours, _: is_ours)


def _validated(data: bytes, ca_pem: bytes) -> tuple[bytes, int, int]:
    wanted = certificate.ExpectedCertificate(node_name=NodeName("node-0"), ca_pem=ca_pem)
    return certificate.validate(data, key_pem(NODE_KEY), wanted)


def _kubelets(data: bytes) -> tuple[bytes, int, int]:
    with suppress(ValueError):
        certificate.names_of(data)  # of a stored serving certificate, before anything of it is checked
    return _validated(data, pem_of(authority()))


@target("agent-certificate", _kubelets, refusals=_AGENT)
def _certificate(found: tuple[bytes, int, int], _data: bytes) -> None:
    require(_validated(found[0], pem_of(authority())) == found, "one spelling")
    certificate.subject(found[0])


def _authorities(data: bytes) -> str:
    """Pin a bundle of CAs out of the configuration, and check a certificate against it."""
    pin = certificate.select_ca_pin(data)
    _validated(pem_of(kubelets_certificate()), data)
    return pin


target("agent-authorities", _authorities, refusals=_AGENT)(
    lambda pin, _: require(pin.startswith("sha256:"), "a pin of a CA")
)


def _kubelet_configuration(data: bytes) -> tuple[Any, Any]:
    """Read a configuration as it is in a ConfigMap, and write what kubelet gets."""
    read = kubelet_config.parse({"data": {"kubelet": text_of(data)}})
    return read, kubelet_config.render(read, ca_file="/ca.crt")


@target("agent-kubelet-configuration", _kubelet_configuration, refusals=_AGENT, max_len=2048)
def _adjusted(found: tuple[Any, Any], data: bytes) -> None:
    read, written = found
    require(read == yaml.safe_load(text_of(data)), "PyYAML reads the same")
    made = json.loads(written)
    require(yaml.safe_load(written) == made, "YAML readers read what JSON readers read")
    require(made["rotateCertificates"] is False and made["serverTLSBootstrap"] is True, "the agent renews")
    untouched = {"authentication", "rotateCertificates", "serverTLSBootstrap"}
    require(all(made[key] == value for key, value in read.items() if key not in untouched), "the rest is as it was")


def _section(data: bytes) -> Discovery:
    return parse_discovery(ConfigFields(parse_config_object(data), "discovery."))


@target("agent-discovery", _section, refusals=_FIELDS, max_len=8192)
def _discovery(read: Discovery, _data: bytes) -> None:
    again = parse_discovery(ConfigFields(read.to_json(), "discovery."))
    require(again == read, "what is written is read again")
    turned = tuple(reversed(read.servers))
    require(read.with_servers(*turned).servers == turned, "servers change their order")
    for old, new in zip(read.previous_clusters, read.previous_clusters[1:], strict=False):
        after = read.after(old, new)
        require(new not in after.previous_clusters, "what is so now is not former")
        require(parse_discovery(ConfigFields(after.to_json(), "discovery.")) == after, "a step leaves a sound section")


@target("agent-kubeadm-configuration", lambda data: kubeadm_config.parse(data, limit=300), refusals=_AGENT)
def _kubeadm_configuration(read: kubeadm_config.Joining | None, _data: bytes) -> None:
    """Read what Cluster API writes for kubeadm; an untrusted source may have templated it."""
    if read is not None and read.token is not None:
        require(read.token.secret not in repr(read), "no secret is shown")
    if read is not None and isinstance(read.way, ByToken):
        require(read.token is not None and len(read.way.servers) == 1, "one server, and a token to ask with")
        require(read.way.pins is None or bool(read.way.pins), "pins, or the wish to do without")
