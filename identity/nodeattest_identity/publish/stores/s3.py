"""S3, or what speaks its protocol: each object by conditional writes.

Promises: an object is created only where none is (``If-None-Match: *``) and replaced only if it is the version that was
read (``If-Match``). Credentials are boto3's own chain, and never shown. Whatever goes wrong is a ``PublishError`` that
says whose matter it is. Throttling is waited out by botocore (four attempts), then ``StoreUnavailableError``.
Leaves to others: who may read the bucket in public: policy, CloudFront (docs/issuer-publish.md).
Source: Amazon S3 User Guide, "Conditional writes"; API Reference PutObject, GetObject ("Permissions": without
s3:ListBucket a missing object is 403) and "Error responses". Library: botocore, in the extra ``aws``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, TypeVar, cast
from urllib.parse import urlsplit

import botocore.session
from botocore import exceptions
from botocore.config import Config

from nodeattest_identity.publish.store import (
    MAX_OBJECT,
    PublishError,
    StoredObject,
    StoreRefusedError,
    StoreUnavailableError,
    WriteConflictError,
)
from nodeattest_identity.publish.stores.threads import CONNECT, READ, in_thread

__all__ = ["S3Store"]

T = TypeVar("T")

_ATTEMPTS: Final = 4
_MISSING: Final = frozenset({"NoSuchKey", "404"})
_LOST: Final = frozenset({"PreconditionFailed", "ConditionalRequestConflict", "412"})
_BUSY: Final = frozenset(
    {"SlowDown", "Throttling", "ThrottlingException", "RequestLimitExceeded", "ServiceUnavailable"}
)
_NO_CREDENTIALS: Final = (
    exceptions.NoCredentialsError,
    exceptions.PartialCredentialsError,
    exceptions.ProfileNotFound,
    exceptions.CredentialRetrievalError,
    exceptions.TokenRetrievalError,
    exceptions.SSOError,
)
_SERVER_ERROR: Final = 500
_TOO_MANY: Final = 429
_RIGHTS: Final = (
    "it needs s3:GetObject and s3:PutObject on the objects and s3:ListBucket on the bucket, without which S3 says 403 "
    "for an object that is not there (docs/issuer-publish.md, S3)"
)
_REMEDIES: Final = {
    "AccessDenied": _RIGHTS,
    "AllAccessDisabled": _RIGHTS,
    "403": _RIGHTS,
    "NoSuchBucket": "make the bucket first, or check its name and account",
    "PermanentRedirect": "the bucket is in another region: say --region",
    "AuthorizationHeaderMalformed": "the bucket is in another region: say --region",
    "IllegalLocationConstraintException": "the bucket is in another region: say --region",
    "RequestTimeTooSkewed": "set this machine's clock: S3 takes 15 minutes of difference",
    "RequestExpired": "set this machine's clock",
    "InvalidAccessKeyId": "the access key is not known: check AWS_ACCESS_KEY_ID or the profile",
    "SignatureDoesNotMatch": "the secret key is not the access key's",
    "ExpiredToken": "the credentials have expired: get new ones",
    "NotImplemented": "this server knows no conditional writes, without which two publishers overwrite each other",
}

_Shape = Mapping[str, Any]
"""What botocore gives: dicts by S3's own names."""


