"""``enroll``, as a library, against a real server that behaves well and badly."""

from __future__ import annotations

import base64
import time
from collections.abc import Callable
from dataclasses import replace

import pytest
from agent_cluster import TOKEN, FakeApi, challenge_then_sign, filed_ids, tells_provider_id
from polling import eventually

from nodeattest_authenticator.api_client import ApiServerClient, Credentials
from nodeattest_authenticator.certificate import select_ca_pin
from nodeattest_authenticator.enrollment import enroll
from nodeattest_authenticator.errors import AgentError, FailureKind
from nodeattest_authenticator.formats.client_go import Cluster
from nodeattest_authenticator.state.credential_cache import CachedCredential
from nodeattest_authenticator.state.records import PendingRequest, PendingRequestFile, SubmittedCsr
from nodeattest_discovery.node.clock import Clock, Deadline
from nodeattest_parsing.endpoint import Endpoint
from nodeattest_providers import identifiers, node_interface
from nodeattest_providers.envelope import encode
from nodeattest_providers.errors import Denied, Reason, Unavailable
from nodeattest_providers.identifiers import NodeName, ProviderID, ProviderName
from nodeattest_providers.node_interface import Binding, Evidence, PublishedChallenge

CHALLENGE = ProviderName("challenge")


class Drafts(PendingRequestFile):
    """Drafts in memory."""

    def __init__(self, draft: PendingRequest | None = None) -> None:
        self.draft = draft

    def load(self) -> PendingRequest | None:
        return self.draft

    def save(self, pending: PendingRequest) -> None:
        self.draft = pending

    def discard(self) -> None:
        self.draft = None


class Attestor(node_interface.Attestor):
    """Makes evidence that says what it was asked; ``fails`` is raised once, at the given phase."""

    provider = CHALLENGE

    def __init__(self, *versions: int, two_step: bool = True) -> None:
        self.versions = versions or (1,)
        self.two_step = two_step
        self.bindings: list[Binding] = []
        self.challenges: list[PublishedChallenge] = []
        self.fails: dict[int, list[Exception]] = {1: [], 2: []}

    def in_version(self, version: int) -> Attestor:
        return self if len(self.versions) == 1 else Attestor(version, two_step=self.two_step)

    def attest(self, binding: Binding, challenge: PublishedChallenge | None = None) -> Evidence:
        phase = 1 if challenge is None else 2
        self.bindings.append(binding)
        if challenge is not None:
            self.challenges.append(challenge)
        if self.fails[phase]:
            raise self.fails[phase].pop(0)
        return Evidence(self.provider, self.versions[0], {"phase": phase})


class Bench:
    """One node and its server."""

    def __init__(self, api: FakeApi) -> None:
        self.fake = api
        self.attestor = Attestor()
        self.drafts = Drafts()
        self.provider_id: ProviderID | None = None
        """Of the last certified request."""
        self.clock = Clock()
        self.seconds = 60.0
        self.order = enroll.CertificateSpec(
            node_name=NodeName("node-0"),
            provider_id=ProviderID("sandbox://0"),
            signer=identifiers.signer_for(CHALLENGE, identifiers.Purpose.CLIENT),
            ca_pem=api.authority.pem,
            pin=select_ca_pin(api.authority.pem),
        )

    def is_told(self) -> None:
        """Let the node not know its provider ID."""
        self.order = replace(self.order, provider_id=None)
        self.attestor = Attestor(two_step=False)

    def enroll(self) -> CachedCredential:
        deadline = Deadline.after(self.clock, self.seconds)
        login = Credentials(username=f"system:bootstrap:{TOKEN[:6]}", token=TOKEN)
        cluster = Cluster(endpoint=Endpoint.parse(self.fake.url), ca_pem=self.order.ca_pem)
        client = ApiServerClient(cluster, login, deadline)
        try:
            enrolled = enroll.enroll(
                self.order,
                attestor=self.attestor,
                client=client,
                store=self.drafts,
                deadline=deadline,
                random=lambda: 0.5,
            )
        finally:
            client.close()
        self.provider_id = enrolled.assigned
        return enrolled.credential

    def pass_time_at_once(self) -> None:
        """Have the node wait for nothing between its attempts."""
        slept: list[float] = []
        self.clock = Clock(monotonic=lambda: time.monotonic() + sum(slept), sleep=slept.append)

    def refused(self) -> AgentError:
        with pytest.raises(AgentError) as caught:
            self.enroll()
        return caught.value

    def keys(self) -> int:
        """Count the keys of all requests."""
        return len({self.fake.envelope(name)[0].spki for name in self.fake.objects})

    def versions(self) -> list[int]:
        return [self.fake.envelope(name)[1].version for name in self.fake.objects]


