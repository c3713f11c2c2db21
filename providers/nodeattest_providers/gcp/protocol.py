"""The names of the ``gcp`` provider's evidence; its schemas and formulas are those of ``tpm`` without certificates.

The binding, which MAC and quote cover, holds the signer's name, so that no proof for one provider is one for the other.
Source: docs/wire-format.md, "gcp/v1".
"""

from __future__ import annotations

from typing import Final

from nodeattest_providers.names import ProviderName

__all__ = ["PROVIDER", "VERSION"]

PROVIDER: Final = ProviderName("gcp")
VERSION: Final = 1
"""As of the ``tpm`` provider's evidence."""
