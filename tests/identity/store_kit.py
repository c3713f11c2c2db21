"""Stores of every kind, as real as they come here: moto's S3, azurite's blobs, a ConfigMap, a directory."""

from __future__ import annotations

import subprocess
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, cast

import botocore.session
from azure.core.credentials import AzureNamedKeyCredential
from azure.storage.blob import BlobServiceClient
from moto.moto_server.threaded_moto_server import ThreadedMotoServer
from node_kit import INSTALLED, NODE, need
from polling import eventually

__all__ = ["ACCOUNT", "AZURITE_KEY", "BUCKET", "azurite", "bucket_client", "containers", "moto"]

BUCKET: Final = "issuers"
LOOPBACK: Final = "127.0.0.1"
ACCOUNT: Final = "devstoreaccount1"
AZURITE_KEY: Final = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
"""The key that azurite's documentation gives for its one account."""


@contextmanager
def moto() -> Generator[str]:
    """Run moto with one bucket; gives its URL."""
    server = ThreadedMotoServer(LOOPBACK, 0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    url = f"http://{host}:{port}"
    try:
        bucket_client(url).create_bucket(Bucket=BUCKET)
        yield url
    finally:
        server.stop()


def bucket_client(url: str) -> Any:
    session = cast("Any", botocore.session.Session())
    return session.create_client(
        "s3",
        endpoint_url=url,
        region_name="us-east-1",
        aws_access_key_id="AKIAEXAMPLE",
        aws_secret_access_key="none",
    )


@contextmanager
def azurite(directory: Path) -> Generator[str]:
    """Run azurite with one public container; gives its account's URL."""
    need("azurite")
    main = INSTALLED / "node_modules" / "azurite" / "dist" / "src" / "blob" / "main.js"
    log = directory / "azurite.log"
    arguments = [
        str(NODE), str(main), "--blobHost", LOOPBACK, "--blobPort", "0",
        "--skipApiVersionCheck", "--inMemoryPersistence", "--disableTelemetry",
    ]  # fmt: skip
    with log.open("wb") as output:
        process = subprocess.Popen(arguments, cwd=directory, stdout=output, stderr=subprocess.STDOUT)
        try:
            url = f"{_address(log, process)}/{ACCOUNT}"
            cast("Any", containers(url)).create_container(BUCKET, public_access="blob")
            yield url
        finally:
            process.terminate()
            process.wait(10)


def containers(url: str) -> BlobServiceClient:
    return BlobServiceClient(url, credential=AzureNamedKeyCredential(ACCOUNT, AZURITE_KEY))


def _address(log: Path, process: subprocess.Popen[bytes]) -> str:
    """Wait until it says where it listens."""
    word = "successfully listens on "

    def said() -> str:
        return log.read_text(encoding="utf-8", errors="replace")

    eventually(lambda: word in said() or process.poll() is not None, "the port", state=said)
    assert word in said(), said()
    return said().partition(word)[2].split()[0].rstrip("/")
