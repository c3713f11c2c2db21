"""Relying parties that are not ours, each under one question: which of these tokens do you take?"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, cast

import jwt as pyjwt
import node_kit
import requests
from google.auth.exceptions import GoogleAuthError
from google.auth.transport.requests import Request
from google.oauth2 import id_token
from issuer_server import IssuerServer
from token_kit import AUDIENCE, bad_tokens, claims, elliptic, header, rsa_key, token

from nodeattest_identity.issuer.keys import VerifyingKey
from nodeattest_identity.tokens.jwt import Expected
from nodeattest_identity.tokens.relying_party import HttpsFetcher, RelyingParty
from nodeattest_providers.errors import Denied

NONCE: Final = "of this test"
_SIGNING: Final = (rsa_key(), elliptic(), elliptic(bits=384), elliptic(bits=521))
KEYS: Final[list[VerifyingKey]] = [key.verifying for key in _SIGNING]
"""What the issuer publishes: one key of each algorithm."""


@dataclass(frozen=True)
class Case:
    """One token, and what it is."""

    alg: str
    what: str
    token: bytes

    @property
    def good(self) -> bool:
        """Whether a relying party should take it."""
        return self.what == "good"

    @property
    def name(self) -> str:
        """Its name in a table."""
        return f"{self.what}, {self.alg}"


def cases(issuer: str) -> list[Case]:
    """Make four good tokens and ten bad ones for two of the algorithms; all have the nonce that ID tokens need."""
    now = int(time.time())
    made = [
        Case(key.verifying.alg, "good", token(key, header(key), claims(now, issuer, nonce=NONCE))) for key in _SIGNING
    ]
    for key, stranger in ((_SIGNING[0], rsa_key(1)), (_SIGNING[1], elliptic(1))):
        bad = bad_tokens(key, stranger, now, issuer, nonce=NONCE)
        made += [Case(key.verifying.alg, what, text) for what, text in bad.items()]
    return made


async def ours(issuer: IssuerServer, asked: list[Case]) -> set[str]:
    """Ask our own relying party."""
    party = RelyingParty.at(
        Expected(issuer=issuer.url, audiences=frozenset({AUDIENCE})), HttpsFetcher(ca_file=issuer.ca)
    )
    taken: set[str] = set()
    for case in asked:
        try:
            await party.verify(case.token)
        except Denied:
            continue
        taken.add(case.name)
    return taken


def google(issuer: IssuerServer, asked: list[Case]) -> set[str]:
    """Ask google-auth, whose verify_token takes any key set; it is not told the issuer."""
    with requests.Session() as session:
        session.verify, session.trust_env = str(issuer.ca), False
        request = Request(session)
        verify = cast("Callable[..., Any]", id_token.verify_token)
        return _taken(
            asked,
            lambda text: verify(text, request, audience=AUDIENCE, certs_url=issuer.jwks_uri),
            (GoogleAuthError, pyjwt.PyJWTError, ValueError),
        )


def node(issuer: IssuerServer, asked: list[Case]) -> dict[str, set[str]]:
    """Ask npm jose and openid-client, in one run of Node.js."""
    question = {
        "issuer": issuer.url,
        "audience": AUDIENCE,
        "nonce": NONCE,
        "tokens": {case.name: {"alg": case.alg, "token": case.token.decode()} for case in asked},
    }
    script = Path(__file__).parents[1] / "oracles" / "relying-parties.mjs"
    found = cast("dict[str, dict[str, object]]", node_kit.run(script, question, ca=issuer.ca))
    assert all(set(table) == {case.name for case in asked} for table in found.values())
    return {library: {name for name, verdict in table.items() if verdict is True} for library, table in found.items()}


def _taken(
    asked: list[Case], take: Callable[[str], object], refusal: type[Exception] | tuple[type[Exception], ...]
) -> set[str]:
    taken: set[str] = set()
    for case in asked:
        try:
            take(case.token.decode())
        except refusal:
            continue
        taken.add(case.name)
    return taken
