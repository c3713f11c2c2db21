"""``enroll``, as a library, against a real server that behaves well and badly."""

from __future__ import annotations

import base64
import time
from dataclasses import replace

import pytest
from agent_cluster import TOKEN, Authority, FakeApi, filed_ids, tells_provider_id
from polling import eventually
from test_credential import challenge_then_sign

from nodeattest_authenticator.api_client import ApiServerClient, Credentials
from nodeattest_authenticator.certificate import select_ca_pin
from nodeattest_authenticator.enrollment.enroll import (
    CertificateSpec,
    enroll,
    new_pending_request,
    next_version,
    renewal_moment,
)
from nodeattest_authenticator.errors import AgentError, FailureKind
from nodeattest_authenticator.formats.kubeconfig import Cluster
from nodeattest_authenticator.state.credential_cache import CachedCredential
from nodeattest_authenticator.state.records import PendingRequest, PendingRequestFile, SubmittedCsr
from nodeattest_discovery.node.clock import Clock, Deadline
from nodeattest_parsing.endpoint import Endpoint
from nodeattest_providers import node_interface
from nodeattest_providers.envelope import encode
from nodeattest_providers.errors import Denied, Reason, Unavailable
from nodeattest_providers.identifiers import (
    ClusterPin,
    EvidenceBlock,
    NodeName,
    ProviderID,
    ProviderName,
    Purpose,
    signer_for,
)
from nodeattest_providers.node_interface import Binding, Evidence, JsonObject, PublishedChallenge

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
    """Two steps with evidence that says what it was asked; ``fails`` is raised once, at the given phase."""

    provider = ProviderName("challenge")
    versions: tuple[int, ...] = (1,)

    def __init__(self, *, two_step: bool = True) -> None:
        self.two_step = two_step
        self.bindings: list[Binding] = []
        self.challenges: list[PublishedChallenge] = []
        self.fails: dict[int, list[Exception]] = {1: [], 2: []}

    def attest(self, binding: Binding, challenge: PublishedChallenge | None = None) -> Evidence:
        phase = 1 if challenge is None else 2
        self.bindings.append(binding)
        if challenge is not None:
            self.challenges.append(challenge)
        if self.fails[phase]:
            raise self.fails[phase].pop(0)
        data: JsonObject = {"phase": phase}
        return Evidence(self.provider, self.versions[0], data)


class Versatile(Attestor):
    """The same in two versions; what it is asked for is counted by version."""

    versions = (2, 1)

    def in_version(self, version: int) -> Attestor:
        made = Attestor(two_step=self.two_step)
        made.versions = (version,)
        return made


class Bench:
    """One node and its server."""

    def __init__(self, api: FakeApi, authority: Authority) -> None:
        self.fake = api
        self.attestor = Attestor()
        self.drafts = Drafts()
        self.provider_id: ProviderID | None = None
        """Of the last certified request."""
        self.authority = authority
        self.clock = Clock()
        self.seconds = 60.0
        self.order = CertificateSpec(
            node_name=NodeName("node-0"),
            provider_id=ProviderID("sandbox://0"),
            signer=signer_for(ProviderName("challenge"), Purpose.CLIENT),
            ca_pem=authority.pem,
            pin=select_ca_pin(authority.pem),
        )

    def enroll(self, *, token: str = TOKEN) -> CachedCredential:
        deadline = Deadline.after(self.clock, self.seconds)
        login = Credentials(username=f"system:bootstrap:{token[:6]}", token=token)
        cluster = Cluster(endpoint=Endpoint.parse(self.fake.url), ca_pem=self.order.ca_pem)
        https = ApiServerClient(cluster, login, deadline)
        try:
            enrolled = enroll(
                self.order,
                attestor=self.attestor,
                client=https,
                store=self.drafts,
                deadline=deadline,
                random=lambda: 0.5,
            )
        finally:
            https.close()
        self.provider_id = enrolled.provider_id
        return enrolled.credential

    def pass_time_at_once(self) -> None:
        """Have the node wait for nothing between its attempts."""
        slept: list[float] = []
        self.clock = Clock(monotonic=lambda: time.monotonic() + sum(slept), sleep=slept.append)

    def refused(self, **changes: str) -> AgentError:
        with pytest.raises(AgentError) as caught:
            self.enroll(**changes)
        return caught.value

    def specs(self) -> list[JsonObject]:
        return [item["spec"] for item in self.fake.objects.values()]


