"""Four good and ten bad tokens before relying parties of others: they read our documents, and refuse what we refuse.

What another library takes of the bad ones stands in ``TAKEN``, each with its reason: nothing else may be taken.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Final

import node_kit
import pytest
import relying_parties
from issuer_server import IssuerServer, issuer_server
from relying_parties import KEYS, Case, cases

TAKEN: Final[dict[str, dict[str, str]]] = {
    "ours": {},
    "google-auth": {"another issuer by a slash": "verify_token is not told the issuer: its callers compare iss"},
    "jose": {"no kid": "it tries the keys of the algorithm where there is one only"},
    "openid-client": {"no kid": "the same"},
}


@pytest.fixture(scope="module")
def issuer(tmp_path_factory: pytest.TempPathFactory) -> Generator[IssuerServer]:
    """Publish our documents of four keys."""
    with issuer_server(tmp_path_factory.mktemp("issuer")) as server:
        server.publish(KEYS)
        yield server


@pytest.fixture(scope="module")
def asked(issuer: IssuerServer) -> list[Case]:
    """Make the tokens."""
    return cases(issuer.url)


def expected(library: str, asked: list[Case]) -> set[str]:
    """Say what a library takes: the good ones and its own departures."""
    return {case.name for case in asked if case.good or case.what in TAKEN[library]}


async def test_ours_takes_the_good_ones_only(issuer: IssuerServer, asked: list[Case]) -> None:
    assert await relying_parties.ours(issuer, asked) == expected("ours", asked)


def test_google_auth_agrees(issuer: IssuerServer, asked: list[Case]) -> None:
    assert relying_parties.google(issuer, asked) == expected("google-auth", asked)


def test_npm_jose_and_openid_client_agree(issuer: IssuerServer, asked: list[Case]) -> None:
    node_kit.need("openid-client")
    for library, taken in relying_parties.node(issuer, asked).items():
        assert taken == expected(library, asked), library
