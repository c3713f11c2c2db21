"""Kubernetes itself on odd tokens and Secrets: its API server, its two controllers and kubeadm judge them as we do."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from collections.abc import Set as AbstractSet
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path

import pytest
from polling import eventually
from test_discovery_secret import OddSecret, known, odd_secrets
from test_discovery_tokens import NO_TOKENS

from nodeattest_discovery import clusterinfo, jws, secret, token
from nodeattest_discovery.clusterinfo import KUBECONFIG_KEY, SIGNATURE_PREFIX
from nodeattest_discovery.secret import Expiry
from nodeattest_sandbox.apiserver.jsonvalue import JsonMap, map_at, text_at, texts_at
from nodeattest_sandbox.client import ApiRefusal, Client
from nodeattest_sandbox.control_plane import ControlPlane, controller_manager, kubeadm

SECRETS = "/api/v1/namespaces/kube-system/secrets"
TOKEN_REVIEW = "/apis/authentication.k8s.io/v1/tokenreviews"
Answer = tuple[tuple[str, ...] | None, int]
"""The groups in the TokenReview of a token, and the code that a request gets which shows it."""
ODD = odd_secrets("o")


def removed(admin: Client, name: str) -> None:
    with suppress(ApiRefusal):
        admin.send("DELETE", f"{SECRETS}/{name}")


@pytest.fixture(scope="module")
def answers(control_plane: ControlPlane) -> Iterator[dict[str, Answer]]:
    """Ask the server about every odd Secret."""
    admin, anonymous = control_plane.client(), control_plane.client(control_plane.token_kubeconfig())
    for odd in ODD:
        admin.create(SECRETS, odd.body)
    last_good = next(odd.token for odd in reversed(ODD) if odd.groups is not None)
    control_plane.await_token(last_good)
    yield {odd.token: (reviewed(admin, odd.token), shown(anonymous, odd.token)) for odd in ODD}
    for odd in ODD:
        removed(admin, odd.name)


def reviewed(admin: Client, bearer: str) -> tuple[str, ...] | None:
    status = map_at(admin.create(TOKEN_REVIEW, {"spec": {"token": bearer}}), "status")
    if status.get("authenticated") is not True:
        return None
    assert text_at(status, "user", "username") == f"system:bootstrap:{bearer[:6]}"
    groups = texts_at(status, "user", "groups")
    assert groups[-1] == "system:authenticated"
    return tuple(groups[:-1])


def shown(anonymous: Client, bearer: str) -> int:
    """Show a token as HTTP can carry it: a header ends at a line end."""
    try:
        code, _ = anonymous.send("GET", "/api", headers={"Authorization": f"Bearer {bearer.rstrip()}"})
    except ApiRefusal as refused:
        return refused.code
    return code


@pytest.mark.parametrize("odd", ODD, ids=lambda odd: odd.description)
def test_an_api_server_knows_whoever_shows_a_token_as_we_say(answers: dict[str, Answer], odd: OddSecret) -> None:
    assert known(odd, datetime.now(UTC)) == odd.groups
    groups, code = answers[odd.token]
    assert groups == odd.groups
    assert code == (401 if groups is None else 200)


@pytest.mark.conformance
def test_kube_controller_manager_signs_and_deletes_what_we_say_with_the_bytes_that_we_compute(
    real_control_plane: ControlPlane, assets: Path
) -> None:
    admin = real_control_plane.client()
    for name in tokens_in(admin):
        removed(admin, name)  # tokens of other tests on this server, which the controllers would judge, too
    odd = odd_secrets("c")
    kubeconfig = clusterinfo.build(real_control_plane.server, real_control_plane.ca_certificate.read_bytes())
    stale: JsonMap = {f"{SIGNATURE_PREFIX}{key}": "stale" for key in ("", "no-token", odd[0].id)}
    published: JsonMap = {KUBECONFIG_KEY: kubeconfig, "other": "kept", **stale}
    with stored_in(admin, odd) as stored, published_in(admin, published):
        now = datetime.now(UTC)
        left = {name for name, each in stored.items() if secret.expiry(each, now)[0] is not Expiry.PAST}
        data, names = controlled(real_control_plane, assets, gone=stored.keys() - left)
    signing = [found for each in stored.values() if (found := secret.signing_token(each, now))]
    ours: JsonMap = {f"{SIGNATURE_PREFIX}{found.id}": jws.sign(kubeconfig.encode(), found) for found in signing}
    assert data == {KUBECONFIG_KEY: kubeconfig, "other": "kept", **ours}
    assert names == left
    assert {each.id for each in odd if each.signed} == {found.id for found in signing}
    assert {each.name for each in odd if each.cleaned} == stored.keys() - names


@contextmanager
def stored_in(admin: Client, odd: list[OddSecret]) -> Generator[dict[str, JsonMap]]:
    """Create the Secrets; gives all that are named like tokens, as the server has them."""
    try:
        for each in odd:
            admin.create(SECRETS, each.body)
        yield tokens_in(admin)
    finally:
        for each in odd:
            removed(admin, each.name)


@contextmanager
def published_in(admin: Client, data: JsonMap) -> Generator[None]:
    admin.create(
        f"/api/v1/namespaces/{clusterinfo.NAMESPACE}/configmaps", {"metadata": {"name": clusterinfo.NAME}, "data": data}
    )
    try:
        yield
    finally:
        admin.send("DELETE", clusterinfo.PATH)


def controlled(plane: ControlPlane, assets: Path, *, gone: AbstractSet[str]) -> tuple[JsonMap, set[str]]:
    """Let both controllers judge all there is; returns what cluster-info holds then, and the names of the Secrets left.

    They take what they find in its order, several at a time: when what came last has been judged, so has nearly all the
    rest. What is to be ``gone`` is waited for.
    """
    admin = plane.client()
    signs, expired = odd_secrets("y")[0], next(each for each in odd_secrets("z") if each.cleaned)
    with controller_manager(plane, assets, ["bootstrapsigner", "tokencleaner"]):
        with stored_in(admin, [signs, expired]):
            eventually(lambda: expired.name not in tokens_in(admin), "the last Secret is deleted")
            eventually(lambda: not gone & tokens_in(admin).keys(), "every Secret is deleted that has expired")
            eventually(lambda: f"{SIGNATURE_PREFIX}{signs.id}" in data_of(admin), "the last token signs")
        eventually(lambda: f"{SIGNATURE_PREFIX}{signs.id}" not in data_of(admin), "a token that is gone signs no more")
        return data_of(admin), set(tokens_in(admin))


def tokens_in(admin: Client) -> dict[str, JsonMap]:
    found = {text_at(each, "metadata", "name"): each for each in admin.list(SECRETS)}
    return {name: each for name, each in found.items() if name.startswith("bootstrap-token-")}


def data_of(admin: Client) -> JsonMap:
    return map_at(admin.get(clusterinfo.PATH), "data")


@pytest.mark.conformance
def test_what_is_no_token_to_us_is_none_to_kubeadm(assets: Path) -> None:
    for text in NO_TOKENS:
        if text and text.isascii() and "\0" not in text:
            done = kubeadm(assets, "token", "create", text, "--dry-run", "--kubeconfig", "/nonexistent")
            assert "was not of the form" in done.stderr, text
    sound = kubeadm(assets, "token", "create", token.generate().reveal(), "--dry-run", "--kubeconfig", "/nonexistent")
    assert "was not of the form" not in sound.stderr
