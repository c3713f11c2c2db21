"""D11: tokens that somebody made up, and issuers that lead elsewhere, before our relying party."""

from __future__ import annotations

import base64
from collections.abc import Generator, Mapping
from dataclasses import replace

import pytest
from catalogue import Expected, Row, Verdict, attacks, evaluated
from cryptography.hazmat.primitives.asymmetric.utils import encode_dss_signature
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from issuer_server import IssuerServer, Reply, issuer_server
from token_kit import AUDIENCE, EXPECTED, ISSUER, NOW, b64u, claims, elliptic, header, rsa_key, token

from nodeattest_identity.tokens.jwt import verify
from nodeattest_identity.tokens.relying_party import HttpsFetcher, RelyingParty
from nodeattest_providers.errors import Denied

KEY, STRANGER, WIDE = elliptic(), elliptic(1), elliptic(bits=384)
KEYS = tuple(key.verifying for key in (rsa_key(), KEY, WIDE))
PUBLIC = KEY.verifying.public.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
GOOD = token(KEY)
SIGNED, _, SIGNATURE = GOOD.rpartition(b".")
RAW = base64.urlsafe_b64decode(SIGNATURE + b"==")
DER = encode_dss_signature(int.from_bytes(RAW[:32]), int.from_bytes(RAW[32:]))


def headed(**changed: object) -> bytes:
    """Sign with a header that has one thing changed."""
    return token(KEY, header(KEY, **changed))


def claimed(**changed: object) -> bytes:
    """Sign claims that have one thing changed."""
    return token(KEY, given_claims=claims(NOW, ISSUER, **changed))


TOKENS: Mapping[str, bytes] = {
    "D11-01": token(KEY, header(KEY, alg="none"), unsigned=True),
    "D11-02": headed(alg="none"),
    "D11-03": headed(alg="nOnE"),
    "D11-04": token(KEY, header(KEY, alg="HS256"), secret=PUBLIC),
    "D11-05": token(KEY, header(KEY, alg="HS256"), secret=b""),
    "D11-06": SIGNED + b"." + b64u(bytes(64)),
    "D11-07": SIGNED + b".",
    "D11-08": SIGNED + b"." + claimed(sub="system:serviceaccount:kube-system:admin").rpartition(b".")[2],
    "D11-09": SIGNED + b"." + b64u(DER),
    "D11-10": headed(alg="ES384"),
    "D11-20": token(STRANGER, header(STRANGER, jwk={"kty": "EC", "crv": "P-256", "x": "AA", "y": "AA"})),
    "D11-21": token(STRANGER, header(STRANGER, jku="https://evil.example/keys")),
    "D11-22": token(STRANGER, header(STRANGER, x5c=["AAAA"])),
    "D11-23": headed(kid="../../../../dev/null"),
    "D11-24": headed(kid=None),
    "D11-25": token(STRANGER, header(STRANGER, kid=KEY.verifying.kid)),
    "D11-30": headed(crit=["x-policy"], **{"x-policy": "require-mfa"}),
    "D11-31": headed(crit=["b64"], b64=False),
    "D11-32": token(KEY, given_claims=b'{"sub":"a","sub":"b","iss":"x","aud":"y","exp":1}'),
    "D11-33": GOOD + b"=",
    "D11-34": GOOD + b"." + SIGNATURE + b"." + SIGNATURE,
    "D11-35": headed(typ="at+jwt"),
    "D11-36": token(KEY, given_claims=b'{"a":' * 1000 + b"1" + b"}" * 1000),
    "D11-37": claimed(groups="x" * 200_000),
    "D11-40": claimed(iss=f"{ISSUER}/"),
    "D11-41": claimed(aud=f"{AUDIENCE}.evil"),
    "D11-42": claimed(exp=NOW - 5),
    "D11-43": claimed(nbf=NOW + 86_400, exp=NOW + 90_000),
    "D11-44": claimed(iat=NOW + 86_400, exp=NOW + 90_000),
    "D11-45": claimed(aud=None, exp=None, iss="kubernetes/serviceaccount"),
    "D11-46": claimed(exp=str(NOW + 600)),
}


@pytest.mark.parametrize(("row", "text"), attacks(TOKENS))
def test_a_made_up_token_is_refused_for_what_it_is(row: Row, text: bytes) -> None:
    assert evaluated(lambda: verify(text, KEYS, EXPECTED, NOW)) == row.expected
    assert verify(GOOD, KEYS, EXPECTED, NOW).subject == claims()["sub"]


CONFIGURATION, JWKS = "/.well-known/openid-configuration", "/openid/v1/jwks"
DOCUMENTS: Mapping[str, tuple[str, Reply]] = {
    "D11-50": (CONFIGURATION, Reply(b'{"issuer":"https://evil.example","jwks_uri":"ISSUER/openid/v1/jwks"}')),
    "D11-51": (CONFIGURATION, Reply(b'{"issuer":"ISSUER","jwks_uri":"http://localhost/keys"}')),
    "D11-52": (JWKS, Reply(status=307, headers={"Location": "https://evil.example/keys"})),
    "D11-53": (JWKS, Reply(b'{"keys":[{"kty":"oct","k":"AA","kid":"1","alg":"HS256"}]}')),
    "D11-54": (JWKS, Reply(b'{"keys":[{"kty":"EC","crv":"P-256","kid":"1","x":"AA","y":"AA","d":"AA"}]}')),
    "D11-55": (JWKS, Reply(b"TWICE")),
    "D11-56": (JWKS, Reply(b'{"keys":[{"kty":"RSA","kid":"1","e":"AQAB","n":"%b"}]}' % b64u(b"\xff" * 64))),
}


@pytest.fixture(scope="module")
def issuer(tmp_path_factory: pytest.TempPathFactory) -> Generator[IssuerServer]:
    """Run an issuer that others write to."""
    with issuer_server(tmp_path_factory.mktemp("issuer")) as server:
        yield server


@pytest.mark.parametrize(("row", "told"), attacks(DOCUMENTS))
async def test_an_issuer_that_leads_elsewhere_is_refused(
    row: Row, told: tuple[str, Reply], issuer: IssuerServer
) -> None:
    issuer.publish([KEY.verifying])
    path, reply = told
    other = elliptic(1).verifying
    twice = issuer.answers[JWKS].body.removesuffix(b"]}")
    issuer.publish([replace(other, kid=KEY.verifying.kid)])
    twice += b"," + issuer.answers[JWKS].body.removeprefix(b'{"keys":[')
    issuer.publish([KEY.verifying])
    body = reply.body.replace(b"ISSUER", issuer.url.encode()).replace(b"TWICE", twice)
    issuer.answers[path] = replace(reply, body=body)
    party = RelyingParty.at(replace(EXPECTED, issuer=issuer.url), HttpsFetcher(ca_file=issuer.ca), clock=lambda: NOW)
    with pytest.raises(Denied) as refused:
        await party.verify(token(KEY, given_claims=claims(issuer=issuer.url)))
    assert Expected(Verdict.DENY, refused.value.reason) == row.expected
