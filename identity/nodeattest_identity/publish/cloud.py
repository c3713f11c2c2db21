"""S3, Azure Blob Storage and Google Cloud Storage, by obstore.

Credentials are the cloud's own chain (boto3, azure-identity, Google's application default credentials) or an account
key. No text of a library becomes part of an error, only a status and an error code. Every call ends in bounded time.
Source: Amazon S3 User Guide, "Conditional writes", and API Reference, "Error responses"; Azure Storage REST API,
"Specifying conditional headers" and "Common REST API error codes"; Cloud Storage, "Request preconditions".
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Final

import obstore
from obstore import exceptions
from obstore.store import AzureStore, GCSStore, S3Store

from nodeattest_identity.publish import store as stores

if TYPE_CHECKING:
    from obstore import UpdateVersion
    from obstore.auth.azure import AzureCredentialProvider
    from obstore.auth.boto3 import Boto3CredentialProvider
    from obstore.store import AzureConfig, ClientConfig, GCSConfig, RetryConfig, S3Config


_Store = S3Store | AzureStore | GCSStore
_RETRY: Final[RetryConfig] = {
    "max_retries": 3,
    "retry_timeout": timedelta(seconds=30),
    "backoff": {"init_backoff": timedelta(milliseconds=200), "max_backoff": timedelta(seconds=4), "base": 2},
}
_TOTAL: Final = 60.0
"""Seconds of one call with its retries and the cloud's credentials."""
_STATUS: Final = re.compile(r"status code: ([0-9]{3})\b", re.ASCII)
_CODE: Final = re.compile(r"<Code>([A-Za-z]{1,60})</Code>", re.ASCII)
_TOO_MANY_REQUESTS, _SERVER_ERROR, _NOT_IMPLEMENTED = 429, 500, 501
_CREDENTIALS: Final = {
    "s3": "AWS_PROFILE, AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, aws sso login, or a role (IRSA, instance profile)",
    "azblob": "a workload identity, a managed identity, az login, or AZURE_STORAGE_KEY",
    "gs": "GOOGLE_APPLICATION_CREDENTIALS, gcloud auth application-default login, or the machine's service account",
}
_RIGHTS: Final = {
    "s3": "s3:GetObject and s3:PutObject on the objects and s3:ListBucket on the bucket, without which S3 answers 403 "
    "for a missing object",
    "azblob": "the role Storage Blob Data Contributor on the container, and its firewall must let this machine in",
    "gs": "storage.objects.get, storage.objects.create and storage.objects.delete",
}
_REMEDIES: Final = {
    "NoSuchBucket": "make the bucket first, or check its name",
    "ContainerNotFound": "make the container first, or check its name",
    "RequestTimeTooSkewed": "set this machine's clock: the cloud accepts 15 minutes of difference",
    "ExpiredToken": "the credentials have expired: get new ones",
    "NotImplemented": "this server has no conditional writes, without which two publishers overwrite each other",
    **dict.fromkeys(
        ("PermanentRedirect", "AuthorizationHeaderMalformed", "IllegalLocationConstraintException"),
        "the bucket is in another region: give --region",
    ),
}
_MISSING_ROOT: Final = frozenset({"NoSuchBucket", "ContainerNotFound"})


