"""Parse a kubeconfig into one ``ApiEndpoint``: where the API server is, and with which identity to connect.

HTTPS only, always verified. A client key touches no disk, no command is run, and impersonation and basic authentication
are refused rather than ignored.
Source: client-go tools/clientcmd/api/v1/types.go and conversion.go (duplicate names are errors).
"""

from __future__ import annotations

import codecs
import os
import re
import ssl
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import IO, Final, NoReturn, cast
from urllib.parse import SplitResult, urlsplit

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric import rsa

from nodeattest_kube.addresses import AddressRules
from nodeattest_kube.errors import KubeconfigError
from nodeattest_parsing import strict_yaml
from nodeattest_parsing.endpoint import port_of
from nodeattest_parsing.objects import text
from nodeattest_parsing.strict_base64 import decode_base64
from nodeattest_parsing.strict_yaml import Scalars
from nodeattest_parsing.values import JsonObject, ParseError


def tls_context(endpoint: ApiEndpoint) -> ssl.SSLContext:
    """Make the TLS context; bad certificates and keys are the kubeconfig's fault."""
    try:
        context = ssl.create_default_context(cadata=endpoint.ca_pem)
    except (ssl.SSLError, ValueError) as error:
        raise KubeconfigError(
            expected="CA certificates in PEM",
            got=type(error).__name__,
            remedy="check certificate-authority-data: base64 of one or more CERTIFICATE blocks",
        ) from None
    # VERIFY_X509_STRICT, new in Python 3.13, refuses CAs without a subject key identifier, which old clusters have.
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    # As in Go, each CA that is given is an anchor, self-signed or not: a cluster's CA may be an intermediate one.
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    # Without DHE, where the server chooses a group of any size, and we compute with it.
    names = (cipher["name"] for cipher in context.get_ciphers())
    context.set_ciphers(":".join(name for name in names if not name.startswith("DHE-")))
    if endpoint.client_certificate_pem is not None and endpoint.client_key_pem is not None:
        _load_client_certificate(context, endpoint.client_certificate_pem, endpoint.client_key_pem)
    return context


def _load_client_certificate(context: ssl.SSLContext, certificate: bytes, key: bytes) -> None:
    """Load the pair; Python's ssl reads files only, so it gets a file in memory."""
    with _unwritten_file() as file:
        file.write(certificate + b"\n" + key)
        file.flush()
        name = f"/proc/self/fd/{file.fileno()}" if sys.platform == "linux" else file.name
        try:
            # The password keeps OpenSSL from asking on the terminal when the key is encrypted.
            context.load_cert_chain(name, password="")
        except (ssl.SSLError, ValueError, OSError) as error:
            raise KubeconfigError(
                expected="a client certificate and its own, unencrypted key in PEM",
                got=type(error).__name__,
                remedy="check client-certificate-data and client-key-data",
            ) from None


def _unwritten_file() -> IO[bytes]:
    """Open a file that lives in memory on Linux, and elsewhere one that only we can read."""
    if sys.platform == "linux":
        return os.fdopen(os.memfd_create("client-certificate", os.MFD_CLOEXEC), "wb")
    return tempfile.NamedTemporaryFile()


