"""Keeps the webhook's certificates: the Secret, what is shown, and what API servers are told to believe (``caBundle``).

Promises: every write is conditional, so of replicas that race one wins and the others take what it wrote; every step
may be the last of a process and is gone on with by the next; of the MutatingWebhookConfiguration only ``caBundle`` is
written, of our own configuration only. Nothing of the Secret is logged.
Leaves to others: what is due (``certificates``).
"""

from __future__ import annotations

import asyncio
import base64
import logging
import random
from collections.abc import Callable
from datetime import datetime
from typing import Final

from nodeattest_controller.controllers.bootstrap_config.certificates import (
    CertificateSet,
    Lifetimes,
    advance,
    decode,
    encode,
)
from nodeattest_controller.controllers.bootstrap_config.tls import DynamicCertificate
from nodeattest_controller.logs import fields
from nodeattest_controller.model.objects import items, mapping, text
from nodeattest_kube import paths
from nodeattest_kube.client import AlreadyExists, ApiClient, ApiError, Conflict, Forbidden, Invalid, NotFound
from nodeattest_kube.jsontypes import JsonObject

__all__ = ["SECRET_NAME", "CertRotator"]

SECRET_NAME: Final = "node-attestation-webhook-certificates"
PERIOD: Final = 30.0
"""Seconds between two looks; how long another's change of Secret or configuration may last."""
RETRY: Final = 2.0
"""Seconds until the first repetition of what failed; doubled each time, up to ``PERIOD``."""
_LIFETIMES: Final = Lifetimes()
_ATTEMPTS: Final = 5
"""Of writes that others were faster with, in one go."""
_REMEDY: Final = "apply manifests/webhook"

_LOG: Final = logging.getLogger(__name__)


