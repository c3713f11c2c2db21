"""Whom the gateway believes about who asks: nobody but kube-apiserver's front proxy."""

from __future__ import annotations

import json
import ssl
from typing import Final

import pytest
from front_kit import Authority
from hypothesis import given
from hypothesis import strategies as st

from nodeattest_identity.addon.gateway.errors import StatusError
from nodeattest_identity.addon.gateway.front_proxy import FrontProxyTrust, TrustError, UserInfo, identify, read_trust
from nodeattest_parsing.values import JsonObject

FRONT: Final = Authority("front-proxy-ca")
USERS: Final = Authority("kubernetes")
TRUST: Final = FrontProxyTrust(authorities=(b"der",), allowed_names=frozenset({"front-proxy-client"}), has_uid=False)


def config_map(**changes: str | None) -> JsonObject:
    """Make the ConfigMap of a kubeadm cluster; ``changes`` replace entries, with ``_`` for ``-``, or leave them out."""
    data: dict[str, str | None] = {
        "client-ca-file": USERS.pem.decode(),
        "requestheader-client-ca-file": FRONT.pem.decode(),
        "requestheader-allowed-names": '["front-proxy-client"]',
        "requestheader-username-headers": '["X-Remote-User"]',
        "requestheader-group-headers": '["X-Remote-Group"]',
        "requestheader-extra-headers-prefix": '["X-Remote-Extra-"]',
    }
    data.update({name.replace("_", "-"): value for name, value in changes.items()})
    return {"data": {name: value for name, value in data.items() if value is not None}}


def of_version(number: int) -> str:
    """Write a certificate that calls itself of another version of X.509 (3 is written as 2)."""
    der = ssl.PEM_cert_to_DER_cert(FRONT.pem.decode())
    return ssl.DER_cert_to_PEM_cert(der.replace(b"\xa0\x03\x02\x01\x02", b"\xa0\x03\x02\x01" + bytes([number]), 1))


@pytest.mark.parametrize(
    ("changes", "remedy"),
    [
        ({"requestheader_client_ca_file": None}, "--requestheader-client-ca-file"),
        ({"requestheader_client_ca_file": "no certificate"}, "PEM"),
        ({"requestheader_client_ca_file": of_version(34)}, "PEM"),
        ({"requestheader_allowed_names": "front-proxy-client"}, "JSON list"),
        ({"requestheader_allowed_names": '[""]'}, "JSON list"),
        ({"requestheader_allowed_names": "[[[["}, "JSON list"),
        ({"requestheader_allowed_names": "[]"}, "could claim to be anybody"),
        ({"requestheader_allowed_names": None, "client_ca_file": None}, "could claim to be anybody"),
        ({"requestheader_username_headers": '["X-Forwarded-User"]'}, "x-remote-user"),
        ({"requestheader_username_headers": None}, "x-remote-user"),
        ({"requestheader_group_headers": "[]"}, "x-remote-group"),
        ({"requestheader_extra_headers_prefix": '["X-Other-"]'}, "x-remote-extra-"),
    ],
)
def test_a_config_map_that_names_no_front_proxy_is_refused(changes: dict[str, str | None], remedy: str) -> None:
    with pytest.raises(TrustError, match=remedy):
        read_trust(config_map(**changes))
    with pytest.raises(TrustError, match="got none"):
        read_trust(None)


def test_a_user_is_read_as_kube_apiserver_wrote_him() -> None:
    headers = [
        ("Authorization", "Bearer secret"),
        ("x-remote-user", "system:serviceaccount:a:b"),
        ("X-Remote-Group", "system:authenticated"),
        ("X-REMOTE-GROUP", "Team A"),
        ("X-Remote-Extra-Acme.com%2fScopes", "one"),
        ("X-Remote-Extra-acme.com%2Fscopes", "two"),
    ]
    assert identify(TRUST, "front-proxy-client", headers) == UserInfo(
        user="system:serviceaccount:a:b",
        groups=("system:authenticated", "Team A"),
        extra=(("acme.com/scopes", ("one", "two")),),
    )


def test_headers_that_this_kube_apiserver_does_not_write_are_not_read() -> None:
    """Its users' own pass: an X-Remote-Uid before 1.33, and any name that the ConfigMap lists besides."""
    claimed = [("X-Remote-User", "jane"), ("X-Remote-Uid", "7"), ("X-Forwarded-User", "root")]
    besides = {"requestheader_username_headers": '["X-Remote-User", "X-Forwarded-User"]'}
    silent = read_trust(config_map(**besides))
    writes = read_trust(config_map(**besides, requestheader_uid_headers='["X-Remote-Uid"]'))
    assert identify(silent, "front-proxy-client", claimed) == UserInfo(user="jane")
    assert identify(writes, "front-proxy-client", claimed) == UserInfo(user="jane", uid="7")
    with pytest.raises(StatusError):
        identify(writes, "front-proxy-client", [*claimed, ("X-Remote-UID", "another")])


@given(
    st.lists(st.tuples(st.sampled_from(["X-Remote-User", "X-Remote-Group", "X-Remote-Extra-a", "Cookie"]), st.text())),
    st.sampled_from([None, "front-proxy-client", "other"]),
)
def test_any_headers_give_an_identity_that_can_be_written_or_a_refusal(
    headers: list[tuple[str, str]], common_name: str | None
) -> None:
    try:
        who = identify(TRUST, common_name, headers)
    except StatusError:
        return
    assert common_name == "front-proxy-client"
    assert [value for name, value in headers if name == "X-Remote-User"] == [who.user]
    json.dumps([who.user, *who.groups]).encode()