@pytest.fixture
def bench(api: FakeApi, authority: Authority) -> Bench:
    api.on_create = challenge_then_sign
    return Bench(api, authority)


def phase(api: FakeApi, name: str) -> int:
    value = api.envelope(name)[1].data["phase"]
    assert isinstance(value, int)
    return value


def test_both_requests_carry_one_pkcs10_request_and_the_right_spec(bench: Bench) -> None:
    bench.order = replace(bench.order, expiration_seconds=7200)
    credential = bench.enroll()
    first, second = (bench.fake.envelope(name)[0] for name in bench.fake.objects)
    assert first.der == second.der
    for spec in bench.specs():
        assert spec["usages"] == ["digital signature", "client auth"]
        assert spec["signerName"] == bench.order.signer
        assert spec["expirationSeconds"] == 7200
    assert (
        bench.attestor.bindings
        == [Binding(EvidenceBlock("challenge/v1"), bench.order.pin, bench.order.signer, first.sha256)] * 2
    )
    assert credential.renew_at < credential.not_after


@pytest.mark.parametrize(
    "reason",
    ["ChallengeExpired", "ChallengeUnknown", "FirstRequestMissing", "FirstRequestMismatch", "PlatformProofExpired"],
)
def test_a_restartable_denial_is_asked_anew_with_the_same_key(bench: Bench, reason: str) -> None:
    def once(api: FakeApi, name: str) -> None:
        if len(api.objects) <= 2 and phase(api, name) == 2:
            api.deny(name, reason)
        else:
            challenge_then_sign(api, name)

    bench.fake.on_create = once
    bench.enroll()
    keys = {bench.fake.envelope(name)[0].spki for name in bench.fake.objects}
    assert (len(bench.fake.objects), len(keys)) == (4, 1)


def test_a_superseded_request_is_asked_anew_with_a_new_key(bench: Bench) -> None:
    def once(api: FakeApi, name: str) -> None:
        if len(api.objects) == 1:
            api.deny(name, "Superseded")
        else:
            challenge_then_sign(api, name)

    bench.fake.on_create = once
    bench.enroll()
    assert len({bench.fake.envelope(name)[0].spki for name in bench.fake.objects}) == 2


@pytest.mark.parametrize("reason", ["ChallengeExpired", "PlatformProofExpired", "Superseded"])
def test_restarts_are_counted(bench: Bench, reason: str) -> None:
    bench.fake.on_create = lambda api, name: api.deny(name, reason)
    bench.pass_time_at_once()
    failure = bench.refused()
    assert failure.reason == reason
    assert len(bench.fake.objects) == 5


def test_a_denial_carries_reason_and_remedy_and_drops_the_key(bench: Bench) -> None:
    bench.fake.on_create = lambda api, name: api.deny(name, "PCRValueNotAllowed", "boot the\nsigned kernel")
    failure = bench.refused()
    assert (failure.reason, failure.remedy) == ("PCRValueNotAllowed", "boot the signed kernel")
    assert failure.kind is FailureKind.DENIED
    assert bench.drafts.draft is None


def knows_version_1(api: FakeApi, name: str) -> None:
    """Decide as a controller that understands version 1 alone."""
    if api.envelope(name)[1].version == 1:
        challenge_then_sign(api, name)
    else:
        api.annotate(name, supported_versions="challenge/v1")
        api.deny(name, "EvidenceVersionUnsupported")


