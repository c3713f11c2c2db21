"""The ConfigMap ``kube-public/cluster-info`` as an API server sends it.

Promises: bytes give what was published or ``Denied``; JSON with repeated members is refused, since two readers would
read it differently. Leaves to others: who signed it (``jws``), what the kubeconfig says (``clusterinfo``).
Source: Kubernetes API, core/v1 ConfigMap.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from nodeattest_discovery.clusterinfo import KUBECONFIG_KEY, NAME, NAMESPACE, SIGNATURE_PREFIX
from nodeattest_parsing import strict_json
from nodeattest_parsing.values import JsonObject, ParseError
from nodeattest_providers.errors import Denied, Reason

_MAX_SIZE: Final = 1 << 20
"""Bytes; etcd's limit of an object."""

_MAX_VALUES: Final = 50_000
"""A signature for each token that signs is one of them."""


@dataclass(frozen=True, slots=True)
class PublishedClusterInfo:
    """What a server says that its cluster published."""

    kubeconfig: str | None = field(repr=False)
    signatures: dict[str, str] = field(repr=False)
    """Detached signatures by the id of the token that made them."""

    def text(self) -> str:
        """Return the kubeconfig, which must be there; raises ``Denied``."""
        if self.kubeconfig:
            return self.kubeconfig
        raise Denied(
            Reason.CLUSTER_INFO_MALFORMED,
            expected=f"the key {KUBECONFIG_KEY} in cluster-info",
            got="none",
            remedy="publish it: nodeattest cluster-info publish",
        )


def parse(body: bytes) -> PublishedClusterInfo:
    """Read the ConfigMap; raises ``Denied``.

    1. JSON of a bounded size, one object, no member twice. 2. It says that it is this ConfigMap. 3. Its data is text.
    """
    # 1
    document = _document(body)
    # 2
    said = document.get("metadata")
    metadata = said if isinstance(said, dict) else {}
    identity = (document.get("apiVersion"), document.get("kind"), metadata.get("namespace"), metadata.get("name"))
    if identity != ("v1", "ConfigMap", NAMESPACE, NAME):
        raise _malformed(f"the ConfigMap {NAMESPACE}/{NAME}", "another object, or none")
    # 3
    data = document.get("data")
    entries = data if isinstance(data, dict) else {}
    texts = {key: value for key, value in entries.items() if isinstance(value, str)}
    if len(texts) != len(entries) or not isinstance(data, dict | None):
        raise _malformed("data to be text", "something else")
    signatures = {
        key.removeprefix(SIGNATURE_PREFIX): value for key, value in texts.items() if key.startswith(SIGNATURE_PREFIX)
    }
    return PublishedClusterInfo(texts.get(KUBECONFIG_KEY), signatures)


def _document(body: bytes) -> JsonObject:
    try:
        return strict_json.parse_object(body, max_size=_MAX_SIZE, max_values=_MAX_VALUES, floats=True)
    except ParseError as error:
        raise _malformed("a JSON object of UTF-8", error.found) from None


def _malformed(expected: str, got: str) -> Denied:
    return Denied(
        Reason.CLUSTER_INFO_MALFORMED,
        expected=expected,
        got=got,
        remedy="see that the address is an API server's, and what it serves: nodeattest cluster-info show",
    )