class CloudStore(stores.ObjectStore):
    """One prefix of one bucket or container."""

    def __init__(
        self,
        location: stores.StoreLocation,
        access: stores.StoreAccess,
        *,
        retry: RetryConfig = _RETRY,
        request_timeout: timedelta = timedelta(seconds=10),
    ) -> None:
        """``request_timeout`` is for one attempt."""
        self.name = str(location)
        self._location, self._access, self._retry = location, access, retry
        self._request_timeout = request_timeout
        self._opened: _Store | None = None

    async def read(self, path: str, /) -> stores.StoredObject | None:
        async with self._reported(path):
            try:
                found = await obstore.get_async(await self._store(), path)
            except FileNotFoundError as error:
                if _code(error) in _MISSING_ROOT:
                    raise
                return None
            if found.meta["size"] > stores.MAX_OBJECT:
                raise stores.StoreRefusedError(
                    f"{self.name}: {path}: expected at most {stores.MAX_OBJECT} bytes, got more"
                )
            if found.meta["e_tag"] is None and found.meta["version"] is None:
                raise stores.StoreRefusedError(
                    f"{self.name}: {path}: expected an ETag, got none; conditional writes need one: use another server"
                )
            return stores.StoredObject(
                body=bytes(await found.bytes_async()),
                e_tag=found.meta["e_tag"],
                generation=found.meta["version"],
                content_type=found.attributes.get("Content-Type", ""),
                cache_control=found.attributes.get("Cache-Control", ""),
            )

    async def write(self, write: stores.Write, /) -> None:
        async with self._reported(write.path):
            try:
                await obstore.put_async(
                    await self._store(),
                    write.path,
                    write.body,
                    attributes={"Content-Type": write.content_type, "Cache-Control": write.cache_control},
                    mode="create" if write.replaces is None else _version(write.replaces),
                )
            except FileNotFoundError as error:
                if _code(error) in _MISSING_ROOT:
                    raise
                raise self._conflict(write.path) from None

    async def _store(self) -> _Store:
        """Open the store once; the cloud's credentials are looked up in a thread."""
        if self._opened is None:
            try:
                self._opened = await asyncio.to_thread(self._open)
            except exceptions.BaseError:  # a key or a file with credentials that cannot be read
                raise self._no_credentials() from None
        return self._opened

    def _open(self) -> _Store:
        location, endpoint, retry = self._location, self._access.endpoint_url, self._retry
        root, prefix = location.container or location.root, location.prefix or None
        options: ClientConfig = {"connect_timeout": timedelta(seconds=5), "timeout": self._request_timeout}
        options["allow_http"] = endpoint is not None and endpoint.startswith("http://")
        if location.kind == "gs":
            google: GCSConfig = {} if endpoint is None else {"base_url": endpoint}
            return GCSStore(root, prefix=prefix, config=google, client_options=options, retry_config=retry)
        if location.kind == "s3":
            aws, login = self._amazon()
            return S3Store(
                root, prefix=prefix, config=aws, client_options=options, retry_config=retry, credential_provider=login
            )
        azure, provider = self._azure()
        return AzureStore(
            root, prefix=prefix, config=azure, client_options=options, retry_config=retry, credential_provider=provider
        )

    def _amazon(self) -> tuple[S3Config, Boto3CredentialProvider]:
        from botocore.exceptions import BotoCoreError
        from obstore.auth.boto3 import Boto3CredentialProvider

        try:
            credentials = Boto3CredentialProvider()
        except (BotoCoreError, ValueError):
            raise self._no_credentials() from None
        config: S3Config = {"conditional_put": "etag"}
        if self._access.region is not None:
            config["region"] = credentials.config["region"] = self._access.region
        if self._access.endpoint_url is not None:
            config["aws_endpoint_url_s3"] = self._access.endpoint_url
        return config, credentials

    def _azure(self) -> tuple[AzureConfig, AzureCredentialProvider | None]:
        config: AzureConfig = {"account_name": self._location.root}
        if self._access.endpoint_url is not None:
            config["endpoint"] = self._access.endpoint_url
        if self._access.azure_key is not None:
            return config | {"account_key": self._access.azure_key}, None
        from obstore.auth.azure import AzureCredentialProvider

        return config, AzureCredentialProvider()

    @asynccontextmanager
    async def _reported(self, path: str) -> AsyncGenerator[None]:
        """Raise a ``PublishError`` for every error of a library, and for a call that does not end."""
        try:
            async with asyncio.timeout(_TOTAL):
                yield
        except TimeoutError:
            raise stores.StoreUnavailableError(
                f"{self.name}: {path}: expected an answer in {_TOTAL:.0f} s, got none"
            ) from None
        except (exceptions.AlreadyExistsError, exceptions.PreconditionError):
            raise self._conflict(path) from None
        except exceptions.UnauthenticatedError:
            raise self._no_credentials() from None
        except ImportError:
            raise stores.StoreRefusedError(
                "--to: expected the libraries of this cloud's credentials, got none; install requirements-cli.txt of "
                "the release (docs/install.md)"
            ) from None
        except (exceptions.BaseError, OSError, ValueError) as error:
            raise self._error(path, error) from None

    def _conflict(self, path: str) -> stores.WriteConflictError:
        return stores.WriteConflictError(f"{self.name}: {path} was written by another program meanwhile")

    def _no_credentials(self) -> stores.StoreRefusedError:
        return stores.StoreRefusedError(
            f"{self.name}: expected credentials that the store accepts, got none; give "
            f"{_CREDENTIALS[self._location.kind]}"
        )

    def _error(self, path: str, error: Exception) -> stores.StoreRefusedError | stores.StoreUnavailableError:
        where, text, code = f"{self.name}: {path}", str(error), _code(error)
        found = _STATUS.search(text)
        if found is None:
            message = (
                f"{where}: expected an answer of an object store, got none, or another; check the names in --to, "
                "--endpoint-url, --region, the CA (SSL_CERT_FILE) and the network"
            )
            is_silent = "error sending request" in text or "error decoding" in text
            return stores.StoreUnavailableError(message) if is_silent else stores.StoreRefusedError(message)
        status, answer = int(found[1]), f"{found[1]} {code}".rstrip()
        if status == _TOO_MANY_REQUESTS or (status >= _SERVER_ERROR and status != _NOT_IMPLEMENTED):
            return stores.StoreUnavailableError(f"{where}: the store is busy ({answer})")
        remedy = _REMEDIES.get(code, "see the error codes of the store")
        if code not in _REMEDIES and isinstance(error, exceptions.PermissionDeniedError):
            remedy = f"it needs {_RIGHTS[self._location.kind]} (docs/issuer.md#publish)"
        if status == _NOT_IMPLEMENTED:
            remedy = _REMEDIES["NotImplemented"]
        return stores.StoreRefusedError(f"{where}: got {answer}; {remedy}")


def _version(read: stores.StoredObject) -> UpdateVersion:
    version: UpdateVersion = {}
    if read.e_tag is not None:
        version["e_tag"] = read.e_tag
    if read.generation is not None:
        version["version"] = read.generation
    return version


def _code(error: Exception) -> str:
    found = _CODE.search(str(error))
    return found[1] if found else ""
