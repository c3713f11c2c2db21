"""``nodeattest issuer serve``: the documents of one issuer or of a fleet's, over HTTPS, for anybody."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import click

from nodeattest_cli.serving import FILE, POSITIVE, Address, api_client, server, tls_options
from nodeattest_identity.issuer.documents import MAX_AGE, issuer_url
from nodeattest_identity.serve import app
from nodeattest_identity.serve.app import KeysSource, ServeSettings
from nodeattest_identity.serve.clusters import KubeconfigSecretsSource
from nodeattest_identity.serve.service import issuer_paths
from nodeattest_kube.addresses import POD_IPS, AddressRules, parse_network, parse_pod_ips
from nodeattest_serving.bounded_server import SettingsError


@click.command()
@click.option(
    "--service-account-key-file",
    "files",
    type=FILE,
    multiple=True,
    metavar="FILE",
    help="PEM with public keys, certificates, or private keys of which the public half is taken; may be repeated.",
)
@click.option(
    "--service-account-issuer",
    "issuers",
    multiple=True,
    metavar="URL",
    help="Whose documents are served; may be repeated for issuers whose tokens still live.",
)
@click.option("--service-account-jwks-uri", "jwks_uri", metavar="URL", help="The first issuer's jwks_uri.")
@click.option(
    "--kubeconfig",
    type=FILE,
    help="The workload cluster whose keys are read, or with --clusters-base-url the management cluster.",
)
@click.option("--in-cluster", is_flag=True, help="The same, by the service account of the pod that we run in.")
@click.option(
    "--clusters-base-url",
    metavar="URL",
    help="Serve every workload cluster of a management cluster: C in namespace N is the issuer URL/N/C.",
)
@click.option("--namespace", help="Look for the clusters' kubeconfig Secrets there only.")
@click.option(
    "--kubeconfig-secret-suffix",
    default="-kubeconfig",
    help="How the Secrets' names end: have narrow kubeconfigs under another ending.",
)
@click.option(
    "--allowed-addresses",
    help="Networks, separated by commas, that these kubeconfigs may lead to although they are loopback, link-local, "
    "a cloud's own or of the pod (environment variable POD_IPS).",
)
@click.option("--bind-address", type=Address(), default=":8443", help="host:port of the documents.")
@click.option("--max-age", type=int, default=MAX_AGE, help="Seconds that others may keep a document.")
@click.option("--period", type=POSITIVE, default=60.0, help="Seconds between two readings of an API server.")
@click.option(
    "--max-stale",
    type=POSITIVE,
    default=86400.0,
    help="Seconds that keys are served that cannot be read again.",
)
@tls_options(required=False)
@server
async def serve(**flags: Any) -> None:  # noqa: ANN401 - click passes what the options' types make
    """Serve OpenID configuration and key set of service accounts' issuers.

    Keys come from files, from one API server, or from those of all workload clusters. Every client gets them: they are
    public, and an issuer's tokens can be verified by them without asking its API server.
    """
    settings = ServeSettings(
        address=flags["bind_address"],
        source=_source(flags),
        certificate=flags["tls_cert_file"],
        key=flags["tls_private_key_file"],
        health=flags["health_bind_address"],
        max_age=flags["max_age"],
        period=flags["period"],
        max_stale=flags["max_stale"],
    )
    await app.run(settings, lambda: api_client(flags["kubeconfig"]), started=lambda _: None)


def _source(flags: dict[str, Any]) -> KeysSource | KubeconfigSecretsSource:
    """Return where the keys come from; raises ``SettingsError`` and ``UrlError``."""
    files: tuple[Path, ...] = flags["files"]
    base: str | None = flags["clusters_base_url"]
    if [bool(files), flags["kubeconfig"] is not None, flags["in_cluster"]].count(True) != 1:
        raise SettingsError(
            "expected one source of keys: --service-account-key-file, --kubeconfig or --in-cluster, got none or several"
        )
    if not base:
        issuers: tuple[str, ...] = flags["issuers"]
        if not issuers:
            raise SettingsError("expected --service-account-issuer, the URL of the issuer in its tokens, got none")
        first, *others = issuers
        served = issuer_paths(first, flags["jwks_uri"]), *map(issuer_paths, others)
        return KeysSource(issuers=served, files=files)
    if files or flags["issuers"] or flags["jwks_uri"]:
        raise SettingsError(
            "--clusters-base-url: expected --kubeconfig or --in-cluster beside it, and no issuer, key set or key file: "
            "each cluster's issuer is URL/NAMESPACE/NAME"
        )
    return KubeconfigSecretsSource(
        base_url=issuer_url(base.removesuffix("/")),
        namespace=flags["namespace"],
        secret_suffix=flags["kubeconfig_secret_suffix"],
        addresses=_addresses(flags["allowed_addresses"] or ""),
    )


def _addresses(allowed: str) -> AddressRules:
    pod_ips = os.environ.get(POD_IPS, "")
    try:
        own = parse_pod_ips(pod_ips)
    except ValueError:
        raise SettingsError(f"{POD_IPS}: expected IP addresses separated by commas, got {pod_ips!r}") from None
    try:
        return AddressRules(tuple(parse_network(word.strip()) for word in allowed.split(",") if word.strip()), own)
    except ValueError as error:
        raise SettingsError(
            f"--allowed-addresses: expected IP addresses and networks such as 127.0.0.0/8, got: {error}"
        ) from None
