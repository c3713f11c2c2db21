"""Adopts a node that joined without attestation: replaces its client certificate by an attested one.

Server, CAs and the certificate to ask with come from kubelet's kubeconfig. Messages never quote a key. The kubeconfig
is replaced last, atomically, after the attested credential is stored; its backup stays in the same folder under a name
derived from its content. An interrupted adoption continues with the same request and files.
Out of scope: kubelet's own settings and its restart, which ``_REMAINING_STEPS`` lists.
Source: client-go tools/clientcmd/api/v1; kubeadm phases/kubeconfig (embedded certificate and key until phase
kubelet-finalize); kubelet pkg/kubelet/certificate/bootstrap (``kubelet-client-current.pem``: certificate and SEC 1 key
in one file).
"""

from __future__ import annotations

import argparse
import hashlib
import os
import re
from collections.abc import Callable
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)
from cryptography.x509.oid import NameOID

from nodeattest_authenticator import console, watchdog
from nodeattest_authenticator.certificate import ExpectedCertificate, check_validity, validate
from nodeattest_authenticator.commands import flags
from nodeattest_authenticator.commands.join_flags import settings_of
from nodeattest_authenticator.context import AgentContext
from nodeattest_authenticator.enrollment.issue import attestor_of, issue_and_store
from nodeattest_authenticator.errors import AgentError, AgentReason, FailureKind
from nodeattest_authenticator.formats import client_go, pem
from nodeattest_authenticator.settings import Settings, settings_to_json
from nodeattest_authenticator.state import kubelet_files
from nodeattest_authenticator.state.cache_files import FAILURE_FILE
from nodeattest_authenticator.state.credential_cache import CachedCredential
from nodeattest_authenticator.state.storage import Storage, exclusive
from nodeattest_discovery.clusterinfo import decode_data
from nodeattest_discovery.node.clock import Clock, Deadline
from nodeattest_parsing import strict_yaml
from nodeattest_parsing.objects import items, text
from nodeattest_parsing.strict_yaml import Scalars
from nodeattest_parsing.values import ParseError
from nodeattest_providers.certificate_chain import X509_ERRORS
from nodeattest_providers.identifiers import NODE_USER_PREFIX, NodeName
from nodeattest_providers.node_interface import JsonObject

_DIGITS: Final = 12
"""Hex digits of the content's hash in the backup's name."""
_BY_TOKEN: Final = "ask an operator to open the Machine (nodeattest machines adopt --open), then join with that token"
_REMAINING_STEPS: Final = (
    "kubelet still runs with the old certificate, and renews it by itself. To finish, on this machine:",
    "  1. rotateCertificates: false in kubelet's configuration (kubeadm: /var/lib/kubelet/config.yaml; also in",
    "     ConfigMap kube-system/kubelet-config, or kubeadm upgrade node writes it back)",
    "  2. no --bootstrap-kubeconfig among kubelet's flags (kubeadm: KUBELET_KUBECONFIG_ARGS in",
    "     kubelet.service.d/10-kubeadm.conf)",
    "  3. systemctl daemon-reload && systemctl restart kubelet",
)
_KEY: Final = re.compile(rb"-----BEGIN ((?:EC |RSA )?PRIVATE KEY)-----[^-]*-----END \1-----")
"""A private key in a file that may also hold certificates."""
_USER_FIELDS: Final = {"client-certificate", "client-certificate-data", "client-key", "client-key-data"}
_MAX_DEPTH: Final = 16
"""Levels of nesting; a kubeconfig has seven."""
_MAX_VALUES: Final = 4096
"""Values and keys of a kubeconfig."""
_MAX_SIZE: Final = 1 << 20
"""Bytes of a kubeconfig or of a file that it names."""


def run(options: argparse.Namespace, program: str) -> None:
    """Adopt the node. Raises ``AgentError``."""
    path = os.path.abspath(options.kubeconfig)
    old = flags.read(path)
    if client_go.is_ours(old):
        console.show(f"{path} already runs kubelet-authenticator: this node joined with attestation or was adopted")
        return
    cluster, credential = read_access(path, old, flags.read)
    settings, clock = settings_of(options, cluster), console.reporting(Clock())
    _check(path, settings, credential, now=clock.now())
    config, cache_dir = os.path.abspath(options.config), os.path.abspath(options.cache_dir)
    command = flags.program_path(program)
    rendered = client_go.render_kubeconfig(settings.cluster, command=command, config=config, cache_dir=cache_dir)
    backup = f"{path}.before-nodeattest-{hashlib.sha256(old).hexdigest()[:_DIGITS]}"
    with watchdog.running(settings.timeout_seconds):
        context, deadline = _prepared(settings, config, cache_dir, clock)
        with context.storage, exclusive(context.storage, deadline):
            found = context.load_valid_credential() or issue_and_store(context, credential, deadline)
            kubelet_files.write_private(backup, old)
            kubelet_files.write_private(path, rendered)
    until, node = console.moment(found.credential.not_after), settings.node_name
    console.show(
        f"node {node} is adopted: {path} runs kubelet-authenticator, certificate until {until}",
        f"the old one is {backup}",
        *_REMAINING_STEPS,
        f"then see that node {node} is Ready, and remove the backup: its certificate is valid until it expires",
    )