def filed(api: FakeApi) -> list[int]:
    return [api.envelope(name)[1].version for name in api.objects]


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
    draft = new_pending_request(bench.order, version=1)
    request = encode(draft.csr_der, Evidence(CHALLENGE, 1, {"phase": 1}))
    bench.drafts.draft = replace(draft, first=SubmittedCsr("squatted", request))
    bench.fake.on_create = lambda api, name: None if name == "squatted" else challenge_then_sign(api, name)
    ours = {"request": base64.b64encode(request).decode(), "signerName": bench.order.signer}
    requester = "system:bootstrap:abcdef" if changes else "system:bootstrap:zzzzzz"
    bench.fake.create({"metadata": {"name": "squatted"}, "spec": ours | changes}, requester)
    bench.enroll()
    assert len(bench.fake.objects) == 3


def test_an_older_controller_gets_the_newest_version_that_it_knows_by_the_same_key(bench: Bench) -> None:
    bench.attestor, bench.fake.on_create = Versatile(), knows_version_1
    bench.enroll()
    assert filed(bench.fake) == [2, 1, 1]
    assert len({bench.fake.envelope(name)[0].spki for name in bench.fake.objects}) == 1


def test_no_version_is_filed_twice_whatever_the_annotation_says(bench: Bench) -> None:
    def unsupported(api: FakeApi, name: str) -> None:
        api.annotate(name, supported_versions="challenge/v2,challenge/v1")
        api.deny(name, "EvidenceVersionUnsupported")

    bench.attestor, bench.fake.on_create = Versatile(), unsupported
    assert "supports challenge/v2, challenge/v1" in bench.refused().message
    assert filed(bench.fake) == [2, 1]


def test_a_provider_id_that_the_controller_tells_is_filed_by_the_same_key_and_returned(bench: Bench) -> None:
    bench.attestor = Attestor(two_step=False)
    bench.order = replace(bench.order, provider_id=None)
    bench.fake.on_create = tells_provider_id("metal3://fleet/rack-1/m3m")
    bench.enroll()
    assert filed_ids(bench.fake) == ["", "metal3://fleet/rack-1/m3m"]
    assert len({bench.fake.envelope(name)[0].spki for name in bench.fake.objects}) == 1
    assert bench.provider_id == "metal3://fleet/rack-1/m3m"


def test_an_answer_whose_request_is_denied_is_forgotten(bench: Bench) -> None:
    bench.order = replace(bench.order, provider_id=None)
    bench.attestor = Attestor(two_step=False)
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
    bench.order = replace(bench.order, provider_id=None)
    bench.attestor = Attestor(two_step=False)
    bench.pass_time_at_once()
    bench.seconds = 1
    bench.fake.on_create = tells_provider_id("sandbox://1", then=lambda _api, _name: None)
    assert bench.refused().reason == "Timeout"
    bench.seconds = 60
    bench.fake.on_create = tells_provider_id("sandbox://2")
    if not same_cluster:
        bench.order = replace(bench.order, pin=ClusterPin("sha256:" + 64 * "0"))
    else:
        bench.fake.sign(list(bench.fake.objects)[-1])
    bench.enroll()
    assert filed_ids(bench.fake) == ["", "sandbox://1", *([] if same_cluster else ["", "sandbox://2"])]
    assert bench.provider_id == ("sandbox://1" if same_cluster else "sandbox://2")


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


@pytest.mark.parametrize("phase_number", [1, 2])
def test_a_device_that_is_away_is_temporary(bench: Bench, phase_number: int) -> None:
    bench.attestor.fails[phase_number] = [
        Unavailable(Reason.PLATFORM_UNAVAILABLE, "no TPM at device:/dev/tpmrm0", remedy="enable the TPM")
    ]
    failure = bench.refused()
    assert (failure.reason, failure.kind, failure.remedy) == (
        "AttestationUnavailable",
        FailureKind.TEMPORARY,
        "enable the TPM",
    )


