"""The name of the ``gcp`` provider's evidence; the rest is as in ``tpm``, without certificates.

The binding, which MAC and quote cover, holds the signer's name, so that no proof for one provider is one for the other.
Source: docs/wire-format.md, "gcp/v1".
"""

from __future__ import annotations

from typing import Final

from nodeattest_providers.names import ProviderName

PROVIDER: Final = ProviderName("gcp")
