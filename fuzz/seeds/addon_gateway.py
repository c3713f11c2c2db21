"""Seeds of the add-on gateway's targets."""

from __future__ import annotations

import json

from fuzz.addon_gateway import NAME
from fuzz.keys import AUTHORITY_KEY, NODE_KEY, authority, kubelets_certificate, pem_of
from nodeattest_identity.addon.gateway.api_group import ROOT
from nodeattest_identity.addon.gateway.keyset import KeySet, ScheduledKey, encode_keyset
from nodeattest_identity.tokens.signing import signing_key

__all__ = ["seeds"]


def seeds() -> dict[str, list[bytes]]:
    """Return seeds by target."""
    return {
        "gateway-path": [*_paths()],
        "gateway-headers": [*_headers()],
        "gateway-trust": [*_config_maps()],
        "gateway-keys": [*_rings()],
    }


def _paths() -> list[bytes]:
    services = f"{ROOT}/namespaces/kube-system/services"
    return [
        f"{services}/dashboard/proxy/?add-auth=true".encode(),
        f"{services}/https:dashboard:443/proxy/a%20b/c?x=1&add-auth=true&y=%2F".encode(),
        f"{services}/dashboard:web/proxy".encode(),
        f"{services}/dashboard/proxy/../../other/proxy/?add-auth=true".encode(),
        f"{services}/dashboard/proxy/?add%2Dauth=false".encode(),
        f"{services}/dash%2fboard/proxy/".encode(),
        f"{ROOT}//namespaces/a/services/b/proxy/".encode(),
    ]


def _headers() -> list[bytes]:
    user = b"X-Remote-User: jane@example.com"
    extra = b"X-Remote-Extra-Acme.com%2fScopes: one"
    name = NAME.encode()
    return [
        b"\n".join((name, user, b"X-Remote-Group: devs", b"X-Remote-Group: system:authenticated")),
        b"\n".join((name, user, b"x-remote-uid: 7", extra, b"Cookie: a=b")),
        b"\n".join((name, user, b"X-REMOTE-USER: root")),
        b"\n".join((name, b"X_Remote_User: root", b"X-Remote-Group: system:masters")),
        b"\n".join((b"admin", user)),
        b"\n".join((b"", user)),
    ]


def _config_maps() -> list[bytes]:
    own, other = pem_of(authority()).decode(), pem_of(kubelets_certificate()).decode()
    data = {
        "client-ca-file": other,
        "requestheader-client-ca-file": own,
        "requestheader-allowed-names": f'["{NAME}"]',
        "requestheader-username-headers": '["X-Remote-User"]',
        "requestheader-group-headers": '["X-Remote-Group"]',
        "requestheader-extra-headers-prefix": '["X-Remote-Extra-"]',
        "requestheader-uid-headers": '["X-Remote-Uid"]',
    }
    shared = {**data, "client-ca-file": own, "requestheader-allowed-names": "[]"}
    return [json.dumps({"data": each}).encode() for each in (data, shared, {})]


def _rings() -> list[bytes]:
    first, second = (
        ScheduledKey(signing_key(key), start) for key, start in ((NODE_KEY, 0), (AUTHORITY_KEY, 2_592_000))
    )
    return [encode_keyset(KeySet((first,))), encode_keyset(KeySet((first, second))), b'{"keys":[]}']
