"""Join a cluster: configuration, token, first certificate, and last the kubelet's kubeconfig.

Promises: nothing is written before everything that was typed has been checked; each file appears whole; the kubeconfig,
by which kubelet finds all the others, appears only when the credential works. Running it again changes nothing, or
takes up a join that was interrupted.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from dataclasses import dataclass, field

from nodeattest_authenticator import kubeconfig, memory
from nodeattest_authenticator.agent import Agent, issue_and_store, usable
from nodeattest_authenticator.cache import Cached
from nodeattest_authenticator.clock import Clock, Deadline
from nodeattest_authenticator.errors import Failure, Fate, Local
from nodeattest_authenticator.issue import attestor_of
from nodeattest_authenticator.lock import exclusive
from nodeattest_authenticator.negotiation import offer_of
from nodeattest_authenticator.settings import TOKEN_FILE, Settings, to_json
from nodeattest_authenticator.storage import Storage, write_atomically

__all__ = ["JoinOptions", "join"]


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinOptions:
    """What was typed, parsed."""

    settings: Settings
    token: str = field(repr=False)
    config: str
    cache_dir: str
    kubeconfig: str
    exec_api_version: str
    command: str
    """Absolute path of kubelet-authenticator, for the kubeconfig."""
    wait: bool = True
    replace_kubeconfig: bool = False
    renew: bool = False
    """Whether to attest anew even with a certificate that is still valid."""


def join(
    options: JoinOptions, *, clock: Clock, chance: Callable[[], float], tell: Callable[[str], None]
) -> Cached | None:
    """Join; returns the credential, None when it was not waited for. Raises ``Failure``."""
    with attestor_of(options.settings.provider, options.settings.provider_settings) as attestor:
        offer_of(attestor, options.settings.minimum_version)
        _check_kubeconfig(options)
    with Storage(options.cache_dir) as storage:
        deadline = Deadline.after(clock, options.settings.timeout_seconds)
        with exclusive(storage, deadline):
            _write_inputs(options, storage)
    found: Cached | None = None
    if options.wait:
        found = _first_credential(options, clock=clock, chance=chance, tell=tell)
    rendered = kubeconfig.render(
        options.settings,
        command=options.command,
        config=options.config,
        cache_dir=options.cache_dir,
        exec_api_version=options.exec_api_version,
    )
    _write(options.kubeconfig, rendered)
    return found


def _check_kubeconfig(options: JoinOptions) -> None:
    old = _read(options.kubeconfig)
    if old is not None and not kubeconfig.is_ours(old) and not options.replace_kubeconfig:
        raise Failure(
            Local.CONFIGURATION_INVALID,
            f"{options.kubeconfig} exists and was not written by kubelet-authenticator",
            remedy="move it away, name another with --kubeconfig, or say --replace-kubeconfig",
            fate=Fate.USAGE,
        )


def _write_inputs(options: JoinOptions, storage: Storage) -> None:
    token = options.token.encode() + b"\n"
    try:
        changed = _write(options.config, to_json(options.settings))
        if options.settings.token_file is None and storage.read(TOKEN_FILE) != token:
            storage.write(TOKEN_FILE, token)
            changed = True
    except OSError as error:
        raise _cannot_write(storage.path, error) from None
    if changed:
        memory.forget(storage)  # another token or configuration deserves an attempt at once


def _first_credential(
    options: JoinOptions, *, clock: Clock, chance: Callable[[], float], tell: Callable[[str], None]
) -> Cached:
    # The node name stands in the configuration by now, so the host name is of no consequence.
    agent = Agent.open(options.config, options.cache_dir, hostname="", clock=clock, chance=chance, tell=tell)
    with agent.storage:
        deadline = Deadline.after(clock, agent.settings.timeout_seconds)
        with exclusive(agent.storage, deadline):
            found = usable(agent)
            if found is not None and not options.renew:
                tell("this node keeps the certificate that it has; join --renew attests anew")
                return found
            # A person asks: no pause after an earlier failure is kept.
            return issue_and_store(agent, found.credential if found else None, deadline)


def _write(path: str, data: bytes) -> bool:
    """Write a file unless it has that content already; returns whether it was written."""
    if _read(path) == data:
        return False
    try:
        parent = os.path.dirname(path)  # noqa: PTH120 - strings throughout, as in storage
        if parent:
            os.makedirs(parent, exist_ok=True)  # noqa: PTH103 - the same
        write_atomically(path, data, mode=0o600)
    except OSError as error:
        raise _cannot_write(path, error) from None
    return True


def _read(path: str) -> bytes | None:
    with contextlib.suppress(FileNotFoundError):
        try:
            with open(path, "rb") as file:  # noqa: PTH123 - the same
                return file.read()
        except PermissionError as error:
            raise _cannot_write(path, error) from None
    return None


def _cannot_write(path: str, error: OSError) -> Failure:
    return Failure(
        Local.CONFIGURATION_INVALID,
        f"{path} cannot be written: {error.strerror}",
        remedy="run join as the user who runs kubelet, mostly root, with room on the disk",
        fate=Fate.USAGE,
    )