@pytest.fixture
def bench(api: FakeApi) -> Bench:
    api.on_create = challenge_then_sign
    return Bench(api)


def phase(api: FakeApi, name: str) -> object:
    return api.envelope(name)[1].data["phase"]


def denies(reason: str, *, requests: range) -> Callable[[FakeApi, str], None]:
    """Deny the requests with these numbers, the first of which is 1."""

    def decide(api: FakeApi, name: str) -> None:
        if len(api.objects) in requests:
            api.deny(name, reason)
        else:
            challenge_then_sign(api, name)

    return decide


def test_both_requests_carry_one_pkcs10_request_and_the_right_spec(bench: Bench) -> None:
    bench.order = replace(bench.order, expiration_seconds=7200)
    credential = bench.enroll()
    first, second = (bench.fake.envelope(name)[0] for name in bench.fake.objects)
    assert first.der == second.der
    for item in bench.fake.objects.values():
        assert item["spec"]["usages"] == ["digital signature", "client auth"]
        assert item["spec"]["signerName"] == bench.order.signer
        assert item["spec"]["expirationSeconds"] == 7200
    block = identifiers.EvidenceBlock("challenge/v1")
    assert bench.attestor.bindings == [Binding(block, bench.order.pin, bench.order.signer, first.sha256)] * 2
    assert credential.renew_at < credential.not_after


@pytest.mark.parametrize(
    ("reason", "keys"),
    [
        *(("ChallengeExpired", 1), ("ChallengeUnknown", 1), ("FirstRequestMissing", 1), ("FirstRequestMismatch", 1)),
        *(("PlatformProofExpired", 1), ("Superseded", 2), ("KeyReused", 2)),
    ],
)
def test_a_restartable_denial_is_asked_anew_with_the_same_key_or_another(bench: Bench, reason: str, keys: int) -> None:
    bench.fake.on_create = denies(reason, requests=range(2, 3))
    bench.enroll()
    assert (len(bench.fake.objects), bench.keys()) == (4, keys)


@pytest.mark.parametrize("reason", ["ChallengeExpired", "Superseded"])
def test_restarts_are_counted(bench: Bench, reason: str) -> None:
    bench.fake.on_create = denies(reason, requests=range(1, 99))
    bench.pass_time_at_once()
    assert bench.refused().reason == reason
    assert len(bench.fake.objects) == 5


def test_a_denial_carries_reason_and_remedy_and_drops_the_key(bench: Bench) -> None:
    bench.fake.on_create = lambda api, name: api.deny(name, "PCRValueNotAllowed", "boot the\nsigned kernel")
    failure = bench.refused()
    assert (failure.reason, failure.remedy) == ("PCRValueNotAllowed", "boot the signed kernel")
    assert failure.kind is FailureKind.DENIED
    assert bench.drafts.draft is None


def test_a_wrong_certificate_is_refused_and_not_asked_for_again(bench: Bench) -> None:
    bench.fake.on_create = lambda api, name: api.sign(name, node="node-1")
    assert bench.refused().reason == "CertificateRefused"
    assert bench.drafts.draft is None


def test_a_deleted_request_is_filed_anew(bench: Bench) -> None:
    def deletes(api: FakeApi, name: str) -> None:
        if api.posts() == 1:
            api.delete(name)
        else:
            challenge_then_sign(api, name)

    bench.fake.on_create = deletes
    bench.enroll()


