"""Finds the node's provider ID: in the settings (value, file, command), from the provider, or from the controller.

The controller's answer is accepted only if the request had no provider ID.
Source: docs/wire-format.md, "A request without a provider ID".
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from typing import Final

from nodeattest_authenticator.errors import AgentError, AgentReason, FailureKind, said
from nodeattest_authenticator.settings import ProviderIdSource
from nodeattest_parsing import strict_json
from nodeattest_parsing.values import JsonValue, ParseError
from nodeattest_providers.errors import Denied, Reason, Unavailable
from nodeattest_providers.identifiers import ProviderID, printable
from nodeattest_providers.identifiers import provider_id as checked
from nodeattest_providers.node_interface import Attestor
from nodeattest_providers.provider_id_template import check_rendered, fill, has_sources

OTHER_MACHINE: Final = frozenset(
    {Reason.PROVIDER_ID_MISMATCH, Reason.TOKEN_NOT_THIS_MACHINES, Reason.MACHINE_NOT_FOUND}
)
"""Refusals after which a stored answer is discarded: the token belongs to a Machine with another provider ID."""

_COMMAND_SECONDS: Final = 10
_REMEDY: Final = "pass kubelet's value with join --provider-id, --provider-id-file or --provider-id-command"
_LIMIT: Final = 4096
"""Bytes read from a file or command; a provider ID has at most 1024 characters."""


def resolve(source: ProviderIdSource, attestor: Attestor) -> ProviderID | None:
    """Return the provider ID, or None if nothing on this machine knows it. Raises ``AgentError``."""
    try:
        text = _text(source, attestor)
        if text is None:
            return None
        check_rendered(text)
        return checked(text)
    except Denied as denied:
        raise _unknown(said(denied)) from None


def accept(answer: str | None, sent: ProviderID | None, refusal: AgentError) -> ProviderID:
    """Return the provider ID in the controller's annotation. ``sent``: the provider ID of the refused request.

    Raises ``AgentError`` if the request had a provider ID, or if the annotation is invalid.
    """
    if sent:
        raise AgentError(
            refusal.reason,
            f"the controller asks for a provider ID, but the request had {printable(sent)}",
            remedy="compare it with the Machine's spec.providerID; see the controller's log",
        )
    try:
        check_rendered(answer or "")
        return checked(answer or "")
    except Denied as denied:
        raise AgentError(
            Reason.PROVIDER_ID_INVALID,
            f"the controller's annotation: {said(denied)}",
            remedy="upgrade the controller or the agent, or pass join --provider-id",
        ) from None


def not_configured(attestor: Attestor) -> AgentError:
    """Return the error for a request that needs a provider ID and has none."""
    return _unknown(
        f"provider {attestor.provider} does not know it, providerID is not configured, and only a request with a "
        "bootstrap token can ask the controller",
        FailureKind.USAGE,
    )


def _text(source: ProviderIdSource, attestor: Attestor) -> str | None:
    if source.value is not None and has_sources(source.value):
        return fill(source.value, MachineSources().value)
    if source.value is not None:
        return source.value
    if source.file is not None or source.command is not None:
        where = source.file or (source.command or ("",))[0]  # without its arguments, which may be secret
        try:
            return (_from_file(source.file) if source.file else _from_command(source.command or ())).decode().strip()
        except OSError as error:
            raise _unknown(f"{where}: {error.strerror}") from None
        except UnicodeDecodeError:
            raise _unknown(f"the output of {where} is not UTF-8") from None
    try:
        return next((found for part in parts_of(attestor) if (found := part.provider_id()) is not None), None)
    except (Denied, Unavailable) as verdict:
        raise _unknown(said(verdict), remedy=verdict.remedy) from None


def _from_file(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read(_LIMIT)


def _from_command(command: tuple[str, ...]) -> bytes:
    import subprocess

    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            timeout=_COMMAND_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise _unknown(f"{command[0]} took longer than {_COMMAND_SECONDS} s") from None
    if done.returncode:
        raise _unknown(f"{command[0]} exited with code {done.returncode}")
    return done.stdout[:_LIMIT]


def _unknown(message: str, kind: FailureKind = FailureKind.TEMPORARY, *, remedy: str = _REMEDY) -> AgentError:
    return AgentError(
        AgentReason.PROVIDER_ID_UNKNOWN, f"the provider ID is not known: {message}", remedy=remedy, kind=kind
    )


def parts_of(attestor: Attestor) -> tuple[Attestor, ...]:
    """Return an attestor and its parts."""
    return (attestor, *attestor.parts)


_VALUE: Final = re.compile(r"[!#-&(-\[\]-z|~]{1,1024}")
"""Visible ASCII without quotes, backslash and braces."""
_UUID: Final = re.compile(r"[0-9a-f]{8}-(?:[0-9a-f]{4}-){3}[0-9a-f]{12}")
_UNSET_UUIDS: Final = frozenset({"0" * 32, "f" * 32, "03000200040005000006000700080009"})
"""What firmware has that nobody configured; the last is common to boards of several makers."""
_VMWARE: Final = re.compile(r"vmware-((?:[0-9a-f]{2} ){7}[0-9a-f]{2})-((?:[0-9a-f]{2} ){7}[0-9a-f]{2})")
_MAX_DMI: Final = 4096
_MAX_INSTANCE_DATA: Final = 1 << 22
"""Bytes; cloud-init keeps the user data there, too."""
_MAX_DEPTH: Final = 64
_MAX_VALUES: Final = 50_000


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineSources:
    """Where the machine is read."""

    dmi: str = "/sys/class/dmi/id"
    instance_data: str = "/run/cloud-init/instance-data.json"

    def value(self, source: str) -> str:
        """Return the value of a source as ``provider_id_template`` names it; raises ``AgentError``."""
        kind, _, key = source.partition(":")
        if kind == "dmi":
            return self._dmi(key)
        if kind == "cloud-init":
            return self._cloud_init(key)
        return _checked(os.uname().nodename.strip().lower(), "the host name")

    def _dmi(self, key: str) -> str:
        path = f"{self.dmi}/{key}"
        text = _read_source(path, _MAX_DMI).decode("ascii", "replace").strip()
        if key == "product_serial":
            vmware = _VMWARE.fullmatch(text.lower())
            return _uuid(bytes.fromhex(vmware[1] + vmware[2]).hex(), path) if vmware else _checked(text, path)
        if not _UUID.fullmatch(text.lower()):
            raise _unreadable(f"{path}: expected a UUID, got {printable(text)}")
        return _uuid(text.lower().replace("-", ""), path)

    def _cloud_init(self, key: str) -> str:
        path = self.instance_data
        try:
            found: JsonValue = strict_json.parse_object(
                _read_source(path, _MAX_INSTANCE_DATA),
                max_size=None,
                max_depth=_MAX_DEPTH,
                max_values=_MAX_VALUES,
                floats=True,
            )
        except ParseError as error:
            raise _unreadable(f"{path}: {error}") from None
        names = key.split(".")
        if _member(found, names[0]) is None:  # cloud-init's own short names
            names.insert(0, "v1")
        for name in names:
            found = _member(found, name)
        if isinstance(found, int) and not isinstance(found, bool):
            found = str(found)
        if not isinstance(found, str):
            got = "none" if found is None else type(found).__name__
            raise _unreadable(f"{path}: expected a text or whole number for {key}, got {got}")
        return _checked(found, f"{path}: {key}")


def _member(value: JsonValue, name: str) -> JsonValue:
    """Return a member by its name, or by the name that cloud-init's templates give it."""
    if not isinstance(value, dict):
        return None
    if name in value:
        return value[name]
    return next((value[each] for each in sorted(value) if each.replace("-", "_") == name), None)


def _uuid(digits: str, path: str) -> str:
    if digits in _UNSET_UUIDS:
        raise _unreadable(f"{path}: expected the machine's own UUID, got one that firmware has by default")
    return "-".join((digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:]))


def _read_source(path: str, limit: int) -> bytes:
    try:
        with open(path, "rb") as file:
            data = file.read(limit + 1)
    except OSError as error:
        raise _unreadable(f"{path}: {error.strerror}") from None
    if len(data) > limit:
        raise _unreadable(f"{path}: more than {limit} bytes")
    return data


def _checked(text: str, where: str) -> str:
    if not _VALUE.fullmatch(text):
        raise _unreadable(
            f"{where}: expected visible characters without spaces, quotes and braces, got {printable(text)}"
        )
    return text


def _unreadable(message: str) -> AgentError:
    return AgentError(
        AgentReason.PROVIDER_ID_UNKNOWN,
        f"the provider ID is not known: {message}",
        remedy="choose another source in providerID.value (join --provider-id), or none: then the controller tells it",
        kind=FailureKind.TEMPORARY,
    )