@pytest.mark.parametrize(("ahead", "says"), [(1200, "20 minutes behind"), (-1200, "20 minutes ahead")])
def test_a_wrong_clock_is_told_in_minutes_and_the_certificate_is_kept_for_later(
    bench: Bench, ahead: float, says: str
) -> None:
    bench.fake.ahead = ahead
    starts, lasts = (900.0, 86400.0) if ahead > 0 else (-90000.0, -60.0)

    def signs(api: FakeApi, name: str) -> None:
        if phase(api, name) == 2:
            api.sign(name, starts=starts, lasts=lasts)
        else:
            challenge_then_sign(api, name)

    bench.fake.on_create = signs
    failure = bench.refused()
    assert failure.reason == "ClockOff"
    assert says in str(failure)
    assert bench.drafts.draft is not None
    bench.clock = Clock(now=lambda: time.time() + ahead)
    bench.enroll()
    assert len(bench.fake.objects) == 2


def test_a_wrong_certificate_is_refused_and_not_asked_for_again(bench: Bench) -> None:
    bench.fake.on_create = lambda api, name: api.sign(name, node="node-1")
    assert bench.refused().reason == "CertificateRefused"
    assert bench.drafts.draft is None


@pytest.mark.parametrize(("key", "csr"), [(b"no key", None), (None, b"no request"), ("other", None)])
def test_a_draft_whose_parts_do_not_belong_together_is_not_used(
    bench: Bench, key: bytes | str | None, csr: bytes | None
) -> None:
    draft = new_pending_request(bench.order, version=1)
    if key is not None:
        draft = replace(
            draft, key_pem=new_pending_request(bench.order, version=1).key_pem if isinstance(key, str) else key
        )
    bench.drafts.draft = draft if csr is None else replace(draft, csr_der=csr)
    bench.enroll()


def test_the_renewal_moment_lies_between_half_and_seventy_percent() -> None:
    for drawn in (0.0, 0.3, 0.999):
        at = renewal_moment(now=1000, not_after=2000, renewable=True, random=lambda drawn=drawn: drawn)
        assert 1500 <= at <= 1700
    assert renewal_moment(now=1000, not_after=2000, renewable=False, random=lambda: 0.0) == 2000


# The version of the evidence


def of_versions(attestor: Attestor, *versions: int) -> Attestor:
    attestor.versions = versions
    return attestor


@pytest.mark.parametrize(
    ("published", "refused", "chosen"),
    [
        ("challenge/v9,challenge/v2", {3}, 2),
        ("challenge/v3,challenge/v2", {3}, 2),
        ("challenge/v2,challenge/v1", {3, 2}, 1),
    ],
)
def test_the_newest_common_version_that_was_not_refused_is_chosen(
    published: str, refused: set[int], chosen: int
) -> None:
    assert next_version(of_versions(Versatile(), 3, 2, 1), refused, published) == chosen


@pytest.mark.parametrize(
    "published",
    [
        *(None, "", "challenge/v0", "v1", "tpm/v1", "challenge/v1, challenge/v2", "challenge/v1,challenge/v2"),
        "challenge/v2 " * 1000,
    ],
)
def test_an_annotation_that_is_not_canonical_chooses_nothing(published: str | None) -> None:
    with pytest.raises(AgentError, match="did not list the versions") as caught:
        next_version(of_versions(Versatile(), 3, 2, 1), {3}, published)
    assert len(str(caught.value)) < 400


@pytest.mark.parametrize("made", [Evidence(CHALLENGE, 2, {}), Evidence(ProviderName("insecure"), 1, {})])
def test_evidence_of_another_version_than_was_asked_for_is_never_sent(bench: Bench, made: Evidence) -> None:
    class Wrong(Attestor):
        def attest(self, binding: Binding, challenge: PublishedChallenge | None = None) -> Evidence:
            return made

    bench.attestor = Wrong()
    assert "expected evidence challenge/v1" in bench.refused().message
    assert not bench.fake.objects
