"""Which scalars without quotes a reader of strict YAML takes."""

from __future__ import annotations

from enum import Enum

__all__ = ["Scalars"]


class Scalars(Enum):
    """What a scalar without quotes may be, besides text, ``true``, ``false`` and null."""

    TEXT = "text"
    """Nothing else: a kubeconfig for discovery has no number."""
    INTEGERS = "integers"
    """Plain decimal integers of 64 bits."""
    KUBERNETES = "kubernetes"
    """Integers and plain decimal fractions; dates and times stay text, as sigs.k8s.io/yaml has them."""
