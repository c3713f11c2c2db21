"""Flags: provider settings, files, and those of ``join`` that name the cluster and the bootstrap token.

Source: kubeadm join. Unlike in kubeadm, pins beside the unsafe flag and two sources of a token are errors.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, cast

from nodeattest_authenticator.errors import AgentError, AgentReason, FailureKind, refusal
from nodeattest_authenticator.state.records import parse_token
from nodeattest_discovery.token import BootstrapToken
from nodeattest_providers.config_fields import parse_setting
from nodeattest_providers.errors import Denied
from nodeattest_providers.node_interface import JsonObject, JsonValue

if TYPE_CHECKING:
    from nodeattest_discovery.pins import CaPin


DEFAULT_LIMIT: Final = 300
"""Seconds for a discovery (kubeadm's DiscoveryTimeout)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StaticCluster:
    """Server and CAs from the command line."""

    server: str
    ca_file: str
    tls_server_name: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ByToken:
    """Discovery by a bootstrap token: its signature proves cluster-info, and pins prove the CA."""

    servers: tuple[str, ...]
    """``host:port``."""
    token: BootstrapToken
    pins: frozenset[CaPin] | None
    """None if the user chose to skip CA verification."""
    front: str | None = None
    limit: int = DEFAULT_LIMIT


@dataclass(frozen=True, slots=True, kw_only=True)
class ByFile:
    """Discovery by a kubeconfig from a trusted source."""

    source: str
    allow_credentials: bool = False
    limit: int = DEFAULT_LIMIT


ClusterSource = StaticCluster | ByToken | ByFile


def describe_provider_settings(command: argparse.ArgumentParser) -> None:
    """Add the flags of a provider's settings."""
    command.add_argument("--tcti", metavar="TCTI", help="how to reach the TPM, e.g. device:/dev/tpmrm0")
    command.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="a provider setting (JSON, or a plain string); tpm.tcti is the setting tcti of the part tpm",
    )


def provider_settings(options: argparse.Namespace) -> JsonObject:
    """Return a provider's settings. Raises ``AgentError``."""
    made: JsonObject = {}
    for word in cast("list[str]", options.set):
        setting = parse_setting(word)
        if setting is None:
            raise wrong("--set: expected KEY=VALUE")
        _put(made, setting[0].split("."), setting[1])
    if options.tcti is not None:
        _put(made, ["tpm", "tcti"] if options.provider == "composite" else ["tcti"], options.tcti)
    return made


def _put(settings: JsonObject, path: list[str], value: JsonValue) -> None:
    *parts, last = path
    for part in parts:
        inner = settings.setdefault(part, {})
        if not isinstance(inner, dict):
            raise wrong(f"--set {'.'.join(path)}: {part} has a value of its own")
        settings = inner
    settings[last] = value


def read(path: str) -> bytes:
    """Read a file, or standard input for ``-``. Raises ``AgentError``."""
    try:
        if path == "-":
            return sys.stdin.buffer.read()
        with open(path, "rb") as file:
            return file.read()
    except OSError as error:
        raise wrong(f"{path}: {error.strerror}") from None


def program_path(program: str) -> str:
    """Return the absolute path of this program, for a kubeconfig. Raises ``AgentError``."""
    if "/" in program and os.access(program, os.F_OK | os.X_OK):
        return os.path.abspath(program)
    import shutil

    found = shutil.which(program)
    if found is None:
        raise wrong(f"{program} is not on PATH, so kubelet cannot run it")
    return os.path.abspath(found)


def wrong(message: str) -> AgentError:
    """Return the error for an invalid command line."""
    return AgentError(AgentReason.CONFIGURATION_INVALID, message, remedy="see --help", kind=FailureKind.USAGE)


_LONGEST_LIMIT: Final = 3600
_STDIN: Final = "-"
_GIVEN: Final = ("--server", "--ca-file", "--tls-server-name")
_BY_TOKEN: Final = (
    "--discovery-server",
    "--discovery-token-ca-cert-hash",
    "--discovery-token-unsafe-skip-ca-verification",
    "--discovery-front",
)
_BY_FILE: Final = ("--discovery-file", "--discovery-file-allow-credentials")
_TOKENS: Final = ("--token-file", "--token")


