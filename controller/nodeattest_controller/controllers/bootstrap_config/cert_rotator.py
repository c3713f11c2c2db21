"""Rotates the webhook's certificates: the Secret, what the webhook serves, and ``caBundle`` of its two configurations.

Promises: every write is conditional, so of replicas that race one wins and the others use what it wrote; a process may
end after any step, and the next one continues; of the configurations only ``caBundle`` is written, of our own ones
only. Without the ValidatingWebhookConfiguration, or the right to write it, policies are not checked when they are
written, and nothing else waits. Nothing of the Secret is logged.
Leaves to others: what is due (``certificates``).
"""

from __future__ import annotations

import base64
import logging
import time
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
from nodeattest_kube.client import ApiClient, ApiError, Conflict, Forbidden, Invalid, Malformed, NotFound
from nodeattest_kube.jsontypes import JsonObject
from nodeattest_kube.periodic import PeriodicReconciler, ResyncConfig
from nodeattest_kube.secret_store import SecretContent, SecretStore

__all__ = ["SECRET_NAME", "CertRotator"]

SECRET_NAME: Final = "node-attestation-webhook-certificates"
RESYNC: Final = ResyncConfig(spread=0.0, period=30.0, min_interval=1.0, retry=2.0, max_retry=30.0)
"""The period is how long another's change of Secret or configuration may last."""
_LIFETIMES: Final = Lifetimes()
_REMEDY: Final = "apply manifests/webhook"
_MUTATING: Final = "mutatingwebhookconfigurations"
_VALIDATING: Final = "validatingwebhookconfigurations"
_ABSENT: Final = {
    _MUTATING: "no API server calls the webhook: its MutatingWebhookConfiguration is absent",
    _VALIDATING: "no API server asks the webhook about policies: its ValidatingWebhookConfiguration is absent",
}

_LOG: Final = logging.getLogger(__name__)


class CertRotator:
    """Keeps the certificates of one replica equal to those of all."""

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
        """``names``: DNS names and addresses by which API servers call us; ``configuration``: our own ones' name."""
        self.trouble: str | None = "the certificates are not read yet"
        """What keeps the webhook from being called; None: nothing."""
        self._client = client
        self._certificate = certificate
        self._store = SecretStore(client, namespace=namespace, name=SECRET_NAME)
        self._configuration_name = configuration
        self._names = names
        self._now = now
        self._lifetimes = lifetimes
        self._registered: dict[str, bool] = {}
        """By resource: whether its configuration is there."""
        self._may_validate = True

    async def run(self) -> None:
        """Keep them up to date until cancelled."""
        await PeriodicReconciler(self, RESYNC, clock=time.monotonic).run()

    async def reconcile(self) -> float | None:
        """Use, make or renew what is due, and announce it; raises ``ApiError``.

        First the content of the Secret is used and announced; a step that depends on the announcement comes after it.
        """
        current = await self._update(announced=False)
        if await self._announce(current) and current.following is not None:
            await self._announce(await self._update(announced=True))
        self.trouble = None
        return None

    async def failed(self, error: ApiError, failures: int, delay: float) -> None:
        """Say what keeps the webhook from being called, and log it once."""
        trouble = f"{error}; the controller may not: {_REMEDY}" if isinstance(error, Forbidden) else str(error)
        if trouble != self.trouble:
            more = fields(error=trouble, remedy=_REMEDY, failures=failures, delay=delay)
            _LOG.warning("cannot keep the webhook's certificates", extra=more)
        self.trouble = trouble

    async def _update(self, *, announced: bool) -> CertificateSet:
        """Bring the Secret up to date, and serve its certificate."""
        written = False

        def next_content(secret: JsonObject | None) -> SecretContent | None:
            nonlocal written
            known = decode(mapping(secret, "data")) if secret is not None else None
            due = advance(known, now=self._now(), names=self._names, lifetimes=self._lifetimes, announced=announced)
            written = due is not None
            return SecretContent(encode(due)) if due is not None else None

        current = decode(mapping(await self._store.update(next_content) or {}, "data"))
        if current is None:  # the API server stored something else than what was sent
            raise Malformed(200, "MalformedSecret", f"Secret {self._store.name} does not hold what was written")
        if written:
            _LOG.info("certificates of the webhook written", extra=fields(secret=self._store.name))
        if self._certificate.take(current.serving.pem, current.serving.key_pem):
            until = current.serving.certificate.not_valid_after_utc
            _LOG.info("serving certificate taken", extra=fields(names=self._names, until=until))
        return current

    async def _announce(self, current: CertificateSet) -> bool:
        """Write our CAs into the configurations; returns whether they have them."""
        bundle = base64.b64encode(current.bundle).decode()
        announced = await self._announce_in(_MUTATING, bundle)
        try:
            await_policies = not await self._announce_in(_VALIDATING, bundle) and self._registered[_VALIDATING]
        except Forbidden as error:  # of an earlier state of manifests/webhook
            await_policies = False
            if self._may_validate:
                _LOG.warning(
                    "policies are not checked when they are written", extra=fields(error=str(error), remedy=_REMEDY)
                )
            self._may_validate = False
        else:
            self._may_validate = True
        return announced and not await_policies

    async def _announce_in(self, resource: str, bundle: str) -> bool:
        """Write our CAs into one configuration; returns whether it has them."""
        path = paths.object_path("admissionregistration.k8s.io", "v1", resource, self._configuration_name)
        try:
            configuration = await self._client.get(path)
        except NotFound:
            self._note_registered(resource, there=False)
            return False
        self._note_registered(resource, there=True)
        operations = _operations(configuration, bundle)
        if not operations:
            return True
        try:
            await self._client.json_patch(path, operations)
        except (Conflict, Invalid, NotFound):  # it changed: the next run sees how
            return False
        _LOG.info("caBundle written", extra=fields(configuration=self._configuration_name, resource=resource))
        return True

    def _note_registered(self, resource: str, *, there: bool) -> None:
        """Log once when no API server calls us, and once when one does."""
        if there == self._registered.get(resource):
            return
        self._registered[resource] = there
        if there:
            more = fields(configuration=self._configuration_name, resource=resource)
            _LOG.info("the webhook is registered", extra=more)
        else:
            remedy = f"{_REMEDY}, or leave bootstrap-config out of --controllers"
            _LOG.warning(_ABSENT[resource], extra=fields(configuration=self._configuration_name, remedy=remedy))


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
