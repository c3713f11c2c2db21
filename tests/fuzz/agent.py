"""Targets of the node agent: its own files, client-go's words, and what the API server answers."""

from __future__ import annotations

import atexit
import shutil
import tempfile
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from typing import Final

from fuzz.keys import NODE_KEY, NOW, authority, key_pem, kubelets_certificate, pem_of
from fuzz.target import Target, require
from nodeattest_authenticator import certificate
from nodeattest_authenticator.config import settings
from nodeattest_authenticator.enrollment import bootstrap_token
from nodeattest_authenticator.errors import AgentError, FailureKind
from nodeattest_authenticator.exec_plugin import fast_path
from nodeattest_authenticator.formats import csr_object, exec_credential, kubeconfig
from nodeattest_authenticator.formats.strict_json import FieldsError, parse_config_object
from nodeattest_authenticator.state import credential_cache, credential_format, failure_backoff
from nodeattest_authenticator.state.records import PENDING_REQUEST_FILE, PendingRequestFile
from nodeattest_authenticator.state.storage import Storage
from nodeattest_providers.identifiers import NodeName

_IDENTITY: Final = b"1.2.3.4"
_LONGEST_MESSAGE: Final = 2048


@cache
def cache_directory() -> Storage:
    """Open a cache directory, which goes with the process."""
    place = tempfile.mkdtemp(prefix="nodeattest-fuzz-")
    atexit.register(shutil.rmtree, place, ignore_errors=True)
    return Storage(f"{place}/cache")


def _settings(data: bytes) -> bool:
    try:
        read = settings.parse(data, hostname="node-0")
    except FieldsError:
        return False
    require(
        settings.parse(settings.settings_to_json(read), hostname="another") == read, "what is written is read again"
    )
    kubeconfig.render(read.cluster, command="/c", config="/f", cache_dir="/d")
    return True


@cache
def configuration() -> settings.Settings:
    """Return the configuration that exec infos are compared with."""
    document = b'{"apiVersion":"%b","kind":"%b","server":"https://10.0.0.1:6443","certificateAuthority":"%b",'
    document += b'"provider":{"name":"tpm"}}'
    ca = pem_of(authority()).replace(b"\n", b"\\n")
    return settings.parse(document % (settings.API_VERSION.encode(), settings.KIND.encode(), ca), hostname="node-0")


def _exec_info(data: bytes) -> bool:
    try:
        info = exec_credential.parse(data)
        exec_credential.check_cluster(info, configuration().cluster, ())
    except AgentError as failure:
        require(len(str(failure)) <= _LONGEST_MESSAGE, "a refusal of a few words")
        return False
    require(not info.skips_verification, "a server is verified")
    return True


def _credential(data: bytes) -> bool:
    storage = cache_directory()
    storage.write(credential_format.CREDENTIAL_FILE, data, durable=False)
    found = fast_path.lookup(storage.path, "/dev/null", b"info", NOW.timestamp())
    require(found is None or found[0] == 0, "a credential or nothing")
    try:
        cached = credential_cache.load(storage)
    except ValueError:
        return False
    if cached is None:
        return False
    credential_cache.save(storage, cached)
    require(credential_cache.load(storage) == cached, "what is written is read again")
    return True


def _draft(data: bytes) -> bool:
    storage = cache_directory()
    storage.write(PENDING_REQUEST_FILE, data, durable=False)
    drafts = PendingRequestFile(storage)
    draft = drafts.load()
    if draft is None:
        return False
    drafts.save(draft)
    require(drafts.load() == draft, "what is written is read again")
    return True


def _failure(data: bytes) -> bool:
    storage = cache_directory()
    storage.remove(credential_format.CREDENTIAL_FILE)
    storage.write(credential_format.FAILURE_FILE, data, durable=False)
    fast_path.lookup(storage.path, "/dev/null", b"info", NOW.timestamp())
    read = failure_backoff.load(storage, _IDENTITY)
    failure = AgentError("APIUnavailable", "no answer", remedy="wait", kind=FailureKind.TEMPORARY)
    after = failure_backoff.remember(
        storage, _IDENTITY, failure, valid_for=None, now=NOW.timestamp(), random=lambda: 0.5
    )
    require(after.until > NOW.timestamp(), "the next attempt lies ahead")
    return read is not None


def _csr_object(data: bytes) -> bool:
    try:
        csr_object.parse(parse_config_object(data))
    except FieldsError as error:
        require(len(str(error)) <= _LONGEST_MESSAGE, "a refusal of a few words")
        return False
    return True


def _certificate(data: bytes) -> bool:
    wanted = certificate.ExpectedCertificate(node_name=NodeName("node-0"), ca_pem=pem_of(authority()))
    with suppress(ValueError):
        certificate.names_of(data)  # of a stored serving certificate, before anything of it is checked
    try:
        canonical, begin, end = certificate.validate(data, key_pem(NODE_KEY), wanted)
    except AgentError:
        return False
    require(certificate.validate(canonical, key_pem(NODE_KEY), wanted) == (canonical, begin, end), "one spelling")
    certificate.subject(canonical)
    return True


def _authorities(data: bytes) -> bool:
    """Pin a bundle of CAs out of the configuration, and check a certificate against it."""
    wanted = certificate.ExpectedCertificate(node_name=NodeName("node-0"), ca_pem=data)
    try:
        pin = certificate.select_ca_pin(data)
        certificate.validate(pem_of(kubelets_certificate()), key_pem(NODE_KEY), wanted)
    except AgentError:
        return False
    return pin.startswith("sha256:")


def _text(parse: Callable[[bytes], object], *refusals: type[Exception]) -> Callable[[bytes], bool]:
    def law(data: bytes) -> bool:
        try:
            return bool(parse(data))
        except refusals:
            return False

    return law


TARGETS: Final = (
    Target("agent-settings", _settings),
    Target("agent-exec-info", _exec_info),
    Target("agent-credential", _credential),
    Target("agent-draft", _draft, 8192),
    Target("agent-failure", _failure, 512),
    Target("agent-csr-object", _csr_object, 8192),
    Target("agent-certificate", _certificate),
    Target("agent-authorities", _authorities),
    Target("agent-bootstrap-token", _text(bootstrap_token.parse, AgentError), 64),
    Target("agent-kubeconfig", _text(kubeconfig.is_ours)),
)
