"""Seeds of what both add-on proxies forward by."""

from __future__ import annotations

__all__ = ["seeds"]

_HEADER = (
    b"Host: addon.example\nAuthorization: Bearer abc.def.ghi\nX_Authenticated_User: root\nX.Remote.User: root\n"
    b"Connection: keep-alive, X-Authenticated-User\nX-Forwarded-For: 9.9.9.9\nCookie: a=b\nUpgrade: h2c\n"
    b"Sec-WebSocket-Protocol: base64url.bearer.authorization.k8s.io.YQ, v4.channel.k8s.io"
)


def seeds() -> dict[str, list[bytes]]:
    """Return seeds by target."""
    return {
        "addon-target": [
            b"/a%20b/c;v=1?x=%2F..&y",
            b"/caf%C3%A9/@me/(1)",
            b"/pub/%2e%2e/admin",
            b"/pub/a%2f..%2fadmin",
            b"/a/..;x/b",
            b"/a%252e%252e/b",
            b"/a#b",
            b"/a\\b",
            b"//a",
            b"http://h/a",
            b"/a?%61ccess_token=x",
        ],
        "addon-request-headers": [_HEADER, b"Host: a/b?c", b"Host: [::1]:80\nX-A: caf\xe9", b"X-A: b"],
        "addon-response-headers": [
            b"Set-Cookie: a=1\nSet-Cookie: b=2\nX-Authenticated-User: root\nConnection: X-Hop\nX-Hop: 1\nX-Odd: caf\xe9"
        ],
        "addon-credentials": [
            b"Authorization: Bearer abc.def.ghi",
            b"Authorization: bearer  YQ==",
            b"Authorization: Basic YTpi",
            b"Authorization: Bearer a\nauthorization: Bearer b",
        ],
        "addon-labels": [b'app="dashboard"\npod-template-hash="5d4"\n', b'a="\\n\\"b"', b"a=b"],
    }