def _check(path: str, settings: Settings, credential: CachedCredential, *, now: float) -> None:
    if not settings.renewable:
        raise AgentError(
            AgentReason.CONFIGURATION_INVALID,
            "the insecure provider cannot renew a certificate",
            remedy=_BY_TOKEN,
            kind=FailureKind.USAGE,
        )
    if now >= credential.not_after:
        said = f"the certificate in {path} has expired"
        raise AgentError(AgentReason.CERTIFICATE_REFUSED, said, remedy=_BY_TOKEN)
    check_validity(credential.not_before, credential.not_after, now=now, clock_skew=None)


def _prepared(settings: Settings, config: str, cache_dir: str, clock: Clock) -> tuple[AgentContext, Deadline]:
    """Write the configuration and open it."""
    with attestor_of(settings.provider, settings.provider_settings):
        pass  # find invalid settings before anything is written
    deadline = Deadline.after(clock, settings.timeout_seconds)
    with Storage(cache_dir) as storage, exclusive(storage, deadline):
        if kubelet_files.write_private(config, settings_to_json(settings)):
            storage.remove(FAILURE_FILE)
    return AgentContext.open(config, cache_dir, clock=clock), deadline


def read_access(path: str, data: bytes, read: Callable[[str], bytes]) -> tuple[JsonObject, CachedCredential]:
    """Parse kubelet's kubeconfig and the files that it names. Raises ``AgentError``.

    Return the cluster's part of the configuration, and the credential, whose times are not checked.

    1. It is one kubeconfig in YAML, whose current context names a cluster and a user.
    2. The server is verified by the CAs of the file, and reached without a proxy.
    3. The user is a client certificate with its key and nothing else.
    4. The certificate is a node's, for this key, issued by these CAs.
    """
    # 1
    try:
        document = strict_yaml.parse_object(
            _bounded(path, data), scalars=Scalars.TEXT, max_depth=_MAX_DEPTH, max_values=_MAX_VALUES
        )
    except ParseError as error:
        raise _refused(path, "a kubeconfig in YAML", error.found) from None
    context = _named(path, document, "context", text(document, "current-context"))
    cluster = _named(path, document, "cluster", text(context, "cluster"))
    user = _named(path, document, "user", text(context, "user"))
    # 2
    if cluster.get("insecure-skip-tls-verify") is True or cluster.get("proxy-url"):
        raise _refused(path, "a server that is verified and reached directly", "insecure-skip-tls-verify or proxy-url")
    ca_pem = _content(path, cluster, "certificate-authority", read)
    # 3
    others = sorted(user.keys() - _USER_FIELDS)
    if others:
        raise _refused(path, "a user with a client certificate and its key", f"one with {others[0][:40]!r}")
    certificate, key = (_content(path, user, name, read) for name in ("client-certificate", "client-key"))
    # 4
    name, credential = _credential(path, certificate, key, ca_pem)
    cluster_settings: JsonObject = {
        "server": text(cluster, "server"),
        "certificateAuthority": ca_pem.decode("utf-8", "replace"),
        "tlsServerName": text(cluster, "tls-server-name") or None,
        "nodeName": name,
    }
    return cluster_settings, credential


def _named(path: str, document: JsonObject, kind: str, name: str) -> JsonObject:
    for entry in items(document, f"{kind}s"):
        found = entry.get(kind)
        if entry.get("name") == name and isinstance(found, dict):
            return found
    raise _refused(path, f"the {kind} that it refers to", "none")


def _content(path: str, section: JsonObject, name: str, read: Callable[[str], bytes]) -> bytes:
    """Return the embedded data, else the content of the named file, as client-go does."""
    data, file = text(section, f"{name}-data"), text(section, name)
    if data:
        try:
            return decode_data(data)
        except ParseError:
            raise _refused(path, f"{name}-data in base64", "something else") from None
    if not file:
        raise _refused(path, f"{name} or {name}-data", "neither")
    return _bounded(file, read(os.path.join(os.path.dirname(path), file)))


def _bounded(path: str, data: bytes) -> bytes:
    if len(data) > _MAX_SIZE:
        raise _refused(path, f"at most {_MAX_SIZE} bytes", "more")
    return data


def _credential(path: str, certificate: bytes, key: bytes, ca_pem: bytes) -> tuple[NodeName, CachedCredential]:
    key_block = _KEY.search(key)
    try:
        chain = pem.encode(pem.certificates(certificate))
        leaf = x509.load_pem_x509_certificate(chain)
        [common_name] = leaf.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
        private = load_pem_private_key(key_block[0] + b"\n" if key_block else b"", password=None)
        key_pem = private.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    except X509_ERRORS:
        raise _refused(path, "a certificate and its key in PEM", "something else") from None
    name = NodeName(str(common_name.value).removeprefix(NODE_USER_PREFIX))
    canonical, not_before, not_after = validate(chain, key_pem, ExpectedCertificate(node_name=name, ca_pem=ca_pem))
    return name, CachedCredential(
        certificate_pem=canonical, key_pem=key_pem, not_before=not_before, renew_at=not_after, not_after=not_after
    )


def _refused(path: str, expected: str, got: str) -> AgentError:
    return AgentError(
        AgentReason.CONFIGURATION_INVALID,
        f"{path}: expected {expected}, got {got}",
        remedy="name the kubeconfig that kubelet uses with --kubeconfig",
        kind=FailureKind.USAGE,
    )
