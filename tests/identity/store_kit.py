"""Stores of every cloud, as real as they come here: moto's S3 and azurite's blobs."""

from __future__ import annotations

import base64
import hmac
import http.client
import subprocess
from collections.abc import Generator
from contextlib import contextmanager
from email.utils import formatdate
from pathlib import Path
from typing import Any, Final, cast
from urllib.parse import urlsplit

import botocore.session
from moto.moto_server.threaded_moto_server import ThreadedMotoServer
from node_kit import INSTALLED, NODE, need
from polling import eventually

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
            _create_container(url)
            yield url
        finally:
            process.terminate()
            process.wait(10)


def _create_container(url: str) -> None:
    """Create a container whose blobs are public ("Authorize with Shared Key" of the Azure Storage REST API)."""
    headers = {"x-ms-blob-public-access": "blob", "x-ms-date": formatdate(usegmt=True), "x-ms-version": "2021-12-02"}
    signed = "PUT" + "\n" * 12 + "".join(f"{name}:{value}\n" for name, value in headers.items())
    signed += f"/{ACCOUNT}/{ACCOUNT}/{BUCKET}\nrestype:container"
    mac = base64.b64encode(hmac.digest(base64.b64decode(AZURITE_KEY), signed.encode(), "sha256")).decode()
    connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=10)
    target = f"/{ACCOUNT}/{BUCKET}?restype=container"
    connection.request("PUT", target, headers={**headers, "Authorization": f"SharedKey {ACCOUNT}:{mac}"})
    assert connection.getresponse().status == http.HTTPStatus.CREATED
    connection.close()


def _address(log: Path, process: subprocess.Popen[bytes]) -> str:
    """Wait until it says where it listens."""
    word = "successfully listens on "

    def said() -> str:
        return log.read_text(encoding="utf-8", errors="replace")

    eventually(lambda: word in said() or process.poll() is not None, "the port", state=said)
    assert word in said(), said()
    return said().partition(word)[2].split()[0].rstrip("/")