class CertRotator:
    """Keeps the certificates of one replica in step with those of all."""

    def __init__(
        self,
        client: ApiClient,
        certificate: DynamicCertificate,
        *,
        namespace: str,
        configuration: str,
        names: tuple[str, ...],
        now: Callable[[], datetime],
        lifetimes: Lifetimes = _LIFETIMES,
    ) -> None:
        """``names``: DNS names and addresses by which API servers call us; ``configuration``: our own one's name."""
        self.trouble: str | None = "the certificates are not read yet"
        """What keeps the webhook from being called; None: nothing."""
        self._client = client
        self._certificate = certificate
        self._namespace = namespace
        self._collection = paths.core_path("secrets", namespace=namespace)
        self._secret = paths.core_path("secrets", SECRET_NAME, namespace=namespace)
        self._configuration = paths.object_path(
            "admissionregistration.k8s.io", "v1", "mutatingwebhookconfigurations", configuration
        )
        self._configuration_name = configuration
        self._names = names
        self._now = now
        self._lifetimes = lifetimes
        self._registered: bool | None = None

    async def run(self) -> None:
        """Keep them for ever."""
        wait = RETRY
        while True:
            try:
                await self.refresh()
                self.trouble, wait = None, RETRY
                pause = PERIOD
            except ApiError as error:
                self._tell(_said(error))
                pause, wait = wait, min(wait * 2, PERIOD)
            except Exception:  # noqa: BLE001 - the worker's edge
                _LOG.exception("keeping the webhook's certificates failed")
                self.trouble = "keeping the certificates failed; the log says why"
                pause, wait = wait, min(wait * 2, PERIOD)
            await asyncio.sleep(pause * random.uniform(0.9, 1.1))  # noqa: S311 - so that replicas do not come together

    async def refresh(self) -> None:
        """Take, make or renew what is due, and announce it; raises ``ApiError``.

        At first what the Secret holds is taken and announced; a step that depends on the announcement comes after it.
        """
        held = await self._kept(announced=False)
        if await self._announce(held) and held.following is not None:
            await self._announce(await self._kept(announced=True))

    async def _kept(self, *, announced: bool) -> CertificateSet:
        """Read the Secret, bring it up to date, and show its certificate."""
        for _ in range(_ATTEMPTS):
            secret = await self._read()
            held = decode(mapping(secret, "data")) if secret is not None else None
            due = advance(held, now=self._now(), names=self._names, lifetimes=self._lifetimes, announced=announced)
            if due is not None:
                if not await self._write(secret, due):
                    continue  # somebody was faster: what they wrote counts
                held = due
            assert held is not None  # noqa: S101 - ``advance`` makes what is not there
            if self._certificate.take(held.serving.pem, held.serving.key_pem):
                until = held.serving.certificate.not_valid_after_utc
                _LOG.info("serving certificate taken", extra=fields(names=self._names, until=until))
            return held
        raise Conflict(409, "Conflict", f"Secret {self._namespace}/{SECRET_NAME}: others write it all the time")

    async def _read(self) -> JsonObject | None:
        try:
            return await self._client.get(self._secret)
        except NotFound:
            return None

    async def _write(self, old: JsonObject | None, held: CertificateSet) -> bool:
        """Write the Secret if it still is what was read; tells whether it was."""
        metadata: JsonObject = {"name": SECRET_NAME, "namespace": self._namespace}
        document: JsonObject = {"apiVersion": "v1", "kind": "Secret", "type": "Opaque", "data": encode(held)}
        try:
            if old is None:
                await self._client.create(self._collection, {**document, "metadata": metadata})
            else:
                metadata["resourceVersion"] = text(old, "metadata", "resourceVersion")
                document["type"] = text(old, "type")  # immutable
                await self._client.replace(self._secret, {**document, "metadata": metadata})
        except (AlreadyExists, Conflict, NotFound):
            return False
        _LOG.info("certificates of the webhook written", extra=fields(secret=f"{self._namespace}/{SECRET_NAME}"))
        return True

    async def _announce(self, held: CertificateSet) -> bool:
        """Have the configuration name our CAs; tells whether it does."""
        bundle = base64.b64encode(held.bundle).decode()
        try:
            configuration = await self._client.get(self._configuration)
        except NotFound:
            self._note_registered(there=False)
            return False
        self._note_registered(there=True)
        operations = _operations(configuration, bundle)
        if not operations:
            return True
        try:
            await self._client.json_patch(self._configuration, operations)
        except (Conflict, Invalid, NotFound):  # it changed: the next look sees how
            return False
        _LOG.info("caBundle written", extra=fields(configuration=self._configuration_name))
        return True

    def _note_registered(self, *, there: bool) -> None:
        """Say once when nobody calls us, and once when somebody does."""
        if there == self._registered:
            return
        self._registered = there
        if there:
            _LOG.info("the webhook is registered", extra=fields(configuration=self._configuration_name))
        else:
            remedy = f"{_REMEDY}, or leave bootstrap-config out of --controllers"
            _LOG.warning(
                "no API server calls the webhook: its MutatingWebhookConfiguration is absent",
                extra=fields(configuration=self._configuration_name, remedy=remedy),
            )

    def _tell(self, trouble: str) -> None:
        if trouble != self.trouble:
            _LOG.warning("cannot keep the webhook's certificates", extra=fields(error=trouble, remedy=_REMEDY))
        self.trouble = trouble


def _operations(configuration: JsonObject, bundle: str) -> list[JsonObject]:
    """Return the patch that names our CAs in each webhook; empty where they are named.

    It names the version that it is made for, and so fails on any other (RFC 6902 §4.6).
    """
    changes: list[JsonObject] = [
        {"op": "add", "path": f"/webhooks/{index}/clientConfig/caBundle", "value": bundle}
        for index, webhook in enumerate(items(configuration, "webhooks"))
        if text(webhook, "clientConfig", "caBundle") != bundle
    ]
    version = text(configuration, "metadata", "resourceVersion")
    return [{"op": "test", "path": "/metadata/resourceVersion", "value": version}, *changes] if changes else []


def _said(error: ApiError) -> str:
    return f"{error}; the controller may not: {_REMEDY}" if isinstance(error, Forbidden) else str(error)
