"""What discovery finds."""

from __future__ import annotations

from dataclasses import dataclass, field

from nodeattest_discovery.clusterinfo import ClusterInfo

__all__ = ["Found"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """A cluster, and why it may be believed to be the right one."""

    kubeconfig: str = field(repr=False)
    """The exact text of cluster-info, or of the file."""
    info: ClusterInfo
    """The same, read: where the API server is."""
    ca_pem: bytes = field(repr=False)
    """The CAs that may be trusted from now on."""
    asked: str
    """URL of the server that answered: ``https://host:port``."""
    notes: tuple[str, ...] = ()
    """What a person must read: what was not checked, what is not as asked."""
