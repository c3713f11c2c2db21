"""Targets of discovery: tokens' Secrets, cluster-info, JWTs and reviews of the front, and the node's part.

Laws that need a second opinion ask one: PyYAML's own constructor.
"""

from __future__ import annotations

import json
from typing import Final, cast

import yaml

from fuzz.target import NOW, refused, require, target, text_of
from nodeattest_discovery import clusterinfo, jwt, pins, secret, token
from nodeattest_discovery.front import authenticate, bearer_token
from nodeattest_discovery.node import by_file, client
from nodeattest_discovery.node.by_file import DiscoveryFile, FileReference
from nodeattest_discovery.node.client import parse_server
from nodeattest_discovery.secret import SECRET_TYPE, Expiry, TokenSecret, Usage, encode, secret_name
from nodeattest_discovery.token import BootstrapToken, is_token_id
from nodeattest_kube.answers import parse_json
from nodeattest_parsing.strict_base64 import encode_base64url
from nodeattest_parsing.strict_yaml import Scalars, parse_object
from nodeattest_parsing.values import IntegerJsonObject
from nodeattest_providers.errors import Denied, Reason
from nodeattest_providers.pem import decode

_SIGNER: Final = BootstrapToken("abcdef", "0123456789abcdef")
_MOMENT: Final = int(NOW.timestamp())
_AUDIENCE: Final = "cluster-1"
_STORED: Final = {
    "metadata": {"name": secret_name(_SIGNER.id)},
    "type": SECRET_TYPE,
    "data": encode(TokenSecret(token=_SIGNER)),
}
_FRONT: Final = Reason.DISCOVERY_REQUEST_REFUSED


@target("discovery-secret", lambda data: parse_json(data, max_values=1000), refusals=(ValueError,))
def _secret(body: IntegerJsonObject, _data: bytes) -> bool:
    """Evaluate an object; ``Denied`` is no answer here."""
    found, signs = secret.stored_token(body), secret.signing_token(body, NOW)
    groups = secret.authenticating_groups(body, NOW)
    usages = {usage for usage in Usage if secret.text_values(body, (f"usage-bootstrap-{usage}",)) == ("true",)}
    past = secret.expiry(body, NOW)[0] is Expiry.PAST
    require(signs is None or (signs == found and bool(signs.secret) and not past), "an empty secret signs nothing")
    require(signs is None or Usage.SIGNING in usages, "a token signs if it may")
    require(groups is None or (found is not None and not past), "what has ended authenticates nobody")
    require(groups is None or Usage.AUTHENTICATION in usages, "a token authenticates if it may")
    for group in groups or ():
        require(group == token.BOOTSTRAP_GROUP or secret.check_group(group) == group, "bootstrappers, and no others")
    return signs is not None or groups is not None


class _Dumper(yaml.SafeDumper):
    """A writer without aliases, and with quotes."""

    def ignore_aliases(self, data: object) -> bool:
        """Write each value out."""
        del data
        return True


_Dumper.add_representer(str, lambda _, text: yaml.ScalarNode("tag:yaml.org,2002:str", text, style='"'))


def _parse_yaml(text: str) -> IntegerJsonObject:
    return parse_object(text, scalars=Scalars.TEXT, max_depth=16, max_values=4096)


@target("discovery-yaml", lambda data: _parse_yaml(text_of(data)), refusals=(ValueError,), max_len=1024)
def _yaml(read: IntegerJsonObject, data: bytes) -> None:
    require(read == yaml.safe_load(text_of(data)), "PyYAML reads the same")
    again = yaml.dump(json.loads(json.dumps(read)), Dumper=_Dumper, allow_unicode=True)
    require(_parse_yaml(again) == read, "what was read can be written and read again")


@target(
    "discovery-cluster-info",
    lambda data: clusterinfo.parse(text_of(data)),
    Reason.CLUSTER_INFO_MALFORMED,
    max_len=8192,
)
def _cluster_info(info: clusterinfo.ClusterInfo, _data: bytes) -> None:
    require(clusterinfo.check_server(info.server).startswith("https://"), "HTTPS only")
    require(bool(info.ca_certificates), "a CA at least")
    blocks = decode(info.ca_pem, ["CERTIFICATE"] * len(info.ca_certificates))
    require(clusterinfo.parse_ca_bundle(info.ca_pem) == info.ca_certificates, "a bundle of CAs is one")
    again = clusterinfo.parse(clusterinfo.build(info.server, info.ca_pem))
    require((again.server, again.ca_pem) == (info.server, info.ca_pem), "what was read can be written and read again")
    first = pins.pin_of(info.ca_certificates[0])
    kept = pins.select_pinned(info.ca_certificates, [first])
    require({pins.pin_of(each) for each in kept} == {first} and len(kept) <= len(blocks), "what is kept is pinned")


