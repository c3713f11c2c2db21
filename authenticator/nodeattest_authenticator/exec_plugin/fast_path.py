"""The fast path: prints a cached answer with only ``os`` and ``time`` imported.

A credential is printed only if directory and file are private, the file is complete, it was made for the same
``KUBERNETES_EXEC_INFO`` and configuration file, and its renewal time has not come. ``main`` handles every other call.
``from __future__ import annotations`` would be another import.
Source: client-go plugin/pkg/client/auth/exec/exec.go.
"""

import os
import time

from nodeattest_authenticator.state.cache_files import (
    CREDENTIAL_FILE,
    FAILURE_FILE,
    FAILURE_MAGIC,
    UnsafeFileError,
    fingerprint_of_config,
    is_time_valid,
    open_directory,
    parse_header,
    read_private,
)

DEFAULT_CACHE_DIR = "/var/lib/kubelet-authenticator"
DEFAULT_CONFIG = "/etc/kubernetes/kubelet-authenticator.json"


def run(argv: list[str]) -> int | None:
    """Answer from the cache, or repeat the stored failure. Return the exit code, or None for the slow path."""
    arguments, info = credential_arguments(argv), os.environb.get(b"KUBERNETES_EXEC_INFO")
    if arguments is None or info is None:
        return None
    found = lookup(*arguments, info, time.time())
    if found is None:
        return None
    status, text = found
    _write(1 if status == 0 else 2, text)
    return status


def credential_arguments(argv: list[str]) -> tuple[str, str] | None:
    """Return cache directory and configuration file of a plain ``credential`` call, or None for other calls."""
    arguments = argv[1:]
    if arguments and arguments[0] == "credential":
        arguments = arguments[1:]
    elif arguments and not arguments[0].startswith(("--cache-dir", "--config")):
        return None
    found = {"--cache-dir": DEFAULT_CACHE_DIR, "--config": DEFAULT_CONFIG}
    while arguments:
        name, equals, value = arguments.pop(0).partition("=")
        if name not in found or not (equals or arguments):
            return None
        found[name] = value if equals else arguments.pop(0)
    return found["--cache-dir"], found["--config"]


def lookup(cache_dir: str, config: str, info: bytes, now: float) -> tuple[int, bytes] | None:
    """Return exit code and text for this call from the cache, or None for the slow path."""
    try:
        directory = open_directory(cache_dir)
        try:
            return _found(directory, fingerprint_of_config(config), info, now)
        finally:
            os.close(directory)
    except (OSError, ValueError, UnsafeFileError):
        return None


def _found(directory: int, fingerprint: bytes, info: bytes, now: float) -> tuple[int, bytes] | None:
    try:
        data = read_private(directory, CREDENTIAL_FILE)
    except FileNotFoundError:
        return _remembered_refusal(directory, fingerprint, now)
    (not_before, renew_at, not_after), made_for, pairs, _ = parse_header(data)
    if now >= not_after:
        return _remembered_refusal(directory, fingerprint, now)
    if made_for != fingerprint or now >= renew_at or not is_time_valid(not_before, not_after, now):
        return None
    for start, middle, end in pairs:
        if data[start:middle] == info:
            return 0, data[middle:end]
    return None


def _remembered_refusal(directory: int, fingerprint: bytes, now: float) -> tuple[int, bytes] | None:
    # Without a certificate client-go runs the plugin for each request, so the answer must be cheap.
    head, _, message = read_private(directory, FAILURE_FILE).partition(b"\n")
    magic, until, made_for, _ = head.split(b" ")
    if magic != FAILURE_MAGIC or made_for != fingerprint or not now < int(until) <= now + 3600:
        return None
    return 1, message.partition(b"\n")[0] + b" (next attempt in %d s)\n" % (int(until) - now + 1)


def _write(descriptor: int, text: bytes) -> None:
    while text:
        text = text[os.write(descriptor, text) :]