def describe_cluster(join: argparse.ArgumentParser) -> None:
    """Add the flags."""
    join.add_argument("endpoint", nargs="*", metavar="HOST:PORT", help="as --discovery-server, as kubeadm has it")
    given = join.add_argument_group("the cluster, given")
    given.add_argument("--server", metavar="URL", help="the API server, https://host:port")
    given.add_argument("--ca-file", metavar="FILE", help="the cluster's CA certificates, PEM")
    given.add_argument("--tls-server-name", metavar="NAME", help="name in the server's certificate, if not the host")
    by_token = join.add_argument_group("the cluster, discovered by a token")
    by_token.add_argument(
        "--discovery-server", action="append", metavar="HOST:PORT", help="an API server; may be repeated"
    )
    pins_help = "pin of a CA of the cluster; may be repeated"
    by_token.add_argument("--discovery-token-ca-cert-hash", action="append", metavar="sha256:HEX", help=pins_help)
    unsafe_help = "without pins: the holder of the token can pose as the cluster"
    by_token.add_argument("--discovery-token-unsafe-skip-ca-verification", action="store_true", help=unsafe_help)
    by_token.add_argument("--discovery-front", metavar="URL", help="a discovery front, asked before the servers")
    by_file = join.add_argument_group("the cluster, discovered by a file")
    by_file.add_argument("--discovery-file", metavar="FILE", help="a kubeconfig: path, https URL, - (standard input)")
    by_file.add_argument("--discovery-file-allow-credentials", action="store_true", help="use a token in that file")
    by_kubeadm = join.add_argument_group("the cluster, by kubeadm's configuration")
    by_kubeadm.add_argument(
        "--kubeadm-config",
        metavar="FILE",
        help="what kubeadm join --config gets: cluster, token and the node's name (of kubeadm init: nothing to do)",
    )
    tokens = join.add_argument_group("bootstrap tokens")
    tokens.add_argument("--token-file", metavar="FILE", help="the token for all that needs one; - reads standard input")
    tokens.add_argument("--token", metavar="TOKEN", help="the same, for every user of this machine to read")
    join.add_argument(
        "--discovery-timeout", type=int, metavar="SECONDS", help=f"for the whole discovery ({DEFAULT_LIMIT})"
    )


def read_cluster(options: argparse.Namespace) -> tuple[ClusterSource, BootstrapToken | None]:
    """Return the cluster and the token for the first certificate. Raises ``AgentError``.

    The token is None if the discovery file may hold one, or if the node renews with its certificate.
    """
    ways = [_typed(options, _GIVEN), _endpoints(options) + _typed(options, _BY_TOKEN), _typed(options, _BY_FILE)]
    used = [flags for flags in ways if flags]
    if not used:
        raise wrong(
            "no cluster: pass --discovery-server HOST:PORT with --token-file and --discovery-token-ca-cert-hash, "
            "or --discovery-file, or --server with --ca-file, or --kubeadm-config"
        )
    if len(used) > 1:
        both = f"{used[0][0]} and {used[1][0]}"
        raise wrong(f"{both} exclude each other: name the cluster, or discover it by a token or by a file")
    token = _token(options)
    if ways[2]:
        return _by_file(options), token
    way = _static_cluster(options, ways[0]) if ways[0] else _by_token(options, token)
    if token is None and not options.renew:
        raise wrong("no token: pass --token-file")
    return way, token


def typed_cluster(options: argparse.Namespace) -> list[str]:
    """Return the flags for cluster and token that are set."""
    return _endpoints(options) + _typed(options, (*_GIVEN, *_BY_TOKEN, *_BY_FILE, *_TOKENS))


def _typed(options: argparse.Namespace, flags: Iterable[str]) -> list[str]:
    return [flag for flag in flags if getattr(options, flag[2:].replace("-", "_")) not in (None, False, [])]


def _endpoints(options: argparse.Namespace) -> list[str]:
    return [ascii(word) for word in options.endpoint[:1]]


def _static_cluster(options: argparse.Namespace, given: list[str]) -> StaticCluster:
    missing = next((flag for flag in _GIVEN[:2] if flag not in given), None)
    if missing is not None:
        raise wrong(f"{given[0]} needs {missing}")
    if options.discovery_timeout is not None:
        raise wrong("--discovery-timeout has no effect with --server: nothing is discovered")
    return StaticCluster(server=options.server, ca_file=options.ca_file, tls_server_name=options.tls_server_name)


