"""``nodeattest addon-auth sidecar``: the verifying proxy beside an add-on.

Promises: a wrong setting is one line and exit code 2, before anything listens; plain HTTP is served only where
a flag asks for it; SIGTERM and SIGINT end it in order with exit code 0. Everything else is
``nodeattest_identity.addon.sidecar``.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from contextlib import AsyncExitStack
from http import HTTPStatus
from pathlib import Path
from typing import Final, TypeVar, cast

import click

from nodeattest_cli import flags as flags_of
from nodeattest_cli.errors import UserError
from nodeattest_controller import logs
from nodeattest_controller.main import serve as serve_until_signal
from nodeattest_controller.settings import LOG_FORMATS, LOG_LEVELS
from nodeattest_identity.addon.sidecar import app
from nodeattest_identity.addon.sidecar.audiences import ServiceAudiences
from nodeattest_identity.addon.sidecar.jwt_verifier import JwtVerifier, first_keys
from nodeattest_identity.addon.sidecar.settings import SidecarSettings
from nodeattest_identity.addon.sidecar.token_review import TokenReviewVerifier
from nodeattest_identity.issuer.keys import KeysError
from nodeattest_identity.issuer.urls import UrlError, issuer_url
from nodeattest_identity.proxy.limits import ProxyLimits
from nodeattest_identity.proxy.paths import parse_rule
from nodeattest_identity.tokens.jwks_cache import JWKSCache, key_file_cache, read_key_files
from nodeattest_identity.tokens.oidc_http import HttpsFetcher
from nodeattest_identity.tokens.relying_party import discover
from nodeattest_kube.addresses import parse_network
from nodeattest_kube.client import ApiClient, KubeconfigError
from nodeattest_serving.settings import BindAddress, SettingsError, parse_address

__all__ = ["sidecar"]

_FILE: Final = click.Path(path_type=Path)
_USUAL: Final = ProxyLimits()
_NAMESPACE: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")
_LABELS: Final = "/etc/podinfo/labels"
_COUNT: Final = click.IntRange(min=1)
_T = TypeVar("_T")


@click.command()
@click.option("--upstream", required=True, metavar="127.0.0.1:PORT", help="The add-on; only this machine's own.")
@click.option("--bind-address", default=":8443", show_default=True, help="host:port for those who call the add-on.")
@click.option("--tls-cert-file", type=_FILE, help="Serving certificate; read again when it changes.")
@click.option("--tls-private-key-file", type=_FILE, help="Its key.")
@click.option("--plain-http", is_flag=True, help="Serve without TLS: the network between sees tokens of a minute.")
@click.option("--issuer", metavar="URL", help="Who issues tokens, exactly as their claim `iss`.")
@click.option("--ca-file", type=_FILE, help="The only CAs that vouch for the issuer's server  [this machine's]")
@click.option(
    "--jwks-file", "key_files", type=_FILE, multiple=True, help="The issuer's keys, read again; nobody is asked then."
)
@click.option("--token-review", is_flag=True, help="Ask the API server about each token, in the place of --issuer.")
@click.option("--kubeconfig", type=_FILE, help="Which API server; without it, the pod's own.")
@click.option("--audience", "audiences", multiple=True, help="For whom tokens are  [Services that select the pod]")
@click.option("--namespace", help="Whose Services these are  [the pod's]")
@click.option("--pod-labels-file", type=_FILE, default=_LABELS, show_default=True, help="From the downward API.")
@click.option("--longest-lifetime", default=3600.0, show_default=True, help="Seconds that a token may be good for.")
@click.option("--allow-user", "users", multiple=True, help="Let this user through; without any, all who are known.")
@click.option("--allow-group", "groups", multiple=True, help="Let this group through.")
@click.option("--open-path", "open_paths", multiple=True, help="Let anybody ask for /path or /below/**, as nobody.")
@click.option("--tell-groups", is_flag=True, help="Send the add-on the groups, one X-Authenticated-Groups each.")
@click.option(
    "--deny-status", type=click.Choice(["401", "403"]), default="401", show_default=True, help="Of bad tokens."
)
@click.option("--trusted-proxy", "trusted", metavar="CIDR", multiple=True, help="Whose X-Forwarded-For is passed on.")
@click.option(
    "--max-request-duration", default=_USUAL.request_seconds, show_default=True, help="Seconds; streams, too."
)
@click.option("--max-body-bytes", type=_COUNT, help="Of a request  [the add-on decides]")
@click.option("--max-connections", type=_COUNT, default=_USUAL.connections, show_default=True, help="At once.")
@click.option(
    "--requests-per-user",
    type=_COUNT,
    default=64,
    show_default=True,
    help="At once, WebSockets among them; never over a quarter of --max-connections.",
)
@click.option("--health-bind-address", help="host:port of /healthz, /readyz and /metrics, over plain HTTP.")
@click.option("--log-level", type=click.Choice(LOG_LEVELS), default="info", show_default=True, help="What is logged.")
@click.option("--log-format", type=click.Choice(LOG_FORMATS), default="json", show_default=True, help="How.")
def sidecar(*, log_level: str, log_format: str, **flags: object) -> int:
    """Verify who calls an add-on, and pass that on by a header.

    Tokens are verified by --issuer and its keys, or by --token-review; the add-on gets X-Authenticated-User and no
    token. docs/addon-sidecar.md says which requests are refused, and how.
    """
    try:
        settings = _settings(flags)
        logs.configure(level=log_level, log_format=log_format, stream=sys.stderr)
        return serve_until_signal(_serve(settings, flags))
    except (SettingsError, KubeconfigError) as error:
        raise UserError(str(error)) from None


async def _serve(settings: SidecarSettings, flags: dict[str, object]) -> int:
    named = frozenset(_texts(flags, "audiences"))
    async with AsyncExitStack() as stack:
        client = None
        if flags["token_review"] or not named:
            client = await stack.enter_async_context(_client(flags))
        services = None if named or client is None else _services(client, flags)
        audiences: Callable[[], frozenset[str]] = (lambda: named) if services is None else services.audiences
        if flags["token_review"] and client is not None:
            review = TokenReviewVerifier(client, audiences=audiences)
            parts = app.VerifierSetup(
                verifier=review, keep=app.REVIEW_CACHE_SECONDS, unready_reason=_trouble(services, None)
            )
        else:
            keys = _keys(flags)
            stack.push_async_callback(keys.aclose)
            by_keys = JwtVerifier(
                keys,
                issuer=flags_of.text(flags, "issuer") or "",
                audiences=audiences,
                longest_lifetime=flags_of.positive(flags, "longest_lifetime"),
                now=time.time,
            )
            parts = app.VerifierSetup(
                verifier=by_keys,
                keep=app.JWT_CACHE_SECONDS,
                unready_reason=_trouble(services, keys),
                tasks=(lambda: first_keys(keys),),
            )
        if services is not None:
            parts = app.with_task(parts, services.run)
        await app.run(settings, parts, started=lambda _: None)
    return 0


def _settings(flags: dict[str, object]) -> SidecarSettings:
    """Make the settings; raises ``SettingsError``."""
    if bool(flags["token_review"]) == bool(flags_of.text(flags, "issuer")):
        raise SettingsError("--issuer, --token-review: expected one of the two, got both or none")
    if flags["token_review"] and (flags["key_files"] or flags["ca_file"]):
        raise SettingsError("--jwks-file, --ca-file: expected --issuer beside them, got --token-review")
    certificate, key = flags_of.path(flags, "tls_cert_file"), flags_of.path(flags, "tls_private_key_file")
    if bool(flags["plain_http"]) == (certificate is not None):
        raise SettingsError("--tls-cert-file, --plain-http: expected one of the two, got both or none")
    health = flags_of.text(flags, "health_bind_address")
    return SidecarSettings(
        address=parse_address(flags_of.text(flags, "bind_address") or "", "--bind-address"),
        upstream=_upstream(flags),
        certificate=certificate,
        key=key,
        health=None if health is None else parse_address(health, "--health-bind-address"),
        open_paths=tuple(_each(flags, "open_paths", "--open-path", parse_rule)),
        users=frozenset(_texts(flags, "users")),
        groups=frozenset(_texts(flags, "groups")),
        send_groups=bool(flags["tell_groups"]),
        deny_status=HTTPStatus(int(flags_of.text(flags, "deny_status") or "401")),
        max_user_requests=cast("int", flags["requests_per_user"]),
        trusted=tuple(_each(flags, "trusted", "--trusted-proxy", parse_network)),
        limits=ProxyLimits(
            connections=cast("int", flags["max_connections"]),
            upstream_connections=cast("int", flags["max_connections"]),
            request_seconds=flags_of.positive(flags, "max_request_duration"),
            max_body=cast("int | None", flags["max_body_bytes"]),
        ),
    )


def _upstream(flags: dict[str, object]) -> BindAddress:
    return parse_address(flags_of.text(flags, "upstream") or "", "--upstream")


def _keys(flags: dict[str, object]) -> JWKSCache:
    """Make the key cache; files are read once here, so that a wrong one is reported at the start."""
    files = cast("tuple[Path, ...]", flags["key_files"])
    issuer = flags_of.text(flags, "issuer") or ""
    try:
        if files:
            read_key_files(files)
            return key_file_cache(files, monotonic=time.monotonic)
        issuer_url(issuer)
    except KeysError as error:
        raise SettingsError(f"--jwks-file: {error}") from None
    except UrlError as error:
        raise SettingsError(f"--issuer: {error}; with --jwks-file it may be any text") from None
    https = HttpsFetcher(ca_file=flags_of.path(flags, "ca_file"))
    return JWKSCache(lambda: discover(https, issuer), monotonic=time.monotonic)


def _client(flags: dict[str, object]) -> ApiClient:
    kubeconfig = flags_of.path(flags, "kubeconfig")
    return ApiClient.from_kubeconfig_file(kubeconfig) if kubeconfig else ApiClient.in_cluster(os.environ)


def _services(client: ApiClient, flags: dict[str, object]) -> ServiceAudiences:
    namespace = flags_of.text(flags, "namespace")
    if namespace is None:
        try:
            namespace = _NAMESPACE.read_text(encoding="utf-8").strip()
        except OSError:
            raise SettingsError(
                "--namespace: expected one, or --audience: this is no pod with a service account"
            ) from None
    return ServiceAudiences(
        client, namespace=namespace, labels=flags_of.path(flags, "pod_labels_file") or Path(_LABELS)
    )


def _trouble(services: ServiceAudiences | None, keys: JWKSCache | None) -> Callable[[], str | None]:
    def unready_reason() -> str | None:
        if keys is not None and not keys.has_keys:
            return "the issuer's keys were not read yet"
        return None if services is None else services.unready_reason()

    return unready_reason


def _each(flags: dict[str, object], name: str, flag: str, read: Callable[[str], _T]) -> list[_T]:
    try:
        return [read(text) for text in _texts(flags, name)]
    except ValueError as error:
        raise SettingsError(f"{flag}: {error}") from None


def _texts(flags: dict[str, object], name: str) -> tuple[str, ...]:
    return cast("tuple[str, ...]", flags[name])