def _verified(unverified: jwt.UnverifiedJWT) -> bool:
    macs: list[bytes] = []

    def mac(key: bytes, message: bytes) -> bytes:
        macs.append(jwt.hs256(key, message))
        return macs[-1]

    try:
        jwt.verify(unverified, _SIGNER, now=_MOMENT, audience=_AUDIENCE, mac=mac)
    except Denied as denied:
        require(len(macs) == 1, "one MAC, whatever is wrong")
        refused(denied, _FRONT)
        return False
    require(macs == [unverified.signature], "one MAC, and it is the signature")
    require(0 < unverified.expires - _MOMENT <= jwt.LONGEST, "good now, and for two minutes at most")
    require(unverified.audience in {None, _AUDIENCE}, "no other cluster's")
    return True


@target("discovery-jwt", jwt.parse, _FRONT)
def _jwt(unverified: jwt.UnverifiedJWT, data: bytes) -> bool:
    require(is_token_id(unverified.token_id), "a kid is the id of a token")
    spelt = unverified.signed + b"." + encode_base64url(unverified.signature).encode()
    require(spelt == data, "a JWT has one spelling")
    return _verified(unverified)


def _signed(data: bytes) -> jwt.UnverifiedJWT:
    """Sign what stands before and behind the first line end as header and claims: a token holder may write anything."""
    header, _, claims = data.partition(b"\n")
    signed = f"{encode_base64url(header)}.{encode_base64url(claims)}"
    mac = encode_base64url(jwt.hs256(_SIGNER.secret.encode(), signed.encode()))
    return jwt.parse(f"{signed}.{mac}".encode())


@target("discovery-jwt-signed", _signed, _FRONT)
def _jwt_signed(unverified: jwt.UnverifiedJWT, data: bytes) -> bool:
    header, _, claims = data.partition(b"\n")
    if not _verified(unverified):
        return False
    members = json.loads(header)
    require(members == {"alg": "HS256", "kid": _SIGNER.id, "typ": "JWT"}, "no other header says yes")
    require(set(json.loads(claims)) <= {"sub", "exp", "iat", "aud"}, "no other claim says yes")
    return True


def _authorization(data: bytes) -> BootstrapToken:
    """Read a header as aiohttp hands it over."""
    unverified = jwt.parse(bearer_token(text_of(data)))
    return authenticate(unverified, lambda token_id: _STORED if token_id == _SIGNER.id else None, now=_MOMENT)


target("discovery-authorization", _authorization, _FRONT)(
    lambda who, _: require(who == _SIGNER, "nobody is anybody else")
)


@target("discovery-configmap", client.parse_config_map, Reason.CLUSTER_INFO_MALFORMED, max_len=8192)
def _configmap(published: client.PublishedClusterInfo, data: bytes) -> bool:
    document = cast("dict[str, dict[str, str] | None]", json.loads(data))
    told = document.get("data") or {}
    require(told.get("kubeconfig") == published.kubeconfig, "any reader of JSON reads the same")
    require((published.kubeconfig or "").encode().decode() == (published.kubeconfig or ""), "what can be signed")
    for token_id, signature in published.signatures.items():
        require(told[f"jws-kubeconfig-{token_id}"] == signature, "a signature stands under its token's id")
    return published.kubeconfig is not None


@target("discovery-file", text_of, max_len=8192)
def _file(text: str, _data: bytes) -> bool:
    strict, loose = _filed(text, trusted=False), _filed(text, trusted=True)
    require(strict is None or strict == loose, "what is refused less is read alike")
    if strict is not None:
        require(strict.token is None and not strict.runs_authenticator, "no credential and no command from elsewhere")
        require(not isinstance(strict.ca, FileReference), "no file of this machine is read for a stranger")
    if loose is None:
        return False
    parse_server(loose.server)
    bearer = loose.token if isinstance(loose.token, str) else ""
    require(bearer.isascii() and bearer.isprintable(), "fit for a header")
    require("hunter2" not in repr(loose), "a credential does not show")
    return True


def _filed(text: str, *, trusted: bool) -> DiscoveryFile | None:
    try:
        return by_file.parse_discovery_file(text, local=trusted, allow_credentials=trusted)
    except Denied as denied:
        require("hunter2" not in str(denied), "no refusal shows a credential")
        refused(denied, Reason.CLUSTER_INFO_MALFORMED, Reason.DISCOVERY_FILE_NOT_ALLOWED)
        return None
