"""D9: the discovery front, its webhook, and the node that asks a front, handed what others made under the same key."""

from __future__ import annotations

import base64
import gzip
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from catalogue import Expected, Row, Verdict, attacks, evaluated
from core_kit import CLAIMS, HEADER, TOKEN, jwt, spell
from core_kit import JWT_NOW as NOW
from front_kit import Answer, Authority, KnownCluster, ask, front, get, secret_object
from lying_servers import Ca, Reply, config_map, status
from test_by_token import EVIL, REAL, Scene, answer, fronted, sign

from nodeattest_discovery import clusterinfo, jws
from nodeattest_discovery.front import (
    FrontLimits,
    authenticate,
    bearer_token,
)
from nodeattest_discovery.jwt import mint, parse
from nodeattest_parsing.strict_base64 import encode_base64url
from nodeattest_parsing.values import JsonObject
from nodeattest_providers.errors import Reason

BODY = config_map({"kubeconfig": clusterinfo.build("https://10.0.0.1:6443", REAL.pem)}).body


@dataclass(frozen=True)
class Question:
    """What somebody shows to the front, and the Secret behind it."""

    proof: bytes = field(default_factory=lambda: mint(TOKEN, NOW).encode())
    secret: JsonObject | None = field(default_factory=secret_object)
    now: float = NOW
    audience: str | None = None

    def asked(self) -> object:
        header = "Bearer " + self.proof.decode()
        return authenticate(parse(bearer_token(header)), lambda _: self.secret, now=self.now, audience=self.audience)


def attached(detached: str, content: bytes) -> bytes:
    """Put the content back between header and signature."""
    return detached.replace("..", f".{encode_base64url(content)}.").encode()


def respelt(text: bytes) -> bytes:
    """Change bits of the last character that decoders drop."""
    return text[:-1] + bytes([text[-1] + 1])


KUBECONFIG = clusterinfo.build("https://10.0.0.1:6443", REAL.pem).encode()
EVIL_KEY = {"kty": "oct", "k": base64.urlsafe_b64encode(b"evil").decode()}
QUESTIONS: dict[str, Question] = {
    "D9-80": Question(jwt(HEADER | {"alg": "none"}).rpartition(b".")[0] + b"."),
    "D9-81": Question(jwt(HEADER | {"alg": "HS512"}, digest="sha512")),
    "D9-82": Question(jwt(HEADER | {"alg": "RS256"})),
    "D9-83": Question(jwt(HEADER | {"jwk": EVIL_KEY}, secret="evil")),
    "D9-84": Question(jwt(HEADER | {"jku": "https://evil.example/keys", "x5u": "https://evil.example/x"})),
    "D9-85": Question(jwt(HEADER | {"kid": "../../dev/null"}, CLAIMS | {"sub": "../../dev/null"}, secret="")),
    "D9-86": Question(jwt(HEADER, CLAIMS | {"sub": "fedcba"})),
    "D9-87": Question(jwt(b'{"alg":"none","alg":"HS256","kid":"abcdef","typ":"JWT"}')),
    "D9-88": Question(jwt(HEADER | {"crit": ["evil"], "evil": True})),
    "D9-89": Question(jwt(HEADER | {"b64": False, "crit": ["b64"]})),
    "D9-90": Question(jwt(claims={"sub": TOKEN.id, "exp": NOW + 365 * 86400})),
    "D9-91": Question(now=NOW + 61),
    "D9-93": Question(jwt(claims={"sub": TOKEN.id})),
    "D9-94": Question(respelt(jwt())),
    "D9-98": Question(TOKEN.reveal().encode()),
    "D9-99": Question(secret=secret_object(usage_bootstrap_authentication=None)),
    "D9-100": Question(secret=secret_object(usage_bootstrap_signing=None)),
    "D9-101": Question(secret=secret_object(expiration="2026-01-01T00:00:00Z")),
    "D9-102": Question(secret=secret_object(auth_extra_groups="system:bootstrappers:a,system:masters")),
    "D9-103": Question(now=NOW + 59),
    "D9-104": Question(now=NOW + 60),
    "D9-105": Question(mint(TOKEN, NOW, audience="another").encode(), audience="this"),
    "D9-106": Question(jwt(HEADER | {"kid": "000000"}, CLAIMS | {"sub": "000000"}, secret="0" * 16), secret=None),
}
THREE_MACS: dict[str, Question] = {
    "D9-95": Question(attached(jws.sign(BODY, TOKEN), BODY)),
    "D9-96": Question(attached(jws.sign(KUBECONFIG, TOKEN), KUBECONFIG)),
    "D9-97": Question(attached(jws.sign(spell(CLAIMS), TOKEN), spell(CLAIMS))),
}


@pytest.mark.parametrize(("row", "question"), attacks(QUESTIONS))
def test_a_question_is_answered_if_the_token_made_it_just_now_and_not_otherwise(row: Row, question: Question) -> None:
    assert evaluated(question.asked) == row.expected


@pytest.mark.parametrize(("row", "question"), attacks(THREE_MACS))
def test_one_signature_does_not_pass_for_another(row: Row, question: Question) -> None:
    assert evaluated(question.asked) == row.expected


@pytest.mark.parametrize(("row", "values"), attacks({"D9-92": (b'"1800000060"', b"NaN", b"1e999")}))
def test_a_time_that_is_none_is_refused(row: Row, values: tuple[bytes, ...]) -> None:
    for value in values:
        question = Question(jwt(claims=b'{"sub":"abcdef","exp":' + value + b"}"))
        assert evaluated(question.asked) == row.expected


