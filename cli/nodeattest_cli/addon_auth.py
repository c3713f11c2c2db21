"""``nodeattest addon-auth``: the gateway beside the API server, and the verifying sidecar beside the add-on.

The sidecar serves plain HTTP only where a flag asks for it. Everything else is ``nodeattest_identity.addon``.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Coroutine
from contextlib import AsyncExitStack
from http import HTTPStatus
from pathlib import Path
from typing import Any, Final

import click

from nodeattest_cli.serving import COUNT, FILE, POSITIVE, Address, api_client, server, tls_options
from nodeattest_identity.addon.gateway import service as gateway_service
from nodeattest_identity.addon.gateway.keyset import RotationSchedule
from nodeattest_identity.addon.gateway.service import DEFAULT_PROXY, GatewaySettings
from nodeattest_identity.addon.sidecar import service as sidecar_service
from nodeattest_identity.addon.sidecar.audiences import ServiceAudiences
from nodeattest_identity.addon.sidecar.caller import CallerVerifier
from nodeattest_identity.addon.sidecar.service import SidecarSettings
from nodeattest_identity.issuer.documents import UrlError, issuer_url
from nodeattest_identity.issuer.keys import KeysError
from nodeattest_identity.proxy.refusals import ProxyLimits
from nodeattest_identity.proxy.request import PathRule, parse_rule
from nodeattest_identity.tokens.jwks_cache import JWKSCache, key_file_cache, read_trusted_keys
from nodeattest_identity.tokens.relying_party import HttpsFetcher, discover
from nodeattest_kube.client import ApiClient
from nodeattest_serving.bounded_server import SettingsError

_PROXY: Final = ProxyLimits()
_DAY: Final = 86_400.0
_NAMESPACE: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")
_LABELS: Final = Path("/etc/podinfo/labels")


@click.command()
@click.option("--kubeconfig", type=FILE, help="The cluster whose users are served; without it, the pod's own.")
@click.option("--bind-address", type=Address(), default=":9443", help="host:port, over TLS.")
@click.option("--issuer", metavar="URL", required=True, help="iss of the tokens; their keys are served below it.")
@click.option("--namespace", required=True, help="Where the Secret with the signing keys is kept.")
@click.option("--signing-algorithm", type=click.Choice(["ES256", "RS256"]), default="ES256", help="Of new keys.")
@click.option("--key-period", type=POSITIVE, default=30.0, help="Days that a key signs.")
@click.option("--backend-ca-file", type=FILE, help="Who certifies https: services; without it, the system's roots.")
@click.option("--user-rate", type=POSITIVE, default=20.0, help="Requests a second.")
@click.option("--user-burst", type=COUNT, default=100, help="Requests in a burst.")
@click.option("--user-requests", type=COUNT, default=64, help="Requests at once.")
@click.option(
    "--max-connections",
    type=COUNT,
    default=DEFAULT_PROXY.connections,
    help="From kube-apiserver at once, and as many to services: 2.2 MiB each at most.",
)
@click.option(
    "--max-request-duration",
    type=POSITIVE,
    default=DEFAULT_PROXY.request_seconds,
    help="Seconds after which an answer or a websocket ends.",
)
@tls_options(required=True)
@server
async def gateway(**flags: Any) -> None:  # noqa: ANN401 - click passes what the options' types make
    """Forward users' requests to add-ons, with a token that names the caller.

    kube-apiserver sends requests for /apis/addonauth.nodeattest.x-k8s.io here, once the APIService of
    manifests/addon-gateway is applied.
    """
    connections: int = flags["max_connections"]
    settings = GatewaySettings(
        address=flags["bind_address"],
        certificate=flags["tls_cert_file"],
        key=flags["tls_private_key_file"],
        issuer=flags["issuer"],
        namespace=flags["namespace"],
        backend_ca=flags["backend_ca_file"],
        health=flags["health_bind_address"],
        algorithm=flags["signing_algorithm"],
        schedule=RotationSchedule(period=flags["key_period"] * _DAY),
        user_rate=flags["user_rate"],
        user_burst=flags["user_burst"],
        user_requests=flags["user_requests"],
        proxy=ProxyLimits(
            connections=connections,
            upstream_connections=connections,
            request_seconds=flags["max_request_duration"],
        ),
    )
    await gateway_service.run(settings, api_client(flags["kubeconfig"]))


def _rules(_ctx: click.Context, _param: click.Parameter, values: tuple[str, ...]) -> tuple[PathRule, ...]:
    try:
        return tuple(map(parse_rule, values))
    except ValueError as error:
        raise click.BadParameter(str(error)) from None


@click.command()
@click.option(
    "--upstream", type=Address(), required=True, metavar="127.0.0.1:PORT", help="The add-on; only this machine's own."
)
@click.option("--bind-address", type=Address(), default=":8443", help="host:port for those who call the add-on.")
@click.option("--plain-http", is_flag=True, help="Serve without TLS: the network between sees tokens of a minute.")
@click.option("--issuer", metavar="URL", required=True, help="Who issues tokens, exactly as their claim `iss`.")
@click.option("--ca-file", type=FILE, help="The only CAs that vouch for the issuer's server  [this machine's]")
@click.option(
    "--jwks-file", "key_files", type=FILE, multiple=True, help="The issuer's keys, read again; nobody is asked then."
)
@click.option("--kubeconfig", type=FILE, help="The cluster whose Services are read; without it, the pod's own.")
@click.option("--audience", "audiences", multiple=True, help="For whom tokens are  [Services that select the pod]")
@click.option("--namespace", help="Whose Services these are  [the pod's]")
@click.option("--pod-labels-file", type=FILE, default=_LABELS, help="From the downward API.")
@click.option("--longest-lifetime", type=POSITIVE, default=3600.0, help="Seconds that a token may be good for.")
@click.option("--allow-user", "users", multiple=True, help="Let this user through; without any, all who are known.")
@click.option("--allow-group", "groups", multiple=True, help="Let this group through.")
@click.option(
    "--open-path",
    "open_paths",
    multiple=True,
    callback=_rules,
    help="Let anybody ask for /path or /below/**, as nobody.",
)
@click.option(
    "--tell-groups", "send_groups", is_flag=True, help="Send the add-on the groups, one X-Authenticated-Groups each."
)
@click.option("--deny-status", type=click.Choice(["401", "403"]), default="401", help="Of bad tokens.")
@click.option("--max-request-duration", type=POSITIVE, default=_PROXY.request_seconds, help="Seconds; streams, too.")
@click.option("--max-body-bytes", type=COUNT, help="Of a request  [the add-on decides]")
@click.option("--max-connections", type=COUNT, default=_PROXY.connections, help="At once.")
@click.option(
    "--requests-per-user",
    type=COUNT,
    default=64,
    help="At once, WebSockets among them; never over a quarter of --max-connections.",
)
@tls_options(required=False)
@server
async def sidecar(**flags: Any) -> None:  # noqa: ANN401 - click passes what the options' types make
    """Verify who calls an add-on, and pass that on by a header.

    Tokens are verified by the keys of --issuer; the add-on gets X-Authenticated-User and no token.
    docs/addon-auth.md#the-sidecar says which requests are refused, and how.
    """
    settings = _sidecar_settings(flags)
    named: frozenset[str] = frozenset(flags["audiences"])
    keys = _keys(flags)
    async with AsyncExitStack() as stack:
        stack.push_async_callback(keys.aclose)
        tasks: list[Callable[[], Coroutine[None, None, None]]] = [keys.fetch_first]
        services = None
        if not named:
            services = _services(await stack.enter_async_context(api_client(flags["kubeconfig"])), flags)
            tasks.append(services.run)

        def unready_reason() -> str | None:
            if not keys.has_keys:
                return "the issuer's keys were not read yet"
            return None if services is None else services.unready_reason()

        verifier = CallerVerifier(
            keys=keys,
            issuer=flags["issuer"],
            audiences=(lambda: named) if services is None else services.audiences,
            longest_lifetime=flags["longest_lifetime"],
            now=time.time,
        )
        await sidecar_service.run(settings, verifier, unready_reason=unready_reason, tasks=tasks)


def _sidecar_settings(flags: dict[str, Any]) -> SidecarSettings:
    """Make the settings; raises ``SettingsError``."""
    if flags["plain_http"] == (flags["tls_cert_file"] is not None):
        raise SettingsError("--tls-cert-file, --plain-http: expected one of the two, got both or none")
    connections: int = flags["max_connections"]
    return SidecarSettings(
        address=flags["bind_address"],
        upstream=flags["upstream"],
        certificate=flags["tls_cert_file"],
        key=flags["tls_private_key_file"],
        health=flags["health_bind_address"],
        open_paths=flags["open_paths"],
        users=frozenset(flags["users"]),
        groups=frozenset(flags["groups"]),
        send_groups=flags["send_groups"],
        deny_status=HTTPStatus(int(flags["deny_status"])),
        max_user_requests=flags["requests_per_user"],
        limits=ProxyLimits(
            connections=connections,
            upstream_connections=connections,
            request_seconds=flags["max_request_duration"],
            max_body=flags["max_body_bytes"],
        ),
    )


def _keys(flags: dict[str, Any]) -> JWKSCache:
    """Make the key cache; files are read once here, so that a wrong one is reported at the start."""
    files: tuple[Path, ...] = flags["key_files"]
    issuer: str = flags["issuer"]
    try:
        if files:
            read_trusted_keys(files)
            return key_file_cache(files, monotonic=time.monotonic)
        issuer_url(issuer)
    except KeysError as error:
        raise SettingsError(f"--jwks-file: {error}") from None
    except UrlError as error:
        raise SettingsError(f"--issuer: {error}; with --jwks-file it may be any text") from None
    https = HttpsFetcher(ca_file=flags["ca_file"])
    return JWKSCache(lambda: discover(https, issuer), monotonic=time.monotonic)


def _services(client: ApiClient, flags: dict[str, Any]) -> ServiceAudiences:
    namespace: str | None = flags["namespace"]
    if namespace is None:
        try:
            namespace = _NAMESPACE.read_text(encoding="utf-8").strip()
        except OSError:
            raise SettingsError(
                "--namespace: expected one, or --audience: this is no pod with a service account"
            ) from None
    return ServiceAudiences(client, namespace=namespace, labels=flags["pod_labels_file"])