class S3Store:
    """One prefix of one bucket; implements ``ObjectStore``."""

    def __init__(
        self,
        bucket: str,
        prefix: str,
        *,
        region: str | None = None,
        endpoint_url: str | None = None,
        attempts: int = _ATTEMPTS,
    ) -> None:
        """``endpoint_url``: of a server that is not AWS's; whose authority it is AWS_CA_BUNDLE says, as boto3 does."""
        self._attempts = attempts
        self.name: Final = f"s3://{bucket}/{prefix}".rstrip("/")
        self._bucket = bucket
        self._prefix = prefix
        self._region = region
        self._endpoint = endpoint_url
        self._made: Any = None

    async def read(self, path: str) -> StoredObject | None:
        """Read an object."""
        return await in_thread(self.name, lambda: self._reported(path, lambda: self._read(path)))

    async def write(
        self, path: str, body: bytes, *, content_type: str, cache_control: str, version: str | None
    ) -> None:
        """Replace an object."""
        condition = {"IfNoneMatch": "*"} if version is None else {"IfMatch": version}
        order = {"Body": body, "ContentType": content_type, "CacheControl": cache_control, **condition}
        await in_thread(self.name, lambda: self._reported(path, lambda: self._put(path, order), writing=True))

    async def aclose(self) -> None:
        """Close the connections."""
        if self._made is not None:
            self._made.close()
            self._made = None

    def _read(self, path: str) -> StoredObject | None:
        try:
            answer: _Shape = self._client().get_object(Bucket=self._bucket, Key=self._key(path))
        except exceptions.ClientError as error:
            if _code(error) in _MISSING:
                return None
            raise
        with answer["Body"] as body:
            data = cast("bytes", body.read(MAX_OBJECT + 1))
        if len(data) > MAX_OBJECT:
            raise StoreRefusedError(f"{self.name}: {path}: expected at most {MAX_OBJECT} bytes, got more")
        return StoredObject(
            body=data,
            version=str(answer["ETag"]),
            content_type=str(answer.get("ContentType", "")),
            cache_control=str(answer.get("CacheControl", "")),
        )

    def _put(self, path: str, order: Mapping[str, object]) -> None:
        self._client().put_object(Bucket=self._bucket, Key=self._key(path), **order)

    def _key(self, path: str) -> str:
        return f"{self._prefix}/{path}" if self._prefix else path

    def _client(self) -> Any:  # noqa: ANN401 - botocore makes its classes at run time
        if self._made is None:
            session = cast("Any", botocore.session.Session())
            if session.get_credentials() is None:
                raise exceptions.NoCredentialsError
            self._made = session.create_client(
                "s3",
                region_name=self._region or session.get_config_variable("region") or "us-east-1",
                endpoint_url=self._endpoint,
                config=Config(
                    connect_timeout=CONNECT,
                    read_timeout=READ,
                    retries={"mode": "standard", "total_max_attempts": self._attempts},
                    # Not every server knows checksums in trailers; TLS and reading back guard the bytes.
                    request_checksum_calculation="when_required",
                    response_checksum_validation="when_required",
                ),
            )
        return self._made

    def _reported(self, path: str, call: Callable[[], T], *, writing: bool = False) -> T:
        """Let no exception of botocore through."""
        where = f"{self.name}: {path}"
        try:
            return call()
        except exceptions.ClientError as error:
            raise _refused(where, error, writing=writing) from None
        except _NO_CREDENTIALS:
            raise StoreRefusedError(
                f"{where}: expected AWS credentials, got none; give AWS_PROFILE, AWS_ACCESS_KEY_ID and "
                "AWS_SECRET_ACCESS_KEY, aws sso login, or a role (IRSA, instance profile)"
            ) from None
        except exceptions.ParamValidationError:
            raise StoreRefusedError(f"{where}: expected a bucket's name, got one that S3 does not allow") from None
        except exceptions.SSLError:
            raise StoreRefusedError(
                f"{where}: expected a certificate of {self._address()} that is trusted here, got another; "
                "AWS_CA_BUNDLE names the CA"
            ) from None
        except (exceptions.BotoCoreError, OSError):
            raise StoreUnavailableError(
                f"{where}: expected an answer of {self._address()}, got none; check --endpoint-url, --region and the "
                "network"
            ) from None

    def _address(self) -> str:
        """Name the server that is asked, without what a URL may hold besides."""
        url = self._endpoint if self._made is None else str(self._made.meta.endpoint_url)
        return urlsplit(url or "").netloc.rpartition("@")[2] or "S3"


def _code(error: exceptions.ClientError) -> str:
    answer = cast("_Shape", error.response)
    return str(cast("_Shape", answer.get("Error", {})).get("Code", ""))


def _refused(where: str, error: exceptions.ClientError, *, writing: bool) -> PublishError:
    """Tell whose matter an answer is."""
    answer = cast("_Shape", error.response)
    code = _code(error)
    status = int(cast("_Shape", answer.get("ResponseMetadata", {})).get("HTTPStatusCode", 0))
    if code in _LOST or (writing and code in _MISSING):
        return WriteConflictError(f"{where} was written by somebody else meanwhile")
    if code not in _REMEDIES and (code in _BUSY or status >= _SERVER_ERROR or status == _TOO_MANY):
        return StoreUnavailableError(f"{where}: S3 is busy ({status} {code[:40]!a})")
    return StoreRefusedError(
        f"{where}: S3 says {status} {code[:40]!a}; {_REMEDIES.get(code, 'see S3, Error responses')}"
    )