_MAX_DEPTH: Final = 32
"""Levels of YAML; extensions may hold anything."""
_UNREADABLE: Final = "write it again with kubectl config view --raw, or put the value in quotes"
MAX_SELF_CONTAINED: Final = 64 << 10
"""Bytes of a kubeconfig in a Secret; Cluster API's have some 6 KiB. With the next, the bound of PyYAML's work."""
MAX_SELF_CONTAINED_VALUES: Final = 1024
"""Values and keys of it; a cluster, a user and a context take some twenty."""
_FILE_BOUNDS: Final = 1 << 20, 1 << 16
"""The same of a file of the operator's own."""
_MAX_RSA_BITS: Final = 4096
"""Of a client certificate's key: each TLS handshake signs with it, in time cubic in its length."""
_SERVICE_ACCOUNT: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount")
_HOST: Final = re.compile(r"[A-Za-z0-9._-]{1,253}|[0-9A-Fa-f:.]{2,45}")
"""A host name (underscores are in use), an IPv4 address, or an IPv6 address without its brackets."""
_NAMESPACE: Final = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?", re.ASCII)
"""A DNS label (RFC 1123)."""
_CA_BEGINS: Final = b"-----BEGIN CERTIFICATE-----"
_CA_BLOCK: Final = re.compile(rb"^" + _CA_BEGINS + rb"[ \t\r]*$", re.MULTILINE)
"""Where OpenSSL begins to read; it skips a block whose first line is another."""
_COMMANDS: Final = ("exec", "auth-provider")
_UNSUPPORTED_USER: Final = ("username", "password", "as", "as-uid", "as-groups", "as-user-extra")


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiEndpoint:
    """One API server and one identity towards it."""

    server: str
    """``https://host[:port][/prefix]`` without a trailing slash."""
    ca_pem: str | None = None
    """CA bundle; None means the system's trust store, as in client-go."""
    tls_server_name: str | None = None
    proxy_url: str | None = field(default=None, repr=False)
    """``http://[user:password@]host[:port]``."""
    token: str | None = field(default=None, repr=False)
    token_file: Path | None = None
    """Read again as it is rotated; wins over ``token`` (client-go transport/config.go)."""
    client_certificate_pem: bytes | None = field(default=None, repr=False)
    client_key_pem: bytes | None = field(default=None, repr=False)
    namespace: str = ""
    """Of the context; empty where it names none."""
    addresses: AddressRules | None = None
    """What may be connected to; None: anything, since who runs this program wrote the kubeconfig."""


def parse_kubeconfig(document: bytes, *, addresses: AddressRules | None = None) -> ApiEndpoint:
    """Parse a self-contained kubeconfig, such as a ``<cluster>-kubeconfig`` Secret's; file references are refused.

    Anybody with rights in one namespace may have written it: do not call it in an event loop, and give ``addresses``.
    """
    endpoint = _parse(document, base=None)
    if addresses is not None:
        addresses.check_host(urlsplit(endpoint.server).hostname, "server")
        addresses.check_host(urlsplit(endpoint.proxy_url or "").hostname, "proxy-url")
    return replace(endpoint, addresses=addresses)


def read_kubeconfig(path: Path) -> ApiEndpoint:
    """Read a kubeconfig file; its file references are relative to its own folder."""
    return _parse(_read(path, "a kubeconfig file"), base=path.parent)


