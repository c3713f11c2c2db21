"""The ``challenge`` provider's attestor: answers a challenge under the Machine's secret, read from a file.

Source: docs/wire-format.md, "challenge/v1", §3, step 7.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping

from nodeattest_providers.challenge import protocol
from nodeattest_providers.challenge_response import check_own
from nodeattest_providers.errors import Denied, Reason, Unavailable
from nodeattest_providers.node_interface import (
    Attestor,
    Binding,
    Evidence,
    FirstRequestRef,
    JsonValue,
    PublishedChallenge,
    SecretBytes,
)


class ChallengeAttestor(Attestor):
    """Answers challenges. Its one setting is ``secretFile``, an absolute path."""

    provider = protocol.PROVIDER
    versions: tuple[int, ...] = (protocol.VERSION,)
    two_step = True

    def __init__(self, settings: Mapping[str, JsonValue]) -> None:
        path = settings.get("secretFile")
        if set(settings) != {"secretFile"} or not isinstance(path, str) or not path.startswith("/"):
            raise Denied(
                Reason.POLICY_INVALID,
                expected="the one setting secretFile, an absolute path",
                got=", ".join(map(repr, settings)) or "none",
                remedy="name the file that the bootstrap data wrote the Machine's secret to",
            )
        self._path = path

    def attest(self, binding: Binding, challenge: PublishedChallenge | None = None) -> Evidence:
        secret = _read_secret(self._path)  # in the first phase too: a node that cannot answer need not ask
        if challenge is None:
            return Evidence(protocol.PROVIDER, protocol.VERSION, protocol.ChallengeEvidence().to_json())
        published = protocol.Challenge.parse(challenge.text)
        check_own(binding, challenge, ("UID", published.uid == challenge.uid))
        first = FirstRequestRef(name=challenge.name, uid=challenge.uid)
        mac = protocol.proof(secret, published.nonce, first.uid, binding.digest)
        return Evidence(protocol.PROVIDER, protocol.VERSION, protocol.ChallengeEvidence(first=first, mac=mac).to_json())


def _read_secret(path: str) -> SecretBytes:
    """Read a regular file, 0600 or stricter, of this user."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError as error:
        raise Unavailable(
            Reason.SECRET_MISSING, f"{path}: {error.strerror}", remedy="let the bootstrap data write the secret there"
        ) from None
    try:
        _check_owner(path, os.fstat(descriptor))
        content = os.read(descriptor, protocol.MAX_SECRET + 1)
    finally:
        os.close(descriptor)
    secret = protocol.normalised(content)
    if not protocol.MIN_SECRET <= len(secret.reveal()) <= len(content) <= protocol.MAX_SECRET:
        raise _refused(f"{protocol.MIN_SECRET} to {protocol.MAX_SECRET} bytes in {path}", f"{len(content)} bytes")
    return secret


def _check_owner(path: str, status: os.stat_result) -> None:
    if not stat.S_ISREG(status.st_mode):
        raise _refused(f"a regular file at {path}", "something else")
    if status.st_uid != os.geteuid():
        raise _refused(f"{path} to belong to user {os.geteuid()}", f"user {status.st_uid}")
    if status.st_mode & 0o077:
        raise _refused(f"mode 0600 of {path}", f"{stat.S_IMODE(status.st_mode):04o}")


def _refused(expected: str, got: str) -> Denied:
    return Denied(
        Reason.SECRET_MISSING, expected=expected, got=got, remedy="write the Machine's secret there again, mode 0600"
    )
