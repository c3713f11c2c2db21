"""What cluster-info must hold, decided without an API server."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st
from token_world import SECRET, signature

from nodeattest_discovery.clusterinfo import KUBECONFIG_KEY, SIGNATURE_PREFIX
from nodeattest_discovery.controllers.bootstrap_signer import (
    SignatureCache,
    current_signatures,
    desired_cluster_info,
)
from nodeattest_discovery.token import BootstrapToken
from nodeattest_parsing.objects import dig
from nodeattest_parsing.values import JsonObject

ONE = BootstrapToken("abc123", SECRET)
OTHER = BootstrapToken("def456", SECRET)
KEYS = st.one_of(
    st.text(alphabet="ab-.", min_size=1, max_size=8),
    st.just(KUBECONFIG_KEY),
    st.text(alphabet="abc123", max_size=6).map(SIGNATURE_PREFIX.__add__),
)


@given(st.dictionaries(KEYS, st.text(max_size=20)), st.sets(st.sampled_from([ONE, OTHER])))
def test_signing_is_done_once_and_touches_signatures_only(data: dict[str, str], tokens: set[BootstrapToken]) -> None:
    others: JsonObject = {"metadata": {"name": "cluster-info", "strange": [1]}, "binaryData": {"b": "AA=="}}
    before: JsonObject = {**others, "data": {**data}}
    signatures = {token: signature(token, data.get(KUBECONFIG_KEY, "")) for token in tokens}
    after = desired_cluster_info(before, signatures) or before
    assert desired_cluster_info(after, signatures) is None
    assert {key: value for key, value in after.items() if key != "data"} == others
    kept = {key: value for key, value in data.items() if not key.startswith(SIGNATURE_PREFIX)}
    signed = data.get(KUBECONFIG_KEY)
    wanted = {} if signed is None else {SIGNATURE_PREFIX + token.id: signature(token, signed) for token in tokens}
    assert dig(after, "data") == {**kept, **wanted}
    assert current_signatures(after) == wanted


MEBIBYTE = 1 << 20
TOKENS = [BootstrapToken(f"many{number:02d}", SECRET) for number in range(10)]


@pytest.mark.parametrize(("size", "turns"), [(MEBIBYTE, len(TOKENS)), (MEBIBYTE // 5, 2), (100, 0)])
async def test_others_are_served_between_two_slices(size: int, turns: int) -> None:
    served: list[None] = []
    done = asyncio.Event()

    async def others() -> None:
        while not done.is_set():
            await asyncio.sleep(0)
            served.append(None)

    async def sign() -> None:
        signatures = SignatureCache()
        await signatures.sign(b"x" * (size + 1), TOKENS)
        await signatures.sign(b"x" * (size + 1), TOKENS)  # made once
        done.set()

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(sign())
        tasks.create_task(others())
    assert abs(len(served) - turns) <= 1