@pytest.mark.parametrize("changes", [{"request": "Zm9yZWlnbg=="}, {"signerName": "example.com/other"}, {}], ids=str)
def test_a_foreign_object_of_our_name_is_stepped_around(bench: Bench, changes: dict[str, str]) -> None:
    draft = enroll.new_pending_request(bench.order, version=1)
    request = encode(draft.csr_der, Evidence(CHALLENGE, 1, {"phase": 1}))
    bench.drafts.draft = replace(draft, first=SubmittedCsr("squatted", request))
    bench.fake.on_create = lambda api, name: None if name == "squatted" else challenge_then_sign(api, name)
    ours = {"request": base64.b64encode(request).decode(), "signerName": bench.order.signer}
    requester = "system:bootstrap:abcdef" if changes else "system:bootstrap:zzzzzz"
    bench.fake.create({"metadata": {"name": "squatted"}, "spec": ours | changes}, requester)
    bench.enroll()
    assert len(bench.fake.objects) == 3


@pytest.mark.parametrize(("key", "csr"), [(b"no key", None), (None, b"no request"), ("other", None)])
def test_a_draft_whose_parts_do_not_belong_together_is_not_used(
    bench: Bench, key: bytes | str | None, csr: bytes | None
) -> None:
    draft = enroll.new_pending_request(bench.order, version=1)
    if key is not None:
        other = enroll.new_pending_request(bench.order, version=1).key_pem
        draft = replace(draft, key_pem=other if isinstance(key, str) else key)
    bench.drafts.draft = draft if csr is None else replace(draft, csr_der=csr)
    bench.enroll()


# A provider ID that the controller tells


def test_an_answer_whose_request_is_denied_is_forgotten(bench: Bench) -> None:
    bench.is_told()
    bench.fake.on_create = tells_provider_id("sandbox://1", then=lambda api, name: api.deny(name, "ProviderIDMismatch"))
    assert bench.refused().reason == "ProviderIDMismatch"
    bench.fake.on_create = tells_provider_id("sandbox://2")
    bench.enroll()
    assert filed_ids(bench.fake) == ["", "sandbox://1", "", "sandbox://2"]
    assert bench.provider_id == "sandbox://2"


@pytest.mark.parametrize("same_cluster", [True, False])
def test_an_interrupted_request_goes_on_with_the_answer_in_the_same_cluster_only(
    bench: Bench, same_cluster: bool
) -> None:
    bench.is_told()
    bench.pass_time_at_once()
    bench.seconds = 1
    bench.fake.on_create = tells_provider_id("sandbox://1", then=lambda _api, _name: None)
    assert bench.refused().reason == "Timeout"
    bench.seconds = 60
    bench.fake.on_create = tells_provider_id("sandbox://2")
    if same_cluster:
        bench.fake.sign(list(bench.fake.objects)[-1])
    else:
        bench.order = replace(bench.order, pin=identifiers.ClusterPin("sha256:" + 64 * "0"))
    bench.enroll()
    assert filed_ids(bench.fake) == ["", "sandbox://1", *([] if same_cluster else ["", "sandbox://2"])]
    assert bench.provider_id == ("sandbox://1" if same_cluster else "sandbox://2")


# What the node is not ready for


def test_a_challenge_that_is_not_ours_waits_for_the_controllers(bench: Bench) -> None:
    bench.attestor.fails[2] = [Denied(Reason.CHALLENGE_UNKNOWN, expected="a", got="b", remedy="c")]

    def twice(api: FakeApi, name: str) -> None:
        if phase(api, name) == 1:
            api.annotate(name, challenge="foreign")
            eventually(lambda: bench.attestor.challenges, "the node's look at it")
        challenge_then_sign(api, name)

    bench.fake.on_create = twice
    bench.enroll()
    assert [challenge.text == "foreign" for challenge in bench.attestor.challenges] == [True, False]


@pytest.mark.parametrize("number", [1, 2])
def test_a_device_that_is_away_is_temporary(bench: Bench, number: int) -> None:
    away = Unavailable(Reason.PLATFORM_UNAVAILABLE, "no TPM at device:/dev/tpmrm0", remedy="enable the TPM")
    bench.attestor.fails[number] = [away]
    failure = bench.refused()
    assert (failure.reason, failure.kind) == ("AttestationUnavailable", FailureKind.TEMPORARY)
    assert failure.remedy == "enable the TPM"


