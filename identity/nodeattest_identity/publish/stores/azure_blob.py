"""Azure Blob Storage: each blob by its ETag.

Promises: a blob is created only where none is and replaced only if it is the version that was read. Credentials are
azure-identity's chain (workload identity, managed identity, ``az login``) or an account key, and never shown. Whatever
goes wrong is a ``PublishError`` that says whose matter it is; throttling is waited out by the library, then
``StoreUnavailableError``.
Leaves to others: who may read the container in public (docs/issuer-publish.md).
Source: Azure Storage REST API, "Put Blob", "Specifying conditional headers", "Common REST API error codes". Library:
azure-storage-blob and azure-identity, in the extra ``azure``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, TypeVar, cast
from urllib.parse import urlsplit

from azure.core import MatchConditions, exceptions
from azure.core.credentials import AzureNamedKeyCredential
from azure.identity import DefaultAzureCredential
from azure.storage.blob import BlobServiceClient, ContentSettings

from nodeattest_identity.publish.store import (
    MAX_OBJECT,
    PublishError,
    StoredObject,
    StoreRefusedError,
    StoreUnavailableError,
    WriteConflictError,
)
from nodeattest_identity.publish.stores.threads import CONNECT, READ, in_thread

__all__ = ["AzureBlobStore"]

T = TypeVar("T")

_RETRIES: Final = 3
_TOO_MANY, _SERVER_ERROR = 429, 500
_FORBIDDEN: Final = 403
_REMEDIES: Final = {
    "ContainerNotFound": "make the container first",
    "AuthenticationFailed": "check the credentials and this machine's clock: Azure takes 15 minutes of difference",
    "AuthorizationPermissionMismatch": "it needs the role Storage Blob Data Contributor on the container",
    "AuthorizationFailure": "the storage account's firewall or the key does not let us in",
    "KeyBasedAuthenticationNotPermitted": "the storage account takes no keys: use an identity",
    "PublicAccessNotPermitted": "the storage account forbids public containers",
}


class AzureBlobStore:
    """One prefix of one container; implements ``ObjectStore``."""

    def __init__(
        self,
        account: str,
        container: str,
        prefix: str,
        *,
        endpoint_url: str | None = None,
        key: str | None = None,
        retries: int = _RETRIES,
    ) -> None:
        """``endpoint_url``: of the account in another cloud; ``key``: the account's, instead of an identity."""
        self.name: Final = f"azblob://{account}/{container}/{prefix}".rstrip("/")
        self._container = container
        self._prefix = prefix
        self._account = account
        self._endpoint = endpoint_url or f"https://{account}.blob.core.windows.net"
        self._key = key
        self._retries = retries
        self._made: BlobServiceClient | None = None

    async def read(self, path: str) -> StoredObject | None:
        """Read a blob."""
        return await in_thread(self.name, lambda: self._reported(path, lambda: self._read(path)))

    async def write(
        self, path: str, body: bytes, *, content_type: str, cache_control: str, version: str | None
    ) -> None:
        """Replace a blob."""
        settings = ContentSettings(content_type=content_type, cache_control=cache_control)
        condition: dict[str, object] = {"overwrite": False}
        if version is not None:
            condition = {"overwrite": True, "etag": version, "match_condition": MatchConditions.IfNotModified}

        def put() -> None:
            self._blob(path).upload_blob(body, content_settings=settings, **condition)

        await in_thread(self.name, lambda: self._reported(path, put, writing=True))

    async def aclose(self) -> None:
        """Close the connections."""
        if self._made is not None:
            self._made.close()
            self._made = None

    def _read(self, path: str) -> StoredObject | None:
        try:
            opened = self._blob(path).download_blob(offset=0, length=MAX_OBJECT + 1)
        except exceptions.ResourceNotFoundError as error:
            if _code(error) == "BlobNotFound":
                return None
            raise
        body = cast("bytes", opened.readall())
        if len(body) > MAX_OBJECT:
            raise StoreRefusedError(f"{self.name}: {path}: expected at most {MAX_OBJECT} bytes, got more")
        settings = opened.properties.content_settings
        return StoredObject(
            body=body,
            version=str(opened.properties.etag),
            content_type=settings.content_type or "",
            cache_control=settings.cache_control or "",
        )

    def _blob(self, path: str) -> Any:  # noqa: ANN401 - the library's types are partly unknown
        if self._made is None:
            named = AzureNamedKeyCredential(self._account, self._key) if self._key else DefaultAzureCredential()
            self._made = BlobServiceClient(
                self._endpoint,
                credential=named,
                connection_timeout=CONNECT,
                read_timeout=READ,
                retry_total=self._retries,
                initial_backoff=1,  # seconds; else three retries take longer than a call may (``threads``)
                increment_base=2,
            )
        name = f"{self._prefix}/{path}" if self._prefix else path
        return self._made.get_blob_client(self._container, name)

    def _reported(self, path: str, call: Callable[[], T], *, writing: bool = False) -> T:
        """Let no exception of the library through."""
        where = f"{self.name}: {path}"
        try:
            return call()
        except (exceptions.ResourceExistsError, exceptions.ResourceModifiedError):
            raise WriteConflictError(f"{where} was written by somebody else meanwhile") from None
        except exceptions.ClientAuthenticationError as error:
            raise StoreRefusedError(
                f"{where}: expected credentials that Azure takes, got none ({_code(error) or 'no identity here'}); "
                "use a workload identity, a managed identity, az login, or AZURE_STORAGE_KEY"
            ) from None
        except exceptions.HttpResponseError as error:
            raise _refused(where, error, writing=writing) from None
        except (exceptions.AzureError, OSError):
            address = urlsplit(self._endpoint).netloc.rpartition("@")[2]
            raise StoreUnavailableError(
                f"{where}: expected an answer of {address}, got none; check the account's name, --endpoint-url and "
                "the network"
            ) from None
        except ValueError:
            raise StoreRefusedError(f"{where}: expected an account, a container and a base64 key, got others") from None


def _code(error: exceptions.AzureError) -> str:
    found: object = getattr(error, "error_code", None)
    return str(getattr(found, "value", found) or "")[:60]


def _refused(where: str, error: exceptions.HttpResponseError, *, writing: bool) -> PublishError:
    """Tell whose matter an answer is."""
    code, status = _code(error), error.status_code or 0
    if writing and code == "BlobNotFound":
        return WriteConflictError(f"{where} was written by somebody else meanwhile")
    if status == _TOO_MANY or status >= _SERVER_ERROR:
        return StoreUnavailableError(f"{where}: Azure is busy ({status} {code})")
    remedy = _REMEDIES.get(code, "see Azure Storage, Common REST API error codes")
    return StoreRefusedError(f"{where}: Azure says {status} {code}; {remedy}")