def in_cluster_endpoint(environment: Mapping[str, str], *, account: Path = _SERVICE_ACCOUNT) -> ApiEndpoint:
    """Endpoint of the pod we run in (client-go rest.InClusterConfig); the token file is re-read as it rotates."""
    host, port = environment.get("KUBERNETES_SERVICE_HOST", ""), environment.get("KUBERNETES_SERVICE_PORT", "")
    if not host or not port:
        wanted = "KUBERNETES_SERVICE_HOST and KUBERNETES_SERVICE_PORT"
        _refuse(wanted, "neither or one", "run in a pod, or give --kubeconfig")
    ca_pem = _ca(_read(account / "ca.crt", "the service account's CA"), "ca.crt")
    server = _server({"server": f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}"})
    return ApiEndpoint(server=server, ca_pem=ca_pem, token_file=account / "token")


def _parse(document: bytes, *, base: Path | None) -> ApiEndpoint:
    most, max_values = _FILE_BOUNDS if base is not None else (MAX_SELF_CONTAINED, MAX_SELF_CONTAINED_VALUES)
    if len(document) > most:
        _refuse(f"at most {most} bytes", f"{len(document)} bytes", "give one cluster's kubeconfig")
    try:
        config = strict_yaml.parse_object(
            document, scalars=Scalars.KUBERNETES, max_depth=_MAX_DEPTH, max_values=max_values
        )
    except ParseError as error:
        _refuse("a kubeconfig in YAML", f"{error.found} (expected {error.expected})", _UNREADABLE)
    if config.get("kind", "Config") != "Config":
        _refuse("kind Config", "another kind", "give a kubeconfig")
    return make_endpoint(*select_entries(config, None), base)


def select_entries(config: JsonObject, context: str | None) -> tuple[JsonObject, JsonObject, JsonObject]:
    """Return a context, the current one unless it is named, its cluster and its user; raises ``KubeconfigError``."""
    chosen = context if context is not None else _text(config, "current-context")
    if chosen is None:
        _refuse("current-context", "none", "set it with kubectl config use-context")
    names = _entry(config, "contexts", chosen, "context")
    cluster = _entry(config, "clusters", _text(names, "cluster") or "", "cluster")
    user_name = _text(names, "user")
    return names, cluster, _entry(config, "users", user_name, "user") if user_name else {}


def make_endpoint(names: JsonObject, cluster: JsonObject, user: JsonObject, base: Path | None) -> ApiEndpoint:
    """Make the value of a context, its cluster and its user; raises ``KubeconfigError``.

    ``base``: what file references are relative to; None: they are refused.
    """
    _refuse_the_unsafe(cluster, user)
    ca_pem = _material(cluster, "certificate-authority", base)
    certificate, key = _material(user, "client-certificate", base), _material(user, "client-key", base)
    if (certificate is None) != (key is None):
        _refuse("client certificate and key", "one of them", "give both client-certificate-data and client-key-data")
    if certificate is not None and base is None:
        _check_client_key(certificate)
    name, token, token_file = _text(cluster, "tls-server-name"), _text(user, "token"), _text(user, "tokenFile")
    if name is not None and not _is_host(name):
        _refuse("tls-server-name: a host name", "other text", "correct clusters[].cluster.tls-server-name")
    if token is not None and not is_visible(token):
        _refuse("a token of visible ASCII", "other characters", "check for line ends in users[].user.token")
    if token_file is not None and base is None:
        _refuse("an inline token", "tokenFile", "put the token itself into the Secret")
    namespace = text(names, "namespace")  # which grants nothing
    return ApiEndpoint(
        server=_server(cluster),
        ca_pem=None if ca_pem is None else _ca(ca_pem, "certificate-authority"),
        tls_server_name=name,
        proxy_url=check_proxy_url(_text(cluster, "proxy-url")),
        token=token,
        token_file=base / token_file if base is not None and token_file is not None else None,
        client_certificate_pem=certificate,
        client_key_pem=key,
        namespace=namespace if _NAMESPACE.fullmatch(namespace) else "",
    )


def _refuse_the_unsafe(cluster: JsonObject, user: JsonObject) -> None:
    for name in (*_COMMANDS, *_UNSUPPORTED_USER):
        if user.get(name) or (name in _COMMANDS and user.get(name) is not None):
            _refuse("a token or a client certificate", f"users[].user.{name}", "give one of them: no command is run")
    if cluster.get("insecure-skip-tls-verify"):
        _refuse("a verified server", "insecure-skip-tls-verify", "give certificate-authority-data instead")


def _entry(config: JsonObject, plural: str, name: str, singular: str) -> JsonObject:
    listed = config.get(plural)
    rows = cast("list[object]", listed) if isinstance(listed, list) else []
    found = [entry for row in rows if isinstance(row, dict) and (entry := cast("JsonObject", row)).get("name") == name]
    if len(found) != 1:
        _refuse(f"one {singular} of that name", f"{len(found)}", f"check the name of the {singular} in {plural}")
    value = found[0].get(singular)
    if not isinstance(value, dict):
        _refuse(f"{plural}[].{singular} to be an object", type(value).__name__, "write the kubeconfig again")
    return cast("JsonObject", value)


def _server(cluster: JsonObject) -> str:
    text, expected = _text(cluster, "server") or "", "server: https://host:port"
    parts = _url(text, "https", expected, "correct clusters[].cluster.server")
    if "@" in parts.netloc or parts.query or parts.fragment:
        _refuse(expected, "a user, a query or a fragment", "correct clusters[].cluster.server")
    return text.rstrip("/")


def check_proxy_url(text: str | None) -> str | None:
    """Check the proxy's URL: plain HTTP with CONNECT, through which our TLS to the API server runs end to end."""
    if text is not None:
        _url(text, "http", "proxy-url: http://host:port", "use an HTTP proxy (CONNECT)")
    return text


def _url(text: str, scheme: str, expected: str, remedy: str) -> SplitResult:
    try:
        parts = urlsplit(text)
        port_of(parts)
        is_usable = parts.scheme == scheme and _is_host(parts.hostname)
    except ValueError:
        _refuse(expected, "no URL", remedy)
    if not is_usable or not is_visible(text):
        _refuse(expected, f"scheme {parts.scheme or 'none'!r}", remedy)
    return parts


def _is_host(text: str | None) -> bool:
    return text is not None and _HOST.fullmatch(text) is not None


def is_visible(text: str) -> bool:
    """Whether a text is visible ASCII: what may be on a request line and in a token (RFC 6750 §2.1)."""
    return text.isascii() and text.isprintable() and " " not in text


def _material(holder: JsonObject, name: str, base: Path | None) -> bytes | None:
    data = _text(holder, f"{name}-data")
    if data is not None:
        try:
            return decode_base64("".join(data.split()))
        except ValueError:
            _refuse(f"{name}-data in base64", "other text", "encode the PEM with base64 -w0")
    file = _text(holder, name)
    if file is None:
        return None
    if base is None:
        _refuse(f"{name}-data", f"the file reference {name}", "put the PEM itself into the Secret")
    return _read(base / file, name)


def _check_client_key(certificate: bytes) -> None:
    try:
        key = x509.load_pem_x509_certificate(certificate).public_key()
    except (ValueError, TypeError, UnsupportedAlgorithm, x509.InvalidVersion):
        _refuse("a client certificate in PEM", "something else", "check client-certificate-data")
    if isinstance(key, rsa.RSAPublicKey) and key.key_size > _MAX_RSA_BITS:
        _refuse(f"a client key of at most {_MAX_RSA_BITS} bits", f"{key.key_size} bits", "use an ECDSA or RSA 2048 key")


def _read(path: Path, what: str) -> bytes:
    try:
        return path.read_bytes()
    except (OSError, ValueError) as error:
        _refuse(f"{what} at {path}", type(error).__name__, "check that the file exists and is readable")


def _ca(pem: bytes, what: str) -> str:
    """Return a CA bundle as ASCII, comments too; an empty one would silently mean the system's trust store."""
    pem = pem.removeprefix(codecs.BOM_UTF8)
    blocks = len(_CA_BLOCK.findall(pem))
    if not blocks:
        _refuse(f"{what} in PEM", "no CERTIFICATE block", "give the CA's PEM, not its DER")
    if blocks != pem.count(_CA_BEGINS):
        _refuse(f"{what} in PEM", "a BEGIN line with more on it", "let each BEGIN CERTIFICATE have a line of its own")
    return pem.decode("ascii", "backslashreplace")


def _text(holder: JsonObject, name: str) -> str | None:
    """Read a string field; absent, null and empty are one (Go's zero value)."""
    value = holder.get(name)
    if value is None or value == "":
        return None
    if not isinstance(value, str):
        _refuse(f"{name} to be a string", type(value).__name__, "put it in quotes")
    return value


def _refuse(expected: str, got: str, remedy: str) -> NoReturn:
    raise KubeconfigError(expected=expected, got=got, remedy=remedy)
