"""The ConfigMap ``kube-public/cluster-info`` as an API server sends it.

Promises: bytes give what was published or ``Denied``; JSON with repeated members is refused, since two readers would
read it differently. Leaves to others: who signed it (``jws``), what the kubeconfig says (``clusterinfo``).
Source: Kubernetes API, core/v1 ConfigMap.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Final, cast

from nodeattest_discovery.clusterinfo import KUBECONFIG_KEY, NAME, NAMESPACE, SIGNATURE_PREFIX
from nodeattest_providers.errors import Denied, Reason

__all__ = ["Published", "parse"]

_MAX_SIZE: Final = 1 << 20
"""Bytes; etcd's limit of an object."""


@dataclass(frozen=True, slots=True)
class Published:
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


def parse(body: bytes) -> Published:
    """Read the ConfigMap; raises ``Denied``.

    1. JSON of a bounded size, one object, no member twice. 2. It says that it is this ConfigMap. 3. Its data is text.
    """
    # 1
    document = _document(body)
    # 2
    said = document.get("metadata")
    metadata = cast("dict[str, object]", said) if isinstance(said, dict) else {}
    identity = (document.get("apiVersion"), document.get("kind"), metadata.get("namespace"), metadata.get("name"))
    if identity != ("v1", "ConfigMap", NAMESPACE, NAME):
        raise _malformed(f"the ConfigMap {NAMESPACE}/{NAME}", "another object, or none")
    # 3
    data = document.get("data")
    entries = cast("dict[str, object]", data) if isinstance(data, dict) else {}
    texts = {key: value for key, value in entries.items() if isinstance(value, str) and _is_text(key + value)}
    if len(texts) != len(entries) or not isinstance(data, dict | None):
        raise _malformed("data to be text", "something else")
    signatures = {
        key.removeprefix(SIGNATURE_PREFIX): value for key, value in texts.items() if key.startswith(SIGNATURE_PREFIX)
    }
    return Published(texts.get(KUBECONFIG_KEY), signatures)


def _document(body: bytes) -> dict[str, object]:
    if len(body) > _MAX_SIZE:
        raise _malformed(f"at most {_MAX_SIZE} bytes", str(len(body)))
    try:
        value: object = json.loads(
            body.decode(),  # never bytes: json.loads would guess UTF-16 and UTF-32
            object_pairs_hook=_object,
            parse_constant=_refuse,
            parse_int=len,  # no number is read here, and long ones take long
            parse_float=len,
        )
    except _RepeatedError as error:
        raise _malformed("a JSON object", str(error)) from None
    except (ValueError, RecursionError):
        raise _malformed("a JSON object", "no JSON") from None
    if not isinstance(value, dict):
        raise _malformed("a JSON object", "another JSON value")
    return cast("dict[str, object]", value)


class _RepeatedError(ValueError):
    """A member stands twice."""


def _object(pairs: list[tuple[str, object]]) -> dict[str, object]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise _RepeatedError("a repeated member")
    return found


def _is_text(text: str) -> bool:
    """Tell whether it can be written as UTF-8; JSON can spell halves of surrogate pairs, which nobody can sign."""
    return not any("\ud800" <= character <= "\udfff" for character in text)


def _refuse(text: str) -> object:
    raise ValueError(text)


def _malformed(expected: str, got: str) -> Denied:
    return Denied(
        Reason.CLUSTER_INFO_MALFORMED,
        expected=expected,
        got=got,
        remedy="see that the address is an API server's, and what it serves: nodeattest cluster-info show",
    )
