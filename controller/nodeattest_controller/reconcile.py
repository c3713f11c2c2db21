"""Acting on verdicts: one request, one reconcile, every write safe to lose and to repeat.

The writes of an issue, in order, each harmless when the next never happens:
ledger (with the certificate in it) -> approve -> certificate into the CSR -> close the first request -> Event.
A restart finds the ledger entry and goes on from there with the same bytes, so no key is ever certified twice.
Approved is not proof: an approved request is verified again, and one that the ledger does not know is failed.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from nodeattest_controller import ledger as ledgers
from nodeattest_controller.authority import sign
from nodeattest_controller.events import EventRecorder, Subject
from nodeattest_controller.inventory import ClusterKey
from nodeattest_controller.judge import Judge, Proven
from nodeattest_controller.logs import fields
from nodeattest_controller.management import OWN_GROUP, OWN_VERSION, Management
from nodeattest_controller.metrics import Metrics
from nodeattest_controller.objects import key_of, mapping, moment, text
from nodeattest_controller.request import RequestState, StoredRequest, peek
from nodeattest_controller.workload import Workload
from nodeattest_kube import paths
from nodeattest_kube.client import AlreadyExists, ApiError, Conflict, NotFound
from nodeattest_kube.jsontypes import JsonObject, parse_json
from nodeattest_providers.errors import ChallengeRequired, Denied, Reason, Unavailable
from nodeattest_providers.names import ANNOTATION_CHALLENGE, ANNOTATION_REASON
from nodeattest_providers.twostep import CHALLENGE_TTL

__all__ = ["Outcome", "Reconciler"]

_LOG: Final = logging.getLogger(__name__)
EXPIRY_GRACE: Final = timedelta(seconds=60)
"""How long after a challenge's end its first request is closed: a second request filed in time may still be on its
way, and closing the first would refuse it."""
INSECURE_LIFETIME: Final = 365 * 86400
"""Seconds. An insecure provider cannot rotate, so its certificates live as long as the in-tree signer's."""
_REUSE_MARGIN: Final = timedelta(seconds=60)
"""A certificate this close to its end is of no use to the node that asks for it again."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What the queue does next with the key."""

    again_after: float | None = None
    """Seconds; None: nothing more until the object changes."""
    waiting: bool = False
    """Whether a change in the management cluster should wake the key earlier."""


DONE: Final = Outcome()


