"""What ``issuer publish`` and ``issuer rotate`` take alike: an issuer, its place, keys in files, durations and times.

Promises: what is wrong with any of it is a ``UserError`` of one line.
"""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TypeVar

import click

from nodeattest_cli.connection import Connection, cluster_options
from nodeattest_cli.errors import UserError
from nodeattest_identity.issuer.keys import MAX_SIZE, KeysError, VerifyingKey, read_pem
from nodeattest_identity.issuer.urls import default_jwks_uri
from nodeattest_identity.publish.store import ObjectStore
from nodeattest_identity.publish.store_location import FORMS, StoreAccess, open_store, parse_location
from nodeattest_kube.client import ApiClient, KubeconfigError

__all__ = ["Place", "moment", "place_options", "read_keys"]

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """An issuer and where its documents stand."""

    issuer: str
    jwks_uri: str
    to: str
    region: str | None
    endpoint_url: str | None
    connection: Connection
    in_cluster: bool

    @classmethod
    def of(cls, flags: dict[str, object]) -> Place:
        """Take the options of ``place_options``."""

        def text(name: str) -> str | None:
            value = flags[name]
            return value if isinstance(value, str) and value else None

        issuer = text("service_account_issuer") or ""
        return cls(
            issuer=issuer,
            jwks_uri=text("service_account_jwks_uri") or default_jwks_uri(issuer),
            to=text("to") or "",
            region=text("region"),
            endpoint_url=text("endpoint_url"),
            connection=Connection(text("kubeconfig"), text("context")),
            in_cluster=flags["in_cluster"] is True,
        )

    @asynccontextmanager
    async def opened(self) -> AsyncGenerator[ObjectStore]:
        """Open the store, and close it with the client that it may need; raises ``PublishError`` and ``UserError``."""
        clients: list[ApiClient] = []

        def cluster() -> ApiClient:
            clients.append(self._in_cluster() if self.in_cluster else self.connection.client())
            return clients[-1]

        access = StoreAccess(
            region=self.region,
            endpoint_url=self.endpoint_url,
            azure_key=os.environ.get("AZURE_STORAGE_KEY") or None,
            cluster=cluster,
        )
        store = open_store(parse_location(self.to), access)
        try:
            yield store
        finally:
            await store.aclose()
            for client in clients:
                await client.close()

    @staticmethod
    def _in_cluster() -> ApiClient:
        try:
            return ApiClient.in_cluster(os.environ)
        except KubeconfigError as error:
            raise UserError(str(error)) from None


def place_options(command: Callable[..., T]) -> Callable[..., T]:
    """Add what names an issuer and its place."""
    command = cluster_options(command)
    for option in reversed(
        [
            click.option(
                "--service-account-issuer", required=True, metavar="URL", help="The issuer, as kube-apiserver's."
            ),
            click.option(
                "--service-account-jwks-uri", metavar="URL", help="Its key set  [the issuer's URL + /openid/v1/jwks]"
            ),
            click.option("--to", required=True, metavar="PLACE", help=f"Where: {FORMS}."),
            click.option("--region", help="Of the bucket  [AWS_REGION, the profile's]"),
            click.option("--in-cluster", is_flag=True, help="Write the ConfigMap by the service account of our pod."),
            click.option("--endpoint-url", metavar="URL", help="Of an S3 that is not AWS's, or of the blob account."),
        ]
    ):
        command = option(command)
    return command


def read_keys(paths: tuple[Path, ...]) -> tuple[VerifyingKey, ...]:
    """Read key files as kube-apiserver does; raises ``UserError``."""
    keys: list[VerifyingKey] = []
    for path in paths:
        try:
            with path.open("rb") as file:
                keys += read_pem(file.read(MAX_SIZE + 1))
        except OSError as error:
            got = os.strerror(error.errno) if error.errno else "something else"
            raise UserError(
                f"{path}: expected a file with keys that may be read here, got {got!r}; give the path of the file, its "
                "public half will do"
            ) from None
        except KeysError as error:
            raise UserError(f"{path}: {error}") from None
    return tuple(keys)


def moment(at: int | None) -> str:
    """Write a time; nothing for none."""
    return "" if at is None else datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
