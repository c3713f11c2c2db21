"""Detached JSON Web Signatures of cluster-info with a bootstrap token's secret (HS256).

The bytes are those of kube-controller-manager, because kubeadm computes the signature and compares strings: it refuses
a header with ``typ`` or in another order. JOSE libraries add ``typ`` or refuse keys of 16 bytes.
Source: k8s.io/cluster-bootstrap token/jws/jws.go; RFC 7515 appendix F.
"""

from __future__ import annotations

import hashlib
import hmac

from nodeattest_discovery.token import BootstrapToken
from nodeattest_parsing.strict_base64 import encode_base64url


def sign(content: bytes, token: BootstrapToken) -> str:
    """Sign content. Return ``<header>..<signature>``."""
    header = encode_base64url(b'{"alg":"HS256","kid":"%b"}' % token.id.encode())
    signed = f"{header}.{encode_base64url(content)}".encode()
    key = token.secret.encode("utf-8", "surrogateescape")
    return f"{header}..{encode_base64url(hmac.digest(key, signed, hashlib.sha256))}"


def is_valid(detached: str, content: bytes, token: BootstrapToken) -> bool:
    """Return whether this token made the signature, in constant time."""
    return detached.isascii() and hmac.compare_digest(detached, sign(content, token))
