"""Detached JSON Web Signatures over cluster-info, under a bootstrap token's secret (HS256).

Promises: the very bytes that kube-controller-manager writes and kubeadm compares: kubeadm computes the whole text anew
and compares strings, so a header with ``typ`` or another order of its members is refused though its MAC is sound.
That is why no JOSE library stands here: they add ``typ``, or refuse a key of 16 bytes.
Source: k8s.io/cluster-bootstrap token/jws/jws.go; RFC 7515 appendix F.
"""

from __future__ import annotations

import hashlib
import hmac

from nodeattest_discovery.token import BootstrapToken
from nodeattest_parsing.strict_base64 import encode_base64url


def sign(content: bytes, token: BootstrapToken) -> str:
    """Sign content; returns ``<header>..<signature>``."""
    header = encode_base64url(b'{"alg":"HS256","kid":"%b"}' % token.id.encode())
    signed = f"{header}.{encode_base64url(content)}".encode()
    key = token.secret.encode("utf-8", "surrogateescape")
    return f"{header}..{encode_base64url(hmac.digest(key, signed, hashlib.sha256))}"


def is_valid(detached: str, content: bytes, token: BootstrapToken) -> bool:
    """Return whether a signature is the one that this token makes, in constant time; any text has an answer."""
    return detached.isascii() and hmac.compare_digest(detached, sign(content, token))
