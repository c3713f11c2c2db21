"""Uploads through the whole chain of real programs arrive, and their answers come back.

``make bench ARGS=uploads`` does the same with up to 200 MB, late answers, and 200 times.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest
from needs import not_possible

from bench.addon_chain import Chain, chain, own_address
from bench.uploads import Upload, run
from nodeattest_identity.proxy.limits import MAX_HEAD

pytestmark = pytest.mark.conformance

UPLOADS = [
    Upload(0, 1, chunked=False, wait=0.0, cut="head"),
    Upload(1, 40_000, chunked=False, wait=0.0, cut="whole"),
    Upload(2, 40_000, chunked=True, wait=0.0, cut="head"),
    Upload(3, 3 * MAX_HEAD + 1, chunked=False, wait=0.0, cut="32 KiB + 1"),
    Upload(4, 1 << 20, chunked=False, wait=0.0, cut="last byte"),
    Upload(5, 1 << 20, chunked=True, wait=0.0, cut="bytes"),
    Upload(6, 8_000_000, chunked=False, wait=0.0, cut="head - 1"),
    Upload(7, 200_000_000, chunked=True, wait=0.0, cut="whole"),
]


@pytest.fixture(scope="module")
def to(assets: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Chain]:
    address = own_address()
    if address is None:
        not_possible("no address but loopback, which Endpoints may not have")
    with chain(tmp_path_factory.mktemp("chain"), assets, address) as running:
        yield running


def test_no_upload_through_the_whole_chain_is_lost(to: Chain) -> None:
    assert asyncio.run(run(UPLOADS, to)) == {}
