"""The flags of ``join`` that name the cluster and the bootstrap token.

Source: kubeadm join. Unlike in kubeadm, pins beside the unsafe flag and two sources of a token are errors.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from typing import TYPE_CHECKING, Final, cast

from nodeattest_authenticator.cluster.discover import DEFAULT_LIMIT, ByFile, ByToken, ClusterSource, StaticCluster
from nodeattest_authenticator.commands.cli_args import read, wrong
from nodeattest_authenticator.enrollment import bootstrap_token
from nodeattest_authenticator.errors import FailureKind, refusal
from nodeattest_discovery.token import BootstrapToken
from nodeattest_providers.errors import Denied

if TYPE_CHECKING:
    from nodeattest_discovery.pins import CaPin


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


def describe(join: argparse.ArgumentParser) -> None:
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


def parse(options: argparse.Namespace) -> tuple[ClusterSource, BootstrapToken | None]:
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


def typed(options: argparse.Namespace) -> list[str]:
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
        return bootstrap_token.parse(read(path))
    return bootstrap_token.parse(text.encode("utf-8", "replace"), source="--token: ") if text is not None else None
