"""A server that drips ends each command that asks the cluster at its deadline, and its locks are free after it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from agent_cluster import FakeApi
from discovered_cluster import Discoverer, publish
from test_adopt import OldNode, signs_for_the_node
from test_credential import challenge_then_sign
from test_join import Joiner, in_process

Command = Callable[[str], tuple[int, str]]
"""Runs a command with a limit in seconds; returns its exit code and what it wrote to stderr."""


def join_by_token(folder: Path, api: FakeApi) -> Command:
    publish(api)
    joiner = Discoverer(folder, api)

    def run(limit: str) -> tuple[int, str]:
        done = joiner.join(discovery_timeout=limit)
        return done.returncode, done.stderr

    return run


def join_a_given_server(folder: Path, api: FakeApi) -> Command:
    joiner = Joiner(folder, api)

    def run(limit: str) -> tuple[int, str]:
        done = joiner.join(timeout=limit)
        return done.returncode, done.stderr

    return run


def adopt(folder: Path, api: FakeApi) -> Command:
    old = OldNode.make(folder, api)
    signs_for_the_node(api)

    def run(limit: str) -> tuple[int, str]:
        code, _, complained = old.adopt("--timeout", limit)
        return code, complained

    return run


def refresh(folder: Path, api: FakeApi) -> Command:
    publish(api)
    api.on_create = challenge_then_sign
    node = Discoverer(folder, api)
    node.challenged()
    joined = node.join()
    assert joined.returncode == 0, joined.stderr

    def run(limit: str) -> tuple[int, str]:
        done = in_process(*node.installed.arguments("refresh")[1:], "--timeout", limit)
        return done.returncode, done.stderr

    return run


@pytest.mark.parametrize("prepare", [join_by_token, join_a_given_server, adopt, refresh])
def test_a_server_that_drips_ends_a_command_at_its_deadline_and_the_next_finds_the_locks_free(
    tmp_path: Path, api: FakeApi, prepare: Callable[[Path, FakeApi], Command]
) -> None:
    run = prepare(tmp_path, api)
    before = len(api.requests)
    api.flows.clear()  # more than a minute for any object: without a deadline the command would succeed
    code, complained = run("5")
    assert code != 0
    assert len(api.requests) > before
    assert f"{api.url}: gave no whole answer in time" in complained
    assert "Traceback" not in complained
    api.flows.set()
    code, complained = run("60")
    assert code == 0, complained