class Reconciler:
    """Brings one request one step further."""

    def __init__(
        self,
        management: Management,
        judge: Judge,
        *,
        events: EventRecorder,
        metrics: Metrics,
        certificate_lifetime: int,
        wait_limit: float,
        now: Callable[[], datetime],
    ) -> None:
        self._management = management
        self._judge = judge
        self._events = events
        self._metrics = metrics
        self._lifetime = certificate_lifetime
        self._wait_limit = timedelta(seconds=wait_limit)
        self._now = now

    async def reconcile(self, workload: Workload, name: str) -> Outcome:
        """Judge the request as the cache has it and act; raises ApiError for the queue's back-off."""
        csr = workload.requests.get(name)
        stored = peek(csr) if csr else None
        if csr is None or stored is None or stored.state not in {RequestState.PENDING, RequestState.APPROVED}:
            return DONE
        try:
            return await self._step(workload, csr, stored)
        except (Conflict, AlreadyExists):
            return await self._after_conflict(workload, csr)
        except NotFound:
            return DONE

    async def _step(self, workload: Workload, csr: JsonObject, stored: StoredRequest) -> Outcome:
        started = self._now()
        try:
            proven = await self._judge.judge(workload, csr)
            self._metrics.verification_seconds(stored.provider, (self._now() - started).total_seconds())
            return await self._issue(workload, csr, stored, proven)
        except ChallengeRequired as challenge:
            return await self._challenge(workload, csr, stored, challenge)
        except Unavailable as unavailable:
            return await self._wait(workload, csr, stored, unavailable)
        except Denied as denied:
            return await self._refuse(workload, csr, stored, denied)

    # Approve and sign

    async def _issue(self, workload: Workload, csr: JsonObject, stored: StoredRequest, proven: Proven) -> Outcome:
        approved_by_us = proven.ledger.entry_for(proven.request.csr.spki_sha256) is not None
        if stored.state is RequestState.APPROVED and not approved_by_us:
            raise Denied(
                Reason.APPROVED_ELSEWHERE,
                expected="an approval by this controller",
                got="an approval that the ledger does not know",
                remedy="leave the approval of these signers to the controller, and let the node file anew",
            )
        entry = await self._entry(workload, proven)
        if stored.state is RequestState.PENDING:
            message = f"{proven.attested.provider} attestation verified; ledger {proven.ledger.name}"
            csr = await workload.approve(csr, "Attested", message)
        await workload.publish_certificate(csr, entry.certificate)
        self._issued(workload, proven, entry)
        await self._close_first(workload, proven)
        return DONE

    async def _entry(self, workload: Workload, proven: Proven) -> ledgers.Entry:
        """Find the key's certificate in the ledger, or sign one and write it down first."""
        now, request, ledger = self._now(), proven.request, proven.ledger
        known = ledger.entry_for(request.csr.spki_sha256)
        if known is not None and known.not_after - _REUSE_MARGIN > now and ledger.node_name == request.csr.node_name:
            return known
        holders = self._management.inventory.key_holders(workload.key, request.csr.spki_sha256)
        # This machine's own ledger may have got the key while we verified: then the write below conflicts, and the
        # next try finds the entry.
        if known is not None or any(holder.provider_id != proven.member.provider_id for holder in holders):
            raise Denied(
                Reason.KEY_REUSED,
                expected="a key that was never certified",
                got="a key with an older certificate" if known else "a key of another machine",
                remedy="make a new key",
            )
        issued = sign(
            proven.authority,
            node_name=request.csr.node_name,
            spki=request.csr.spki,
            lifetime=self._lifetime_of(proven),
            now=now,
        )
        updated = ledgers.record(ledger, request, proven.attested, issued, now)
        await self._write_ledger(updated, proven)
        return updated.issued[-1]

    def _lifetime_of(self, proven: Proven) -> int:
        if proven.attested.provider == "insecure":
            longest = INSECURE_LIFETIME
        else:
            longest = proven.policy.lifetime or self._lifetime
        asked = proven.request.expiration_seconds
        return longest if asked is None else max(600, min(asked, longest))

    async def _write_ledger(self, ledger: ledgers.Ledger, proven: Proven) -> None:
        body = ledgers.render(ledger, proven.member, proven.request.signer_name)
        collection = paths.collection(OWN_GROUP, OWN_VERSION, "machineattestations", namespace=ledger.namespace)
        client = self._management.client
        if ledger.resource_version:
            written = await client.replace(f"{collection}/{ledger.name}", body)
        else:
            written = await client.create(collection, body)
        self._management.inventory.put_ledger(key_of(written), written)

    def _issued(self, workload: Workload, proven: Proven, entry: ledgers.Entry) -> None:
        request, provider = proven.request, proven.attested.provider
        self._metrics.verdict(provider, "approve", "")
        self._metrics.issued(provider)
        self._metrics.request_age_seconds((self._now() - request.created).total_seconds())
        _LOG.info(
            "issued",
            extra=fields(
                cluster=workload.key,
                csr=request.name,
                node=request.csr.node_name,
                machine=proven.member.name,
                provider=provider,
                serial=entry.serial,
                expires=entry.not_after.isoformat(),
            ),
        )
        self._events.record(
            _member_subject(proven),
            "Normal",
            "NodeAttested",
            f"{provider} attestation of node {request.csr.node_name} verified; certificate {entry.serial}",
        )

    async def _close_first(self, workload: Workload, proven: Proven) -> None:
        """Deny the answered first request, so that the in-tree cleaner removes it."""
        if proven.first is None:
            return
        stored = peek(proven.first)
        if stored is None or stored.state is not RequestState.PENDING:
            return
        try:
            await workload.deny(proven.first, Reason.SUPERSEDED, "the second request was approved; nothing to do")
        except ApiError as error:
            _LOG.info("the first request stays until it expires", extra=fields(csr=stored.name, error=error.reason))

    # Challenge, wait, refuse

    async def _challenge(
        self, workload: Workload, csr: JsonObject, stored: StoredRequest, challenge: ChallengeRequired
    ) -> Outcome:
        """Publish the challenge unless it stands there already; close the request when nobody answered in time."""
        left = self._challenge_time_left(csr)
        if left <= timedelta(0):
            return await self._refuse(workload, csr, stored, _unanswered())
        found = text(csr, "metadata", "annotations", ANNOTATION_CHALLENGE)
        if not _same_challenge(found, challenge.challenge):
            if found:
                self._metrics.foreign_challenge()
                _LOG.warning("overwriting a foreign challenge", extra=fields(cluster=workload.key, csr=stored.name))
            await workload.publish_annotations(
                csr, {ANNOTATION_CHALLENGE: challenge.challenge, **challenge.annotations}
            )
            self._metrics.verdict(stored.provider, "challenge", "")
        return Outcome(again_after=left.total_seconds() + 0.5)

    def _challenge_time_left(self, csr: JsonObject) -> timedelta:
        created = moment(text(csr, "metadata", "creationTimestamp")) or self._now()
        return created + CHALLENGE_TTL + EXPIRY_GRACE - self._now()

    async def _wait(
        self, workload: Workload, csr: JsonObject, stored: StoredRequest, unavailable: Unavailable
    ) -> Outcome:
        """Leave the request pending for now, and end it when it waited too long."""
        created = moment(text(csr, "metadata", "creationTimestamp")) or self._now()
        if self._now() - created > self._wait_limit:
            denied = Denied(
                unavailable.reason,
                expected=f"an answer within {self._wait_limit}",
                got=unavailable.detail,
                remedy=unavailable.remedy,
            )
            return await self._refuse(workload, csr, stored, denied)
        said = f"{unavailable.reason}: {unavailable.remedy}"
        if text(csr, "metadata", "annotations", ANNOTATION_REASON) != said:
            self._metrics.verdict(stored.provider, "wait", unavailable.reason)
            _LOG.info(
                "waiting",
                extra=fields(
                    cluster=workload.key, csr=stored.name, reason=unavailable.reason, detail=unavailable.detail
                ),
            )
            await workload.publish_annotations(csr, {ANNOTATION_REASON: said})
        return Outcome(again_after=unavailable.retry_after, waiting=True)

    async def _refuse(self, workload: Workload, csr: JsonObject, stored: StoredRequest, denied: Denied) -> Outcome:
        """Deny for good; the condition carries reason and remedy, the Event and the log expected and got as well."""
        if stored.state is RequestState.APPROVED:
            await workload.fail(csr, denied.reason, denied.remedy)
        else:
            await workload.deny(csr, denied.reason, denied.remedy)
        self._metrics.verdict(stored.provider, "deny", denied.reason)
        _LOG.warning(
            "refused",
            extra=fields(
                cluster=workload.key,
                csr=stored.name,
                user=text(csr, "spec", "username"),
                reason=denied.reason,
                expected=denied.expected,
                got=denied.got,
            ),
        )
        cluster = self._management.cluster(workload.key)
        if cluster is not None:
            self._events.record(_cluster_subject(cluster), "Warning", denied.reason, f"CSR {stored.name}: {denied}")
        return DONE

    async def _after_conflict(self, workload: Workload, csr: JsonObject) -> Outcome:
        """Somebody else wrote first: read what they wrote, and judge anew."""
        self._metrics.ledger_conflict()
        await self._refresh_ledger(workload.key, csr)
        return Outcome(again_after=0.05)

    async def _refresh_ledger(self, cluster: ClusterKey, csr: JsonObject) -> None:
        request = self._judge.parsed(csr)
        if request is None:
            return
        namespace, _, cluster_name = cluster.partition("/")
        name = ledgers.ledger_name(cluster_name, request.csr.provider_id)
        path = paths.named(OWN_GROUP, OWN_VERSION, "machineattestations", name, namespace=namespace)
        try:
            found = await self._management.client.get(path)
        except NotFound:
            self._management.inventory.put_ledger(f"{namespace}/{name}", None)
            return
        self._management.inventory.put_ledger(f"{namespace}/{name}", found)


def _same_challenge(published: str, derived: str) -> bool:
    """Compare what both replicas derive alike (nonce and request); blob and secret carry fresh randomness."""
    try:
        left, right = parse_json(published.encode()), parse_json(derived.encode())
    except ValueError:
        return False
    random_parts = {"blob", "secret"}
    return {k: v for k, v in left.items() if k not in random_parts} == {
        k: v for k, v in right.items() if k not in random_parts
    }


def _unanswered() -> Denied:
    return Denied(
        Reason.CHALLENGE_EXPIRED,
        expected=f"a second request within {int(CHALLENGE_TTL.total_seconds())} s",
        got="none",
        remedy="file a new first request",
    )


def _member_subject(proven: Proven) -> Subject:
    member = proven.member
    return Subject(
        api_version=member.api_version, kind=member.kind, namespace=member.namespace, name=member.name, uid=member.uid
    )


def _cluster_subject(cluster: JsonObject) -> Subject:
    meta = mapping(cluster, "metadata")
    return Subject(
        api_version=text(cluster, "apiVersion"),
        kind="Cluster",
        namespace=text(meta, "namespace"),
        name=text(meta, "name"),
        uid=text(meta, "uid"),
    )
