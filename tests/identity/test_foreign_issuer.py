"""Our relying party before an issuer that is not ours: npm oidc-provider, with its own documents and ID tokens."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Final, cast

import node_kit
import pytest
from cryptography.hazmat.primitives.asymmetric import rsa
from front_kit import Authority
from joserfc.jwk import ECKey, RSAKey
from token_kit import elliptic, rsa_key

from nodeattest_identity.tokens.jwks_cache import CacheTimes, JWKSCache
from nodeattest_identity.tokens.jwt import Expected, SigningKey
from nodeattest_identity.tokens.relying_party import HttpsFetcher, RelyingParty, discover
from nodeattest_providers.errors import Denied, Reason

SCRIPT: Final = Path(__file__).parents[1] / "oracles" / "issuer.mjs"
FIRST, SECOND = rsa_key(), elliptic()


@dataclass
class Provider:
    """A running oidc-provider; each question is a line."""

    questions: IO[bytes]
    answers: IO[bytes]
    ca: Path
    issuer: str = ""

    def ask(self, **question: object) -> str:
        """Ask, and return the token, if one was asked for."""
        self.questions.write(json.dumps(question).encode() + b"\n")
        self.questions.flush()
        line = self.answers.readline()
        assert line, "the program has ended"
        said = cast("dict[str, str | None]", json.loads(line))
        self.issuer = said["issuer"] or ""
        return said["token"] or ""

    def sign_with(self, *keys: SigningKey) -> None:
        """Publish these keys, and sign with the first."""
        self.ask(keys=[private_jwk(key) for key in keys], alg=keys[0].verifying.alg)

    def party(self, now: float | None = None, times: CacheTimes | None = None) -> RelyingParty:
        """Make a relying party of ours."""
        https = HttpsFetcher(ca_file=self.ca)
        expected = Expected(issuer=self.issuer, audiences=frozenset({"vault"}))
        keyset = JWKSCache(lambda: discover(https, self.issuer), monotonic=time.monotonic, times=times)
        return RelyingParty(expected, keyset, time.time if now is None else lambda: now)


def private_jwk(key: SigningKey) -> dict[str, object]:
    """Write a private key as oidc-provider takes it."""
    private = key.private
    jwk = RSAKey.import_key(private) if isinstance(private, rsa.RSAPrivateKey) else ECKey.import_key(private)
    return {**jwk.as_dict(private=True), "kid": key.verifying.kid, "alg": key.verifying.alg, "use": "sig"}


@pytest.fixture(scope="module")
def provider(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Provider]:
    """Run one with one key."""
    node_kit.need("oidc-provider")
    directory = tmp_path_factory.mktemp("provider")
    authority = Authority("provider CA")
    certificate, key = authority.certify(directory)
    ca = directory / "ca.crt"
    ca.write_bytes(authority.pem)
    with (
        (directory / "log").open("wb") as log,
        subprocess.Popen(
            node_kit.command(SCRIPT, str(certificate), str(key)),
            cwd=node_kit.INSTALLED,
            env={"NODE_EXTRA_CA_CERTS": str(ca)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
        ) as process,
    ):
        assert process.stdin is not None
        assert process.stdout is not None
        running = Provider(process.stdin, process.stdout, ca)
        running.sign_with(FIRST)
        yield running
        process.stdin.close()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()


async def test_its_id_token_is_verified_and_an_expired_one_is_not(provider: Provider) -> None:
    provider.sign_with(FIRST)
    token = provider.ask(token=True)
    claims = await provider.party().verify(token)
    assert (claims.subject, claims.issuer, claims.audiences) == ("alice", provider.issuer, ("vault",))
    with pytest.raises(Denied) as refused:
        await provider.party(now=claims.expires + 5).verify(token)
    assert refused.value.reason == Reason.JWT_EXPIRED
    with pytest.raises(Denied) as refused:
        await provider.party(now=(claims.issued_at or 0) - 6).verify(token)
    assert refused.value.reason == Reason.JWT_NOT_YET_VALID


async def test_its_rotation_is_followed_and_a_key_that_it_takes_back_is_gone(provider: Provider) -> None:
    provider.sign_with(FIRST)
    at_once = CacheTimes(min_interval=0, min_age=0, default_age=0)
    party, old = provider.party(times=at_once), provider.ask(token=True)
    assert (await party.verify(old)).algorithm == "RS256"
    provider.sign_with(SECOND, FIRST)
    new = provider.ask(token=True)
    assert (await party.verify(new)).algorithm == "ES256"
    assert (await party.verify(old)).algorithm == "RS256"
    provider.sign_with(SECOND)
    with pytest.raises(Denied) as refused:
        await party.verify(old)
    assert refused.value.reason == Reason.JWT_KEY_UNKNOWN
    assert (await party.verify(new)).subject == "alice"
