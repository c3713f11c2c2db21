"""Tokens for Azure's Resource Manager, by azure-identity: a workload's or a machine's identity.

Source: Azure, "Workload identity federation", "Managed identities"; azure-identity's documentation.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from nodeattest_providers.azure.config import AzurePlatform, ManagedIdentity
from nodeattest_providers.cloud_http import SingleFlight
from nodeattest_providers.errors import Unavailable, platform_unavailable
from nodeattest_providers.platform import CallOutcome, ObserveCall

if TYPE_CHECKING:
    from azure.core.credentials_async import AsyncTokenCredential

_TIMEOUT: Final = 8.0
_MARGIN: Final = 300.0
"""Seconds before its end from which on a token is not used any more."""
_SERVICE: Final = "authority"


class Tokens:
    """Gives tokens for one audience."""

    def __init__(
        self, configuration: AzurePlatform, *, observe: ObserveCall, wall: Callable[[], float] = time.time
    ) -> None:
        """``wall``: seconds since 1970, which tokens count in."""
        self._configuration = configuration
        self._observe = observe
        self._wall = wall
        self._credential: AsyncTokenCredential | None = None
        self._token: tuple[str, float] | None = None
        self._flights: SingleFlight[str, tuple[str, float]] = SingleFlight()

    async def get(self) -> str:
        """Return a token; raises Unavailable."""
        if self._token is None or self._wall() >= self._token[1] - _MARGIN:
            self._token = await self._flights.share("token", self._fetch)
        return self._token[0]

    def forget(self) -> None:
        """Take another token next time: this one was refused."""
        self._token = None

    async def aclose(self) -> None:
        """End what is under way and close connections."""
        await self._flights.cancel()
        if self._credential is not None:
            await self._credential.close()
            self._credential = None

    async def _fetch(self) -> tuple[str, float]:
        from azure.core.exceptions import AzureError, ClientAuthenticationError

        if self._credential is None:
            self._credential = _make(self._configuration)
        began = time.monotonic()
        outcome = CallOutcome.FAILED
        try:
            async with asyncio.timeout(_TIMEOUT):
                token = await self._credential.get_token(f"{self._configuration.audience}/.default")
            outcome = CallOutcome.OK
        except TimeoutError:
            outcome = CallOutcome.TIMED_OUT
            raise _unavailable(f"gave no token within {_TIMEOUT:g} s") from None
        except ClientAuthenticationError:  # CredentialUnavailableError is one, too
            outcome = CallOutcome.REFUSED
            raise _unavailable("refused the controller's identity") from None
        except (AzureError, OSError, ValueError) as error:
            raise _unavailable(f"gave no token ({type(error).__name__})") from None
        finally:
            self._observe(_SERVICE, outcome, time.monotonic() - began)
        return token.token, float(token.expires_on)


def _make(configuration: AzurePlatform) -> AsyncTokenCredential:
    from azure.core.pipeline.transport import AioHttpTransport
    from azure.identity.aio import ManagedIdentityCredential, WorkloadIdentityCredential

    identity, bundle = configuration.credential, configuration.ca_bundle
    options: dict[str, Any] = {"permit_redirects": False, "retry_total": 0}
    limits = {"connection_timeout": _TIMEOUT, "read_timeout": _TIMEOUT}
    if isinstance(identity, ManagedIdentity):  # by the metadata service of the controller's own machine
        transport = AioHttpTransport(use_env_settings=False, **limits)
        return ManagedIdentityCredential(client_id=identity.client, transport=transport, **options)
    verify = True if bundle is None else str(bundle)
    if configuration.proxy is not None:
        options["proxies"] = {"https": configuration.proxy}
    return WorkloadIdentityCredential(
        tenant_id=identity.tenant,
        client_id=identity.client,
        token_file_path=str(identity.token_file),
        authority=configuration.cloud.authority,
        disable_instance_discovery=True,
        transport=AioHttpTransport(use_env_settings=False, connection_verify=verify, **limits),
        **options,
    )


def _unavailable(what: str) -> Unavailable:
    return platform_unavailable(
        f"Azure's authority {what}",
        remedy="see to platforms.azure.credential in the controller's configuration and to the identity's federation",
        retry_after=15.0,
    )