@pytest.mark.parametrize(("ahead", "says"), [(1200, "20 minutes behind"), (-1200, "20 minutes ahead")])
def test_a_wrong_clock_is_told_in_minutes_and_the_certificate_is_kept_for_later(
    bench: Bench, ahead: float, says: str
) -> None:
    bench.fake.ahead = ahead
    starts, lasts = (900.0, 86400.0) if ahead > 0 else (-90000.0, -60.0)
    bench.fake.on_create = lambda api, name: challenge_then_sign(api, name, starts=starts, lasts=lasts)
    failure = bench.refused()
    assert failure.reason == "ClockOff"
    assert says in str(failure)
    assert bench.drafts.draft is not None
    bench.clock = Clock(now=lambda: time.time() + ahead)
    bench.enroll()
    assert len(bench.fake.objects) == 2


def test_the_renewal_moment_lies_between_half_and_seventy_percent() -> None:
    for drawn in (0.0, 0.3, 0.999):
        at = enroll.renewal_moment(now=1000, not_after=2000, renewable=True, random=lambda drawn=drawn: drawn)
        assert 1500 <= at <= 1700
    assert enroll.renewal_moment(now=1000, not_after=2000, renewable=False, random=lambda: 0.0) == 2000


# The version of the evidence


def supports(versions: str, *, decides: int | None) -> Callable[[FakeApi, str], None]:
    """Refuse evidence of all versions but one, and name these as supported."""

    def decide(api: FakeApi, name: str) -> None:
        if api.envelope(name)[1].version == decides:
            challenge_then_sign(api, name)
        else:
            api.annotate(name, supported_versions=versions)
            api.deny(name, "EvidenceVersionUnsupported")

    return decide


def test_an_older_controller_gets_the_newest_version_that_it_knows_by_the_same_key(bench: Bench) -> None:
    bench.attestor, bench.fake.on_create = Attestor(2, 1), supports("challenge/v1", decides=1)
    bench.enroll()
    assert (bench.versions(), bench.keys()) == ([2, 1, 1], 1)


def test_no_version_is_filed_twice_whatever_the_annotation_says(bench: Bench) -> None:
    bench.attestor, bench.fake.on_create = Attestor(2, 1), supports("challenge/v2,challenge/v1", decides=None)
    assert "supports challenge/v2, challenge/v1" in bench.refused().message
    assert bench.versions() == [2, 1]


@pytest.mark.parametrize(
    ("published", "refused", "chosen"),
    [
        ("challenge/v9,challenge/v2", {3}, 2),
        ("challenge/v3,challenge/v2", {3}, 2),
        ("challenge/v2,challenge/v1", {3, 2}, 1),
        *((text, {3}, None) for text in (None, "", "challenge/v0", "v1", "tpm/v1", "challenge/v1,challenge/v2")),
        ("challenge/v1, challenge/v2", {3}, None),
        ("challenge/v2 " * 1000, {3}, None),
    ],
)
def test_the_newest_common_version_that_was_not_refused_is_chosen(
    published: str | None, refused: set[int], chosen: int | None
) -> None:
    if chosen is not None:
        assert enroll.next_version(Attestor(3, 2, 1), refused, published) == chosen
        return
    with pytest.raises(AgentError, match="did not list the versions") as caught:
        enroll.next_version(Attestor(3, 2, 1), refused, published)
    assert len(str(caught.value)) < 400


@pytest.mark.parametrize("made", [Evidence(CHALLENGE, 2, {}), Evidence(ProviderName("insecure"), 1, {})])
def test_evidence_of_another_version_than_was_asked_for_is_never_sent(bench: Bench, made: Evidence) -> None:
    class Wrong(Attestor):
        def attest(self, binding: Binding, challenge: PublishedChallenge | None = None) -> Evidence:
            return made

    bench.attestor = Wrong()
    assert "expected evidence challenge/v1" in bench.refused().message
    assert not bench.fake.objects
