"""The section ``platforms`` of the configuration, read by the providers themselves when the controller starts.

Promises: a provider that is not installed and settings that its verifier refuses are a ``SettingsError`` of one line,
with the file, the field and the nearest known one. No platform is asked. Leaves the settings' meaning to each provider.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping

from nodeattest_providers import registry
from nodeattest_providers.errors import Denied, Reason
from nodeattest_providers.identifiers import ProviderName, printable
from nodeattest_providers.node_interface import JsonValue
from nodeattest_providers.platform import Platform, check_signer, make_signer
from nodeattest_providers.verifier_interface import ClusterAPISigner
from nodeattest_serving.bounded_server import SettingsError


def check_platforms(platforms: Mapping[str, Mapping[str, JsonValue]], source: str) -> None:
    """Let every named provider read its settings; ``source`` names the file in messages."""
    for name, section in platforms.items():
        where = f"{source}: .platforms.{name}"
        if name not in _known():
            raise SettingsError(f"{where}: unknown provider; {_nearest(name)}")
        try:
            make_signer(ProviderName(name), Platform(settings=section, may_call=False))
        except Denied as denied:
            if denied.reason is Reason.SIGNER_UNKNOWN:
                raise SettingsError(f"{where}: the provider cannot be used: got {denied.got}") from denied
            raise SettingsError(f"{where}: expected {denied.expected}, got {denied.got}") from denied


def check_signers(
    own: Mapping[ProviderName, ClusterAPISigner], platforms: Mapping[str, Mapping[str, JsonValue]]
) -> None:
    """Refuse signers that the program that runs us may not hand in: built-in names mean the classes that ship here."""
    for name, signer in own.items():
        taken = "of a built-in provider" if name in registry.RESERVED else "of an installed entry point"
        if name in registry.RESERVED | _known():
            raise SettingsError(
                f"signers: expected a provider of your own, got {printable(name)}, which is a name {taken}"
            )
        if name in platforms:
            raise SettingsError(
                f"platforms.{name}: expected none: the program that passes the signer gives it its settings"
            )
        try:
            check_signer(signer, name)
        except Denied as denied:
            raise SettingsError(f"signers.{printable(name)}: expected {denied.expected}, got {denied.got}") from denied


def _known() -> frozenset[str]:
    return registry.installed(registry.SIGNERS)


def _nearest(name: str) -> str:
    found = difflib.get_close_matches(name, sorted(_known()), n=1)
    return f"did you mean .platforms.{found[0]}?" if found else f"known are {', '.join(sorted(_known()))}"
