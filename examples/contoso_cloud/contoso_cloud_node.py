"""The node's part: a ticket from the instance's metadata service, whose URL is the one setting, ``metadata``."""

from __future__ import annotations

import urllib.request
from collections.abc import Mapping

from nodeattest_providers.canonical_json import Fields, b64encode
from nodeattest_providers.errors import Reason, Unavailable
from nodeattest_providers.identifiers import ProviderName
from nodeattest_providers.node_interface import Attestor, Binding, Evidence, JsonValue, PublishedChallenge


class ContosoCloudAttestor(Attestor):
    """Asks for a ticket for what the request binds."""

    provider, versions = ProviderName("contosocloud"), (1,)

    def __init__(self, settings: Mapping[str, JsonValue]) -> None:
        self._url = Fields.of(dict(settings), "contosocloud settings", ("metadata",)).text("metadata", 1, 200)

    def attest(self, binding: Binding, challenge: PublishedChallenge | None = None) -> Evidence:
        """Get a ticket."""
        try:
            with urllib.request.urlopen(f"{self._url}/ticket/{binding.digest.hex()}", timeout=5) as answer:  # noqa: S310 - the operator's own URL
                ticket = bytes.fromhex(answer.read(64).decode())
        except (OSError, ValueError) as error:
            remedy = "see that the instance's metadata service answers"
            raise Unavailable(Reason.PLATFORM_UNAVAILABLE, "no ticket", remedy=remedy) from error
        return Evidence(self.provider, 1, {"ticket": b64encode(ticket)})
