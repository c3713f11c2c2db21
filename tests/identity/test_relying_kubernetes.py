"""A real kube-apiserver on both sides: its tokens before our relying party, and our tokens before its own."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final, cast

import pytest
import requests
from issuer_server import IssuerServer, issuer_server
from polling import eventually
from relying_parties import KEYS, cases
from token_kit import AUDIENCE

from nodeattest_identity.tokens.jwt import Expected
from nodeattest_identity.tokens.relying_party import HttpsFetcher, RelyingParty
from nodeattest_providers.errors import Denied, Reason
from nodeattest_sandbox.control_plane import ControlPlane, start_real

pytestmark = pytest.mark.conformance

TAKEN: Final = {"no kid"}
"""What kube-apiserver takes of the bad tokens: go-oidc tries every key where a token names none."""
ACCOUNT: Final = "/api/v1/namespaces/default/serviceaccounts"
READERS: Final = "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings"


@dataclass(frozen=True)
class Both:
    """A control plane that trusts an issuer of ours."""

    plane: ControlPlane
    issuer: IssuerServer


@pytest.fixture(scope="module")
def both(assets: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Both]:
    """Run an issuer with our documents, and a kube-apiserver that takes its tokens for users."""
    directory = tmp_path_factory.mktemp("relying")
    with issuer_server(directory) as issuer:
        issuer.publish(KEYS)
        flags = [
            f"--oidc-issuer-url={issuer.url}",
            f"--oidc-client-id={AUDIENCE}",
            f"--oidc-ca-file={issuer.ca}",
            "--oidc-signing-algs=RS256,ES256,ES384,ES512",
            "--oidc-username-claim=sub",
            "--oidc-username-prefix=outside:",
        ]
        with start_real(directory / "plane", assets, name="relying", flags=flags) as plane:
            yield Both(plane, issuer)


def is_taken(plane: ControlPlane, token: str) -> bool:
    """Show a token to kube-apiserver: 401 is what it says to nobody."""
    headers = {"Authorization": f"Bearer {token}"}
    with requests.Session() as session:
        session.trust_env = False
        answer = session.get(f"{plane.server}/api", headers=headers, verify=str(plane.ca_certificate), timeout=60)
    return answer.status_code != requests.codes.unauthorized


def assert_takes_the_good_ones(both: Both) -> None:
    asked = cases(both.issuer.url)
    # It asks the issuer in the background, at once and then every ten seconds.
    eventually(lambda: is_taken(both.plane, asked[0].token.decode()), "the first token taken", seconds=30)
    taken = {case.name for case in asked if is_taken(both.plane, case.token.decode())}
    assert taken == {case.name for case in asked if case.good or case.what in TAKEN}


def test_kube_apiserver_takes_our_documents_and_refuses_what_we_refuse(both: Both) -> None:
    assert_takes_the_good_ones(both)


@pytest.fixture(scope="module")
def tokens(both: Both) -> dict[str, str]:
    """Have kube-apiserver issue tokens, and let anybody read its documents as a published issuer would."""
    client = both.plane.client()
    client.create(ACCOUNT, {"metadata": {"name": "cart"}})
    client.create(
        READERS,
        {
            "metadata": {"name": "anybody-reads-the-issuer"},
            "roleRef": {
                "apiGroup": "rbac.authorization.k8s.io",
                "kind": "ClusterRole",
                "name": "system:service-account-issuer-discovery",
            },
            "subjects": [{"kind": "User", "name": "system:anonymous", "apiGroup": "rbac.authorization.k8s.io"}],
        },
    )
    made: dict[str, str] = {}
    for name, audiences in {"ours": [AUDIENCE], "two": ["other.example", AUDIENCE], "other": ["other.example"]}.items():
        answer = client.create(f"{ACCOUNT}/cart/token", {"spec": {"audiences": [*audiences], "expirationSeconds": 600}})
        made[name] = cast("dict[str, str]", answer["status"])["token"]
    return made


def party(plane: ControlPlane) -> RelyingParty:
    """Make a relying party that knows the cluster's URL and CA, and nothing else."""
    expected = Expected(issuer=plane.server, audiences=frozenset({AUDIENCE}))
    return RelyingParty.at(expected, HttpsFetcher(ca_file=plane.ca_certificate))


async def test_tokens_of_kube_apiserver_are_verified_by_its_own_documents(both: Both, tokens: dict[str, str]) -> None:
    asked = party(both.plane)
    for name in ("ours", "two"):
        claims = await asked.verify(tokens[name])
        assert claims.subject == "system:serviceaccount:default:cart"
        assert (claims.issuer, claims.algorithm) == (both.plane.server, "RS256")
    with pytest.raises(Denied) as refused:
        await asked.verify(tokens["other"])
    assert refused.value.reason == Reason.JWT_AUDIENCE_MISMATCH
    header, payload, _ = tokens["ours"].split(".")
    with pytest.raises(Denied) as refused:
        await asked.verify(f"{header}.{payload}.{tokens['two'].rpartition('.')[2]}")
    assert refused.value.reason == Reason.JWT_SIGNATURE_INVALID