def _by_token(options: argparse.Namespace, token: BootstrapToken | None) -> ByToken:
    words = cast("list[str]", options.endpoint) + cast("list[str]", options.discovery_server or [])
    url = next((word for word in words if "://" in word), None)
    if url is not None:
        raise wrong(f"{url!a}: a server to discover is HOST:PORT, without https:// or a path, such as 10.0.0.1:6443")
    servers = tuple(dict.fromkeys(host_and_port(word, "--discovery-server") for word in words))
    front = cast("str | None", options.discovery_front)
    if not servers and front is None:
        raise wrong("no server to ask: pass --discovery-server HOST:PORT")
    if token is None:
        raise wrong("no token to verify cluster-info: pass --token-file")
    return ByToken(
        servers=servers,
        token=token,
        pins=_pins(options),
        front=None if front is None else host_and_port(front, "--discovery-front"),
        limit=limit_of(options),
    )


def _by_file(options: argparse.Namespace) -> ByFile:
    source = cast("str | None", options.discovery_file)
    if source is None:
        raise wrong("--discovery-file-allow-credentials needs --discovery-file")
    scheme = source.partition("://")[0].lower() if "://" in source else ""
    if scheme not in {"", "https"}:
        raise wrong(f"--discovery-file: expected an https URL, a path or -, got a URL of scheme {scheme[:20]!a}")
    if not scheme and source != _STDIN:
        try:
            open(source, "rb").close()
        except (OSError, ValueError) as error:
            said = error.strerror if isinstance(error, OSError) else "no path"
            place = ascii(source)[1:-1]
            raise wrong(f"--discovery-file: {place}: {said}; expected a file, an https URL, or -") from None
    return ByFile(source=source, allow_credentials=options.discovery_file_allow_credentials, limit=limit_of(options))


def host_and_port(word: str, flag: str) -> str:
    """Return the one spelling of an address; raises ``AgentError``."""
    from nodeattest_discovery.node.client import parse_endpoint

    try:
        return parse_endpoint(word).url.removeprefix("https://")
    except Denied as denied:
        raise refusal(denied, f"{flag}: ", kind=FailureKind.USAGE) from None


def _pins(options: argparse.Namespace) -> frozenset[CaPin] | None:
    words = cast("list[str]", options.discovery_token_ca_cert_hash or [])
    texts = [text for word in words for text in word.split(",")]  # kubeadm's flag takes lists, too
    unsafe = bool(options.discovery_token_unsafe_skip_ca_verification)
    if unsafe and texts:
        raise wrong(
            "--discovery-token-ca-cert-hash and --discovery-token-unsafe-skip-ca-verification contradict each other"
        )
    if not unsafe and not texts:
        raise wrong(
            "a token alone does not authenticate the cluster, because every holder can sign: pass "
            "--discovery-token-ca-cert-hash or --discovery-token-unsafe-skip-ca-verification"
        )
    return None if unsafe else pins_of(texts, "--discovery-token-ca-cert-hash")


def pins_of(texts: Iterable[str], flag: str) -> frozenset[CaPin]:
    """Parse CA pins. Raises ``AgentError``."""
    from nodeattest_discovery import pins

    try:
        return frozenset(pins.parse(text) for text in texts)
    except Denied as denied:
        raise refusal(denied, f"{flag}: ", kind=FailureKind.USAGE) from None


def limit_of(options: argparse.Namespace) -> int:
    """Return the seconds for the discovery. Raises ``AgentError``."""
    limit = cast("int", DEFAULT_LIMIT if options.discovery_timeout is None else options.discovery_timeout)
    if not 1 <= limit <= _LONGEST_LIMIT:
        raise wrong(f"--discovery-timeout: expected 1 to {_LONGEST_LIMIT} seconds, got {limit}")
    return limit


def _token(options: argparse.Namespace) -> BootstrapToken | None:
    """Return the token of its flag or its file."""
    text, path = cast("str | None", options.token), cast("str | None", options.token_file)
    if text is not None and path is not None:
        raise wrong("--token and --token-file exclude each other")
    if path == options.discovery_file == _STDIN:
        raise wrong("--token-file and --discovery-file cannot both read standard input")
    if path is not None:
        return parse_token(read(path))
    return parse_token(text.encode("utf-8", "replace"), source="--token: ") if text is not None else None
