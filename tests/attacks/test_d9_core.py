"""D9: discovery's core, handed what a thief of a token, a writer of Secrets or a server in between would make."""

from __future__ import annotations

import base64
import hashlib
import hmac
from collections.abc import Callable, Mapping
from typing import Final

import core_kit
import pytest
from catalogue import Row, attacks, evaluated
from lying_servers import LyingServer, Reply, VirtualTime, config_map, script, signed
from test_by_token import TOKEN, World

from nodeattest_discovery import clusterinfo, jws, pins, secret, token
from nodeattest_discovery.node.by_token import by_token
from nodeattest_discovery.secret import TokenSecret
from nodeattest_parsing.strict_base64 import encode_base64url

SOUND: Final = TOKEN.reveal()
DIGITS: Final = "0123456789abcdef" * 4
Case = Callable[[], object]


def bundle(data: bytes) -> Case:
    return lambda: clusterinfo.parse(core_kit.written(core_kit.kubeconfig(data)))


def config(spoil: core_kit.Spoil) -> Case:
    return lambda: clusterinfo.parse(core_kit.spoilt(spoil))


def text(yaml: str) -> Case:
    return lambda: clusterinfo.parse(yaml)


def beside_the_pinned() -> None:
    """The answer is taken, and the other CA is worth nothing."""
    info = clusterinfo.parse(core_kit.written(core_kit.kubeconfig(core_kit.pem(core_kit.OTHER_CA, core_kit.CA))))
    assert pins.select_pinned(info.ca_certificates, [pins.pin_of(core_kit.CA)]) == (core_kit.CA,)


LAUGHS: Final = "a0: &a0 [x]\n" + "".join(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]\n" for n in range(1, 10))
TWICE: Final = core_kit.written(core_kit.kubeconfig()).replace(
    '"server"', '"server": "https://evil.example:6443", "server"'
)

PARSED: Final[Mapping[str, Case]] = {
    "D9-01": lambda: token.parse(f"{SOUND}\n"),
    "D9-02": lambda: token.parse(f"{SOUND[:-1]}\u0663"),
    "D9-03": lambda: token.parse(SOUND.upper()),
    "D9-04": lambda: token.parse("abcdef/../bootstrap-token-zzzzzz.0123456789abcdef"),
    "D9-06": lambda: pins.parse(f"sha256:{DIGITS[1:]}"),
    "D9-07": lambda: pins.parse(f"sha512:{DIGITS * 2}"),
    "D9-08": lambda: pins.parse(f"sha256:{DIGITS}:{DIGITS}"),
    "D9-09": lambda: pins.parse(f"\u017fha256:{DIGITS}"),
    "D9-10": beside_the_pinned,
    "D9-11": lambda: pins.select_pinned([core_kit.certificate(core_kit.OTHER_KEY)], [pins.pin_of(core_kit.CA)]),
    "D9-12": bundle(core_kit.pem(core_kit.CA) + core_kit.KEY_PEM),
    "D9-13": bundle(core_kit.pem(core_kit.certificate(ca=False))),
    "D9-14": bundle(core_kit.pem(core_kit.certificate(ca=None))),
    "D9-15": bundle(core_kit.pem(core_kit.CA) * 65),
    "D9-16": bundle(core_kit.pem(core_kit.CA).replace(b"-----\nM", b"-----\nProc-Type: 4\n\nM", 1)),
    "D9-17": bundle(core_kit.pem(core_kit.CA).replace(b"CERTIFICATE", b"X509 CERTIFICATE")),
    "D9-27": config(lambda document: document.update(users=[{"name": "u", "user": {"token": SOUND}}])),
    "D9-28": config(lambda document: document.update(users=[{"name": "u", "user": {"exec": {"command": "sh"}}}])),
    "D9-29": config(lambda document: core_kit.cluster_of(document).update({"insecure-skip-tls-verify": True})),
    "D9-30": config(lambda document: core_kit.cluster_of(document).update(server="http://10.0.0.1:6443")),
    "D9-31": config(
        lambda document: document.update(
            clusters=[*core_kit.rows_of(document), {**core_kit.row_of(document), "name": "evil"}]
        )
    ),
    "D9-32": config(lambda document: core_kit.cluster_of(document).update({"proxy-url": "https://evil.example:3128"})),
    "D9-33": config(
        lambda document: core_kit.cluster_of(document).update(server=f"{core_kit.SERVER}@evil.example:6443")
    ),
    "D9-34": text(LAUGHS),
    "D9-35": text(TWICE),
    "D9-36": text("apiVersion: !!python/object/apply:os.system [id]\n"),
    "D9-37": text('apiVersion: "\\UFFFFFFFF"\n'),
}