# The front over HTTP


def proof() -> bytes:
    return b"Bearer " + mint(TOKEN, NOW).encode()


SMUGGLED = get(proof(), more=b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n") + b"0\r\n\r\n"
FORGED = get(b"Bearer " + jwt(secret="evil"))
SENT: dict[str, list[bytes]] = {
    "D9-107": [get(b"Bearer x", proof()), get(proof(), proof())],
    "D9-108": [
        get(proof(), path=path + clusterinfo.PATH[at:]) for path, at in (("/", 0), ("/x/..", 0), ("/%61", len("/a")))
    ],
    "D9-109": [get(proof(), more=b"X-Forwarded-For: 192.0.2.%d\r\n" % number) for number in range(4)],
    "D9-110": [SMUGGLED],
    "D9-111": [FORGED, FORGED, get(proof())],
}


@pytest.mark.parametrize(("row", "requests"), attacks(SENT))
async def test_the_front_answers_one_plain_question_within_its_askers_limit(
    row: Row, requests: list[bytes], tmp_path: Path
) -> None:
    authority = Authority()
    limits = FrontLimits(client_burst=3, client_rate=0.001, token_burst=3, token_rate=0.001)
    async with front(KnownCluster.of(authority), tmp_path, authority, limits=limits) as port:
        answers = [await ask(port, request, authority) for request in requests]
    assert said(answers[-1]) == row.expected
    if row.expected.verdict is Verdict.DENY:
        assert {said(answer) for answer in answers} == {row.expected}


def said(answer: Answer) -> Expected:
    """Read a verdict off a status."""
    if answer.status == 429:
        return Expected(Verdict.SHED, "")
    if answer.status == 200:
        return Expected(Verdict.ACCEPT, "")
    assert answer.status in {400, 401, 404, 405}
    return Expected(Verdict.DENY, Reason.DISCOVERY_REQUEST_REFUSED)


# The node


def bundle(scene: Scene, *authorities: Ca) -> str:
    return clusterinfo.build(scene.cluster.url, b"".join(ca.pem for ca in authorities))


def reflected(scene: Scene) -> Reply:
    """Show the node its own JWT as the signature over its own claims."""
    header, claims, signature = dict(scene.front.seen[-1].headers)["authorization"].split()[1].split(".")
    body = base64.urlsafe_b64decode(claims + "=" * (-len(claims) % 4))
    return Reply(body=body, headers={"X-Kubernetes-JWS": f"{header}..{signature}"})


def compressed(_: Scene) -> Reply:
    body = gzip.compress(b" " * (64 << 20))
    return Reply(body=body, headers={"X-Kubernetes-JWS": jws.sign(body, TOKEN), "Content-Encoding": "gzip"})


def two_signatures(scene: Scene) -> Reply:
    body = answer(scene.text).body
    lines = [*[f"X-Kubernetes-JWS: {jws.sign(body, TOKEN)}"] * 2, f"Content-Length: {len(body)}"]
    return Reply(raw="\r\n".join(["HTTP/1.1 200 OK", *lines, "", ""]).encode() + body)


def two_data(scene: Scene) -> Reply:
    body = answer(scene.text).body
    return sign(body[:-1] + b',"data":{"kubeconfig":"evil"}}')


def other_text(old: str, new: str) -> Callable[[Scene], Reply]:
    return lambda scene: answer(scene.text.replace(old, new))


LIES: dict[str, Callable[[Scene], Reply]] = {
    "D9-114": reflected,
    "D9-115": lambda scene: sign(scene.text.encode()),
    "D9-116": lambda _: sign(spell(CLAIMS)),
    "D9-117": lambda scene: answer(bundle(scene, REAL, EVIL)),
    "D9-118": lambda scene: answer(bundle(scene, REAL, EVIL)),
    "D9-119": lambda scene: answer(scene.text),
    "D9-120": lambda scene: answer(scene.text),
    "D9-121": lambda scene: config_map({"kubeconfig": scene.text}),
    "D9-122": lambda scene: Reply(status=302, headers={"Location": scene.cluster.url + clusterinfo.PATH}),
    "D9-123": compressed,
    "D9-124": two_signatures,
    "D9-125": two_data,
    "D9-126": other_text("    server:", "    insecure-skip-tls-verify: true\n    server:"),
    "D9-127": other_text("users: null", "users: [{name: a, user: {exec: {command: /bin/evil}}}]"),
    "D9-128": lambda scene: answer(bundle(scene, EVIL)),
}


@pytest.mark.parametrize(("row", "lie"), attacks(LIES))
def test_what_a_front_says_counts_as_far_as_token_and_cluster_bear_it_out(
    row: Row, lie: Callable[[Scene], Reply]
) -> None:
    with fronted((EVIL if row.id == "D9-117" else REAL).server()) as scene:
        scene.cluster.says = status(403)

        def says(_number: int) -> Reply:
            return lie(scene)

        scene.front.says = says
        if row.id in {"D9-119", "D9-120"}:
            now = bundle(scene, EVIL) if row.id == "D9-119" else scene.text
            scene.cluster.says = config_map({"kubeconfig": now})
        assert evaluated(scene.find) == row.expected
        assert all(TOKEN.secret not in str(seen) for seen in scene.front.seen)
        assert not any("authorization" in seen.names for seen in scene.cluster.seen)
        if row.expected.verdict is Verdict.ACCEPT:
            assert scene.find().info.ca_pem == REAL.pem