@pytest.mark.parametrize(("row", "case"), attacks(PARSED))
def test_what_is_not_exactly_right_is_refused_for_its_own_reason(row: Row, case: Case) -> None:
    assert evaluated(case) == row.expected


def test_what_the_attacks_spoil_is_sound() -> None:
    assert token.parse(SOUND) == TOKEN
    assert str(pins.parse(f"sha256:{DIGITS}"))
    assert clusterinfo.parse(core_kit.written(core_kit.kubeconfig())).server == core_kit.SERVER


# Signatures: a whole join, at a server that has the cluster's own certificate and the text of its choice


def headed(header: bytes) -> Callable[[str], str]:
    """Sign soundly under a header of the attacker's choice, who knows the secret of a leaked token."""

    def sign(content: str) -> str:
        first = encode_base64url(header)
        inside = f"{first}.{encode_base64url(content.encode())}".encode()
        return f"{first}..{encode_base64url(hmac.digest(TOKEN.secret.encode(), inside, hashlib.sha256))}"

    return sign


def of_the_token(content: str) -> str:
    return jws.sign(content.encode(), TOKEN)


def followed_by(more: str) -> Callable[[str], str]:
    return lambda content: of_the_token(content) + more


def attached(content: str) -> str:
    header, _, mac = jws.sign(content.encode(), TOKEN).partition("..")
    return f"{header}.{encode_base64url(content.encode())}.{mac}"


def answers(sign: Callable[[str], str], *, more: str = "") -> Callable[[str], Reply]:
    return lambda content: signed(content + more, TOKEN, sign(content))


SIGNED: Final[Mapping[str, Callable[[str], Reply]]] = {
    "D9-18": answers(headed(b'{"alg": "HS256", "kid": "abcdef"}')),
    "D9-19": answers(headed(b'{"alg":"HS256","kid":"zzzzzz","kid":"abcdef"}')),
    "D9-20": answers(headed(b'{"alg":"HS256","kid":"zzzzzz"}')),
    "D9-21": answers(headed(b'{"alg":"HS256","b64":false,"crit":["b64"],"kid":"abcdef"}')),
    "D9-22": answers(followed_by("=")),
    "D9-23": answers(followed_by("\n")),
    "D9-24": answers(attached),
    "D9-25": answers(of_the_token, more="\n"),
    "D9-26": lambda content: config_map({"kubeconfig": content, "jws-kubeconfig-abcdef": "\ud800"}),
}


@pytest.fixture(scope="module")
def world() -> World:
    return World()


def join(world: World, answer: Callable[[str], Reply]) -> object:
    with LyingServer(world.real.server(), Reply()) as server:
        server.says = script(answer(world.text(server)))
        return by_token([server.endpoint], TOKEN, frozenset({world.real.pin}), VirtualTime().environment(limit=12))


@pytest.mark.parametrize(("row", "answer"), attacks(SIGNED))
def test_no_other_signature_is_believed(world: World, row: Row, answer: Callable[[str], Reply]) -> None:
    assert evaluated(lambda: join(world, answer)) == row.expected


def test_the_server_that_the_attacks_use_is_believed_when_it_is_honest(world: World) -> None:
    assert join(world, answers(of_the_token))


# Secrets: whoever may write them must not gain by it


def stored(**data: str) -> dict[str, object]:
    entries = secret.encode(TokenSecret(token=TOKEN, groups=())) | {
        key.replace("_", "-"): base64.b64encode(value.encode()).decode() for key, value in data.items()
    }
    return {"metadata": {"name": secret.secret_name(TOKEN.id)}, "type": secret.SECRET_TYPE, "data": entries}


@pytest.mark.attack("D9-05")
def test_an_empty_secret_signs_nothing() -> None:
    assert secret.signing_token(stored(token_secret=""), core_kit.NOW) is None
    assert secret.signing_token(stored(), core_kit.NOW) == TOKEN


@pytest.mark.parametrize(
    ("row", "case"),
    attacks({"D9-38": lambda: secret.encode(TokenSecret(token=TOKEN, groups=("system:masters",)))}),
)
def test_nobody_becomes_an_administrator_by_a_token(row: Row, case: Case) -> None:
    assert evaluated(case) == row.expected
    assert secret.authenticating_groups(stored(auth_extra_groups="system:masters"), core_kit.NOW) is None
    assert (
        secret.authenticating_groups(stored(auth_extra_groups="system:bootstrappers:a,system:masters"), core_kit.NOW)
        is None
    )


@pytest.mark.attack("D9-39")
def test_a_token_whose_end_the_control_plane_cannot_read_has_ended() -> None:
    body = stored(expiration="2099-01-01T00:00:00")
    assert secret.signing_token(body, core_kit.NOW) is None
    assert secret.authenticating_groups(body, core_kit.NOW) is None
    assert secret.expiry(body, core_kit.NOW)[0] is secret.Expiry.PAST
